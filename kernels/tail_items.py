"""What each row of a radix plan has for itself, and the merge: the last launch of plans whose shared items are in runs.

    row:  out = Σ exp(lse_i - lse)·o_i over its shared items and the stretches that only it sees

A program takes one query and the query heads of one key head: it goes over the row's own items, which only it reads,
one after the other, and then takes in what `run_items`, the launch before, found for the shared ones. So a row's own
part needs no partial results and no launch between, and what it reads comes while the last shared items are computed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attend import attend_block, attend_seen_by_all, load_slots
from .launch import Blocks, early_options, padded
from .merge_partials import take_in
from .programs import await_inputs

__all__ = ["tail_items"]

AT_ONCE = 8
"""Partial results that are loaded together."""

_PLAN = ["tokens_ptr", "firsts_ptr", "nums_ptr", "lens_ptr", "merges_ptr", "partials_ptr", "narrow_ptr"]
"""Parts of a plan: read number by number, and where they lie differs from plan to plan."""


@triton.jit(do_not_specialize_on_alignment=_PLAN)
def _tail_items_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    tokens_ptr,
    firsts_ptr,
    nums_ptr,
    lens_ptr,
    merges_ptr,
    partials_ptr,
    narrow_ptr,
    part_ptr,
    lse_ptr,
    out_ptr,
    q_stride,
    slot_stride,
    table_stride,
    scale,
    softcap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    MERGES: tl.constexpr,
    SHARED: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Partial results below SHARED are those of shared items."""
    kv_head = tl.program_id(0)
    token = tl.load(tokens_ptr + tl.program_id(1) * 2)
    row = tl.maximum(tl.load(tokens_ptr + tl.program_id(1) * 2 + 1), 0)
    count = tl.where(token >= 0, tl.load(merges_ptr + row), 0)
    query = token - tl.load(firsts_ptr + row)
    limit = tl.load(lens_ptr + row) - tl.load(nums_ptr + row) + 1 + query
    slots_ptr = table_ptr + row.to(tl.int64) * table_stride
    place = token.to(tl.int64)

    m = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    group = tl.where(token >= 0, GROUP, 0)
    live = m < group
    # Queries, keys and values were there when the launch before began: it waited for them, and then let this one begin.
    q_place = q_ptr + (place * q_stride + (kv_head * GROUP + m) * DIM)[:, None] + dims[None, :]
    q = tl.load(q_place, mask=live[:, None] & (dims < DIM)[None, :], other=0.0)
    limits = tl.where(live, limit, 0)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    for i in range(count):
        number = tl.load(partials_ptr + row * MERGES + i)
        if number >= SHARED:
            item_ptr = narrow_ptr + (number - SHARED) * 4
            start = tl.load(item_ptr + 1)
            stop = tl.minimum(tl.load(item_ptr + 2), limit)
            masked_from = start + tl.maximum(stop - start, 0) // BLOCK_N * BLOCK_N
            acc, top, total = attend_seen_by_all(
                q, acc, top, total, start, masked_from, stop, limits, kv_head, k_ptr, v_ptr, slots_ptr, slot_stride,
                scale, softcap, slots_ptr, k_ptr, v_ptr, BLOCK_N, BLOCK_D, DIM, SOFTCAP, PRECISION, AHEAD, 0, 1,
            )  # fmt: skip
            if masked_from < stop:
                slots = load_slots(slots_ptr, masked_from, stop, BLOCK_N)
                acc, top, total = attend_block(
                    q, acc, top, total, masked_from, stop, limits, kv_head, k_ptr, v_ptr, slots, slot_stride, scale,
                    softcap, BLOCK_N, BLOCK_D, DIM, True, 0, SOFTCAP, PRECISION,
                )  # fmt: skip

    # The tile has more rows than a group has heads: only these go on.
    heads = tl.arange(0, BLOCK_G)
    acc = tl.sum(tl.reshape(tl.where(live[:, None], acc, 0.0), [BLOCK_M // BLOCK_G, BLOCK_G, BLOCK_D]), 0)
    total = tl.sum(tl.reshape(tl.where(live, total, 0.0), [BLOCK_M // BLOCK_G, BLOCK_G]), 0)
    top = tl.max(tl.reshape(tl.where(live, top, float("-inf")), [BLOCK_M // BLOCK_G, BLOCK_G]), 0)

    numbers_ptr = partials_ptr + row * MERGES + tl.arange(0, AT_ONCE)
    number = tl.load(numbers_ptr, mask=tl.arange(0, AT_ONCE) < count, other=SHARED)
    await_inputs(DEPENDENT)
    for i in range(0, count, AT_ONCE):
        at = ((number.to(tl.int64) * QUERIES + query) * HEADS + kv_head * GROUP)[:, None] + heads[None, :]
        there = (number < SHARED)[:, None] & (heads < GROUP)[None, :]
        lse = tl.load(lse_ptr + at, mask=there, other=float("-inf"))
        inside = there[:, :, None] & (dims < DIM)[None, None, :]
        part = tl.load(part_ptr + (at * DIM)[:, :, None] + dims[None, None, :], mask=inside, other=0.0)
        number = tl.load(numbers_ptr + i + AT_ONCE, mask=tl.arange(0, AT_ONCE) + i + AT_ONCE < count, other=SHARED)
        acc, top, total = take_in(acc, top, total, lse, part)
    out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    out_place = out_ptr + ((place * HEADS + kv_head * GROUP + heads) * DIM)[:, None] + dims[None, :]
    inside = (heads < group)[:, None] & (dims < DIM)[None, :]
    tl.store(out_place, out.to(out_ptr.dtype.element_ty), mask=inside)


def tail_items(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    plan: dict[str, torch.Tensor],
    scale: float,
    softcap: float,
    queries: int,
    part: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    blocks: Blocks,
) -> None:
    """The narrow items of a plan, and the results of its rows, after `run_items` on the same plan.

    Args:
        q: [T, heads, d].
        k_cache, v_cache: [slots, kv_heads, d].
        page_table: int32 [rows, context].
        plan: the parts of a `RadixLayout` by name, int32.
        scale, softcap, queries: as for `radix_attention`.
        part, lse: the partial results of shared items.
        out: [T, heads, d], changed.
        blocks: the launch.
    """
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[1]
    group = heads // kv_heads
    _tail_items_kernel[(kv_heads, len(plan["tokens"]))](
        q,
        k_cache,
        v_cache,
        page_table,
        plan["tokens"],
        plan["firsts"],
        plan["nums"],
        plan["lens"],
        plan["merges"],
        plan["partials"],
        plan["narrow"],
        part,
        lse,
        out,
        q.stride(0),
        k_cache.stride(0),
        page_table.stride(0),
        scale if softcap else scale * 1.4426950408889634,
        softcap,
        HEADS=heads,
        GROUP=group,
        DIM=dim,
        QUERIES=queries,
        MERGES=plan["partials"].shape[1],
        SHARED=plan["members"].numel(),
        AT_ONCE=AT_ONCE,
        BLOCK_M=padded(group, 16),
        BLOCK_N=blocks.n,
        BLOCK_D=padded(dim, 16),
        BLOCK_G=padded(group),
        SOFTCAP=softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        AHEAD=blocks.ahead,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        **blocks.options(q.device),
        **early_options(q.device),
    )
