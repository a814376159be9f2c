"""Causal attention of a ragged batch in which no query's bits depend on what else the step computes.

    out = softmax(scale · q·Kᵀ)·V, query i of sequence b seeing positions 0 .. kv_len - q_len + i of its row

A program takes one tile: the positions [t·Q, t·Q + Q) of one sequence, as far as they are queries of this step, with
all query heads of one key head. A query therefore has the same place in its tile whatever chunk it comes in, and its
keys are visited in the same blocks, from the same first one, in the same order. Blocks that a query does not see change
none of its sums: their weights are 0, what shrinks the sums is 1. Nothing is shared between sequences and no long row
is split, which is what it costs.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from . import reference_fixed
from .attend import attend_block, load_slots
from .launch import RAGGED, padded, supported

__all__ = ["fixed_attention", "fixed_tiles", "tile_positions"]


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "lens_ptr", "tiles_ptr"])
def _fixed_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    rows_ptr,
    starts_ptr,
    lens_ptr,
    tiles_ptr,
    out_ptr,
    q_stride,
    slot_stride,
    table_stride,
    scale,
    softcap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = tl.load(tiles_ptr + tile * 2)
    first = tl.load(tiles_ptr + tile * 2 + 1)
    start = tl.load(starts_ptr + seq).to(tl.int64)
    q_len = (tl.load(starts_ptr + seq + 1) - start).to(tl.int32)
    kv_len = tl.load(lens_ptr + seq).to(tl.int32)
    slots_ptr = table_ptr + tl.load(rows_ptr + seq).to(tl.int64) * table_stride

    m = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    position = first + m // GROUP
    query = position - (kv_len - q_len)
    head = kv_head * GROUP + m % GROUP
    live = (m < QUERIES * GROUP) & (query >= 0) & (query < q_len)
    place = start + query
    inside = live[:, None] & (dims < DIM)[None, :]
    q = tl.load(q_ptr + (place * q_stride + head * DIM)[:, None] + dims[None, :], mask=inside, other=0.0)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    stop = tl.minimum(kv_len, first + QUERIES)
    for n in range(begin, stop, BLOCK_N):
        slots = load_slots(slots_ptr, n, stop, BLOCK_N)
        acc, top, total = attend_block(
            q, acc, top, total, n, stop, position + 1, kv_head, k_ptr, v_ptr, slots, slot_stride, scale, softcap,
            BLOCK_N, BLOCK_D, DIM, True, WINDOW, SOFTCAP, PRECISION,
        )  # fmt: skip
    out = acc / total[:, None]
    out_place = out_ptr + ((place * HEADS + head) * DIM)[:, None] + dims[None, :]
    tl.store(out_place, out.to(out_ptr.dtype.element_ty), mask=inside)


def fixed_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    q_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tiles: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `reference_fixed.fixed_attention`. `tiles` are those of `fixed_tiles`."""
    if not supported(q, k_cache, v_cache):
        return reference_fixed.fixed_attention(
            q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, window, softcap
        )
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[1]
    group = heads // kv_heads
    blocks = RAGGED[q.element_size(), padded(dim, 64)].few
    if tiles is None:
        lens = kv_lens.cpu().numpy()
        listed = fixed_tiles(lens - np.diff(q_starts.cpu().numpy()), lens, tile_positions(group, dim, q.dtype))
        tiles = torch.from_numpy(listed).to(q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if len(tiles):
        _fixed_attention_kernel[(len(tiles), kv_heads)](
            q,
            k_cache,
            v_cache,
            page_table,
            rows,
            q_starts,
            kv_lens,
            tiles,
            out,
            q.stride(0),
            k_cache.stride(0),
            page_table.stride(0),
            scale if softcap else scale * 1.4426950408889634,
            softcap,
            HEADS=heads,
            GROUP=group,
            DIM=dim,
            BLOCK_M=max(blocks.m, padded(group, 16)),
            BLOCK_N=blocks.n,
            BLOCK_D=padded(dim, 16),
            WINDOW=window,
            SOFTCAP=softcap > 0,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **blocks.options(q.device),
        )
    return out


def tile_positions(group: int, head_dim: int, dtype: torch.dtype) -> int:
    """Positions of one tile, for `fixed_tiles`."""
    return max(RAGGED[dtype.itemsize, padded(head_dim, 64)].few.m, padded(group, 16)) // group


def fixed_tiles(firsts: NDArray[np.int32], ends: NDArray[np.int32], per_tile: int) -> NDArray[np.int32]:
    """int32 [N, 2]: sequence and first position of each tile that holds some of the queries firsts[b] .. ends[b]."""
    begins = firsts // per_tile
    counts = -(-ends // per_tile) - begins
    tiles = np.empty((int(counts.sum()), 2), np.int32)
    tiles[:, 0] = np.repeat(np.arange(len(counts)), counts)
    # The last tiles of a sequence first: they see the most, and the longest work should begin earliest.
    stops = np.repeat(np.cumsum(counts) + begins, counts)
    tiles[:, 1] = (stops - 1 - np.arange(len(tiles))) * per_tile
    return tiles
