"""Weights as a CPU reads them fastest: laid out for oneDNN, or rounded to four bits.

In: a loaded `CausalLM` on a CPU. Out: nothing; its matrices are `PackedWeight`s, which `functional.linear` takes in a
tensor's place. A token takes as long as reading the weights does, so their layout and size are the speed.

"auto" keeps every value: float32 and bfloat16 matrices are stored in the blocks that oneDNN would otherwise make anew
for every product. "int4" rounds to groups of 32 with a scale and an offset each, as in GGUF's Q4_1, whose values it
keeps; activations and the output head stay bfloat16. All products are torch's own (`mkldnn::_linear_pointwise`,
`aten::_weight_int4pack_mm_for_cpu`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch.nn import functional

from ...errors import InvalidValueError
from .decoder import CausalLM

__all__ = ["PackedWeight", "dense", "int4", "pack"]

Tensor = torch.Tensor
Product = Callable[[Tensor, "Tensor | None"], Tensor]

GROUP = 32
"""Weights of a row that share a scale and an offset."""
FEW_ROWS = 8
"""From this many rows on, the product over unrounded blocks is as fast as that over four bits: its time grows less."""
BLOCKED_ROWS = 16
"""Rows that the layout is made for; it serves any number."""
COPIED_HEAD = 512 << 20
"""Most bytes of an embedding that is the output head, too, and is kept a second time in the head's layout."""
MATRICES = ("qkv", "o", "gate_up", "down")


class PackedWeight:
    """A matrix [out, in] that `functional.linear` multiplies by.

    Args:
        product: of [..., in] with the matrix, plus a bias or None.
    """

    def __init__(self, product: Product) -> None:
        self._product = product

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What torch calls in place of a function that was given a packed weight."""
        if func is not functional.linear:
            return NotImplemented
        return args[1]._product(args[0], args[2] if len(args) > 2 else (kwargs or {}).get("bias"))


def pack(model: CausalLM, kind: str = "auto") -> None:
    """Replaces the matrices of a model by packed ones, where that is of use (changes it).

    Args:
        model: all its weights are there.
        kind: "auto" or "int4".

    Raises:
        InvalidValueError: an unknown packing, a device or dtype that has none.
    """
    if kind not in ("auto", "int4"):
        raise InvalidValueError(f"weights={kind!r} is not known; one of: auto, int4")
    if kind == "int4" and (model.device.type != "cpu" or model.dtype is not torch.bfloat16):
        raise InvalidValueError(
            f"weights='int4' is for device='cpu' and dtype='bfloat16', not {model.device.type} and {model.dtype}"
        )
    if kind == "auto" and not _blocks(model.device, model.dtype):
        return
    make = int4 if kind == "int4" else dense
    for index, layer in enumerate(model.layers):
        weights = {name: getattr(layer, name) for name in MATRICES}
        made = {name: make(w) for name, w in weights.items() if isinstance(w, Tensor) and w.numel()}
        model.layers[index] = replace(layer, **cast("dict[str, Any]", made))
    head = model.embed if model.lm_head is None else model.lm_head
    if model.lm_head is not None or head.nbytes <= COPIED_HEAD:
        model.lm_head = cast("Tensor", dense(head))


def dense(weight: Tensor) -> PackedWeight:
    """The same numbers in oneDNN's blocks; as they are where it has none."""
    if not _blocks(weight.device, weight.dtype):
        return PackedWeight(lambda x, bias: functional.linear(x, weight, bias))
    blocked = torch.ops.mkldnn._reorder_linear_weight(weight, BLOCKED_ROWS)
    product = torch.ops.mkldnn._linear_pointwise
    return PackedWeight(lambda x, bias: cast("Tensor", product(x, blocked, bias, "none", [], "")))


def int4(weight: Tensor) -> PackedWeight:
    """A scale and an offset for each `GROUP` of a row of bfloat16, in 0 .. 15; dense where groups do not come out even.

    What it stands for is kept in bfloat16 besides, for products with many rows.
    """
    rows, columns = weight.shape
    if columns % GROUP or rows % 16:
        return dense(weight)
    wide = weight.float().view(-1, GROUP)
    low, scale = _grid(wide)
    # The kernel counts from 8: its weight is (number - 8) · scale + offset.
    scale, offset = scale.bfloat16(), (low + 8 * scale).bfloat16()
    numbers = ((wide - offset.float()) / scale.float()).round_().add_(8).clamp_(0, 15)
    rounded = dense(((numbers - 8) * scale.float() + offset.float()).bfloat16().view(rows, columns))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.to(torch.int32).view(rows, columns), 1)
    grid = torch.cat((scale, offset), 1).view(rows, columns // GROUP, 2).transpose(0, 1).contiguous()
    product = torch.ops.aten._weight_int4pack_mm_for_cpu

    def multiply(x: Tensor, bias: Tensor | None) -> Tensor:
        if x.numel() >= FEW_ROWS * columns:
            return rounded._product(x, bias)
        out = cast("Tensor", product(x.reshape(-1, columns), packed, GROUP, grid)).view(*x.shape[:-1], rows)
        return out if bias is None else out + bias

    return PackedWeight(multiply)


def _blocks(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there is a layout that is faster than rows."""
    return (
        device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        # A processor without AVX-512 (or AVX-NE-CONVERT) has none for bfloat16.
        and (dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    )


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
    return steps.sub_(steps.round()).square_().mean(1).sqrt_() * step.squeeze(1)
