"""Head norms, rotary positions and the store of keys and values, in one pass over the projections.

    (x1, x2) → (x1·cos - x2·sin, x2·cos + x1·sin)      (Su et al. 2021, "RoFormer"; halves as in Llama)

A program takes some heads of one token. Queries go to a new tensor, keys and values to their slots; each number is
read once and written once. Sums are kept in float32 and rounded at the end; projections may come in parts of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .launch import early_options, padded, supported
from .programs import await_inputs, finish

__all__ = ["rotary_store"]

HEADS = 8
"""Heads of one program."""


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _rotary_store_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    q_norm_ptr,
    k_norm_ptr,
    qkv_stride,
    part_stride,
    cos_stride,
    slot_stride,
    eps,
    PARTS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    HALF: tl.constexpr = DIM // 2
    await_inputs(DEPENDENT)
    finish(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    columns = tl.arange(0, BLOCK_HALF)
    is_q = heads < NUM_HEADS
    is_k = (heads >= NUM_HEADS) & (heads < NUM_HEADS + KV_HEADS)
    is_v = (heads >= NUM_HEADS + KV_HEADS) & (heads < NUM_HEADS + 2 * KV_HEADS)
    inside = (heads < NUM_HEADS + 2 * KV_HEADS)[:, None] & (columns < HALF)[None, :]
    source = qkv_ptr + token * qkv_stride + heads[:, None] * DIM + columns[None, :]
    x1 = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        x1 += tl.load(source + part * part_stride, mask=inside, other=0.0).to(tl.float32)
        x2 += tl.load(source + part * part_stride + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        scale = 1.0 / tl.sqrt_rn((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / DIM + eps)
        turned = inside & (is_q | is_k)[:, None]
        weight = tl.where(is_q[:, None], q_norm_ptr + columns[None, :], k_norm_ptr + columns[None, :])
        y1 = x1 * scale[:, None] * tl.load(weight, mask=turned, other=0.0).to(tl.float32)
        y2 = x2 * scale[:, None] * tl.load(weight + HALF, mask=turned, other=0.0).to(tl.float32)
    else:
        y1 = x1
        y2 = x2
    half = columns < HALF
    cos = tl.load(cos_ptr + token * cos_stride + HALF + columns, mask=half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * cos_stride + HALF + columns, mask=half, other=0.0).to(tl.float32)[None, :]
    z1 = y1 * cos - y2 * sin
    z2 = y2 * cos + y1 * sin

    q_place = out_ptr + (token * NUM_HEADS + heads[:, None]) * DIM + columns[None, :]
    q_mask = inside & is_q[:, None]
    tl.store(q_place, z1.to(out_ptr.dtype.element_ty), mask=q_mask)
    tl.store(q_place + HALF, z2.to(out_ptr.dtype.element_ty), mask=q_mask)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    k_place = k_ptr + slot * slot_stride + (heads[:, None] - NUM_HEADS) * DIM + columns[None, :]
    k_mask = inside & is_k[:, None]
    tl.store(k_place, z1.to(k_ptr.dtype.element_ty), mask=k_mask)
    tl.store(k_place + HALF, z2.to(k_ptr.dtype.element_ty), mask=k_mask)
    v_place = v_ptr + slot * slot_stride + (heads[:, None] - NUM_HEADS - KV_HEADS) * DIM + columns[None, :]
    v_mask = inside & is_v[:, None]
    tl.store(v_place, x1.to(v_ptr.dtype.element_ty), mask=v_mask)
    tl.store(v_place + HALF, x2.to(v_ptr.dtype.element_ty), mask=v_mask)


def rotary_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    num_heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """See `reference.rotary_store`."""
    if not supported(qkv, cos, sin, k_cache, v_cache, q_norm, k_norm) or qkv.stride(-1) != 1:
        return reference.rotary_store(qkv, cos, sin, slots, k_cache, v_cache, num_heads, q_norm, k_norm, eps)
    tokens, (kv_heads, dim) = qkv.shape[-2], k_cache.shape[1:]
    out = torch.empty((tokens, num_heads, dim), dtype=k_cache.dtype, device=qkv.device)
    if not tokens:
        return out
    normed = q_norm is not None and k_norm is not None
    heads = min(HEADS, padded(num_heads + 2 * kv_heads))
    _rotary_store_kernel[(tokens, triton.cdiv(num_heads + 2 * kv_heads, heads))](
        qkv,
        cos,
        sin,
        slots,
        k_cache,
        v_cache,
        out,
        q_norm if normed else qkv,
        k_norm if normed else qkv,
        qkv.stride(-2),
        qkv.stride(0),
        cos.stride(0),
        k_cache.stride(0),
        eps,
        PARTS=len(qkv) if qkv.dim() == 3 else 1,
        NUM_HEADS=num_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        NORMED=normed,
        BLOCK_H=heads,
        BLOCK_HALF=padded(dim // 2),
        num_warps=max(1, min(4, heads * padded(dim // 2) // 128)),
        **early_options(qkv.device),
    )
    return out
