"""The partial results of each query of a radix plan, weighted by exp(lse): the second launch of `radix_attention`.

    row:  out = Σ exp(lse_i - lse)·o_i over its items, lse = log Σ exp(lse_i)

A program takes one query and a few heads; a row with one partial result has its output already and is skipped.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import early_options, padded
from .programs import await_inputs, finish

__all__ = ["merge_partials", "take_in"]

AT_ONCE, HEADS_OF_PROGRAM = 8, 1
"""Partial results that are loaded together; query heads of a program (with more, fewer programs run together)."""


@triton.jit
def take_in(acc, top, total, lse, part):
    """The running sums (acc [h, d], top [h], total [h]) with partial results [n, h, d], lse [n, h], taken in."""
    new_top = tl.maximum(top, tl.max(lse, 0))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weight = tl.exp2(lse - base[None, :])
    shrink = tl.exp2(top - base)
    acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * part, 0)
    return acc, new_top, total * shrink + tl.sum(weight, 0)


@triton.jit(do_not_specialize_on_alignment=["tokens_ptr", "firsts_ptr", "merges_ptr", "partials_ptr"])
def _merge_kernel(
    tokens_ptr,
    firsts_ptr,
    merges_ptr,
    partials_ptr,
    part_ptr,
    lse_ptr,
    out_ptr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    MERGES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    # The plan was written before the first launch of the step, so what it says is known before the inputs are there.
    token = tl.load(tokens_ptr + tl.program_id(0) * 2)
    row = tl.maximum(tl.load(tokens_ptr + tl.program_id(0) * 2 + 1), 0)
    count = tl.where(token >= 0, tl.load(merges_ptr + row), 0)
    query = token - tl.load(firsts_ptr + row)
    numbers_ptr = partials_ptr + row * MERGES + tl.arange(0, BLOCK)
    number = tl.load(numbers_ptr, mask=tl.arange(0, BLOCK) < count, other=0)
    await_inputs(DEPENDENT)
    finish(DEPENDENT)
    if count > 1:
        heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        dims = tl.arange(0, BLOCK_D)
        acc = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
        top = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_H], dtype=tl.float32)
        for i in range(0, count, BLOCK):
            at = i + tl.arange(0, BLOCK)
            place = ((number.to(tl.int64) * QUERIES + query) * HEADS)[:, None] + heads[None, :]
            there = (at < count)[:, None] & (heads < HEADS)[None, :]
            lse = tl.load(lse_ptr + place, mask=there, other=float("-inf"))
            inside = there[:, :, None] & (dims < DIM)[None, None, :]
            part = tl.load(part_ptr + (place * DIM)[:, :, None] + dims[None, None, :], mask=inside, other=0.0)
            number = tl.load(numbers_ptr + i + BLOCK, mask=at + BLOCK < count, other=0)
            acc, top, total = take_in(acc, top, total, lse, part)
        out = acc / total[:, None]
        place = (token.to(tl.int64) * HEADS + heads)[:, None] * DIM + dims[None, :]
        inside = (heads < HEADS)[:, None] & (dims < DIM)[None, :]
        tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside)


def merge_partials(
    plan: dict[str, torch.Tensor], part: torch.Tensor, lse: torch.Tensor, out: torch.Tensor, queries: int
) -> None:
    """Merges what the items of a plan gave.

    Args:
        plan: the parts of a `RadixLayout` by name, int32.
        part, lse: float32 [numbers · queries · heads, d] and [numbers · queries · heads], of the partial results.
        out: [T, heads, d], changed where a row has several partial results.
        queries: most queries of a row.
    """
    heads = out.shape[1]
    at_once = padded(min(heads, HEADS_OF_PROGRAM))
    _merge_kernel[(len(plan["tokens"]), triton.cdiv(heads, at_once))](
        plan["tokens"],
        plan["firsts"],
        plan["merges"],
        plan["partials"],
        part,
        lse,
        out,
        HEADS=heads,
        DIM=out.shape[2],
        QUERIES=queries,
        MERGES=plan["partials"].shape[1],
        BLOCK=AT_ONCE,
        BLOCK_H=at_once,
        BLOCK_D=padded(out.shape[2], 16),
        num_warps=at_once,
        **early_options(out.device),
    )
