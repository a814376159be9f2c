"""Gemma 3 (text): a Gemma 2 with normed heads instead of capped scores, and a base of its own for windowed layers.

In: its `config.json` and checkpoint names. Out: a `GemmaConfig`, a `CausalLM`. Of a checkpoint that sees images, the
part that reads and writes text is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import layer_windows
from .gemma2 import Gemma2, GemmaConfig, gemma_config
from .names import HEAD_NORMS
from .rope import read_rope

__all__ = ["Gemma3", "Gemma3OfImages", "read_config", "read_config_of_images"]


def read_config(hf: Any, name: str = "Gemma3ForCausalLM") -> GemmaConfig:
    """From the transformers config of a Gemma 3 of text."""
    sizes = {"context": hf.max_position_embeddings, "head_dim": hf.head_dim, "architecture": name}
    ropes = {kind: read_rope(hf.rope_parameters[kind], **sizes) for kind in set(hf.layer_types)}
    return gemma_config(
        hf,
        name,
        qk_norm=True,
        windows=layer_windows(hf, name),
        ropes=tuple(ropes[kind] for kind in hf.layer_types),
    )


def read_config_of_images(hf: Any) -> GemmaConfig:
    """From the transformers config of a Gemma 3 that sees images, too."""
    text = hf.text_config
    text.dtype = text.dtype or hf.dtype
    return read_config(text, "Gemma3ForConditionalGeneration")


class Gemma3(Gemma2):
    """A Gemma 3 decoder (Gemma Team, 2025)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {**Gemma2.WEIGHTS, **HEAD_NORMS}


class Gemma3OfImages(Gemma3):
    """The text part of a Gemma 3 that sees images; its prompts are text."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {f"language_model.{name}": place for name, place in Gemma3.WEIGHTS.items()}

    def ignores(self, name: str) -> bool:
        """See `CausalLM.ignores`; the parts that see carry nothing for text."""
        return name.startswith(("vision_tower.", "multi_modal_projector.")) or super().ignores(
            name.removeprefix("language_model.")
        )
