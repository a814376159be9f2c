"""A mixture of experts: every expert's matrices meet the tokens that chose it, in two launches and a sum.

    hidden = silu(gate·x) · up·x;   part = share · down·hidden;   out = Σ part over the experts of a token

A pair is a token with one of its experts. A program takes some outputs of one expert for tiles of its pairs, so an
expert that nobody chose costs nothing, and one that many chose is read once for a tile of them (Gale et al. 2022,
"MegaBlocks"). With few pairs every program finds its expert's pairs itself among all of them: no launch goes ahead,
and a captured graph serves any choice. With many, pairs are sorted by expert first and cut into tiles. Parts are summed
in the order of the choice, so no result depends on which program was first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference_experts
from .launch import supported

__all__ = ["MOST_SCANNED", "grouped_experts", "pair_tiles"]

MOST_SCANNED = 512
"""Most pairs among which a program looks for its own."""


@triton.jit
def _own_pairs(ids_ptr, expert, first, pairs, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr):
    """(the pairs number first .. first + BLOCK_M of an expert, -1 beyond its last; how many it has)."""
    every = tl.arange(0, BLOCK_P)
    ids = tl.load(ids_ptr + every, mask=every < pairs, other=-1)
    mine = (ids == expert).to(tl.int32)
    number = tl.cumsum(mine, 0) - 1
    wanted = first + tl.arange(0, BLOCK_M)
    hit = (number[None, :] == wanted[:, None]) & (mine[None, :] > 0)
    return tl.sum(tl.where(hit, every[None, :] + 1, 0), 1) - 1, tl.sum(mine, 0)


@triton.jit
def _tile(
    x_ptr,
    weight_ptr,
    shares_ptr,
    out_ptr,
    rows,
    pair,
    expert,
    outs,
    count,
    width,
    weight_rows,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Outputs `outs` of one expert for pairs whose inputs are `rows` of x."""
    columns = tl.arange(0, BLOCK_K)
    live = pair >= 0
    inside = outs < count
    x_place = x_ptr + rows.to(tl.int64)[:, None] * width + columns[None, :]
    base = weight_ptr + expert.to(tl.int64) * weight_rows * width
    w_place = base + outs.to(tl.int64)[None, :] * width + columns[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    acc_up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for at in range(0, width, BLOCK_K):
        if EVEN:
            x = tl.load(x_place + at, mask=live[:, None], other=0.0)
            w = tl.load(w_place + at, mask=inside[None, :], other=0.0)
        else:
            there = columns + at < width
            x = tl.load(x_place + at, mask=live[:, None] & there[None, :], other=0.0)
            w = tl.load(w_place + at, mask=inside[None, :] & there[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        if GATED:
            up_place = w_place + count.to(tl.int64) * width + at
            if EVEN:
                up = tl.load(up_place, mask=inside[None, :], other=0.0)
            else:
                up = tl.load(up_place, mask=inside[None, :] & there[:, None], other=0.0)
            acc_up = tl.dot(x, up, acc_up, input_precision=PRECISION)
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    else:
        acc = acc * tl.load(shares_ptr + pair, mask=live, other=0.0)[:, None]
    place = out_ptr + pair.to(tl.int64)[:, None] * count + outs[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit
def _experts_kernel(
    x_ptr,
    weight_ptr,
    ids_ptr,
    order_ptr,
    tiles_ptr,
    shares_ptr,
    out_ptr,
    pairs,
    count,
    width,
    weight_rows,
    CHOSEN: tl.constexpr,
    GATED: tl.constexpr,
    SCANS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One of the two products. SCANS: program 1 is an expert; otherwise a tile of (expert, first and end in order)."""
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if SCANS:
        expert = tl.program_id(1)
        pair, mine = _own_pairs(ids_ptr, expert, 0, pairs, BLOCK_M, BLOCK_P)
        for first in range(0, mine, BLOCK_M):
            if first > 0:
                pair, _ = _own_pairs(ids_ptr, expert, first, pairs, BLOCK_M, BLOCK_P)
            rows = tl.maximum(pair, 0)
            if GATED:
                rows = rows // CHOSEN
            _tile(
                x_ptr, weight_ptr, shares_ptr, out_ptr, rows, pair, expert, outs, count, width, weight_rows, GATED,
                EVEN, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
    else:
        tile = tl.program_id(1) * 3
        expert = tl.load(tiles_ptr + tile)
        place = tl.load(tiles_ptr + tile + 1) + tl.arange(0, BLOCK_M)
        end = tl.load(tiles_ptr + tile + 2)
        if tl.load(tiles_ptr + tile + 1) < end:
            pair = tl.load(order_ptr + place, mask=place < end, other=-1).to(tl.int32)
            rows = tl.maximum(pair, 0)
            if GATED:
                rows = rows // CHOSEN
            _tile(
                x_ptr, weight_ptr, shares_ptr, out_ptr, rows, pair, expert, outs, count, width, weight_rows, GATED,
                EVEN, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip


def grouped_experts(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor
) -> torch.Tensor:
    """See `reference_experts.grouped_experts`."""
    if not supported(x, gate_up, down) or x.stride(1) != 1:
        return reference_experts.grouped_experts(x, gate_up, down, ids, shares)
    (tokens, chosen), (experts, width, inner) = ids.shape, down.shape
    pairs = tokens * chosen
    if not pairs:
        return torch.zeros_like(x)
    x, ids, shares = x.contiguous(), ids.contiguous(), shares.contiguous()
    scans = pairs <= MOST_SCANNED
    block = 16 if scans else 64 if pairs < 64 * experts else 128
    order, tiles = (ids, ids) if scans else pair_tiles(ids, experts, block)
    hidden = torch.empty((pairs, inner), dtype=x.dtype, device=x.device)
    parts = torch.empty((pairs, width), dtype=x.dtype, device=x.device)
    steps = ((True, x, gate_up, hidden, inner, width), (False, hidden, down, parts, width, inner))
    for gated, source, weight, out, count, inputs in steps:
        outs, columns = _blocks(x.element_size(), block, gated)
        _experts_kernel[(triton.cdiv(count, outs), experts if scans else len(tiles))](
            source,
            weight,
            ids,
            order,
            tiles,
            shares,
            out,
            pairs,
            count,
            inputs,
            weight.shape[1],
            CHOSEN=chosen,
            GATED=gated,
            SCANS=scans,
            EVEN=inputs % columns == 0,
            BLOCK_M=block,
            BLOCK_N=outs,
            BLOCK_K=columns,
            BLOCK_P=triton.next_power_of_2(pairs) if scans else 1,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=4 if block < 128 else 8,
            num_stages=3,
        )
    return parts.view(tokens, chosen, width).sum(1) if chosen > 1 else parts


def pair_tiles(ids: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs sorted by expert, and their tiles, without waiting for the device.

    Returns:
        int64 [pairs], and int32 [N, 3]: expert, first and end in that order; N is the most there can be, and tiles
        beyond the last have first = end.
    """
    flat = ids.reshape(-1).long()
    order = flat.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add_(0, flat, torch.ones_like(flat))
    ends = counts.cumsum(0)
    tiles = (counts + block - 1) // block
    tile_ends = tiles.cumsum(0)
    number = torch.arange(len(flat) // block + min(experts, len(flat)), device=ids.device)
    owner = torch.searchsorted(tile_ends, number, right=True)
    known = owner.clamp(max=experts - 1)
    first = ends[known] - counts[known] + (number - tile_ends[known] + tiles[known]) * block
    end = torch.minimum(first + block, ends[known])
    end = torch.where(owner < experts, end, first)
    return order, torch.stack((known, first, end), 1).int()


def _blocks(itemsize: int, rows: int, gated: bool) -> tuple[int, int]:
    """(outputs, inputs) of a tile. Few rows are bound by reading weights: many small programs read more at once."""
    if rows == 16:
        return (32 if gated else 64), (128 if itemsize == 2 else 32)
    return (64 if gated else 128), (64 if itemsize == 2 else 32)
