"""Published `config.json` files, as they are spelt on the hub, read to what they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from radicel.runtime.models import ModelConfig, model_config

PHI4_MINI = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 200064,
}
GEMMA3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "num_hidden_layers": 27},
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
QWEN25 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SMOLLM3 = {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536,
    "mlp_bias": False,
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 128256,
}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def config(raw: dict[str, Any]) -> ModelConfig:
        (tmp_path / "config.json").write_text(json.dumps(raw))
        return model_config(tmp_path)

    return config


def test_phi4_mini(read: Any) -> None:
    config = read(PHI4_MINI)
    rope = config.rope
    assert (config.head_dim, rope.kind, rope.dim, rope.original_context) == (128, "longrope", 96, 4096)
    assert (len(rope.short_factors), rope.long_factors[0], rope.factor) == (48, 1.5, 32.0)
    assert rope.amplitude == pytest.approx(1.1902380714238083)  # √(1 + ln 32 / ln 4096)
    assert (config.windows[0], config.context_length, config.tied, config.dtype) == (262144, 131072, True, "bfloat16")


def test_gemma3_1b(read: Any) -> None:
    config = read(GEMMA3_1B)
    assert [i for i, window in enumerate(config.windows) if not window] == [5, 11, 17, 23]
    assert {rope.theta for rope, window in zip(config.ropes, config.windows) if window} == {10000.0}
    assert {rope.theta for rope, window in zip(config.ropes, config.windows) if not window} == {1000000.0}
    assert (config.score_scale, config.score_softcap, config.logit_softcap, config.tied) == (1 / 16, 0.0, 0.0, True)
    assert (set(config.windows), config.heads, config.kv_heads, config.qk_norm) == ({0, 512}, 4, 1, True)


def test_gemma3_4b_says_little_and_means_its_defaults(read: Any) -> None:
    config = read(GEMMA3_4B)
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert (config.layers, config.context_length, config.tied, config.dtype) == (34, 131072, True, "bfloat16")
    whole = config.ropes[5]
    assert (config.windows[5], whole.kind, whole.factor, whole.theta) == (0, "linear", 8.0, 1000000.0)
    assert (config.windows[0], config.ropes[0].kind, config.ropes[0].theta) == (1024, "default", 10000.0)


def test_mistral(read: Any) -> None:
    config = read(MISTRAL)
    assert (config.windows, config.head_dim, config.rope.theta) == ((4096,) * 32, 128, 10000.0)
    later = read({**MISTRAL, "sliding_window": None, "rope_theta": 1e6, "head_dim": 160})
    assert (later.windows, later.head_dim, later.rope.theta) == ((0,) * 32, 160, 1000000.0)


def test_qwen25_with_yarn_and_a_window_that_is_not_used(read: Any) -> None:
    config = read(QWEN25)
    assert (config.windows, config.qkv_bias, config.o_bias) == ((0,) * 28, True, False)
    assert (config.rope.kind, config.rope.factor, config.context_length) == ("yarn", 4.0, 131072)


def test_qwen3_moe(read: Any) -> None:
    config = read(QWEN3_MOE)
    assert (config.experts, config.chosen, config.expert_width, config.normed_shares) == (128, 8, 768, True)
    assert (config.dense_layers, config.qk_norm, config.windows) == (frozenset(), True, (0,) * 48)
    mixed = read({**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert mixed.dense_layers == frozenset({1, *range(0, 48, 2)})


def test_smollm3(read: Any) -> None:
    config = read(SMOLLM3)
    assert [rope.kind for rope in config.ropes[:5]] == ["default", "default", "default", "none", "default"]
    assert (config.rope.theta, config.tied, config.windows) == (5000000.0, True, (0,) * 36)
