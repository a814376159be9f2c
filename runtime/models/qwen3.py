"""Qwen3 (dense): each query and key head is normed before the rotation; the head size is its own number.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM
from .names import ATTENTION, ENDS, HEAD_NORMS, MLP, PRE_NORMS

__all__ = ["Qwen3", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Qwen3."""
    bias = bool(hf.attention_bias)
    name = "Qwen3ForCausalLM"
    return dense_config(hf, name, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=layer_windows(hf, name))


class Qwen3(CausalLM):
    """A Qwen3 decoder (Yang et al., 2025)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {**ENDS, **PRE_NORMS, **ATTENTION, **HEAD_NORMS, **MLP}
