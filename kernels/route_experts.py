"""The experts of each token: the k largest of softmax(logits), one launch.

One program per token holds its logits and takes the largest k times (equals by lowest id).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference_experts
from .launch import early_options, padded, supported
from .programs import await_inputs, finish

__all__ = ["route_experts"]

MOST_EXPERTS = 4096
"""Most experts that a program holds."""


@triton.jit
def _route_experts_kernel(
    logits_ptr,
    ids_ptr,
    shares_ptr,
    stride,
    experts,
    COUNT: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    await_inputs(DEPENDENT)
    finish(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    places = tl.arange(0, BLOCK_K)
    inside = columns < experts
    logits = tl.load(logits_ptr + token * stride + columns, mask=inside, other=float("-inf")).to(tl.float32)
    weights = tl.exp(logits - tl.max(logits, 0))
    weights = tl.where(weights == weights, weights, 0.0)  # an id must name an expert even where numbers are missing
    total = tl.sum(weights, 0)
    left = tl.where(inside, weights, -1.0)
    ids = tl.zeros([BLOCK_K], dtype=tl.int32)
    shares = tl.zeros([BLOCK_K], dtype=tl.float32)
    for place in range(COUNT):
        best = tl.max(left, 0)
        chosen = tl.min(tl.where(left == best, columns, BLOCK), 0)
        ids = tl.where(places == place, chosen, ids)
        shares = tl.where(places == place, best, shares)
        left = tl.where(columns == chosen, -1.0, left)
    if NORMED:
        total = tl.sum(shares, 0)
    kept = places < COUNT
    tl.store(ids_ptr + token * COUNT + places, ids, mask=kept)
    tl.store(shares_ptr + token * COUNT + places, shares / total, mask=kept)


def route_experts(logits: torch.Tensor, count: int, normed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference_experts.route_experts`."""
    tokens, experts = logits.shape
    if not supported(logits) or experts > MOST_EXPERTS or logits.stride(1) != 1:
        return reference_experts.route_experts(logits, count, normed)
    ids = torch.empty((tokens, count), dtype=torch.int32, device=logits.device)
    shares = torch.empty((tokens, count), dtype=torch.float32, device=logits.device)
    if tokens:
        _route_experts_kernel[(tokens,)](
            logits,
            ids,
            shares,
            logits.stride(0),
            experts,
            COUNT=count,
            NORMED=normed,
            BLOCK=padded(experts),
            BLOCK_K=padded(count),
            num_warps=1,
            **early_options(logits.device),
        )
    return ids, shares
