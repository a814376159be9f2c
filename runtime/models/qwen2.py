"""Qwen2 and Qwen2.5: queries, keys and values have a bias, nothing else has one.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM
from .names import ATTENTION, ENDS, MLP, PRE_NORMS

__all__ = ["Qwen2", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Qwen2."""
    name = "Qwen2ForCausalLM"
    return dense_config(hf, name, qkv_bias=True, windows=layer_windows(hf, name))


class Qwen2(CausalLM):
    """A Qwen2 decoder (Yang et al., 2024)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {**ENDS, **PRE_NORMS, **ATTENTION, **MLP}
