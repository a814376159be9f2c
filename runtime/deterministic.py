"""Runs a model so that the bits of a row do not depend on the rows beside it (`deterministic=True`).

In: a `CausalLM`, its forward pass, its sampling. Out: the same numbers for a token whatever runs beside it, whatever
the cache held, and however its prompt was cut. What a library computes for many rows at once is taken apart here:

- linear layers: by `fixed_linear`, in tiles of a fixed size;
- on a CPU, what torch vectorises over all rows together (its last numbers are computed otherwise than the others), and
  sums: row by row. On a GPU, sums alone: the rest it computes number by number;
- attention: `attention/deterministic_attention.py`; a mixture of experts: one expert after the other;
- sampling on a CPU: row by row.

What is left (sums, products and square roots of single numbers, look-ups, comparisons, sorting) is exact: IEEE 754
says what its result is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..kernels import find, reference_experts
from .batch import SampleBatch
from .models import CausalLM
from .sampler import choose

__all__ = ["ROW_BY_ROW", "SUMS", "FixedRows", "choose_by_row", "make_fixed"]

Tensor = torch.Tensor

ROW_BY_ROW: frozenset[Callable[..., Any]] = frozenset(
    {
        functional.gelu,
        functional.rms_norm,
        functional.silu,
        torch.addcmul,
        torch.logaddexp,
        Tensor.exp,
        Tensor.logsumexp,
        Tensor.softmax,
        Tensor.sum,
        Tensor.tanh_,
    }
)
"""Functions of tensors with a row for each token, or each look-up, whose bits may depend on how many rows there are."""
SUMS: frozenset[Callable[..., Any]] = frozenset({functional.rms_norm, Tensor.logsumexp, Tensor.softmax, Tensor.sum})
"""Those whose bits may depend on it on a GPU as well: how a sum is cut into parts is chosen by the whole shape."""


class FixedRows(TorchFunctionMode):
    """While it is active, linear layers and the functions of `ROW_BY_ROW` treat every row alike, however many."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._linear = find("fixed_linear", device)
        self._by_row = ROW_BY_ROW if device.type == "cpu" else SUMS

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What torch calls in place of every function of tensors."""
        if func is functional.linear:
            return self._linear(*args, **(kwargs or {}))
        if func in self._by_row:
            return _by_row(func, args, dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


def make_fixed(model: CausalLM) -> None:
    """Turns off what a model computes otherwise for few tokens than for many (changes it)."""
    model.fused_rows = 0
    if hasattr(model, "_experts"):
        model._experts = reference_experts.grouped_experts


def choose_by_row(logits: Tensor, batch: SampleBatch, vocab: int) -> Tensor:
    """`choose`, one row at a time on a CPU; on a GPU one launch, whose rows know nothing of each other."""
    if logits.device.type != "cpu" or len(batch.rows) == 1:
        return choose(logits, batch, vocab)
    return torch.cat([choose(logits[i : i + 1], _one(batch, i), vocab) for i in range(len(batch.rows))])


def _one(batch: SampleBatch, row: int) -> SampleBatch:
    """What concerns how one row is sampled."""
    own = slice(row, row + 1)
    masks = np.flatnonzero(batch.mask_rows == row)
    return replace(
        batch,
        rows=batch.rows[own],
        temperature=batch.temperature[own],
        top_p=batch.top_p[own],
        min_p=batch.min_p[own],
        top_k=batch.top_k[own],
        seed=batch.seed[own],
        sample_index=batch.sample_index[own],
        draw_index=batch.draw_index[own],
        masks=None if batch.masks is None or not len(masks) else batch.masks[masks],
        mask_rows=np.zeros(len(masks), np.int64),
        penalties=[replace(penalty, row=0) for penalty in batch.penalties if penalty.row == row],
        logit_bias={0: batch.logit_bias[row]} if row in batch.logit_bias else {},
    )


def _by_row(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not isinstance(x, Tensor) or not x.dim() or len(x) <= 1:
        return func(*args, **kwargs)

    def of(value: Any, row: int) -> Any:
        mine = isinstance(value, Tensor) and value.dim() == x.dim() and len(value) == len(x)
        return value[row : row + 1] if mine else value

    found = [func(*(of(value, row) for value in args), **kwargs) for row in range(len(x))]
    # What was computed in place is there already.
    return x if func is Tensor.tanh_ else torch.cat(found)
