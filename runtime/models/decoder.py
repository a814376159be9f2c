"""A decoder with pre-norm blocks: what the families share. `CausalLM` is what the runner runs.

In: a `Step` on the device. Out: normed hidden states of the rows asked for, and logits of hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn import functional

from ...kernels import find, has_triton
from ...kernels.launch import MOST_ROWS, MOST_STREAMED
from .config import ModelConfig
from .layers import Layer, Step, empty_layer, merged_parts
from .rope import RopeConfig, rope_tables

__all__ = ["CausalLM", "LayerKind"]

Tensor = torch.Tensor
Angles = list[tuple[Tensor, Tensor]]


class LayerKind(NamedTuple):
    """What layers may differ in.

    Attributes:
        table: index into `CausalLM.tables`.
        attend: window, softcap and scale of `Attention.attend`.
    """

    table: int
    attend: dict[str, Any]


class CausalLM:
    """Tensors and forward pass of a decoder. A family is a subclass with its own `WEIGHTS`.

    What a family computes differently it overrides: `_empty_layer`, `_embed`, `_qkv`, `_out`, `_mlp`, `_layers`,
    `_fused_mlp`, `logits`, `loaded`. If `_fused_layers` is not the same as what it computes, it says so by `FUSES`.

    Attributes:
        WEIGHTS: checkpoint name → where it goes: "embed", or "layers.{}.qkv[q]", a part of a merged matrix. `{}`
            stands for the layer. A place that the config does not have (a bias, a tied head) drops its line.
        IGNORED: endings of checkpoint names that carry nothing (tables that are computed).
        FUSES: whether steps of few tokens may go through `_fused_layers`.
        config, device, dtype: as loaded.
        context_length: most positions of a sequence.
        fused_rows: most tokens of a step whose layers run as few launches; 0 for none, and then linear layers of more
            rows are the library's, too.
    """

    WEIGHTS: ClassVar[Mapping[str, str]] = {}
    IGNORED: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)
    FUSES: ClassVar[bool] = True

    def __init__(
        self, config: ModelConfig, *, device: torch.device, dtype: torch.dtype, context_length: int | None = None
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.context_length = context_length or config.context_length
        self.embed = torch.empty(config.vocab_size, config.hidden, dtype=dtype, device=device)
        self.layers = [self._empty_layer(index) for index in range(config.layers)]
        self.norm = torch.empty(config.hidden, dtype=dtype, device=device)
        self.lm_head = None if config.tied else torch.empty_like(self.embed)
        ropes = list(dict.fromkeys(config.ropes or (config.rope,)))
        self.tables = [rope_tables(rope, config.head_dim, self.context_length, device, dtype) for rope in ropes]
        self.kinds = [self._kind(index, ropes) for index in range(config.layers)]
        self._rms_norm = find("rms_norm", device)
        self._add_rms_norm = find("add_rms_norm", device)
        self._rotary_store = find("rotary_store", device)
        self._silu_mul = find("silu_mul", device)
        self._fused_linear = find("fused_linear", device)
        self._streamed_linear = find("streamed_linear", device)
        self.fused_rows = MOST_ROWS if device.type == "cuda" and has_triton() else 0

    def forward(self, step: Step) -> Tensor:
        """Runs a step; stores its keys and values.

        Returns:
            [R, hidden], normed and ready for `logits`.
        """
        angles = self._angles(step)
        residual = self._embed(step.token_ids)
        few = self.FUSES and len(step.token_ids) <= self.fused_rows
        normed: Tensor = (self._fused_layers if few else self._layers)(residual, step, angles)
        return normed

    def _layers(self, residual: Tensor, step: Step, angles: Angles) -> Tensor:
        eps = self.config.norm_eps
        x: Tensor = self._rms_norm(residual, self.layers[0].input_norm, eps)
        for index, layer in enumerate(self.layers):
            out = self._attention(self._qkv(x, layer), index, layer, step, angles)
            last = index + 1 == len(self.layers)
            if last and step.logit_rows is not None:  # of the others nothing is wanted any more
                out, residual = out.index_select(0, step.logit_rows), residual.index_select(0, step.logit_rows)
            x = self._add_rms_norm(self._out(out, layer), residual, layer.post_norm, eps)
            x = self._mlp(x, layer)
            x = self._add_rms_norm(x, residual, self.norm if last else self.layers[index + 1].input_norm, eps)
        return x

    def _fused_layers(self, residual: Tensor, step: Step, angles: Angles) -> Tensor:
        """The same for few tokens, where reading the weights is all that should take time."""
        eps, linear = self.config.norm_eps, self._fused_linear
        for index, layer in enumerate(self.layers):
            qkv = linear(residual, layer.qkv, layer.qkv_bias, layer.input_norm, eps)
            out = self._attention(qkv, index, layer, step, angles)
            linear(out, layer.o, layer.o_bias, residual=residual)
            self._fused_mlp(residual, layer)
        if step.logit_rows is not None:
            residual = residual.index_select(0, step.logit_rows)
        normed: Tensor = self._rms_norm(residual, self.norm, eps)
        return normed

    def _fused_mlp(self, residual: Tensor, layer: Layer) -> None:
        """Adds the feed-forward part of a layer to the residual, which it norms itself."""
        eps, linear = self.config.norm_eps, self._fused_linear
        hidden = linear(residual, layer.gate_up, layer.gate_up_bias, layer.post_norm, eps, gated=True)
        linear(hidden, layer.down, layer.down_bias, residual=residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, vocab_size] in the model's dtype, of hidden states [R, hidden]."""
        head = self.embed if self.lm_head is None else self.lm_head
        if len(hidden) > self.fused_rows:
            return functional.linear(hidden, head)
        found: Tensor = self._fused_linear(hidden, head)
        return found

    def places(self) -> dict[str, Tensor]:
        """Checkpoint name → the tensor, or the part of one, that it fills."""
        found = (self._place(name, place) for name, place in self._lines())
        return {name: tensor for name, tensor in found if tensor is not None}

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint tensor carries nothing for this model."""
        return name.endswith(self.IGNORED) or (self.config.tied and name == "lm_head.weight")

    def loaded(self) -> None:
        """Called once all places are filled: what a family stores otherwise than its checkpoint is changed here."""

    def _empty_layer(self, index: int) -> Layer:
        return empty_layer(self.config, self.device, self.dtype)

    def _kind(self, index: int, ropes: list[RopeConfig]) -> LayerKind:
        config = self.config
        window = config.windows[index] if config.windows else 0
        return LayerKind(
            ropes.index(config.ropes[index]) if config.ropes else 0,
            {
                # A window that no sequence outgrows is none: attention without one is faster.
                "window": window if window < self.context_length else 0,
                "softcap": config.score_softcap,
                "scale": config.score_scale,
            },
        )

    def _angles(self, step: Step) -> Angles:
        """Cosines and sines [T, head_dim] of the step's positions, of every table."""
        return [(cos.index_select(0, step.positions), sin.index_select(0, step.positions)) for cos, sin in self.tables]

    def _embed(self, token_ids: Tensor) -> Tensor:
        """[T, hidden], a new tensor."""
        return functional.embedding(token_ids, self.embed)

    def _qkv(self, x: Tensor, layer: Layer) -> Tensor:
        """[T, (heads + 2·kv_heads)·head_dim], of normed hidden states; with FUSES perhaps in parts."""
        return self._linear(x, layer.qkv, layer.qkv_bias, in_parts=self.FUSES)

    def _out(self, x: Tensor, layer: Layer) -> Tensor:
        """[T, hidden], what the attention of a layer adds, of what its heads gathered; with FUSES perhaps in parts."""
        return self._linear(x, layer.o, layer.o_bias, in_parts=self.FUSES)

    def _mlp(self, x: Tensor, layer: Layer) -> Tensor:
        """[T, hidden], what the feed-forward part of a layer adds; with FUSES perhaps in parts."""
        gated = self._linear(x, layer.gate_up, layer.gate_up_bias, gated=True)
        return self._linear(gated, layer.down, layer.down_bias, in_parts=self.FUSES)

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, gated: bool = False, in_parts: bool = False
    ) -> Tensor:
        """See `reference.streamed_linear`."""
        if 0 < self.fused_rows < len(x) <= MOST_STREAMED:
            found: Tensor = self._streamed_linear(x, weight, bias, gated, in_parts)
            return found
        out = functional.linear(x, weight, bias)
        return self._silu_mul(out) if gated else out

    def _attention(self, qkv: Tensor, index: int, layer: Layer, step: Step, angles: Angles) -> Tensor:
        """[T, heads·head_dim], what the heads of a layer gather; stores its keys and values."""
        keys, values, kind = step.kv.keys[index], step.kv.values[index], self.kinds[index]
        q = self._rotary_store(
            qkv,
            *angles[kind.table],
            step.slots,
            keys,
            values,
            self.config.heads,
            layer.q_norm,
            layer.k_norm,
            self.config.norm_eps,
        )
        out = step.attention.attend(keys, values, q, step.meta, **kind.attend)
        return out.reshape(qkv.shape[-2], -1)

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
