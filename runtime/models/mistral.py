"""Mistral (7B, Nemo, Small): a Llama whose layers may see a window of positions only; heads have a size of their own.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM
from .names import ATTENTION, ENDS, MLP, PRE_NORMS

__all__ = ["Mistral", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Mistral."""
    name = "MistralForCausalLM"
    return dense_config(hf, name, windows=layer_windows(hf, name))


class Mistral(CausalLM):
    """A Mistral decoder (Jiang et al., 2023)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {**ENDS, **PRE_NORMS, **ATTENTION, **MLP}
