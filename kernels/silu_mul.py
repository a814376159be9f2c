"""The gate of a SwiGLU block: out = silu(gate) · up, silu(x) = x / (1 + exp(-x)).

After Shazeer 2020, "GLU Variants Improve Transformer". Each number is read once and written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .launch import early_options, supported
from .programs import await_inputs, finish

__all__ = ["silu_mul"]

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, stride, width, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    await_inputs(DEPENDENT)
    finish(DEPENDENT)
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up_ptr + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + width + columns, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + columns, value.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `reference.silu_mul`."""
    if not supported(gate_up) or gate_up.dim() != 2 or gate_up.stride(1) != 1:
        return reference.silu_mul(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        # The long axis first: the second one of a grid ends at 65,535.
        for first in range(0, rows, 65535):
            part = gate_up[first : first + 65535]
            grid = (triton.cdiv(width, BLOCK), len(part))
            _silu_mul_kernel[grid](
                part,
                out[first : first + 65535],
                gate_up.stride(0),
                width,
                BLOCK=BLOCK,
                num_warps=4,
                **early_options(gate_up.device),
            )
    return out
