"""Shared items of a radix plan whose slots follow one another: the wide launch of `radix_attention` where all are such.

    item: positions in slots s, s + 1, … and the rows that all see them  →  partial results, as in `radix_attention`

Keys and values come in blocks through the copy engine (TMA): no page table, no addresses, which leaves registers for
larger blocks. What the rows have for themselves is the next launch (`tail_items`), which begins on a processor that is
done with this one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attend import run_descriptor, scores_of, weights_of
from .launch import Blocks, early_options, multiprocessors, padded
from .programs import await_inputs

__all__ = ["run_items"]


@triton.jit
def _members(
    item_ptr, members_ptr, firsts_ptr, nums_ptr, m, kv_head, HEADS: tl.constexpr, GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
):  # fmt: skip
    """Of each row of the tile: its token, its head, and whether it is one."""
    member = m // (GROUP * QUERIES)
    there = member < tl.load(item_ptr + 3)
    row = tl.load(members_ptr + member, mask=there, other=0)
    first = tl.load(firsts_ptr + row, mask=there, other=-1)
    query = (m // GROUP) % QUERIES
    live = query < tl.load(nums_ptr + row, mask=first >= 0, other=0)
    return (first + query).to(tl.int64), kv_head * GROUP + m % GROUP, live


_PLAN = ["firsts_ptr", "nums_ptr", "sizes_ptr", "wide_ptr", "slots_ptr", "members_ptr"]
"""Parts of a plan: read number by number, and where they lie differs from plan to plan."""


@triton.jit(do_not_specialize_on_alignment=_PLAN)
def _run_items_kernel(
    q_ptr,
    k_run,
    v_run,
    firsts_ptr,
    nums_ptr,
    sizes_ptr,
    wide_ptr,
    slots_ptr,
    members_ptr,
    part_ptr,
    lse_ptr,
    q_stride,
    scale,
    softcap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    MEMBERS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    RUN: tl.constexpr,
    STAGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    KV_HEADS: tl.constexpr = HEADS // GROUP
    for unit in range(tl.program_id(0), tl.load(sizes_ptr) * KV_HEADS, tl.num_programs(0)):
        kv_head = unit % KV_HEADS
        item_ptr = wide_ptr + (unit // KV_HEADS) * 4
        rows_ptr = members_ptr + (unit // KV_HEADS) * MEMBERS
        length = tl.load(item_ptr + 2) - tl.load(item_ptr + 1)
        slot = tl.load(slots_ptr + unit // KV_HEADS)
        m = tl.arange(0, BLOCK_M)
        dims = tl.arange(0, DIM)
        token, head, live = _members(item_ptr, rows_ptr, firsts_ptr, nums_ptr, m, kv_head, HEADS, GROUP, QUERIES)
        await_inputs(DEPENDENT)  # the plan was there before the first launch of the step
        q = tl.load(q_ptr + (token * q_stride + head * DIM)[:, None] + dims[None, :], mask=live[:, None], other=0.0)
        acc = tl.zeros([BLOCK_M, DIM], dtype=tl.float32)
        top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_M], dtype=tl.float32)
        if length > 0:
            for begin in tl.range(0, length, RUN, num_stages=STAGES):
                # The last block ends where the item does; what it shows again counts for nothing.
                at = tl.minimum(begin, length - RUN)
                keys = k_run.load([slot + at, kv_head * DIM])
                scores, factor = scores_of(q, tl.trans(keys), scale, softcap, SOFTCAP, PRECISION)
                scores = tl.where((tl.arange(0, RUN) >= begin - at)[None, :], scores, float("-inf"))
                weights, shrink, top, total = weights_of(scores, top, total, factor, False)
                values = v_run.load([slot + at, kv_head * DIM])
                acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
        # Read again rather than kept in registers meanwhile.
        _, head, live = _members(item_ptr, rows_ptr, firsts_ptr, nums_ptr, m, kv_head, HEADS, GROUP, QUERIES)
        member = (unit // KV_HEADS) * MEMBERS + m // (GROUP * QUERIES)
        number = (member.to(tl.int64) * QUERIES + (m // GROUP) % QUERIES) * HEADS + head
        out = acc / total[:, None]
        tl.store(part_ptr + (number * DIM)[:, None] + dims[None, :], out, mask=live[:, None])
        tl.store(lse_ptr + number, top + tl.log2(total), mask=live)
    await_inputs(DEPENDENT)  # also where there was nothing to do


def run_items(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: dict[str, torch.Tensor],
    scale: float,
    softcap: float,
    queries: int,
    part: torch.Tensor,
    lse: torch.Tensor,
    blocks: Blocks,
    programs: int,
) -> None:
    """The wide items of a plan, all in runs that their rows see whole, by `blocks.run` keys at once.

    Args:
        q: [T, heads, d]; d is a power of two.
        k_cache, v_cache: [slots, kv_heads, d].
        plan: the parts of a `RadixLayout` by name.
        scale, softcap, queries: as for `radix_attention`.
        part, lse: the partial results, changed.
        blocks: the launch.
        programs: of a multiprocessor.
    """
    heads, dim = q.shape[1:]
    group = heads // k_cache.shape[1]
    members = plan["members"].shape[1]
    _run_items_kernel[(multiprocessors(q.device) * programs,)](
        q,
        run_descriptor(k_cache, blocks.run),
        run_descriptor(v_cache, blocks.run),
        plan["firsts"],
        plan["nums"],
        plan["sizes"],
        plan["wide"],
        plan["slots"],
        plan["members"],
        part,
        lse,
        q.stride(0),
        scale if softcap else scale * 1.4426950408889634,
        softcap,
        HEADS=heads,
        GROUP=group,
        DIM=dim,
        QUERIES=queries,
        MEMBERS=members,
        BLOCK_M=padded(members * group * queries, 16),
        RUN=blocks.run,
        STAGES=blocks.run_stages,
        SOFTCAP=softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=blocks.warps,
        num_stages=blocks.run_stages,
        **blocks.options(q.device),
        **early_options(q.device),
    )
