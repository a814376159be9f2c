"""Tiny checkpoints of every architecture: random weights, made by transformers from the architecture's own config.

In: a name of `FAMILIES`, a folder. Out: a checkpoint that both transformers and `load_model` read. What makes a family
differ from the next is as its published configs have it: ratios of heads, biases, ties, kinds of rope, windows, caps,
multipliers, experts. Sizes, windows and original contexts are small, so that a text of 150 tokens outgrows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = ["FAMILIES", "Family", "make_checkpoint"]

SIZES: dict[str, Any] = {
    "vocab_size": 288,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
WINDOW = 24


@dataclass(frozen=True)
class Family:
    """One published shape in small.

    Attributes:
        architecture: its name in `config.json`.
        config: the transformers class.
        like: whose config it follows.
        fields: what that config says.
        context: most positions that we load it with; None for all.
    """

    architecture: str
    config: str
    like: str
    fields: dict[str, Any] = field(default_factory=dict)
    context: int | None = None


def _heads(heads: int, kv_heads: int, head_dim: int, hidden: int | None = None, inter: int = 80) -> dict[str, Any]:
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return {**sizes, "hidden_size": hidden or heads * head_dim, "intermediate_size": inter}


def _theta(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _long_rope(pairs: int, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    factors = {
        "short_factor": [1.0 + i / 20 for i in range(pairs)],
        "long_factor": [1.0 + i * i / 3 for i in range(pairs)],
    }
    return {
        "rope_parameters": {"rope_type": "longrope", "rope_theta": theta, **factors, **more},
        "original_max_position_embeddings": 64,
    }


GEMMA: dict[str, Any] = {"sliding_window": WINDOW, "tie_word_embeddings": True, "num_hidden_layers": 4}
GEMMA3_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
}
VISION: dict[str, Any] = {
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "boi_token_index": 285,
    "eoi_token_index": 286,
    "image_token_index": 287,
}
"""What a Gemma that sees images has beside its text part; no test shows it one."""
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 1 / 16,
    "tie_word_embeddings": True,
}

FAMILIES: dict[str, Family] = {
    "llama-2": Family("LlamaForCausalLM", "LlamaConfig", "Llama-2-7B", _heads(4, 4, 16) | _theta(1e4)),
    "llama-3": Family("LlamaForCausalLM", "LlamaConfig", "Llama-3-8B", _heads(8, 2, 8) | _theta(5e5)),
    "llama-3.1": Family(
        "LlamaForCausalLM",
        "LlamaConfig",
        "Llama-3.1-8B",
        _heads(8, 2, 8) | {"rope_parameters": {**LLAMA3_ROPE, "factor": 8.0}},
    ),
    "llama-3.2": Family(
        "LlamaForCausalLM",
        "LlamaConfig",
        "Llama-3.2-1B",
        _heads(8, 2, 8) | {"rope_parameters": {**LLAMA3_ROPE, "factor": 32.0}, "tie_word_embeddings": True},
    ),
    "smollm2": Family(
        "LlamaForCausalLM", "LlamaConfig", "SmolLM2-135M", _heads(9, 3, 8) | _theta(1e5) | {"tie_word_embeddings": True}
    ),
    "mistral": Family(
        "MistralForCausalLM",
        "MistralConfig",
        "Mistral-7B-v0.1",
        _heads(8, 2, 8) | _theta(1e4) | {"sliding_window": WINDOW},
    ),
    "mistral-nemo": Family(
        "MistralForCausalLM",
        "MistralConfig",
        "Mistral-Nemo-12B",
        _heads(8, 2, 8, hidden=80) | _theta(1e6) | {"sliding_window": None},
    ),
    "qwen2.5-small": Family(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        "Qwen2.5-0.5B",
        _heads(14, 2, 8) | _theta(1e6) | {"tie_word_embeddings": True},
    ),
    "qwen2.5": Family("Qwen2ForCausalLM", "Qwen2Config", "Qwen2.5-7B", _heads(7, 1, 8) | _theta(1e6)),
    "qwen2.5-yarn": Family(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        "Qwen2.5-7B with YaRN",
        _heads(7, 1, 8)
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3-small": Family(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        "Qwen3-0.6B",
        _heads(4, 2, 16, hidden=32) | _theta(1e6) | {"tie_word_embeddings": True},
    ),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", "Qwen3-8B", _heads(8, 2, 8) | _theta(1e6)),
    "gemma-2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        "Gemma-2-2B",
        GEMMA | _heads(4, 2, 16, hidden=36) | {"query_pre_attn_scalar": 16},
    ),
    "gemma-2-27b": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        "Gemma-2-27B",
        GEMMA | _heads(4, 2, 16, hidden=72) | {"query_pre_attn_scalar": 18},
    ),
    "gemma-3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        "Gemma-3-1B",
        GEMMA
        | _heads(4, 1, 16, hidden=72)
        | {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "rope_parameters": GEMMA3_ROPES},
    ),
    "gemma-3-images": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        "Gemma-3-4B, text",
        GEMMA
        | _heads(8, 4, 16, hidden=80)
        | {
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 7,
            "rope_parameters": {
                **GEMMA3_ROPES,
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
    ),
    "phi-3": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        "Phi-3-mini-4k",
        _heads(4, 4, 16) | _theta(1e4) | {"sliding_window": WINDOW},
    ),
    "phi-3-long": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        "Phi-3-mini-128k",
        _heads(4, 4, 16) | _long_rope(8) | {"sliding_window": 400},
    ),
    "phi-4": Family("Phi3ForCausalLM", "Phi3Config", "Phi-4", _heads(8, 2, 16) | _theta(250000.0)),
    "phi-4-mini": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        "Phi-4-mini",
        _heads(6, 2, 16)
        | _long_rope(6, partial_rotary_factor=0.75)
        | {"tie_word_embeddings": True, "partial_rotary_factor": 0.75, "sliding_window": 400},
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        "SmolLM3-3B",
        _heads(8, 2, 8) | _theta(5e6) | {"tie_word_embeddings": True, "num_hidden_layers": 5},
    ),
    "olmo-2": Family("Olmo2ForCausalLM", "Olmo2Config", "OLMo-2-7B", _heads(4, 4, 16) | _theta(5e5)),
    "olmo-2-32b": Family("Olmo2ForCausalLM", "Olmo2Config", "OLMo-2-32B", _heads(10, 2, 8) | _theta(5e5)),
    "granite-3": Family(
        "GraniteForCausalLM",
        "GraniteConfig",
        "Granite-3.1-2B",
        GRANITE | _heads(8, 2, 16) | _theta(5e6) | {"logits_scaling": 8.0},
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        "MixtralConfig",
        "Mixtral-8x7B",
        _heads(8, 2, 8) | _theta(1e6) | {"sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen3-moe": Family(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        "Qwen3-30B-A3B",
        _heads(8, 1, 8, hidden=48)
        | _theta(1e6)
        | {"num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
    "qwen3-moe-mixed": Family(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        "Qwen3-MoE with dense layers",
        _heads(8, 2, 8, hidden=48)
        | _theta(1e6)
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
        },
    ),
}


def make_checkpoint(name: str, folder: Path, seed: int = 0, **overrides: Any) -> Any:
    """Writes the checkpoint of a family into `folder` and returns its transformers model, float32.

    Biases, norms and routers are random, too: at their usual first values (0 and 1) a mistake would not show.
    """
    import transformers

    family = FAMILIES[name]
    fields = {**SIZES, **family.fields, **overrides}
    if family.config == "Gemma3Config":
        fields = {"text_config": fields, **VISION}
    config = getattr(transformers, family.config)(**fields)
    torch.manual_seed(seed)
    model = getattr(transformers, family.architecture)(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            elif "norm" in key:
                # Gemma's weights are distances from 1.
                low = -0.5 if "Gemma" in family.config else 0.5
                parameter.uniform_(low, low + 1)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model.save_pretrained(folder)
    return model.eval()
