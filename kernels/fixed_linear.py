"""A linear layer whose rows do not depend on their neighbours: out = x·Wᵀ + bias.

Every program computes a tile of the same size, sums over the columns in the same order and never shares a sum with
another program, however many rows there are (He et al. 2025, "Defeating nondeterminism in LLM inference"). Rows beyond
the last are zeros. That costs speed: few rows leave most of a tile empty, and nothing splits a long sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference_fixed
from .launch import supported

__all__ = ["fixed_linear"]

BLOCK_M, BLOCK_N = 64, 64
GROUP_M = 8
"""Row tiles of neighbouring programs, which read the same weights."""


@triton.jit
def _fixed_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    outs,
    width,
    x_stride,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(outs, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * tiles_n)
    inside = tl.program_id(0) % (GROUP_M * tiles_n)
    high = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    m = (group * GROUP_M + inside % high) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (inside // high) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_place = x_ptr + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    w_place = weight_ptr + n.to(tl.int64)[None, :] * width + k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for at in range(0, width, BLOCK_K):
        there = k + at < width
        x = tl.load(x_place + at, mask=(m < rows)[:, None] & there[None, :], other=0.0)
        w = tl.load(w_place + at, mask=(n < outs)[None, :] & there[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < outs, other=0.0).to(tl.float32)[None, :]
    place = out_ptr + m.to(tl.int64)[:, None] * outs + n[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=(m < rows)[:, None] & (n < outs)[None, :])


def fixed_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """See `reference_fixed.fixed_linear`."""
    if not supported(x, weight, bias) or not weight.is_contiguous():
        return reference_fixed.fixed_linear(x, weight, bias)
    outs, width = weight.shape
    flat = x.reshape(-1, width)
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    rows = len(flat)
    out = torch.empty((rows, outs), dtype=x.dtype, device=x.device)
    if rows:
        _fixed_linear_kernel[(triton.cdiv(rows, BLOCK_M) * triton.cdiv(outs, BLOCK_N),)](
            flat,
            weight,
            weight if bias is None else bias,
            out,
            rows,
            outs,
            width,
            flat.stride(0),
            HAS_BIAS=bias is not None,
            BLOCK_M=BLOCK_M,
            BLOCK_N=BLOCK_N,
            BLOCK_K=64 if x.element_size() == 2 else 32,
            GROUP_M=GROUP_M,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=4,
            num_stages=3,
        )
    return out.view(*x.shape[:-1], outs)
