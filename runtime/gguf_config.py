"""The metadata of a `.gguf` file as a `config.json`.

In: metadata by key. Out: the fields of a transformers config; what a GGUF file does not say has that config's default,
or the value that the family's published models have. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UnsupportedModelError, WeightsError

__all__ = ["GGUF_ARCHITECTURES", "config_of"]

Meta = Mapping[str, Any]
Ropes = Mapping[str, Sequence[float]]


class _Of:
    """The keys of one architecture: `of("attention.head_count")`."""

    def __init__(self, path: Path, meta: Meta, ropes: Ropes) -> None:
        self.path = path
        self.meta = meta
        self.ropes = ropes
        self.name = meta["general.architecture"]

    def __call__(self, key: str, default: Any = None) -> Any:
        value = self.meta.get(f"{self.name}.{key}", default)
        return short(value) if isinstance(value, float) else value

    def need(self, key: str) -> Any:
        if (value := self(key)) is None:
            raise WeightsError(f"{self.path} does not say {self.name}.{key}, which a model needs")
        return value


def short(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def config_of(path: Path, meta: Meta, *, tied: bool, ropes: Ropes) -> dict[str, Any]:
    """The fields of `config.json`.

    Args:
        path: of the file, for messages.
        meta: its metadata.
        tied: whether the file has no head of its own.
        ropes: its tensors of rotary factors, by name.

    Raises:
        UnsupportedModelError: an architecture that we do not have.
        WeightsError: a size is missing.
    """
    name = meta.get("general.architecture")
    if name not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise UnsupportedModelError(f"{path}: architecture {name!r} is not supported in GGUF files; known: {known}")
    of = _Of(path, meta, ropes)
    return {**_shared(of, tied), **GGUF_ARCHITECTURES[name](of)}


def _shared(of: _Of, tied: bool) -> dict[str, Any]:
    heads, hidden = of.need("attention.head_count"), of.need("embedding_length")
    if isinstance(heads, list):
        raise UnsupportedModelError(f"{of.path}: another number of heads in each layer is not supported")
    config = {
        "vocab_size": len(of.meta["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": of.need("feed_forward_length"),
        "num_hidden_layers": of.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": of("attention.key_length", hidden // heads),
        "max_position_embeddings": of.need("context_length"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": _rope(of),
        "tie_word_embeddings": tied,
        "dtype": "float16" if of.meta.get("general.file_type") == 1 else "bfloat16",
    }
    for key, source in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        config[key] = of.meta.get(f"tokenizer.ggml.{source}_token_id")
    return config


def _rope(of: _Of) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": of("rope.freq_base", 10000.0)}
    kind, original = of("rope.scaling.type"), of("rope.scaling.original_context_length")
    if kind in ("linear", "yarn"):
        rope.update(rope_type=kind, factor=of.need("rope.scaling.factor"))
    if kind == "yarn" and original:
        rope["original_max_position_embeddings"] = original
    if factors := of.ropes.get("rope_freqs.weight"):
        # Llama 3.1: what its stretch divides each frequency by stands in a tensor.
        rope.update(rope_type="longrope", short_factor=list(factors), long_factor=list(factors), attention_factor=1.0)
        rope["original_max_position_embeddings"] = of.need("context_length")
    return rope


def _named(architecture: str, model_type: str) -> Callable[[_Of], dict[str, Any]]:
    return lambda of: {"architectures": [architecture], "model_type": model_type}


def _llama(of: _Of) -> dict[str, Any]:
    if not (experts := of("expert_count", 0)):
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": of.need("expert_used_count"),
        "sliding_window": None,
    }


def _qwen3_moe(of: _Of) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": of.need("expert_count"),
        "num_experts_per_tok": of.need("expert_used_count"),
        "moe_intermediate_size": of.need("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gemma2(of: _Of) -> dict[str, Any]:
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "sliding_window": of("attention.sliding_window", 4096),
        "attn_logit_softcapping": of("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": of("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scalar(of, layers_of_27b=46),
    }


def _gemma3(of: _Of) -> dict[str, Any]:
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window": of("attention.sliding_window", 1024),
        "query_pre_attn_scalar": _query_scalar(of, layers_of_27b=62),
        "rope_parameters": {
            "full_attention": {**_rope(of), "rope_theta": of("rope.freq_base", 1000000.0)},
            "sliding_attention": {"rope_type": "default", "rope_theta": of("rope.freq_base_swa", 10000.0)},
        },
    }


def _query_scalar(of: _Of, layers_of_27b: int) -> int:
    """The files do not say it: the head's size, but in the 27B models the hidden size by heads."""
    if of("block_count") == layers_of_27b:
        return int(of("embedding_length") // of("attention.head_count"))
    return int(of("attention.key_length", of("embedding_length") // of("attention.head_count")))


def _phi3(of: _Of) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    head_dim = of("attention.key_length", of("embedding_length") // of("attention.head_count"))
    rope = _rope(of)
    if (turned := of("rope.dimension_count", head_dim)) != head_dim:
        rope["partial_rotary_factor"] = config["partial_rotary_factor"] = turned / head_dim
    if long := of.ropes.get("rope_factors_long.weight"):
        original = of("rope.scaling.original_context_length", 4096)
        rope.update(rope_type="longrope", long_factor=list(long), original_max_position_embeddings=original)
        rope["short_factor"] = list(of.ropes["rope_factors_short.weight"])
        if amplitude := of("rope.scaling.attn_factor"):
            rope["attention_factor"] = amplitude
        config["original_max_position_embeddings"] = original
    return {**config, "rope_parameters": rope, "sliding_window": of("attention.sliding_window") or None}


def _granite(of: _Of) -> dict[str, Any]:
    return {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "embedding_multiplier": of("embedding_scale", 1.0),
        "residual_multiplier": of("residual_scale", 1.0),
        "attention_multiplier": of("attention.scale", 1.0),
        "logits_scaling": of("logit_scale", 1.0),
    }


GGUF_ARCHITECTURES: dict[str, Callable[[_Of], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _named("Qwen2ForCausalLM", "qwen2"),
    "qwen3": _named("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "smollm3": _named("SmolLM3ForCausalLM", "smollm3"),
    "olmo2": _named("Olmo2ForCausalLM", "olmo2"),
    "granite": _granite,
}
"""Name in the file → what its config says beyond the shared fields. Mistral's files call themselves llama."""
