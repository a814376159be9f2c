"""OLMo 2: norms behind attention and feed-forward instead of before them; queries and keys are normed whole.

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from .config import ModelConfig, dense_config
from .decoder import Angles, CausalLM
from .layers import Layer, Step, empty_layer
from .names import ATTENTION, ENDS, MLP

__all__ = ["Olmo2", "read_config"]

Tensor = torch.Tensor


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of an OLMo 2."""
    bias = bool(hf.attention_bias)
    return dense_config(hf, "Olmo2ForCausalLM", qkv_bias=bias, o_bias=bias)


@dataclass(frozen=True)
class OlmoLayer(Layer):
    """A layer whose `input_norm` norms what attention gives, and `post_norm` what the feed-forward part gives.

    Attributes:
        whole_q_norm: [heads·head_dim].
        whole_k_norm: [kv_heads·head_dim].
    """

    whole_q_norm: Tensor
    whole_k_norm: Tensor


class Olmo2(CausalLM):
    """An OLMo 2 decoder (OLMo Team, 2024)."""

    FUSES: ClassVar[bool] = False

    WEIGHTS: ClassVar[Mapping[str, str]] = {
        **ENDS,
        **ATTENTION,
        **MLP,
        "model.layers.{}.self_attn.q_norm.weight": "layers.{}.whole_q_norm",
        "model.layers.{}.self_attn.k_norm.weight": "layers.{}.whole_k_norm",
        "model.layers.{}.post_attention_layernorm.weight": "layers.{}.input_norm",
        "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.post_norm",
    }

    def _empty_layer(self, index: int) -> OlmoLayer:
        plain = empty_layer(self.config, self.device, self.dtype)
        rows = [heads * self.config.head_dim for heads in (self.config.heads, self.config.kv_heads)]
        q_norm, k_norm = (torch.empty(size, dtype=self.dtype, device=self.device) for size in rows)
        return OlmoLayer(**vars(plain), whole_q_norm=q_norm, whole_k_norm=k_norm)

    def _qkv(self, x: Tensor, layer: Layer) -> Tensor:
        layer = cast(OlmoLayer, layer)
        qkv = super()._qkv(x, layer)
        q_end = len(layer.whole_q_norm)
        k_end = q_end + len(layer.whole_k_norm)
        for part, weight in ((qkv[:, :q_end], layer.whole_q_norm), (qkv[:, q_end:k_end], layer.whole_k_norm)):
            part.copy_(self._rms_norm(part, weight, self.config.norm_eps))
        return qkv

    def _layers(self, residual: Tensor, step: Step, angles: Angles) -> Tensor:
        eps = self.config.norm_eps
        for index, layer in enumerate(self.layers):
            out = self._out(self._attention(self._qkv(residual, layer), index, layer, step, angles), layer)
            residual += self._rms_norm(out, layer.input_norm, eps)
            residual += self._rms_norm(self._mlp(residual, layer), layer.post_norm, eps)
        if step.logit_rows is not None:
            residual = residual.index_select(0, step.logit_rows)
        normed: Tensor = self._rms_norm(residual, self.norm, eps)
        return normed
