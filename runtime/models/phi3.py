"""Phi-3, Phi-3.5 and Phi-4 (mini and 14B): merged projections in the checkpoint, a partial rotation, long ropes.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`. Where a part of each head is turned
only, the rows of queries and keys are put in another order once, so that the rotation finds its pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM
from .names import ENDS, PRE_NORMS
from .rope import halves_in_the_middle

__all__ = ["Phi3", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a Phi-3."""
    name = "Phi3ForCausalLM"
    rope = dict(hf.rope_parameters)
    # Phi-3 keeps the original context beside the rope, where its published configs write it.
    rope.setdefault("original_max_position_embeddings", hf.original_max_position_embeddings)
    hf.rope_parameters = rope
    return dense_config(hf, name, partial_rope=True, windows=layer_windows(hf, name))


class Phi3(CausalLM):
    """A Phi-3 decoder (Abdin et al., 2024)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {
        **ENDS,
        **PRE_NORMS,
        "model.layers.{}.self_attn.qkv_proj.weight": "layers.{}.qkv",
        "model.layers.{}.self_attn.o_proj.weight": "layers.{}.o",
        "model.layers.{}.mlp.gate_up_proj.weight": "layers.{}.gate_up",
        "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
    }

    def loaded(self) -> None:
        """Puts the turned pairs of each query and key head half a head apart."""
        config = self.config
        if not config.rope.dim:
            return
        order = torch.tensor(halves_in_the_middle(config.head_dim, config.rope.dim), device=self.device)
        turned = (config.heads + config.kv_heads) * config.head_dim
        for layer in self.layers:
            heads = layer.qkv[:turned].view(-1, config.head_dim, config.hidden)
            heads.copy_(heads[:, order].clone())
