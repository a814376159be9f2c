"""Gemma 3 (text): a Gemma 2 with normed heads instead of capped scores, and a base of its own for windowed layers.

In: its `config.json` and checkpoint names. Out: a `GemmaConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import layer_windows
from .gemma2 import Gemma2, GemmaConfig, gemma_config
from .rope import read_rope

__all__ = ["Gemma3", "read_config"]


def read_config(hf: Any) -> GemmaConfig:
    """From the transformers config of a Gemma 3 of text."""
    name = "Gemma3ForCausalLM"
    sizes = {"context": hf.max_position_embeddings, "head_dim": hf.head_dim, "architecture": name}
    ropes = {kind: read_rope(hf.rope_parameters[kind], **sizes) for kind in set(hf.layer_types)}
    return gemma_config(
        hf,
        name,
        qk_norm=True,
        windows=layer_windows(hf, name),
        ropes=tuple(ropes[kind] for kind in hf.layer_types),
    )


class Gemma3(Gemma2):
    """A Gemma 3 decoder (Gemma Team, 2025)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {
        **Gemma2.WEIGHTS,
        "model.layers.{}.self_attn.q_norm.weight": "layers.{}.q_norm",
        "model.layers.{}.self_attn.k_norm.weight": "layers.{}.k_norm",
    }
