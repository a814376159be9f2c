"""A linear layer of few rows with what stands before and after it, in one launch where that pays.

    y = W·rmsnorm(x) + b;   gated: y = silu(y[:n]) · y[n:];   with a residual: residual += y

Few rows are bound by reading W once, so each program streams its rows of W and does the rest on the side: the norm's
sum of squares is taken while x passes by, the gate and the sum are done on the finished numbers. One row goes through
multiplications of vectors, up to `MOST_ROWS` through tensor-core tiles that are mostly padding. Sums are kept in
float32, in an order that depends on the shape alone. On Hopper the next launch's programs start while the last ones of
this one end, and read weights until they must wait for its numbers (programmatic dependent launch).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional

from .launch import MOST_ROWS, LinearBlocks, early_options, linear_blocks, multiprocessors, padded, supported
from .programs import await_inputs, finish, prefetch
from .rms_norm import rms_norm
from .silu_mul import silu_mul

__all__ = ["fused_linear", "fused_linear_launch"]


@triton.jit
def _weights(place, columns, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr):
    """A tile of W; each number is read once, so that caches should keep others."""
    if WIDTH % BLOCK_K == 0:
        tile = tl.load(place, eviction_policy="evict_first")
    else:
        tile = tl.load(place, mask=columns < WIDTH, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _inputs(x_ptr, columns, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr):
    if WIDTH % BLOCK_K == 0:
        values = tl.load(x_ptr + columns)
    else:
        values = tl.load(x_ptr + columns, mask=columns < WIDTH, other=0.0)
    return values.to(tl.float32)


@triton.jit
def _vector_kernel(
    x_ptr,
    norm_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    count,
    eps,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row of x; a program gives BLOCK_N numbers. `count` numbers in all."""
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    place = weight_ptr + tl.minimum(outs, count - 1)[:, None].to(tl.int64) * WIDTH + columns[None, :]
    below = count.to(tl.int64) * WIDTH
    cells = columns[None, :]
    w = _weights(place, cells, WIDTH, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_K], dtype=tl.float32)
    squares = tl.zeros([BLOCK_K], dtype=tl.float32)
    if GATED:
        w_up = _weights(place + below, cells, WIDTH, BLOCK_K)
        acc_up = tl.zeros([BLOCK_N, BLOCK_K], dtype=tl.float32)
    if DEPENDENT > 0 and AHEAD > 0 and BLOCK_K >= 64:
        lines = tl.arange(0, BLOCK_K // 64)
        ahead = weight_ptr + tl.minimum(outs, count - 1)[:, None].to(tl.int64) * WIDTH + lines[None, :] * 64
        for at in tl.static_range(BLOCK_K, BLOCK_K * (AHEAD + 1), BLOCK_K):
            if at + BLOCK_K <= WIDTH:
                prefetch(ahead + at)
                if GATED:
                    prefetch(ahead + below + at)
    await_inputs(DEPENDENT)
    x = _inputs(x_ptr, columns, WIDTH, BLOCK_K)
    if NORMED:
        norm = _inputs(norm_ptr, columns, WIDTH, BLOCK_K)
    for at in range(BLOCK_K, WIDTH, BLOCK_K):
        next_w = _weights(place + at, cells + at, WIDTH, BLOCK_K)
        next_x = _inputs(x_ptr, columns + at, WIDTH, BLOCK_K)
        if GATED:
            next_up = _weights(place + below + at, cells + at, WIDTH, BLOCK_K)
        if NORMED:
            next_norm = _inputs(norm_ptr, columns + at, WIDTH, BLOCK_K)
            squares += x * x
            x = x * norm
            norm = next_norm
        acc += w.to(tl.float32) * x[None, :]
        w = next_w
        if GATED:
            acc_up += w_up.to(tl.float32) * x[None, :]
            w_up = next_up
        x = next_x
    if NORMED:
        squares += x * x
        x = x * norm
    finish(DEPENDENT)
    y = tl.sum(acc + w.to(tl.float32) * x[None, :], 1)
    if NORMED:
        scale = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / WIDTH + eps)
        y = y * scale
    inside = outs < count
    if BIASED:
        y += tl.load(bias_ptr + outs, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(acc_up + w_up.to(tl.float32) * x[None, :], 1)
        if NORMED:
            up = up * scale
        if BIASED:
            up += tl.load(bias_ptr + count + outs, mask=inside, other=0.0).to(tl.float32)
        y = y / (1.0 + tl.exp(-y)) * up
    if ADDED:
        y += tl.load(residual_ptr + outs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + outs, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rows_of(weight_ptr, group, count, columns, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Whole rows of W: those of a group."""
    outs = group * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (outs < count)[:, None]
    if WIDTH < BLOCK_K:
        inside = inside & (columns < WIDTH)[None, :]
    place = weight_ptr + outs[:, None].to(tl.int64) * WIDTH + columns[None, :]
    return tl.load(place, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def _resident_kernel(
    x_ptr,
    norm_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    count,
    eps,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row of x, which stays in registers; a program goes over groups of BLOCK_N rows of W, one ahead."""
    group = tl.program_id(0)
    stride = tl.num_programs(0)
    columns = tl.arange(0, BLOCK_K)
    below = weight_ptr + count.to(tl.int64) * WIDTH
    w = _rows_of(weight_ptr, group, count, columns, WIDTH, BLOCK_N, BLOCK_K)
    if GATED:
        w_up = _rows_of(below, group, count, columns, WIDTH, BLOCK_N, BLOCK_K)
    await_inputs(DEPENDENT)
    x = _inputs(x_ptr, columns, WIDTH, BLOCK_K)
    if NORMED:
        scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / WIDTH + eps)
        x = x * scale * _inputs(norm_ptr, columns, WIDTH, BLOCK_K)
    for group in range(tl.program_id(0), tl.cdiv(count, BLOCK_N), stride):
        next_w = _rows_of(weight_ptr, group + stride, count, columns, WIDTH, BLOCK_N, BLOCK_K)
        if GATED:
            next_up = _rows_of(below, group + stride, count, columns, WIDTH, BLOCK_N, BLOCK_K)
        y = tl.sum(w.to(tl.float32) * x[None, :], 1)
        w = next_w
        outs = group * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = outs < count
        if BIASED:
            y += tl.load(bias_ptr + outs, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            up = tl.sum(w_up.to(tl.float32) * x[None, :], 1)
            w_up = next_up
            if BIASED:
                up += tl.load(bias_ptr + count + outs, mask=inside, other=0.0).to(tl.float32)
            y = y / (1.0 + tl.exp(-y)) * up
        if ADDED:
            y += tl.load(residual_ptr + outs, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + outs, y.to(out_ptr.dtype.element_ty), mask=inside)
    finish(DEPENDENT)


@triton.jit
def _tiles_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    rows,
    count,
    x_stride,
    WIDTH: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Up to BLOCK_M rows of x; a program gives BLOCK_N numbers of each."""
    m = tl.arange(0, BLOCK_M)
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    begin = tl.minimum(outs, count - 1).to(tl.int64) * WIDTH
    below = count.to(tl.int64) * WIDTH
    if DEPENDENT > 0 and AHEAD > 0 and BLOCK_K >= 64:
        lines = begin[:, None] + (tl.arange(0, BLOCK_K // 64) * 64)[None, :]
        for at in tl.static_range(0, BLOCK_K * AHEAD, BLOCK_K):
            if at + BLOCK_K <= WIDTH:
                prefetch(weight_ptr + lines + at)
                if GATED:
                    prefetch(weight_ptr + lines + below + at)
    await_inputs(DEPENDENT)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    acc_up = acc
    x_place = x_ptr + (m * x_stride)[:, None] + columns[None, :]
    w_place = weight_ptr + begin[None, :] + columns[:, None]
    for at in tl.range(0, WIDTH, BLOCK_K, num_stages=STAGES):
        if WIDTH % BLOCK_K == 0:
            x = tl.load(x_place + at, mask=(m < rows)[:, None], other=0.0)
        else:
            x = tl.load(x_place + at, mask=(m < rows)[:, None] & (columns + at < WIDTH)[None, :], other=0.0)
        w = _weights(w_place + at, (columns + at)[:, None], WIDTH, BLOCK_K)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        if GATED:
            w_up = _weights(w_place + below + at, (columns + at)[:, None], WIDTH, BLOCK_K)
            acc_up = tl.dot(x, w_up, acc_up, input_precision=PRECISION)
    finish(DEPENDENT)
    inside = (m < rows)[:, None] & (outs < count)[None, :]
    if BIASED:
        acc += tl.load(bias_ptr + outs, mask=outs < count, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if BIASED:
            acc_up += tl.load(bias_ptr + count + outs, mask=outs < count, other=0.0).to(tl.float32)[None, :]
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    out_place = m.to(tl.int64)[:, None] * count + outs[None, :]
    if ADDED:
        acc += tl.load(residual_ptr + out_place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + out_place, acc.to(out_ptr.dtype.element_ty), mask=inside)


def fused_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `reference.fused_linear`."""
    blocks = linear_blocks(x.shape[0], weight, gated) if _fits(x, weight, residual) else None
    if blocks is not None and supported(bias, norm):
        return fused_linear_launch(x, weight, bias, norm, eps, gated, residual, blocks)
    if norm is not None:
        x = rms_norm(x, norm, eps)
    out = functional.linear(x, weight, bias)
    if gated:
        out = silu_mul(out)
    return out if residual is None else residual.add_(out)


def _fits(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> bool:
    return (
        0 < x.shape[0] <= MOST_ROWS
        and supported(x, weight)
        and x.dtype == weight.dtype
        and x.stride(1) == 1
        and weight.is_contiguous()
        and (residual is None or (residual.dtype == x.dtype and residual.is_contiguous()))
    )


def fused_linear_launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: torch.Tensor | None,
    eps: float,
    gated: bool,
    residual: torch.Tensor | None,
    blocks: LinearBlocks,
) -> torch.Tensor:
    """`fused_linear` by own kernels, with given block sizes."""
    rows, width = x.shape
    count = weight.shape[0] // (2 if gated else 1)
    out = torch.empty((rows, count), dtype=x.dtype, device=x.device) if residual is None else residual
    options = {"num_warps": blocks.warps, **early_options(x.device)}
    grid = (triton.cdiv(count, blocks.n),)
    if rows == 1 and blocks.programs:
        _resident_kernel[(min(grid[0], multiprocessors(x.device) * blocks.programs),)](
            x,
            x if norm is None else norm,
            weight,
            x if bias is None else bias,
            out,
            out,
            count,
            eps,
            WIDTH=width,
            NORMED=norm is not None,
            BIASED=bias is not None,
            GATED=gated,
            ADDED=residual is not None,
            BLOCK_N=blocks.n,
            BLOCK_K=padded(width, 16),
            **options,
        )
        return out
    if rows == 1 and blocks.stages == 0:
        _vector_kernel[grid](
            x,
            x if norm is None else norm,
            weight,
            x if bias is None else bias,
            out,
            out,
            count,
            eps,
            WIDTH=width,
            NORMED=norm is not None,
            BIASED=bias is not None,
            GATED=gated,
            ADDED=residual is not None,
            BLOCK_N=blocks.n,
            BLOCK_K=min(blocks.k, padded(width, 16)),
            AHEAD=blocks.ahead,
            **options,
        )
        return out
    _tiles_kernel[grid](
        x if norm is None else rms_norm(x, norm, eps),
        weight,
        x if bias is None else bias,
        out,
        out,
        rows,
        count,
        x.stride(0) if norm is None else width,
        WIDTH=width,
        BIASED=bias is not None,
        GATED=gated,
        ADDED=residual is not None,
        BLOCK_M=16,
        BLOCK_N=blocks.n,
        BLOCK_K=min(blocks.k, padded(width, 16)),
        STAGES=max(1, blocks.stages),
        AHEAD=blocks.ahead,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        **options,
    )
    return out
