"""The PyTorch twins of the kernels for mixtures of experts; see `reference`.

In and out: tensors, as each docstring says.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from .reference import rms_norm, silu_mul

__all__ = ["grouped_experts", "route_experts"]

Tensor = torch.Tensor


def route_experts(logits: Tensor, count: int, normed: bool) -> tuple[Tensor, Tensor]:
    """The `count` experts with the largest shares softmax(logits), equals by lowest id, and their shares.

    Args:
        logits: [T, experts], float types.
        count: how many are chosen.
        normed: whether their shares are divided by their sum.

    Returns:
        int32 [T, count], the largest first, and float32 [T, count].
    """
    shares = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    shares, ids = shares.sort(dim=-1, descending=True, stable=True)
    shares, ids = shares[:, :count], ids[:, :count]
    if normed:
        shares = shares / shares.sum(-1, keepdim=True)
    return ids.int(), shares.float()


def grouped_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    shares: Tensor,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
) -> Tensor:
    """Σ share · down·(silu(gate·x) · up·x) over the experts of each token (Shazeer et al., 2017).

    Args:
        x: [T, n], normed first if `norm` is given (see `rms_norm`).
        gate_up: [experts, 2·m, n], gate and up of each expert.
        down: [experts, n, m].
        ids: int32 [T, k], each expert once in a row.
        shares: float32 [T, k].
        norm, eps: weights [n] of the norm or None, and what is added to its mean of squares.
        residual: [T, n] what the result is added to, in place; or None.

    Returns:
        `residual`, or the result as a new tensor: [T, n] in the dtype of `x`.
    """
    if norm is not None:
        x = rms_norm(x, norm, eps)
    out = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
    for expert in ids.unique().tolist():
        tokens, places = (ids == expert).nonzero(as_tuple=True)
        gated = silu_mul(functional.linear(x[tokens], gate_up[expert]))
        found = functional.linear(gated, down[expert]).to(out.dtype)
        out.index_add_(0, tokens, found * shares[tokens, places, None].to(out.dtype))
    return out.to(x.dtype) if residual is None else residual.add_(out.to(x.dtype))
