"""A mixture of experts for one token: its experts' matrices are read once and nothing else is, in two launches.

    hidden = share · silu(gate·n) · up·n;   out = residual + Σ down·hidden over the experts;   n = rmsnorm(x), or x

One token chooses each expert once, so a pair has its matrices to itself and a tile of rows would be padding: products
are multiplications of vectors, as in `fused_linear`. The first launch treats the rows of all chosen experts as one
matrix, whose rows programs take in turn, with x in registers. In the second a program gives some outputs and goes
through the experts in the order of the choice, so that their sum needs no launch and no order of programs. On Hopper
the programs of each launch start while the launch before ends.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import TOKEN_EXPERTS, TokenExperts, early_options, multiprocessors, padded
from .programs import await_inputs, finish

__all__ = ["MOST_WIDTH", "token_experts"]

MOST_WIDTH = 8192
"""Widest token that a program holds in registers."""


@triton.jit
def _first_of(ids_ptr, row, inner, count):
    """Where rows of the chosen experts' gates, counted through all of them, lie in [experts · 2 · inner]."""
    row = tl.where(row < count, row, 0)
    expert = tl.load(ids_ptr + row // inner)
    return expert.to(tl.int64) * (2 * inner) + row % inner


@triton.jit
def _rows_of(weight_ptr, place, live, columns, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr):
    """Whole rows of a tensor, zeros where they are not `live`."""
    inside = live[:, None]
    if WIDTH < BLOCK_K:
        inside = inside & (columns < WIDTH)[None, :]
    cells = weight_ptr + place[:, None] * WIDTH + columns[None, :]
    return tl.load(cells, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def _gate_kernel(
    x_ptr,
    norm_ptr,
    weight_ptr,
    ids_ptr,
    shares_ptr,
    out_ptr,
    inner,
    count,
    eps,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """float32 [chosen · inner]: a program goes over groups of BLOCK_N; weights are read one group ahead of their use,
    and where the rows of a group lie, another one."""
    columns = tl.arange(0, BLOCK_K)
    stride = tl.num_programs(0) * BLOCK_N
    below = weight_ptr + inner.to(tl.int64) * WIDTH
    if NORMED:
        norm = tl.load(norm_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    await_inputs(DEPENDENT)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    place = _first_of(ids_ptr, row, inner, count)
    next_place = _first_of(ids_ptr, row + stride, inner, count)
    gate = _rows_of(weight_ptr, place, row < count, columns, WIDTH, BLOCK_K)
    up = _rows_of(below, place, row < count, columns, WIDTH, BLOCK_K)
    x = tl.load(x_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    if NORMED:
        x = x * (1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / WIDTH + eps)) * norm
    for _ in range(tl.program_id(0) * BLOCK_N, count, stride):
        next_gate = _rows_of(weight_ptr, next_place, row + stride < count, columns, WIDTH, BLOCK_K)
        next_up = _rows_of(below, next_place, row + stride < count, columns, WIDTH, BLOCK_K)
        next_place = _first_of(ids_ptr, row + 2 * stride, inner, count)
        y = tl.sum(gate.to(tl.float32) * x[None, :], 1)
        y_up = tl.sum(up.to(tl.float32) * x[None, :], 1)
        share = tl.load(shares_ptr + row // inner, mask=row < count, other=0.0)
        tl.store(out_ptr + row, share * (y / (1.0 + tl.exp(-y)) * y_up), mask=row < count)
        gate = next_gate
        up = next_up
        row += stride
    finish(DEPENDENT)


@triton.jit
def _piece(weight_ptr, ids_ptr, hidden_ptr, outs, piece, per_expert, width, inner, BLOCK_K: tl.constexpr):
    """(a part of the rows `outs` of an expert, the numbers that it meets)."""
    slot = piece // per_expert
    columns = piece % per_expert * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = columns < inner
    expert = tl.load(ids_ptr + slot).to(tl.int64)
    place = weight_ptr + expert * width * inner + outs.to(tl.int64)[:, None] * inner + columns[None, :]
    there = (outs < width)[:, None] & inside[None, :]
    weight = tl.load(place, mask=there, other=0.0, eviction_policy="evict_first")
    return weight, tl.load(hidden_ptr + slot * inner + columns, mask=inside, other=0.0)


@triton.jit
def _down_kernel(
    hidden_ptr,
    weight_ptr,
    ids_ptr,
    residual_ptr,
    out_ptr,
    width,
    inner,
    chosen,
    ADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """BLOCK_N outputs: the sum over the experts, piece by piece of their rows, one piece ahead."""
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    per_expert = tl.cdiv(inner, BLOCK_K)
    await_inputs(DEPENDENT)
    weight, hidden = _piece(weight_ptr, ids_ptr, hidden_ptr, outs, 0, per_expert, width, inner, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_K], dtype=tl.float32)
    for piece in range(1, chosen * per_expert):
        next_weight, next_hidden = _piece(
            weight_ptr, ids_ptr, hidden_ptr, outs, piece, per_expert, width, inner, BLOCK_K
        )
        acc += weight.to(tl.float32) * hidden[None, :]
        weight = next_weight
        hidden = next_hidden
    finish(DEPENDENT)
    y = tl.sum(acc + weight.to(tl.float32) * hidden[None, :], 1)
    if ADDED:
        y += tl.load(residual_ptr + outs, mask=outs < width, other=0.0).to(tl.float32)
    tl.store(out_ptr + outs, y.to(out_ptr.dtype.element_ty), mask=outs < width)


def token_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    blocks: TokenExperts | None = None,
) -> torch.Tensor:
    """`reference_experts.grouped_experts` of one token, all of whose tensors are contiguous."""
    (_, width, inner), chosen = down.shape, ids.shape[1]
    blocks = blocks or TOKEN_EXPERTS[x.element_size()]
    count = chosen * inner
    hidden = torch.empty(count, dtype=torch.float32, device=x.device)
    out = torch.empty_like(x) if residual is None else residual
    options = early_options(x.device)
    programs = min(triton.cdiv(count, blocks.gate_n), multiprocessors(x.device) * blocks.gate_programs)
    _gate_kernel[(programs,)](
        x,
        x if norm is None else norm,
        gate_up,
        ids,
        shares,
        hidden,
        inner,
        count,
        eps,
        WIDTH=width,
        NORMED=norm is not None,
        BLOCK_N=blocks.gate_n,
        BLOCK_K=padded(width, 16),
        num_warps=blocks.gate_warps if width <= 2048 else 8,
        **options,
    )
    _down_kernel[(triton.cdiv(width, blocks.down_n),)](
        hidden,
        down,
        ids,
        out,
        out,
        width,
        inner,
        chosen,
        ADDED=residual is not None,
        BLOCK_N=blocks.down_n,
        BLOCK_K=min(blocks.down_k, padded(inner, 16)),
        num_warps=blocks.down_warps,
        **options,
    )
    return out
