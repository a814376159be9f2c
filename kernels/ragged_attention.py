"""Causal attention of a ragged batch over paged keys and values, for prefill: many queries per sequence.

    out = softmax(scale · q·Kᵀ)·V, query i of sequence b seeing positions 0 .. kv_len - q_len + i of its row

One pass with a running maximum and sum in float32 (Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018).
A program takes one tile: some queries of one sequence with all query heads of one key head, so that a key is loaded
once for the whole group. Keys and values lie at any slot (page size 1) and are gathered through the page table: the
cached prefix and the new tokens, which were stored before, are the same to it. Positions that every query of the tile
sees need no mask; only the last blocks are masked.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .launch import RAGGED, Blocks, multiprocessors, padded, supported

__all__ = [
    "attend_block",
    "attend_seen_by_all",
    "load_slots",
    "query_tiles",
    "ragged_attention",
    "ragged_launch",
    "tile_queries",
]


@triton.jit
def load_slots(slots_ptr, first, stop, BLOCK_N: tl.constexpr):
    """The slots of positions first .. first + BLOCK_N of a row, 0 for those from `stop` on."""
    positions = first + tl.arange(0, BLOCK_N)
    return tl.load(slots_ptr + positions, mask=positions < stop, other=0)


@triton.jit
def attend_block(
    q,
    acc,
    top,
    total,
    first,
    stop,
    limits,
    kv_head,
    k_ptr,
    v_ptr,
    slots,
    slot_stride,
    scale,
    softcap,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DIM: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Goes on over positions first .. first + BLOCK_N, which lie at `slots`; (acc, top, total) are the running sums.

    `scale`, above 0, is in units of log2; row m sees the positions below limits[m], as far as they are below `stop`.
    """
    positions = first + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    places = slots.to(tl.int64) * slot_stride + kv_head * DIM
    if DIM == BLOCK_D:
        keys = tl.load(k_ptr + places[None, :] + dims[:, None])
    else:
        keys = tl.load(k_ptr + places[None, :] + dims[:, None], mask=(dims < DIM)[:, None], other=0.0)
    scores = tl.dot(q, keys, input_precision=PRECISION)
    if SOFTCAP:
        # softcap · tanh(x / softcap): tanh from one exp2, which may overflow to infinity and is right then, too
        scores = softcap * (1.0 - 2.0 / (tl.exp2(scores * (scale * 2.0 / softcap) * 1.4426950408889634) + 1.0))
        scale = 1.4426950408889634
    if MASKED:
        seen = (positions[None, :] < limits[:, None]) & (positions < stop)[None, :]
        if WINDOW > 0:
            seen = seen & (positions[None, :] >= limits[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    # A row that has seen nothing yet has top = -inf, and -inf - -inf is no number.
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    if MASKED:
        # A weight of 0 does not make up for NaN in a slot that nobody should read.
        shown = (positions < stop)[:, None] & (dims < DIM)[None, :]
        values = tl.load(v_ptr + places[:, None] + dims[None, :], mask=shown, other=0.0)
    elif DIM == BLOCK_D:
        values = tl.load(v_ptr + places[:, None] + dims[None, :])
    else:
        values = tl.load(v_ptr + places[:, None] + dims[None, :], mask=(dims < DIM)[None, :], other=0.0)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new_top, total


@triton.jit
def attend_seen_by_all(
    q,
    acc,
    top,
    total,
    first,
    end,
    stop,
    limits,
    kv_head,
    k_ptr,
    v_ptr,
    slots_ptr,
    slot_stride,
    scale,
    softcap,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DIM: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """`attend_block` over whole blocks of positions first .. end that every row sees.

    The loop stands in a condition that says that it runs: a loop that may not run would set the sums while products
    still go on in them, and then the compiler waits for each product in turn. With AHEAD each round loads the slots of
    the next: keys whose place is known when a round begins are fetched as many rounds ahead as there are stages, else
    half as many. That pays where the loop is long and the tile wide.
    """
    if first < end:
        if AHEAD:
            slots = load_slots(slots_ptr, first, stop, BLOCK_N)
        for n in range(first, end, BLOCK_N):
            if AHEAD:
                next_slots = load_slots(slots_ptr, n + BLOCK_N, stop, BLOCK_N)
            else:
                slots = tl.load(slots_ptr + n + tl.arange(0, BLOCK_N))
            acc, top, total = attend_block(
                q, acc, top, total, n, stop, limits, kv_head, k_ptr, v_ptr, slots, slot_stride, scale, softcap,
                BLOCK_N, BLOCK_D, DIM, False, 0, SOFTCAP, PRECISION,
            )  # fmt: skip
            if AHEAD:
                slots = next_slots
    return acc, top, total


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "lens_ptr", "tiles_ptr"])
def _ragged_attention_kernel(
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
    AHEAD: tl.constexpr,
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
            softcap, BLOCK_N, BLOCK_D, DIM, SOFTCAP, PRECISION, AHEAD,
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
) -> torch.Tensor:
    """See `reference.ragged_attention`. Without `tiles` it waits for the device to read `q_starts`."""
    if not supported(q, k_cache, v_cache):
        return reference.ragged_attention(
            q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, window, softcap, tiles, out, long
        )
    choice = RAGGED[q.element_size(), padded(q.shape[2], 64)]
    if tiles is None:
        per_tile = tile_queries(q.shape[1] // k_cache.shape[1], q.shape[2], q.dtype)
        tiles = query_tiles((q_starts[1:] - q_starts[:-1]).tolist(), per_tile).to(q.device)
    many = len(tiles) * k_cache.shape[1] > 4 * multiprocessors(q.device)
    blocks = choice.long if many and long else choice.many if many else choice.few
    return ragged_launch(
        q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, window, softcap, tiles, out, blocks
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
) -> torch.Tensor:
    """`ragged_attention` with given block sizes; `tiles` must have been made with max(blocks.m, group) // group."""
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[1]
    group = heads // kv_heads
    out = torch.empty((q.shape[0], heads, dim), dtype=q.dtype, device=q.device) if out is None else out
    if not len(tiles):
        return out
    _ragged_attention_kernel[(kv_heads, len(tiles))](
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
        AHEAD=blocks.ahead,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        **blocks.options(q.device),
    )
    return out
