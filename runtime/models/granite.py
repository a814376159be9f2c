"""Granite 3: a Llama with four multipliers, of embeddings, attention scores, what each block adds, and logits.

In: its `config.json` and checkpoint names. Out: a `GraniteConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .config import ModelConfig, dense_config
from .decoder import CausalLM
from .layers import Layer
from .names import ATTENTION, ENDS, MLP, PRE_NORMS

__all__ = ["Granite", "GraniteConfig", "read_config"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class GraniteConfig(ModelConfig):
    """The shape of a Granite.

    Attributes:
        embed_scale: factor of the embeddings.
        block_scale: factor of what attention and feed-forward add.
        logit_divisor: of the logits.
    """

    embed_scale: float = 1.0
    block_scale: float = 1.0
    logit_divisor: float = 1.0


def read_config(hf: Any) -> GraniteConfig:
    """From the transformers config of a Granite."""
    bias = bool(hf.attention_bias)
    return dense_config(
        hf,
        "GraniteForCausalLM",
        make=GraniteConfig,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(hf.mlp_bias),
        score_scale=float(hf.attention_multiplier),
        embed_scale=float(hf.embedding_multiplier),
        block_scale=float(hf.residual_multiplier),
        logit_divisor=float(hf.logits_scaling),
    )


class Granite(CausalLM):
    """A Granite decoder (IBM, 2024); multipliers after Yang et al., 2022 ("Tensor Programs V")."""

    config: GraniteConfig
    FUSES: ClassVar[bool] = False

    WEIGHTS: ClassVar[Mapping[str, str]] = {**ENDS, **PRE_NORMS, **ATTENTION, **MLP}

    def _embed(self, token_ids: Tensor) -> Tensor:
        return super()._embed(token_ids).mul_(self.config.embed_scale)

    def _out(self, x: Tensor, layer: Layer) -> Tensor:
        return super()._out(x, layer).mul_(self.config.block_scale)

    def _mlp(self, x: Tensor, layer: Layer) -> Tensor:
        return super()._mlp(x, layer).mul_(self.config.block_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        return super().logits(hidden).div_(self.config.logit_divisor)
