"""Mistral (7B, Nemo, Small): a Llama whose layers may see a window of positions only; heads have a size of their own.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM

__all__ = ["Mistral", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Mistral."""
    name = "MistralForCausalLM"
    return dense_config(hf, name, windows=layer_windows(hf, name))


class Mistral(CausalLM):
    """A Mistral decoder (Jiang et al., 2023)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens.weight": "embed",
        "model.layers.{}.input_layernorm.weight": "layers.{}.input_norm",
        "model.layers.{}.self_attn.q_proj.weight": "layers.{}.qkv[q]",
        "model.layers.{}.self_attn.k_proj.weight": "layers.{}.qkv[k]",
        "model.layers.{}.self_attn.v_proj.weight": "layers.{}.qkv[v]",
        "model.layers.{}.self_attn.o_proj.weight": "layers.{}.o",
        "model.layers.{}.post_attention_layernorm.weight": "layers.{}.post_norm",
        "model.layers.{}.mlp.gate_proj.weight": "layers.{}.gate_up[gate]",
        "model.layers.{}.mlp.up_proj.weight": "layers.{}.gate_up[up]",
        "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
        "model.norm.weight": "norm",
        "lm_head.weight": "lm_head",
    }
