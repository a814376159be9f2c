"""Weights of a few bits for a CPU: what is read per token is a quarter or half of bfloat16, and reading is the time.

In: a loaded bfloat16 `CausalLM`, "int4" or "int8". Out: nothing; its matrices are `PackedWeight`s, which
`functional.linear` takes in a tensor's place. Only weights are rounded, activations stay bfloat16.

"int4" is groups of 32 with a scale and an offset each, as in GGUF's Q4_1, whose values it keeps; the output head, which
suffers most, has "int8": one scale a row. The products are torch's own (`aten::_weight_int4pack_mm_for_cpu`,
`aten::_weight_int8pack_mm`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch.nn import functional

from ...errors import InvalidValueError
from .decoder import CausalLM

__all__ = ["PACKINGS", "PackedWeight", "pack"]

Tensor = torch.Tensor

GROUP = 32
"""Weights of a row that share a scale and an offset."""
FEW_ROWS = 16
"""From this many rows on, a product over the unpacked weights is as fast or faster: its time grows less."""
MATRICES = ("qkv", "o", "gate_up", "down")


class PackedWeight:
    """A matrix [out, in] that `functional.linear` multiplies by: packed for few rows, unpacked for many.

    Args:
        weight: bfloat16 [out, in].
        packed: the product of bfloat16 [rows, in] with the rounded weights.
        rounded: bfloat16 [out, in], what the packed form stands for.
    """

    def __init__(self, packed: Callable[[Tensor], Tensor], rounded: Tensor) -> None:
        self._packed = packed
        self._rounded = rounded

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        """As `functional.linear`."""
        if x.numel() >= FEW_ROWS * x.shape[-1]:
            return functional.linear(x, self._rounded, bias)
        out = self._packed(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
        return out if bias is None else out + bias

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What torch calls in place of a function that was given a packed weight."""
        if func is not functional.linear:
            return NotImplemented
        return args[1].linear(*args, **(kwargs or {}))


def pack(model: CausalLM, kind: str) -> None:
    """Replaces the matrices of a model by packed ones (changes it).

    Raises:
        InvalidValueError: an unknown packing, a device or dtype that has none.
    """
    if kind not in PACKINGS:
        raise InvalidValueError(f"weights={kind!r} is not known; one of: auto, {', '.join(PACKINGS)}")
    if model.device.type != "cpu" or model.dtype is not torch.bfloat16:
        raise InvalidValueError(
            f"weights={kind!r} is for device='cpu' and dtype='bfloat16', not {model.device.type} and {model.dtype}"
        )
    make = PACKINGS[kind]
    for index, layer in enumerate(model.layers):
        weights = {name: getattr(layer, name) for name in MATRICES}
        made = {name: _fitting(w, make) for name, w in weights.items() if isinstance(w, Tensor) and w.numel()}
        model.layers[index] = replace(layer, **cast("dict[str, Any]", made))
    head = model.embed if model.lm_head is None else model.lm_head
    model.lm_head = cast("Tensor", _int8(head))


def _fitting(weight: Tensor, make: Callable[[Tensor], PackedWeight]) -> PackedWeight:
    """Packed; by rows where the groups do not come out even."""
    return _int8(weight) if weight.shape[1] % GROUP or weight.shape[0] % 16 else make(weight)


def _int8(weight: Tensor) -> PackedWeight:
    """One scale a row, in -127 .. 127."""
    wide = weight.float()
    scales = (wide.abs().amax(1) / 127).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16()
    numbers = (wide / scales.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    rounded = (numbers.float() * scales.float()[:, None]).bfloat16()
    product = torch.ops.aten._weight_int8pack_mm
    return PackedWeight(lambda x: cast("Tensor", product(x, numbers, scales)), rounded)


def _int4(weight: Tensor) -> PackedWeight:
    """A scale and an offset for each `GROUP` of a row, in 0 .. 15."""
    rows, columns = weight.shape
    wide = weight.float().view(-1, GROUP)
    low, scale = _grid(wide)
    # The kernel counts from 8: its weight is (number - 8) · scale + offset.
    scale, offset = scale.bfloat16(), (low + 8 * scale).bfloat16()
    numbers = ((wide - offset.float()) / scale.float()).round_().add_(8).clamp_(0, 15)
    rounded = ((numbers - 8) * scale.float() + offset.float()).bfloat16().view(rows, columns)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.to(torch.int32).view(rows, columns), 1)
    grid = torch.cat((scale, offset), 1).view(rows, columns // GROUP, 2).transpose(0, 1).contiguous()
    product = torch.ops.aten._weight_int4pack_mm_for_cpu
    return PackedWeight(lambda x: cast("Tensor", product(x, packed, GROUP, grid)), rounded)


def _grid(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest value and step of each group [groups, GROUP], float32 [groups, 1] each.

    Weights that were rounded to such a grid before need not use both of its ends: the step that fits best is looked
    for, so that they keep their values.
    """
    low, high = wide.amin(1, keepdim=True), wide.amax(1, keepdim=True)
    smallest = torch.finfo(torch.bfloat16).tiny
    step = ((high - low) / 15).clamp_(min=smallest)
    error = _error(wide, low, step)
    for levels in range(14, 7, -1):
        rough = torch.nonzero(error > 0.02 * step.squeeze(1)).squeeze(1)
        if not len(rough):
            break
        tried = ((high[rough] - low[rough]) / levels).clamp_(min=smallest)
        found = _error(wide[rough], low[rough], tried)
        better = found < error[rough]
        chosen = rough[better]
        step[chosen], error[chosen] = tried[better], found[better]
    return low, step


def _error(wide: Tensor, low: Tensor, step: Tensor) -> Tensor:
    """Root of the mean square of what a grid rounds away, of each group."""
    steps = (wide - low) / step
    return (steps.sub_(steps.round()).square_().mean(1).sqrt_()) * step.squeeze(1)


PACKINGS: dict[str, Callable[[Tensor], PackedWeight]] = {"int4": _int4, "int8": _int8}
"""By name: from a bfloat16 matrix."""
