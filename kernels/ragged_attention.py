"""Causal attention of a ragged batch over paged keys and values, for prefill: many queries per sequence.

    out = softmax(scale · q·Kᵀ)·V, query i of sequence b seeing positions 0 .. kv_len - q_len + i of its row

One pass with a running maximum and sum in float32 (Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018).
A program takes one tile: some queries of one sequence with all query heads of one key head, so that a key is loaded
once for the whole group. Keys and values lie at any slot (page size 1) and are gathered through the page table: the
cached prefix and the new tokens, which were stored before, are the same to it. Positions that every query of the tile
sees need no mask; only the last blocks are masked. Where many slots follow one another, as those of a long text that
was computed at once do, whole blocks are fetched by the copy engine (TMA) instead of number by number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .attend import attend_block, attend_seen_by_all, load_slots, run_descriptor
from .launch import RAGGED, Blocks, multiprocessors, padded, run_blocks, supported

__all__ = ["query_tiles", "ragged_attention", "ragged_launch", "tile_queries"]


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "lens_ptr", "tiles_ptr", "runs_ptr"])
def _ragged_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_run,
    v_run,
    table_ptr,
    rows_ptr,
    starts_ptr,
    lens_ptr,
    tiles_ptr,
    runs_ptr,
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
    AHEAD: tl.constexpr,
    RUN: tl.constexpr,
    RUN_STAGES: tl.constexpr,
):
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    # Tiles in their order, all key heads of one before the next: those that begin last are the shortest, or empty.
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    seq = tl.load(tiles_ptr + tile * 2)
    first = tl.load(tiles_ptr + tile * 2 + 1)
    start = tl.load(starts_ptr + seq).to(tl.int64)
    q_len = (tl.load(starts_ptr + seq + 1) - start).to(tl.int32)
    kv_len = tl.load(lens_ptr + seq).to(tl.int32)
    slots_ptr = table_ptr + tl.load(rows_ptr + seq).to(tl.int64) * table_stride

    m = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    query = first + m // GROUP
    head = kv_head * GROUP + m % GROUP
    live = (m < QUERIES * GROUP) & (query < q_len)
    place = (start + query).to(tl.int64)
    inside = live[:, None] & (dims < DIM)[None, :]
    q = tl.load(q_ptr + (place * q_stride + head * DIM)[:, None] + dims[None, :], mask=inside, other=0.0)

    limits = kv_len - q_len + query + 1
    seen_by_all = kv_len - q_len + first + 1
    stop = tl.minimum(kv_len, seen_by_all + QUERIES - 1)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    if WINDOW > 0:
        masked_from = tl.maximum(seen_by_all - WINDOW, 0) // BLOCK_N * BLOCK_N
    else:
        masked_from = seen_by_all // BLOCK_N * BLOCK_N
        acc, top, total = attend_seen_by_all(
            q, acc, top, total, 0, masked_from, stop, limits, kv_head, k_ptr, v_ptr, slots_ptr, slot_stride, scale,
            softcap, runs_ptr + seq * 3, k_run, v_run, BLOCK_N, BLOCK_D, DIM, SOFTCAP, PRECISION, AHEAD, RUN,
            RUN_STAGES,
        )  # fmt: skip
    if masked_from < stop:
        for n in range(masked_from, stop, BLOCK_N):
            slots = load_slots(slots_ptr, n, stop, BLOCK_N)
            acc, top, total = attend_block(
                q, acc, top, total, n, stop, limits, kv_head, k_ptr, v_ptr, slots, slot_stride, scale, softcap,
                BLOCK_N, BLOCK_D, DIM, True, WINDOW, SOFTCAP, PRECISION,
            )  # fmt: skip
    out = acc / total[:, None]
    out_place = out_ptr + ((place * HEADS + head) * DIM)[:, None] + dims[None, :]
    tl.store(out_place, out.to(out_ptr.dtype.element_ty), mask=inside)


def ragged_attention(
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
    out: torch.Tensor | None = None,
    long: bool = False,
    runs: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `reference.ragged_attention`. Without `tiles` it waits for the device to read `q_starts`."""
    if not supported(q, k_cache, v_cache):
        return reference.ragged_attention(
            q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, window, softcap, tiles, out, long, runs
        )
    choice = RAGGED[q.element_size(), padded(q.shape[2], 64)]
    if tiles is None:
        per_tile = tile_queries(q.shape[1] // k_cache.shape[1], q.shape[2], q.dtype)
        tiles = query_tiles((q_starts[1:] - q_starts[:-1]).tolist(), per_tile).to(q.device)
    many = len(tiles) * k_cache.shape[1] > 4 * multiprocessors(q.device)
    blocks = choice.few if not many else choice.many if not long else choice.long
    if many and long and runs is not None and choice.runs is not None:
        blocks = choice.runs
    return ragged_launch(
        q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, window, softcap, tiles, out, blocks, runs
    )


def tile_queries(group: int, head_dim: int, dtype: torch.dtype) -> int:
    """Queries of one tile, for `query_tiles`."""
    return max(RAGGED[dtype.itemsize, padded(head_dim, 64)].many.m, padded(group, 16)) // group


def query_tiles(q_lens: list[int], per_tile: int) -> torch.Tensor:
    """int32 [N, 2]: sequence and first query of each tile of a batch, the last queries first (they see the most)."""
    tiles = [(seq, first) for seq, num in enumerate(q_lens) for first in reversed(range(0, num, per_tile))]
    return torch.tensor(tiles, dtype=torch.int32).view(-1, 2)


def ragged_launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    q_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
    tiles: torch.Tensor,
    out: torch.Tensor | None,
    blocks: Blocks,
    runs: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ragged_attention` with given block sizes; `tiles` must have been made with max(blocks.m, group) // group."""
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[1]
    group = heads // kv_heads
    out = torch.empty((q.shape[0], heads, dim), dtype=q.dtype, device=q.device) if out is None else out
    if not len(tiles):
        return out
    # What a window shows is masked nearly everywhere.
    run = run_blocks(blocks, dim, q.device) if runs is not None and not window else 0
    _ragged_attention_kernel[(kv_heads, len(tiles))](
        q,
        k_cache,
        v_cache,
        run_descriptor(k_cache, run),
        run_descriptor(v_cache, run),
        page_table,
        rows,
        q_starts,
        kv_lens,
        tiles,
        tiles if runs is None else runs,
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
        AHEAD=blocks.ahead,
        RUN=run,
        RUN_STAGES=blocks.run_stages,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        **blocks.options(q.device),
    )
    return out
