"""Qwen3-MoE: a Qwen3 with many narrow experts, of which a token passes some; some layers may have none.

In: its `config.json` and checkpoint names. Out: an `ExpertConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import dense_config, layer_windows
from .experts import ExpertConfig, ExpertLM
from .qwen3 import Qwen3

__all__ = ["Qwen3Moe", "read_config"]


def read_config(hf: Any) -> ExpertConfig:
    """From the transformers config of a Qwen3-MoE."""
    name, bias = "Qwen3MoeForCausalLM", bool(hf.attention_bias)
    return dense_config(
        hf,
        name,
        make=ExpertConfig,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        windows=layer_windows(hf, name),
        experts=hf.num_experts,
        chosen=hf.num_experts_per_tok,
        expert_width=hf.moe_intermediate_size,
        normed_shares=bool(hf.norm_topk_prob),
        dense_layers=frozenset(
            index
            for index in range(hf.num_hidden_layers)
            if index in hf.mlp_only_layers or (index + 1) % hf.decoder_sparse_step
        ),
    )


class Qwen3Moe(ExpertLM):
    """A Qwen3-MoE decoder (Yang et al., 2025)."""

    WEIGHTS: ClassVar[Mapping[str, str]] = Qwen3.WEIGHTS
    ROUTER: ClassVar[str] = "model.layers.{}.mlp.gate.weight"
    EXPERTS: ClassVar[Mapping[str, str]] = {
        "model.layers.{}.mlp.experts.{}.gate_proj.weight": "gate",
        "model.layers.{}.mlp.experts.{}.up_proj.weight": "up",
        "model.layers.{}.mlp.experts.{}.down_proj.weight": "down",
    }
