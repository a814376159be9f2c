"""Qwen3 (dense): each query and key head is normed before the rotation; the head size is its own number.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM

__all__ = ["Qwen3", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Qwen3."""
    bias = bool(hf.attention_bias)
    name = "Qwen3ForCausalLM"
    return dense_config(hf, name, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=layer_windows(hf, name))


class Qwen3(CausalLM):
    """A Qwen3 decoder (Yang et al., 2025)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.weight": "embed",
        "model.layers.{}.input_layernorm.weight": "layers.{}.input_norm",
        "model.layers.{}.self_attn.q_proj.weight": "layers.{}.qkv[q]",
        "model.layers.{}.self_attn.k_proj.weight": "layers.{}.qkv[k]",
        "model.layers.{}.self_attn.v_proj.weight": "layers.{}.qkv[v]",
        "model.layers.{}.self_attn.o_proj.weight": "layers.{}.o",
        "model.layers.{}.self_attn.q_proj.bias": "layers.{}.qkv_bias[q]",
        "model.layers.{}.self_attn.k_proj.bias": "layers.{}.qkv_bias[k]",
        "model.layers.{}.self_attn.v_proj.bias": "layers.{}.qkv_bias[v]",
        "model.layers.{}.self_attn.o_proj.bias": "layers.{}.o_bias",
        "model.layers.{}.self_attn.q_norm.weight": "layers.{}.q_norm",
        "model.layers.{}.self_attn.k_norm.weight": "layers.{}.k_norm",
        "model.layers.{}.post_attention_layernorm.weight": "layers.{}.post_norm",
        "model.layers.{}.mlp.gate_proj.weight": "layers.{}.gate_up[gate]",
        "model.layers.{}.mlp.up_proj.weight": "layers.{}.gate_up[up]",
        "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
        "model.norm.weight": "norm",
        "lm_head.weight": "lm_head",
    }
