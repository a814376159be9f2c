"""Mixtures of experts: what Mixtral and Qwen3-MoE share. The feed-forward part of a layer is some of its experts.

In: an `ExpertConfig`. Out: layers with a router and experts in the place of one gate, and the names of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch.nn import functional

from ...kernels import find
from .config import ModelConfig
from .decoder import CausalLM
from .layers import Layer, empty_layer

__all__ = ["ExpertConfig", "ExpertLM", "ExpertLayer"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class ExpertConfig(ModelConfig):
    """The shape of a mixture of experts.

    Attributes:
        experts: of each layer.
        chosen: how many of them each token passes.
        expert_width: intermediate size of an expert; `intermediate` is that of layers without.
        normed_shares: whether the shares of the chosen add up to 1.
        dense_layers: layers without experts.
    """

    experts: int = 0
    chosen: int = 0
    expert_width: int = 0
    normed_shares: bool = True
    dense_layers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ExpertLayer(Layer):
    """A layer whose `gate_up` and `down` are empty.

    Attributes:
        router: [experts, hidden].
        gate_ups: [experts, 2·expert_width, hidden].
        downs: [experts, hidden, expert_width].
    """

    router: Tensor
    gate_ups: Tensor
    downs: Tensor


class ExpertLM(CausalLM):
    """A decoder with experts. A family adds `ROUTER` and `EXPERTS`.

    Attributes:
        ROUTER: checkpoint name of a layer's router, `{}` for the layer.
        EXPERTS: checkpoint name of a part of an expert, `{}` for layer and expert → "gate", "up" or "down".
    """

    config: ExpertConfig
    ROUTER: ClassVar[str] = ""
    EXPERTS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: ExpertConfig, *, device: torch.device, **options: Any) -> None:
        super().__init__(config, device=device, **options)
        self._route = find("route_experts", device)
        self._experts = find("grouped_experts", device)

    def places(self) -> dict[str, Tensor]:
        """See `CausalLM.places`; those of experts are parts of three tensors a layer."""
        found = {name: tensor for name, tensor in super().places().items() if tensor.numel()}
        width = self.config.expert_width
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, ExpertLayer):
                continue
            found[self.ROUTER.format(index)] = layer.router
            for name, part in self.EXPERTS.items():
                for expert in range(self.config.experts):
                    rows = {
                        "gate": layer.gate_ups[expert, :width],
                        "up": layer.gate_ups[expert, width:],
                        "down": layer.downs[expert],
                    }
                    found[name.format(index, expert)] = rows[part]
        return found

    def _empty_layer(self, index: int) -> Layer:
        config = self.config
        if index in config.dense_layers:
            return empty_layer(config, self.device, self.dtype)

        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=self.dtype, device=self.device)

        return ExpertLayer(
            **vars(empty_layer(replace(config, intermediate=0), self.device, self.dtype)),
            router=new(config.experts, config.hidden),
            gate_ups=new(config.experts, 2 * config.expert_width, config.hidden),
            downs=new(config.experts, config.hidden, config.expert_width),
        )

    def _mlp(self, x: Tensor, layer: Layer) -> Tensor:
        if not isinstance(layer, ExpertLayer):
            return super()._mlp(x, layer)
        ids, shares = self._route(functional.linear(x, layer.router), self.config.chosen, self.config.normed_shares)
        return cast(Tensor, self._experts(x, layer.gate_ups, layer.downs, ids, shares))

    def _fused_mlp(self, residual: Tensor, layer: Layer) -> None:
        if not isinstance(layer, ExpertLayer):
            super()._fused_mlp(residual, layer)
            return
        config, x = self.config, residual
        norm: Tensor | None = layer.post_norm
        if len(residual) > 1:  # of one token, router and experts take the norm on the side
            x, norm = self._rms_norm(residual, layer.post_norm, config.norm_eps), None
        logits = self._fused_linear(x, layer.router, None, norm, config.norm_eps)
        ids, shares = self._route(logits, config.chosen, config.normed_shares)
        self._experts(x, layer.gate_ups, layer.downs, ids, shares, norm, config.norm_eps, residual)
