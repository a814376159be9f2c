"""A dense decoder with pre-norm blocks: what Llama, Qwen2 and Qwen3 share. `CausalLM` is what the runner runs.

In: a `Step` on the device. Out: normed hidden states of the rows asked for, and logits of hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch.nn import functional

from ...kernels import find
from .config import ModelConfig
from .layers import Layer, Step, empty_layer, merged_parts, rope_tables

__all__ = ["CausalLM"]

Tensor = torch.Tensor


class CausalLM:
    """Tensors and forward pass of a decoder. A family is a subclass with its own `WEIGHTS`.

    Attributes:
        WEIGHTS: checkpoint name → where it goes: "embed", or "layers.{}.qkv[q]", a part of a merged matrix. `{}`
            stands for the layer. A place that the config does not have (a bias, a tied head) drops its line.
        IGNORED: endings of checkpoint names that carry nothing (tables that are computed).
        config, device, dtype: as loaded.
        context_length: most positions of a sequence.
    """

    WEIGHTS: ClassVar[Mapping[str, str]] = {}
    IGNORED: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)

    def __init__(
        self, config: ModelConfig, *, device: torch.device, dtype: torch.dtype, context_length: int | None = None
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.context_length = context_length or config.context_length
        self.embed = torch.empty(config.vocab_size, config.hidden, dtype=dtype, device=device)
        self.layers = [empty_layer(config, device, dtype) for _ in range(config.layers)]
        self.norm = torch.empty(config.hidden, dtype=dtype, device=device)
        self.lm_head = None if config.tied else torch.empty_like(self.embed)
        self.cos, self.sin = rope_tables(config, self.context_length, device, dtype)
        self._rms_norm = find("rms_norm", device)
        self._add_rms_norm = find("add_rms_norm", device)
        self._rotary_store = find("rotary_store", device)
        self._silu_mul = find("silu_mul", device)

    def forward(self, step: Step) -> Tensor:
        """Runs a step; stores its keys and values.

        Returns:
            [R, hidden], normed and ready for `logits`.
        """
        cos, sin = self.cos.index_select(0, step.positions), self.sin.index_select(0, step.positions)
        residual = functional.embedding(step.token_ids, self.embed)
        x = self._rms_norm(residual, self.layers[0].input_norm, self.config.norm_eps)
        for index, layer in enumerate(self.layers):
            x = self._attention(x, index, layer, step, cos, sin)
            x = self._add_rms_norm(x, residual, layer.post_norm, self.config.norm_eps)
            x = functional.linear(
                self._silu_mul(functional.linear(x, layer.gate_up, layer.gate_up_bias)), layer.down, layer.down_bias
            )
            if index + 1 < len(self.layers):
                x = self._add_rms_norm(x, residual, self.layers[index + 1].input_norm, self.config.norm_eps)
        if step.logit_rows is not None:
            x, residual = x.index_select(0, step.logit_rows), residual.index_select(0, step.logit_rows)
        normed: Tensor = self._add_rms_norm(x, residual, self.norm, self.config.norm_eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, vocab_size] in the model's dtype, of hidden states [R, hidden]."""
        return functional.linear(hidden, self.embed if self.lm_head is None else self.lm_head)

    def places(self) -> dict[str, Tensor]:
        """Checkpoint name → the tensor, or the part of one, that it fills."""
        found = (self._place(name, place) for name, place in self._lines())
        return {name: tensor for name, tensor in found if tensor is not None}

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint tensor carries nothing for this model."""
        return name.endswith(self.IGNORED) or (self.config.tied and name == "lm_head.weight")

    def _attention(self, x: Tensor, index: int, layer: Layer, step: Step, cos: Tensor, sin: Tensor) -> Tensor:
        keys, values = step.kv.keys[index], step.kv.values[index]
        q = self._rotary_store(
            functional.linear(x, layer.qkv, layer.qkv_bias),
            cos,
            sin,
            step.slots,
            keys,
            values,
            self.config.heads,
            layer.q_norm,
            layer.k_norm,
            self.config.norm_eps,
        )
        out = step.attention.attend(keys, values, q, step.meta)
        return functional.linear(out.reshape(x.shape[0], -1), layer.o, layer.o_bias)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """`WEIGHTS` with the layers written out."""
        for name, place in self.WEIGHTS.items():
            if "{}" not in name:
                yield name, place
                continue
            for index in range(self.config.layers):
                yield name.format(index), place.format(index)

    def _place(self, name: str, place: str) -> tuple[str, Tensor | None]:
        path, _, part = place.removesuffix("]").partition("[")
        *layer, attribute = path.split(".")
        owner = self.layers[int(layer[1])] if layer else self
        tensor: Tensor | None = getattr(owner, attribute)
        if tensor is None or not part:
            return name, tensor
        return name, tensor[merged_parts(self.config)[part]]
