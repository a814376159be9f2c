"""Gemma 2: norms before and behind each block, capped scores and logits, every other layer with a window.

In: its `config.json` and checkpoint names. Out: a `GemmaConfig`, a `CausalLM`. A norm's weight w stands for 1 + w; the
sum is kept in float32, since a half-precision one would round w away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch.nn import functional

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM
from .layers import Layer, empty_layer
from .names import ATTENTION, ENDS, MLP

__all__ = ["Gemma2", "GemmaConfig", "read_config"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class GemmaConfig(ModelConfig):
    """The shape of a Gemma.

    Attributes:
        logit_softcap: bound of the logits, 0 for none.
    """

    logit_softcap: float = 0.0


def read_config(hf: Any) -> GemmaConfig:
    """From the transformers config of a Gemma 2."""
    return gemma_config(
        hf,
        "Gemma2ForCausalLM",
        windows=layer_windows(hf, "Gemma2ForCausalLM"),
        score_softcap=float(hf.attn_logit_softcapping or 0.0),
    )


def gemma_config(hf: Any, architecture: str, **features: Any) -> GemmaConfig:
    """What Gemma 2 and 3 share."""
    bias = bool(hf.attention_bias)
    return dense_config(
        hf,
        architecture,
        make=GemmaConfig,
        activation="gelu_pytorch_tanh",
        qkv_bias=bias,
        o_bias=bias,
        score_scale=float(hf.query_pre_attn_scalar) ** -0.5,
        logit_softcap=float(hf.final_logit_softcapping or 0.0),
        **features,
    )


@dataclass(frozen=True)
class GemmaLayer(Layer):
    """A layer with norms behind its blocks, too.

    Attributes:
        attention_norm, mlp_norm: float32 [hidden], of what attention and feed-forward give.
    """

    attention_norm: Tensor
    mlp_norm: Tensor


class Gemma2(CausalLM):
    """A Gemma 2 decoder (Gemma Team, 2024)."""

    config: GemmaConfig
    FUSES: ClassVar[bool] = False

    WEIGHTS: ClassVar[Mapping[str, str]] = {
        **ENDS,
        **ATTENTION,
        **MLP,
        "model.layers.{}.input_layernorm.weight": "layers.{}.input_norm",
        "model.layers.{}.post_attention_layernorm.weight": "layers.{}.attention_norm",
        "model.layers.{}.pre_feedforward_layernorm.weight": "layers.{}.post_norm",
        "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.mlp_norm",
    }

    def __init__(self, config: GemmaConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.norm = self.norm.to(self._norm_dtype)
        # Rounded to the model's dtype, as in training.
        self._embed_scale = torch.tensor(config.hidden**0.5).to(self.dtype).item()

    @property
    def _norm_dtype(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)

    def loaded(self) -> None:
        """Adds the 1 that the weights of norms leave out."""
        for tensor in self.norms():
            tensor.add_(1)

    def norms(self) -> list[Tensor]:
        """The weights of all norms."""
        found: list[Tensor | None] = [self.norm]
        for layer in cast("list[GemmaLayer]", self.layers):
            found += [layer.input_norm, layer.post_norm, layer.attention_norm, layer.mlp_norm]
            found += [layer.q_norm, layer.k_norm]
        return [norm for norm in found if norm is not None]

    def _empty_layer(self, index: int) -> GemmaLayer:
        plain = empty_layer(self.config, self.device, self.dtype)

        def wide(norm: Tensor) -> Tensor:
            return torch.empty_like(norm, dtype=self._norm_dtype)

        plain = replace(
            plain,
            input_norm=wide(plain.input_norm),
            post_norm=wide(plain.post_norm),
            q_norm=None if plain.q_norm is None else wide(plain.q_norm),
            k_norm=None if plain.k_norm is None else wide(plain.k_norm),
        )
        return GemmaLayer(**vars(plain), attention_norm=wide(plain.post_norm), mlp_norm=wide(plain.post_norm))

    def _embed(self, token_ids: Tensor) -> Tensor:
        return super()._embed(token_ids).mul_(self._embed_scale)

    def _out(self, x: Tensor, layer: Layer) -> Tensor:
        norm = cast(GemmaLayer, layer).attention_norm
        normed: Tensor = self._rms_norm(super()._out(x, layer), norm, self.config.norm_eps)
        return normed

    def _mlp(self, x: Tensor, layer: Layer) -> Tensor:
        gate, up = functional.linear(x, layer.gate_up).chunk(2, -1)
        gated = functional.gelu(gate, approximate="tanh").mul_(up)
        norm = cast(GemmaLayer, layer).mlp_norm
        normed: Tensor = self._rms_norm(functional.linear(gated, layer.down), norm, self.config.norm_eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        logits, cap = super().logits(hidden), self.config.logit_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits
