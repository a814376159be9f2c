"""A linear layer whose rows do not depend on their neighbours: out = x·Wᵀ + bias.

Every program computes a tile of the same size, sums over the columns in the same order and never shares a sum with
another program, however many rows there are (He et al. 2025, "Defeating nondeterminism in LLM inference"). Rows beyond
the last are zeros. That costs speed: few rows leave most of a tile empty, and nothing splits a long sum.

Few rows are bound by reading W, so enough of it must be on its way: 4.2 TB/s times a latency of 0.8 μs are 3.4 MB. A
layer of 4096 outputs has 64 programs, which have three to four tiles of 16 kB of W ahead of them, 3 to 4 MB together.
Narrower tiles would make more programs, but each reads all rows of x: of 64 rows as many bytes as of W for 64 outputs,
twice as many for 32; and with many rows the traffic of both is what bounds.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from . import reference_fixed
from .launch import supported

__all__ = ["fixed_linear"]


class Tile(NamedTuple):
    """What a program computes, and how.

    Attributes:
        m, n: rows and outputs of a tile.
        k: columns that are read at once.
        warps: of a program.
        stages: of its loads, as many as fit into the shared memory; they change no bits.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int


TILES = {2: Tile(64, 64, 128, 4, 5), 4: Tile(64, 64, 32, 4, 3)}
"""Bytes of a number → the tile, the same for any number of rows. Reckoned as above; no other has been timed yet."""
GROUP_M = 8
"""Row tiles of neighbouring programs, which read the same weights."""


# One program for all numbers of rows: else those of 1, and of 16 and its multiples, would be compiled apart.
@triton.jit(do_not_specialize=["rows"])
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
    rows, tile = len(flat), TILES[x.element_size()]
    out = torch.empty((rows, outs), dtype=x.dtype, device=x.device)
    if rows:
        _fixed_linear_kernel[(triton.cdiv(rows, tile.m) * triton.cdiv(outs, tile.n),)](
            flat,
            weight,
            weight if bias is None else bias,
            out,
            rows,
            outs,
            width,
            flat.stride(0),
            HAS_BIAS=bias is not None,
            BLOCK_M=tile.m,
            BLOCK_N=tile.n,
            BLOCK_K=tile.k,
            GROUP_M=GROUP_M,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=tile.warps,
            num_stages=min(tile.stages, _most_stages(tile, x.element_size(), x.device)),
        )
    return out.view(*x.shape[:-1], outs)


@functools.lru_cache
def _most_stages(tile: Tile, size: int, device: torch.device) -> int:
    """Stages whose tiles of x and W fit into the shared memory of a program."""
    if device.type != "cuda":
        return tile.stages
    properties = torch.cuda.get_device_properties(device)
    held = int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))
    return max(1, held // ((tile.m + tile.n) * tile.k * size))
