"""Llama and what has its shape (Llama 2 and 3, SmolLM2, many others): optional biases, tied or untied head.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config
from .decoder import CausalLM
from .names import ATTENTION, ENDS, MLP, PRE_NORMS

__all__ = ["Llama", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Llama."""
    bias = bool(hf.attention_bias)
    return dense_config(hf, "LlamaForCausalLM", qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf.mlp_bias))


class Llama(CausalLM):
    """A Llama decoder (Touvron et al., 2023)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {**ENDS, **PRE_NORMS, **ATTENTION, **MLP}
