"""The PyTorch twin of every kernel: what it must compute, on any device and dtype.

In and out: tensors, as each docstring says. A GPU kernel has the same name, signature and result; parity tests compare
the two. These are also what runs where no faster kernel exists, so the small ones are written to be quick on a CPU.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["add_rms_norm", "ragged_attention", "rms_norm", "rotary_store", "silu_mul"]

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm: x / sqrt(mean(x², last) + eps) · weight (Zhang and Sennrich, 2019).

    Args:
        x: [..., n], any of the float types; the mean is taken in float32 or wider.
        weight: [n].
        eps: added to the mean of squares.

    Returns:
        [..., n] in the dtype of `x`.
    """
    return functional.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`residual += x` in place, then its `rms_norm`.

    Args:
        x: [T, n], what the last block gave.
        residual: [T, n], changed.
        weight: [n].
        eps: added to the mean of squares.

    Returns:
        [T, n], the norm of the new residual.
    """
    return rms_norm(residual.add_(x), weight, eps)


def rotary_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Norms each head if asked to, rotates queries and keys (RoPE, Su et al. 2021), stores keys and values.

    With x = (x1, x2) split in the middle of the head: out = (x1·cos - x2·sin, x2·cos + x1·sin).

    Args:
        qkv: [T, (num_heads + 2·kv_heads)·d], queries, keys, values side by side.
        cos: [T, d], the cosines of each token's angles, both halves equal.
        sin: [T, d], the sines, the first half negated.
        slots: integers [T], where each token's key and value go; only the trash slot may repeat.
        k_cache, v_cache: [slots, kv_heads, d], changed.
        num_heads: query heads.
        q_norm, k_norm: [d], weights of an RMS norm of each query and key head before the rotation, or None.
        eps: of that norm.

    Returns:
        The rotated queries, [T, num_heads, d].
    """
    kv_heads, dim = k_cache.shape[1:]
    heads = qkv.view(qkv.shape[0], num_heads + 2 * kv_heads, dim)
    turned = heads[:, : num_heads + kv_heads]
    if q_norm is not None and k_norm is not None:
        turned = torch.cat(
            (rms_norm(heads[:, :num_heads], q_norm, eps), rms_norm(turned[:, num_heads:], k_norm, eps)), 1
        )
    turned = torch.addcmul(turned * cos.unsqueeze(1), turned.roll(dim // 2, -1), sin.unsqueeze(1))
    k_cache.index_copy_(0, slots, turned[:, num_heads:])
    v_cache.index_copy_(0, slots, heads[:, num_heads + kv_heads :])
    return turned[:, :num_heads]


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, the gate of a SwiGLU block (Shazeer, 2020).

    Args:
        gate_up: [T, 2n], gate and up side by side.

    Returns:
        [T, n].
    """
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def ragged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    rows: Tensor,
    q_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of a ragged batch over the page table: softmax(scale · q·Kᵀ)·V for each query and head.

    Query i of sequence b (token q_starts[b] + i) sees the positions 0 .. kv_lens[b] - q_lens[b] + i of its row, where
    q_lens[b] = q_starts[b + 1] - q_starts[b]. Query head h reads key head h // (heads / kv_heads). Scores and sums are
    kept in float32 or wider.

    Args:
        q: [T, heads, d].
        k_cache, v_cache: [slots, kv_heads, d].
        page_table: int32 [rows, context], the slot of each position.
        rows: integers [B], the page-table row of each sequence.
        q_starts: integers [B + 1], the first token of each sequence, and T.
        kv_lens: integers [B], positions visible to the last query.
        scale: factor of the scores.

    Returns:
        [T, heads, d] in the dtype of `q`.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k_cache.shape[1]
    out = torch.empty_like(q)
    starts = q_starts.tolist()
    for b, (row, kv_len) in enumerate(zip(rows.tolist(), kv_lens.tolist())):
        queries = q[starts[b] : starts[b + 1]].to(wide)
        slots = page_table[row, :kv_len].long()
        keys = k_cache[slots].to(wide).repeat_interleave(group, 1)
        values = v_cache[slots].to(wide).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * scale
        last_seen = torch.arange(kv_len - len(queries), kv_len, device=q.device)
        hidden = torch.arange(kv_len, device=q.device)[None] > last_seen[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[starts[b] : starts[b + 1]] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out
