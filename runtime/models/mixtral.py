"""Mixtral: a Mistral whose every layer has eight experts, of which a token passes two.

In: its `config.json` and checkpoint names. Out: an `ExpertConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import dense_config, layer_windows
from .experts import ExpertConfig, ExpertLM
from .names import ATTENTION, ENDS, PRE_NORMS

__all__ = ["Mixtral", "read_config"]


def read_config(hf: Any) -> ExpertConfig:
    """From the transformers config of a Mixtral."""
    name = "MixtralForCausalLM"
    return dense_config(
        hf,
        name,
        make=ExpertConfig,
        windows=layer_windows(hf, name),
        experts=hf.num_local_experts,
        chosen=hf.num_experts_per_tok,
        expert_width=hf.intermediate_size,
    )


class Mixtral(ExpertLM):
    """A Mixtral decoder (Jiang et al., 2024)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {**ENDS, **PRE_NORMS, **ATTENTION}
    ROUTER: ClassVar[str] = "model.layers.{}.block_sparse_moe.gate.weight"
    EXPERTS: ClassVar[Mapping[str, str]] = {
        "model.layers.{}.block_sparse_moe.experts.{}.w1.weight": "gate",
        "model.layers.{}.block_sparse_moe.experts.{}.w3.weight": "up",
        "model.layers.{}.block_sparse_moe.experts.{}.w2.weight": "down",
    }
