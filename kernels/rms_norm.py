"""Root mean square norm, alone and after a residual addition.

    out = x / sqrt(mean(x²) + eps) · weight          (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization")

One program per row, the row in registers: each number is read once and written once. With a residual, the sum is
rounded to its dtype before the norm, as the next layer will read it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .launch import early_options, padded, supported
from .programs import await_inputs, finish

__all__ = ["add_rms_norm", "rms_norm"]

LONGEST_ROW = 65536
"""Widest row that a program holds."""


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    part_stride,
    residual_stride,
    width,
    eps,
    PARTS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    await_inputs(DEPENDENT)
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        place = x_ptr + part * part_stride + row * x_stride + columns
        x += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        place = residual_ptr + row * residual_stride + columns
        total = (x + tl.load(place, mask=inside, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(place, total, mask=inside)
        x = total.to(tl.float32)
    finish(DEPENDENT)
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / width + eps)
    tl.store(out_ptr + row * width + columns, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `reference.rms_norm`."""
    if not _fits(x, weight):
        return reference.rms_norm(x, weight, eps)
    rows = x.reshape(-1, x.shape[-1])
    return _launch(rows, None, weight, eps).view(x.shape)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `reference.add_rms_norm`."""
    if not (_fits(x, weight) and supported(residual) and residual.stride(-1) == 1):
        return reference.add_rms_norm(x, residual, weight, eps)
    return _launch(x, residual, weight, eps)


def _fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return supported(x, weight) and x.shape[-1] <= LONGEST_ROW and (x.shape[-1] == 1 or x.stride(-1) == 1)


def _launch(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows, width = x.shape[-2:]
    dtype = x.dtype if residual is None else residual.dtype
    out = torch.empty((rows, width), dtype=dtype, device=x.device)
    if rows:
        block = padded(width)
        _rms_norm_kernel[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            out,
            x.stride(-2),
            x.stride(0),
            0 if residual is None else residual.stride(0),
            width,
            eps,
            PARTS=len(x) if x.dim() == 3 else 1,
            HAS_RESIDUAL=residual is not None,
            BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
            **early_options(x.device),
        )
    return out
