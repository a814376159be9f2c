"""A linear layer of a few dozen rows: reading W once is what takes time, so all else must stay out of its way.

    y = W·x + b;   gated: y = silu(y[:n]) · y[n:];   in parts: y = Σ parts, for whoever adds them up next

Tiles of W and x come through the copy engine (TMA), several ahead of the products; W is the left factor, so that up to
64 rows of x fill a tensor-core instruction without padding. Where there are too few tiles of W for the device, its
columns are split, and each part of the sum is kept in float32: the kernel that adds the result to the residual reads
them all (`rms_norm.add_rms_norm`), in an order that depends on the shape alone. As in `fused_linear`, programs start
while the launch before ends, and bring their first tiles of W into the cache (programmatic dependent launch).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from .launch import StreamedBlocks, early_options, padded, streamed_blocks, supported
from .programs import await_inputs, finish, prefetch
from .silu_mul import silu_mul

__all__ = ["streamed_linear", "streamed_linear_launch"]


@triton.jit
def _streamed_kernel(
    x_tiles,
    w_tiles,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    count,
    WIDTH: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A program gives BLOCK_N numbers of each row, or a part of their sums; `count` numbers in all."""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK_K - 1) // BLOCK_K
    EACH: tl.constexpr = (BLOCKS + PARTS - 1) // PARTS
    first = tl.program_id(0) * BLOCK_N
    part = tl.program_id(1)
    begin = part * EACH * BLOCK_K
    outs = first + tl.arange(0, BLOCK_N)
    if DEPENDENT > 0 and AHEAD > 0:
        line = weight_ptr + tl.minimum(outs, count - 1).to(tl.int64)[:, None] * WIDTH + begin
        lines = line + (tl.arange(0, BLOCK_K // 64) * 64)[None, :]
        for at in tl.static_range(0, AHEAD * BLOCK_K, BLOCK_K):
            if at + BLOCK_K <= EACH * BLOCK_K and EACH * PARTS * BLOCK_K == WIDTH:
                prefetch(lines + at)
                if GATED:
                    prefetch(lines + count.to(tl.int64) * WIDTH + at)
    await_inputs(DEPENDENT)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    acc_up = acc
    for at in tl.range(begin, tl.minimum(begin + EACH * BLOCK_K, WIDTH), BLOCK_K, num_stages=STAGES):
        w = w_tiles.load([first, at])
        x = tl.trans(x_tiles.load([0, at]))
        acc = tl.dot(w, x, acc, input_precision=PRECISION)
        if GATED:
            acc_up = tl.dot(w_tiles.load([count + first, at]), x, acc_up, input_precision=PRECISION)
    finish(DEPENDENT)
    m = tl.arange(0, BLOCK_M)
    inside = (outs < count)[:, None] & (m < rows)[None, :]
    if BIASED:
        acc += tl.where(part == 0, tl.load(bias_ptr + outs, mask=outs < count, other=0.0).to(tl.float32), 0.0)[:, None]
    if GATED:
        if BIASED:
            acc_up += tl.load(bias_ptr + count + outs, mask=outs < count, other=0.0).to(tl.float32)[:, None]
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    place = (part * rows + m).to(tl.int64)[None, :] * count + outs[:, None]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=inside)


def streamed_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    in_parts: bool = False,
) -> torch.Tensor:
    """See `reference.streamed_linear`."""
    blocks = streamed_blocks(x, weight, gated, in_parts) if supported(bias) else None
    if blocks is not None:
        return streamed_linear_launch(x, weight, bias, gated, blocks)
    out = functional.linear(x, weight, bias)
    return silu_mul(out) if gated else out


def streamed_linear_launch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gated: bool, blocks: StreamedBlocks
) -> torch.Tensor:
    """`streamed_linear` with given block sizes; in parts if these say so."""
    rows, width = x.shape
    count = weight.shape[0] // (2 if gated else 1)
    shape, dtype = ((rows, count), x.dtype) if blocks.parts == 1 else ((blocks.parts, rows, count), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    block_m = padded(rows, 16)
    _streamed_kernel[(triton.cdiv(count, blocks.n), blocks.parts)](
        TensorDescriptor(x, [rows, width], [x.stride(0), 1], [block_m, blocks.k]),
        TensorDescriptor(weight, list(weight.shape), [width, 1], [blocks.n, blocks.k]),
        weight,
        x if bias is None else bias,
        out,
        rows,
        count,
        WIDTH=width,
        BIASED=bias is not None,
        GATED=gated,
        PARTS=blocks.parts,
        BLOCK_M=block_m,
        BLOCK_N=blocks.n,
        BLOCK_K=blocks.k,
        STAGES=blocks.stages,
        AHEAD=blocks.ahead,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=blocks.warps,
        **early_options(x.device),
    )
    return out
