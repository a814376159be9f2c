"""Attention by the Triton kernels with nothing shared: every query reads its own keys and values. For comparison.

In and out: as `triton_attention`. What a shared prefix is worth is the difference between the two.
"""

from __future__ import annotations

import torch

from .radix_plan import RadixTuning
from .triton_attention import TritonAttention

__all__ = ["create"]


def create(
    *, num_heads: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> TritonAttention:
    """Found by the file's name."""
    return TritonAttention(num_heads, kv_heads, head_dim, device, dtype, tuning=RadixTuning(sharing=False))
