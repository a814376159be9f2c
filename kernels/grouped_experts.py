"""A mixture of experts: every expert's matrices meet the tokens that chose it, in two launches and a sum.

    hidden = silu(gate·x) · up·x;   part = share · down·hidden;   out = Σ part over the experts of a token

A pair is a token with one of its experts. A program takes some outputs of one expert for tiles of its pairs, so an
expert that nobody chose costs nothing, and one that many chose is read once for a tile of them (Gale et al. 2022,
"MegaBlocks"). With few pairs every program finds its expert's pairs itself among all of them; with many, one launch
before sorts them by expert and cuts them into tiles. Both are laid out by the number of pairs alone, so that a captured
graph serves any choice. Parts are summed in the order of the choice, so no result depends on which program was first.
One token alone has its own kernels (`token_experts`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference_experts
from .launch import early_options, supported
from .programs import await_inputs, finish
from .rms_norm import rms_norm
from .token_experts import MOST_WIDTH, token_experts

__all__ = ["MOST_SCANNED", "experts_launch", "grouped_experts", "pair_tiles"]

MOST_SCANNED = 16
"""Most pairs among which a program looks for its own."""
SUMMED = 1024
"""Columns whose parts a program sums."""


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
    BY_PAIR: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One of the two products. SCANS: program 1 is an expert, or with BY_PAIR a pair, whose expert it serves if it is
    the first one of it; otherwise program 1 is a tile of (expert, first and end in order)."""
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    await_inputs(DEPENDENT)
    if SCANS:
        expert = tl.program_id(1)
        if BY_PAIR:
            expert = tl.load(ids_ptr + tl.program_id(1))
        pair, mine = _own_pairs(ids_ptr, expert, 0, pairs, BLOCK_M, BLOCK_P)
        if BY_PAIR:
            earliest = tl.min(tl.where(pair >= 0, pair, BLOCK_P), 0)
            mine = tl.where(earliest == tl.program_id(1), mine, 0)
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


@triton.jit
def _tiles_kernel(
    ids_ptr, order_ptr, tiles_ptr, pairs, tile, BLOCK_P: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Program e puts the pairs of expert e behind those of the experts before it, and cuts its tiles."""
    await_inputs(DEPENDENT)
    expert = tl.program_id(0)
    every = tl.arange(0, BLOCK_P)
    before = tl.zeros([BLOCK_P], dtype=tl.int32)
    own = tl.zeros([BLOCK_P], dtype=tl.int32)
    for at in range(0, pairs, BLOCK_P):
        ids = tl.load(ids_ptr + at + every, mask=at + every < pairs, other=2147483647)
        before += (ids < expert).to(tl.int32)
        own += (ids == expert).to(tl.int32)
    first = tl.sum(before, 0)
    end = first + tl.sum(own, 0)
    # From here to the next expert's first tile there is room for all of them, whatever the others have.
    begin = first // tile + expert
    for number in range(begin, end // tile + expert + 1):
        place = tiles_ptr + number * 3
        tl.store(place, expert)
        tl.store(place + 1, tl.minimum(first + (number - begin) * tile, end))
        tl.store(place + 2, tl.minimum(first + (number - begin + 1) * tile, end))
    for at in range(0, pairs, BLOCK_P):
        ids = tl.load(ids_ptr + at + every, mask=at + every < pairs, other=2147483647)
        mine = (ids == expert).to(tl.int32)
        tl.store(order_ptr + first + tl.cumsum(mine, 0) - 1, at + every, mask=mine > 0)
        first += tl.sum(mine, 0)
    finish(DEPENDENT)


@triton.jit
def _sum_kernel(
    parts_ptr,
    residual_ptr,
    out_ptr,
    width,
    CHOSEN: tl.constexpr,
    ADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out[t] = Σ parts[t, k], in the order of k, plus the residual."""
    await_inputs(DEPENDENT)
    finish(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for place in range(CHOSEN):
        part = parts_ptr + (token * CHOSEN + place) * width + columns
        total += tl.load(part, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        total += tl.load(residual_ptr + token * width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * width + columns, total.to(out_ptr.dtype.element_ty), mask=inside)


def grouped_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `reference_experts.grouped_experts`."""
    given = (x, gate_up, down, norm, residual)
    if not supported(*given) or not all(tensor is None or tensor.is_contiguous() for tensor in given):
        return reference_experts.grouped_experts(x, gate_up, down, ids, shares, norm, eps, residual)
    pairs = ids.numel()
    if not pairs:
        return torch.zeros_like(x) if residual is None else residual
    ids, shares = ids.contiguous(), shares.contiguous()
    if len(x) == 1 and x.shape[1] <= MOST_WIDTH:
        return token_experts(x, gate_up, down, ids, shares, norm, eps, residual)
    if norm is not None:
        x = rms_norm(x, norm, eps)
    experts = len(down)
    if pairs <= MOST_SCANNED:
        return experts_launch(x, gate_up, down, ids, shares, residual, scans=True, block=16)
    block = 16 if pairs <= 8 * experts else 64 if pairs < 64 * experts else 128
    return experts_launch(x, gate_up, down, ids, shares, residual, scans=False, block=block)


def experts_launch(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    residual: torch.Tensor | None,
    *,
    scans: bool,
    block: int,
) -> torch.Tensor:
    """`grouped_experts` of some pairs of normed tokens, in tiles of `block` pairs; all tensors are contiguous."""
    (tokens, chosen), (experts, width, inner) = ids.shape, down.shape
    pairs = tokens * chosen
    order, tiles = (ids, ids) if scans else pair_tiles(ids, experts, block)
    hidden = torch.empty((pairs, inner), dtype=x.dtype, device=x.device)
    parts = torch.empty((pairs, width), dtype=x.dtype, device=x.device)
    options = early_options(x.device)
    steps = ((True, x, gate_up, hidden, inner, width), (False, hidden, down, parts, width, inner))
    for gated, source, weight, out, count, inputs in steps:
        outs, columns = _blocks(x.element_size(), block, gated)
        _experts_kernel[(triton.cdiv(count, outs), min(pairs, experts) if scans else len(tiles))](
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
            BY_PAIR=pairs < experts,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=4 if block < 128 else 8,
            num_stages=3,
            **options,
        )
    total = torch.empty_like(x) if residual is None else residual
    _sum_kernel[(tokens, triton.cdiv(width, SUMMED))](
        parts, total, total, width, CHOSEN=chosen, ADDED=residual is not None, BLOCK=SUMMED, num_warps=4, **options
    )
    return total


def pair_tiles(ids: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs sorted by expert, and their tiles, in one launch.

    Returns:
        int32 [pairs], and int32 [N, 3]: expert, first and end in that order; N is the most there can be, and tiles
        that nothing is left for have first = end.
    """
    pairs = ids.numel()
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    tiles = torch.empty((pairs // block + experts, 3), dtype=torch.int32, device=ids.device)
    size = min(4096, max(16, triton.next_power_of_2(pairs)))
    _tiles_kernel[(experts,)](
        ids, order, tiles, pairs, block, BLOCK_P=size, num_warps=8, **early_options(ids.device)
    )  # fmt: skip
    return order, tiles


def _blocks(itemsize: int, rows: int, gated: bool) -> tuple[int, int]:
    """(outputs, inputs) of a tile. Few rows are bound by reading weights: many small programs read more at once."""
    if rows == 16:
        return (32 if gated else 64), (128 if itemsize == 2 else 32)
    return (64 if gated else 128), (64 if itemsize == 2 else 32)
