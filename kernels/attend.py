"""What the attention kernels share: blocks of keys and values for a tile of queries, and the sums that run along.

In: a tile of queries, positions, the page table. Out: (acc, top, total), the running sums of the softmax: weighted
values, the largest score, the sum of weights. Keys and values are gathered slot by slot; where slots follow one another
they may be fetched in whole blocks by the copy engine (TMA), which spares reading slots and working out addresses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["attend_block", "attend_seen_by_all", "load_slots", "run_descriptor", "scores_of", "weights_of"]


@triton.jit
def load_slots(slots_ptr, first, stop, BLOCK_N: tl.constexpr):
    """The slots of positions first .. first + BLOCK_N of a row, 0 for those from `stop` on."""
    positions = first + tl.arange(0, BLOCK_N)
    return tl.load(slots_ptr + positions, mask=positions < stop, other=0)


@triton.jit
def scores_of(q, keys, scale, softcap, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """Scores [m, n] of keys [d, n], and the factor that turns them into powers of two."""
    scores = tl.dot(q, keys, input_precision=PRECISION)
    if SOFTCAP:
        # softcap · tanh(x / softcap): tanh from one exp2, which may overflow to infinity and is right then, too
        scores = softcap * (1.0 - 2.0 / (tl.exp2(scores * (scale * 2.0 / softcap) * 1.4426950408889634) + 1.0))
        scale = 1.4426950408889634
    return scores, scale


@triton.jit
def weights_of(scores, top, total, scale, MASKED: tl.constexpr):
    """Weights [m, n] of scores, by how much the sums so far shrink, and the new (top, total)."""
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    # A row that has seen nothing yet has top = -inf, and -inf - -inf is no number.
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(top - base)
    return weights, shrink, new_top, total * shrink + tl.sum(weights, 1)


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
    scores, scale = scores_of(q, keys, scale, softcap, SOFTCAP, PRECISION)
    if MASKED:
        seen = (positions[None, :] < limits[:, None]) & (positions < stop)[None, :]
        if WINDOW > 0:
            seen = seen & (positions[None, :] >= limits[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    weights, shrink, top, total = weights_of(scores, top, total, scale, MASKED)
    if MASKED:
        # A weight of 0 does not make up for NaN in a slot that nobody should read.
        shown = (positions < stop)[:, None] & (dims < DIM)[None, :]
        values = tl.load(v_ptr + places[:, None] + dims[None, :], mask=shown, other=0.0)
    elif DIM == BLOCK_D:
        values = tl.load(v_ptr + places[:, None] + dims[None, :])
    else:
        values = tl.load(v_ptr + places[:, None] + dims[None, :], mask=(dims < DIM)[None, :], other=0.0)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
    return acc, top, total


@triton.jit
def _load_run(run_ptr, first, end, RUN: tl.constexpr):
    """Where blocks of RUN positions from `first` on, all below `end`, lie in slots that follow one another.

    `run_ptr` holds the first position of such slots, where they end, and the slot of the first one.

    Returns:
        position and slot of the first block, and how many there are.
    """
    run_first = tl.load(run_ptr)
    run_end = tl.minimum(tl.load(run_ptr + 1), end)
    at = first + tl.cdiv(tl.maximum(run_first - first, 0), RUN) * RUN
    return at, tl.load(run_ptr + 2) + at - run_first, tl.maximum(run_end - at, 0) // RUN


@triton.jit
def _attend_run(
    q,
    acc,
    top,
    total,
    slot,
    count,
    kv_head,
    k_run,
    v_run,
    scale,
    softcap,
    DIM: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    RUN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """`attend_block` over `count` blocks of RUN positions that every row sees, in the slots from `slot` on."""
    if count > 0:
        for i in tl.range(0, count, num_stages=STAGES):
            keys = k_run.load([slot + i * RUN, kv_head * DIM])
            scores, factor = scores_of(q, tl.trans(keys), scale, softcap, SOFTCAP, PRECISION)
            weights, shrink, top, total = weights_of(scores, top, total, factor, False)
            values = v_run.load([slot + i * RUN, kv_head * DIM])
            acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
    return acc, top, total


@triton.jit
def _beyond(n, hole, length, RUN: tl.constexpr):
    """The n-th position where `length` are left out from `hole` on."""
    return tl.where(n < hole, n, n + length) if RUN > 0 else n


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
    run_ptr,
    k_run,
    v_run,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DIM: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
    RUN: tl.constexpr,
    RUN_STAGES: tl.constexpr,
):
    """`attend_block` over whole blocks of positions first .. end that every row sees.

    With RUN, a multiple of BLOCK_N, those within the run that `run_ptr` tells of come first, RUN at a time.

    The loop stands in a condition that says that it runs: a loop that may not run would set the sums while products
    still go on in them, and then the compiler waits for each product in turn. With AHEAD each round loads the slots of
    the next: keys whose place is known when a round begins are fetched as many rounds ahead as there are stages, else
    half as many. That pays where the loop is long and the tile wide.
    """
    hole, length = end, 0
    if RUN > 0:
        hole, slot, count = _load_run(run_ptr, first, end, RUN)
        length = count * RUN
        acc, top, total = _attend_run(
            q, acc, top, total, slot, count, kv_head, k_run, v_run, scale, softcap, DIM, SOFTCAP, PRECISION, RUN,
            RUN_STAGES,
        )  # fmt: skip
    if first < end - length:
        if AHEAD:
            slots = load_slots(slots_ptr, _beyond(first, hole, length, RUN), stop, BLOCK_N)
        for i in range(first, end - length, BLOCK_N):
            n = _beyond(i, hole, length, RUN)
            if AHEAD:
                next_slots = load_slots(slots_ptr, _beyond(i + BLOCK_N, hole, length, RUN), stop, BLOCK_N)
            else:
                slots = tl.load(slots_ptr + n + tl.arange(0, BLOCK_N))
            acc, top, total = attend_block(
                q, acc, top, total, n, stop, limits, kv_head, k_ptr, v_ptr, slots, slot_stride, scale, softcap,
                BLOCK_N, BLOCK_D, DIM, False, 0, SOFTCAP, PRECISION,
            )  # fmt: skip
            if AHEAD:
                slots = next_slots
    return acc, top, total


def run_descriptor(cache: torch.Tensor, run: int) -> TensorDescriptor | torch.Tensor:
    """What the copy engine has to know of keys or values [slots, kv_heads, d]; the tensor itself where `run` is 0."""
    if not run:
        return cache
    slots, kv_heads, dim = cache.shape
    return TensorDescriptor(cache, [slots, kv_heads * dim], [cache.stride(0), 1], [run, dim])
