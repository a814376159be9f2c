"""Log probabilities of given ids: x[id] - log Σ exp(x), in one pass over the logits.

A running maximum and sum per lane (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"), joined
at the end; the log-softmax of the row is never written out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .launch import padded, supported

__all__ = ["logprobs_of"]

BLOCK = 4096


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "ids_ptr"])
def _logprobs_of_kernel(logits_ptr, rows_ptr, ids_ptr, out_ptr, stride, vocab, BLOCK: tl.constexpr):
    entry = tl.program_id(0)
    row = tl.load(rows_ptr + entry).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, vocab, BLOCK):
        ids = first + lanes
        x = tl.load(logits_ptr + row * stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        new_top = tl.maximum(top, x)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = new_top
    best = tl.max(top, 0)
    base = tl.where(best == float("-inf"), 0.0, best)
    norm = tl.log(tl.sum(total * tl.exp(top - base), 0)) + base
    chosen = tl.load(logits_ptr + row * stride + tl.load(ids_ptr + entry)).to(tl.float32)
    tl.store(out_ptr + entry, chosen - norm)


def logprobs_of(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """See `reference.logprobs_of`."""
    if not supported(logits) or logits.stride(1) != 1:
        return reference.logprobs_of(logits, rows, ids)
    vocab = logits.shape[1]
    out = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
    if len(rows):
        block = min(BLOCK, padded(vocab, 128))
        _logprobs_of_kernel[(len(rows),)](logits, rows, ids, out, logits.stride(0), vocab, BLOCK=block, num_warps=8)
    return out
