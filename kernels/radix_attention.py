"""Decode attention over the radix tree: keys and values that several rows share are read once for all of them.

    item: a stretch of positions and the rows that share its slots  →  for each of their queries and heads
        o = softmax(scale · q·Kᵀ)·V over the stretch, lse = log Σ exp(scale · q·Kᵀ)
    row:  out = Σ exp(lse_i - lse)·o_i over its items, lse = log Σ exp(lse_i)

The shared-prefix decomposition of Juravsky et al. 2024 ("Hydragen"), over the stretches of a tree as in Yao et al.
2024 ("DeFT"); split keys and values after Dao et al. 2023 ("Flash-Decoding"). Wide items are scored by tensor-core
tiles of (rows · queries · heads of one key head); what a row has for itself is cut into narrow items, the same with
one row. A fixed number of programs takes (item, key head) units in turn and reads how many there are from the device,
so one captured launch serves any plan. A second launch merges; a row with one partial result skips it, and where all
rows have one, there is none. Where the slots of all wide items follow one another, `run_items` takes these, and
`tail_items` the rest and the merge.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .attend import attend_block, attend_seen_by_all, load_slots
from .launch import RADIX, RadixBlocks, early_options, multiprocessors, padded, run_blocks, supported
from .merge_partials import merge_partials
from .programs import await_inputs, finish, let_next_begin
from .run_items import run_items
from .tail_items import tail_items

__all__ = ["item_rows", "item_run", "one_launch_tokens", "radix_attention", "radix_launch"]


@triton.jit
def _attend_item(
    item_ptr,
    members_ptr,
    partial,
    kv_head,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    firsts_ptr,
    nums_ptr,
    lens_ptr,
    merges_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    q_stride,
    slot_stride,
    table_stride,
    scale,
    softcap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
    ORDER: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    shown_by = tl.load(item_ptr)
    start = tl.load(item_ptr + 1)
    end = tl.load(item_ptr + 2)
    count = tl.load(item_ptr + 3)
    slots_ptr = table_ptr + shown_by.to(tl.int64) * table_stride

    m = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    member = m // (GROUP * QUERIES)
    query = (m // GROUP) % QUERIES
    head = kv_head * GROUP + m % GROUP
    row = tl.load(members_ptr + member, mask=member < count, other=0)
    first = tl.load(firsts_ptr + row, mask=member < count, other=-1)
    num = tl.load(nums_ptr + row, mask=first >= 0, other=0)
    live = query < num
    token = (first + query).to(tl.int64)
    limits = tl.load(lens_ptr + row, mask=live, other=0) - num + 1 + query
    inside = live[:, None] & (dims < DIM)[None, :]
    if ORDER != 2:
        await_inputs(DEPENDENT)
    q = tl.load(q_ptr + (token * q_stride + head * DIM)[:, None] + dims[None, :], mask=inside, other=0.0)

    stop = tl.minimum(end, tl.max(tl.where(live, limits, 0), 0))
    seen_by_all = tl.minimum(stop, tl.min(tl.where(live, limits, stop), 0))
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    if WINDOW > 0:
        masked_from = start + tl.maximum(seen_by_all - WINDOW - start, 0) // BLOCK_N * BLOCK_N
    else:
        masked_from = start + tl.maximum(seen_by_all - start, 0) // BLOCK_N * BLOCK_N
        acc, top, total = attend_seen_by_all(
            q, acc, top, total, start, masked_from, stop, limits, kv_head, k_ptr, v_ptr, slots_ptr, slot_stride, scale,
            softcap, slots_ptr, k_ptr, v_ptr, BLOCK_N, BLOCK_D, DIM, SOFTCAP, PRECISION, AHEAD, 0, 1,
        )  # fmt: skip
    if masked_from < stop:
        for n in range(masked_from, stop, BLOCK_N):
            slots = load_slots(slots_ptr, n, stop, BLOCK_N)
            acc, top, total = attend_block(
                q, acc, top, total, n, stop, limits, kv_head, k_ptr, v_ptr, slots, slot_stride, scale, softcap,
                BLOCK_N, BLOCK_D, DIM, True, WINDOW, SOFTCAP, PRECISION,
            )  # fmt: skip

    saw = total > 0.0
    out = acc / tl.where(saw, total, 1.0)[:, None]
    alone = tl.load(merges_ptr + row, mask=live, other=0) == 1
    out_place = out_ptr + ((token * HEADS + head) * DIM)[:, None] + dims[None, :]
    tl.store(out_place, out.to(out_ptr.dtype.element_ty), mask=inside & alone[:, None])
    merged = live & (alone == 0)
    number = ((partial + member).to(tl.int64) * QUERIES + query) * HEADS + head
    tl.store(part_ptr + (number * DIM)[:, None] + dims[None, :], out, mask=inside & merged[:, None])
    tl.store(lse_ptr + number, tl.where(saw, top + tl.log2(tl.where(saw, total, 1.0)), float("-inf")), mask=merged)


_PLAN = ["firsts_ptr", "nums_ptr", "lens_ptr", "sizes_ptr", "merges_ptr", "wide_ptr", "members_ptr", "narrow_ptr"]
"""Parts of a plan: read number by number, and where they lie differs from plan to plan."""


@triton.jit(do_not_specialize_on_alignment=_PLAN)
def _radix_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    firsts_ptr,
    nums_ptr,
    lens_ptr,
    sizes_ptr,
    merges_ptr,
    wide_ptr,
    members_ptr,
    narrow_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    q_stride,
    slot_stride,
    table_stride,
    scale,
    softcap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    MEMBERS: tl.constexpr,
    WIDE_ITEMS: tl.constexpr,
    WIDE_M: tl.constexpr,
    WIDE_N: tl.constexpr,
    NARROW_M: tl.constexpr,
    NARROW_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
    ORDER: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Units below num_wide · kv_heads are wide items, the rest narrow; WIDE_M or NARROW_M of 0 leaves a kind out.

    ORDER is 0 for a launch of its own, 1 and 2 for the first and the second of two that share the items.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    # The plan was written before the first launch of the step. Of two launches that share the items, neither reads what
    # the other writes: the first lets the second begin once both have their inputs, and both wait at their ends.
    if DEPENDENT > 0 and ORDER == 2:
        let_next_begin()
    num_wide = tl.load(sizes_ptr) if WIDE_M > 0 else 0
    num_narrow = tl.load(sizes_ptr + 1) if NARROW_M > 0 else 0
    for unit in range(tl.program_id(0), (num_wide + num_narrow) * KV_HEADS, tl.num_programs(0)):
        item = unit // KV_HEADS
        kv_head = unit % KV_HEADS
        if item < num_wide:
            if WIDE_M > 0:
                _attend_item(
                    wide_ptr + item * 4, members_ptr + item * MEMBERS, item * MEMBERS, kv_head, q_ptr, k_ptr, v_ptr,
                    table_ptr, firsts_ptr, nums_ptr, lens_ptr, merges_ptr, out_ptr, part_ptr, lse_ptr, q_stride,
                    slot_stride, table_stride, scale, softcap, HEADS, GROUP, DIM, QUERIES, WIDE_M, WIDE_N, BLOCK_D,
                    WINDOW, SOFTCAP, PRECISION, AHEAD, ORDER, DEPENDENT,
                )  # fmt: skip
        else:
            if NARROW_M > 0:
                one = item - num_wide
                _attend_item(
                    narrow_ptr + one * 4, narrow_ptr + one * 4, WIDE_ITEMS * MEMBERS + one, kv_head, q_ptr, k_ptr,
                    v_ptr, table_ptr, firsts_ptr, nums_ptr, lens_ptr, merges_ptr, out_ptr, part_ptr, lse_ptr, q_stride,
                    slot_stride, table_stride, scale, softcap, HEADS, GROUP, DIM, QUERIES, NARROW_M, NARROW_N,
                    BLOCK_D, WINDOW, SOFTCAP, PRECISION, AHEAD, ORDER, DEPENDENT,
                )  # fmt: skip
    await_inputs(DEPENDENT)  # also where there was nothing to do
    if ORDER == 0:
        finish(DEPENDENT)


def radix_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    plan: dict[str, torch.Tensor],
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    queries: int = 1,
    out: torch.Tensor | None = None,
    form: str = "any",
) -> torch.Tensor:
    """See `reference.radix_attention`."""
    if not supported(q, k_cache, v_cache):
        return reference.radix_attention(
            q, k_cache, v_cache, page_table, plan, scale, window, softcap, queries, out, form
        )
    blocks = RADIX[q.element_size(), padded(q.shape[2], 64)]
    return radix_launch(q, k_cache, v_cache, page_table, plan, scale, window, softcap, queries, out, blocks, form)


def item_rows(group: int, head_dim: int, dtype: torch.dtype, queries: int = 1) -> int:
    """Rows that one wide item holds: K of the plan's layout."""
    blocks = RADIX[dtype.itemsize, padded(head_dim, 64)]
    return max(1, blocks.wide.m // (group * queries))


def one_launch_tokens(head_dim: int, dtype: torch.dtype) -> int:
    """Tokens up to which one launch takes all items, whatever is shared."""
    return RADIX[dtype.itemsize, padded(head_dim, 64)].fused_rows


def item_run(head_dim: int, dtype: torch.dtype, device: torch.device) -> int:
    """Positions that an item in a run of slots has at least, for plans of the form "runs"; 0 where there are none."""
    return run_blocks(RADIX[dtype.itemsize, padded(head_dim, 64)].run, head_dim, device)


def radix_launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    plan: dict[str, torch.Tensor],
    scale: float,
    window: int,
    softcap: float,
    queries: int,
    out: torch.Tensor | None,
    blocks: RadixBlocks,
    form: str = "any",
) -> torch.Tensor:
    """`radix_attention` with given block sizes: in one launch or two, and the merge; rows alone in one."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    num_wide, members = plan["members"].shape
    heads, dim = q.shape[1:]
    group = heads // k_cache.shape[1]
    numbers = (num_wide * members + len(plan["narrow"])) * queries * heads
    part = torch.empty((numbers, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty(numbers, dtype=torch.float32, device=q.device)
    tokens = len(plan["tokens"])
    narrow_m = padded(group * queries, 16)
    wide_m = padded(members * group * queries, 16)
    kinds = [(wide_m, 0, blocks.wide, blocks.wide_programs, 1), (0, narrow_m, blocks.narrow, blocks.narrow_programs, 2)]
    if tokens <= blocks.fused_rows:
        # Few sizes of the wide tile, for each is a kernel to compile; small where next to nothing can be shared.
        most = 4 if queries == 1 and tokens <= 4 else blocks.fused_rows
        kinds = [(padded(min(members, most) * group * queries, 16), narrow_m, blocks.both, 2, 0)]
    elif form == "alone":
        kinds = [(0, narrow_m, blocks.narrow, blocks.narrow_programs, 0)]
        if blocks.few is not None and tokens * k_cache.shape[1] <= 2 * multiprocessors(q.device):
            kinds = [(0, narrow_m, blocks.few, blocks.few_programs, 0)]
    elif form == "runs" and not window and run_blocks(blocks.run, dim, q.device):
        run_items(q, k_cache, v_cache, plan, scale, softcap, queries, part, lse, blocks.run, blocks.wide_programs)
        tail_items(q, k_cache, v_cache, page_table, plan, scale, softcap, queries, part, lse, out, blocks.tail)
        return out
    for wide, narrow, tile, programs, order in kinds:
        _radix_attention_kernel[(multiprocessors(q.device) * programs,)](
            q,
            k_cache,
            v_cache,
            page_table,
            plan["firsts"],
            plan["nums"],
            plan["lens"],
            plan["sizes"],
            plan["merges"],
            plan["wide"],
            plan["members"],
            plan["narrow"],
            out,
            part,
            lse,
            q.stride(0),
            k_cache.stride(0),
            page_table.stride(0),
            scale if softcap else scale * 1.4426950408889634,
            softcap,
            HEADS=heads,
            GROUP=group,
            DIM=dim,
            QUERIES=queries,
            MEMBERS=members,
            WIDE_ITEMS=num_wide,
            WIDE_M=wide,
            WIDE_N=tile.n,
            NARROW_M=narrow,
            NARROW_N=tile.n,
            BLOCK_D=padded(dim, 16),
            WINDOW=window,
            SOFTCAP=softcap > 0,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            AHEAD=tile.ahead,
            num_warps=tile.warps,
            num_stages=tile.stages,
            ORDER=order,
            **tile.options(q.device),
            **early_options(q.device),
        )
    if form != "alone":
        merge_partials(plan, part, lse, out, queries)
    return out
