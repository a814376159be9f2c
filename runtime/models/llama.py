"""Llama and what has its shape (Llama 2 and 3, SmolLM2, many others): optional biases, tied or untied head.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config
from .decoder import CausalLM

__all__ = ["Llama", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Llama."""
    bias = bool(hf.attention_bias)
    return dense_config(hf, "LlamaForCausalLM", qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf.mlp_bias))


class Llama(CausalLM):
    """A Llama decoder (Touvron et al., 2023)."""

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
        "model.layers.{}.post_attention_layernorm.weight": "layers.{}.post_norm",
        "model.layers.{}.mlp.gate_proj.weight": "layers.{}.gate_up[gate]",
        "model.layers.{}.mlp.up_proj.weight": "layers.{}.gate_up[up]",
        "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
        "model.layers.{}.mlp.gate_proj.bias": "layers.{}.gate_up_bias[gate]",
        "model.layers.{}.mlp.up_proj.bias": "layers.{}.gate_up_bias[up]",
        "model.layers.{}.mlp.down_proj.bias": "layers.{}.down_bias",
        "model.norm.weight": "norm",
        "lm_head.weight": "lm_head",
    }
