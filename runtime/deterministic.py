"""Runs a model so that the bits of a row do not depend on the rows beside it (`deterministic=True`).

In: a `CausalLM`, its forward pass, its sampling. Out: the same numbers for a token whatever runs beside it, whatever
the cache held, and however its prompt was cut. What a library computes for many rows at once is taken apart here:

- linear layers: by `fixed_linear`, in tiles of a fixed size;
- on a CPU, what torch vectorises over all rows together (its last numbers are computed otherwise than the others), and
  sums: row by row. On a GPU, sums alone: the rest it computes number by number;
- attention: `attention/deterministic_attention.py`; a mixture of experts: one expert after the other;
- sampling: row by row on a CPU; on a GPU apart for rows whose launches are compiled otherwise.

Steps that are replayed as CUDA graphs (`cuda_graph.py`) compute the same bits: a graph is captured while `FixedRows` is
active, so it holds the launches of these functions, for more rows than the step has. None of them minds how many:

- a row of a linear layer, logits included, is computed by programs of one tile size, in one order, out of this row and
  the weights; rows of padding are rows of their own, whatever they hold;
- norms, rotary positions and gates are kernels with a program for a row or for a part of it, whose launch is chosen by
  the width alone; a function of `SUMS` would be launched row by row, as often as the graph has rows;
- attention has the tiles of the step, and tiles of nobody (`attention/deterministic_attention.py`);
- how often anything is launched is said by shapes, which a graph fixes, never by what a tensor holds. Experts that are
  computed one after the other do ask who chose them: such models run without graphs.

What is left (sums, products and square roots of single numbers, look-ups, comparisons, sorting) is exact: IEEE 754
says what its result is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..kernels import find, reference_experts
from .batch import SampleBatch
from .kv_cache import upload
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


def make_fixed(model: CausalLM) -> bool:
    """Turns off what a model computes otherwise for few tokens than for many (changes it).

    Returns:
        whether its steps can still be captured as CUDA graphs.
    """
    model.fused_rows = 0
    if not hasattr(model, "_experts"):
        return True
    model._experts = reference_experts.grouped_experts
    return False


def choose_by_row(logits: Tensor, batch: SampleBatch, vocab: int) -> Tensor:
    """`choose`, such that how a row is computed does not depend on what the others ask for."""
    kinds = _kinds(batch, logits.device)
    if not (kinds != kinds[:1]).any():
        return choose(logits, batch, vocab)
    chosen = torch.empty(len(kinds), dtype=torch.int64, device=logits.device)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        where = upload(rows, logits.device)
        chosen.index_copy_(0, where, choose(logits.index_select(0, where), _some(batch, rows), vocab))
    return chosen


def _kinds(batch: SampleBatch, device: torch.device) -> NDArray[np.int64]:
    """Rows of one kind are chosen together: on a CPU each is alone. On a GPU rows of a launch know nothing of each
    other, but masks, and logits in float32 that were edited, have launches compiled for them."""
    rows = np.arange(len(batch.rows))
    if device.type == "cpu":
        return rows
    edited = np.isin(rows, [*batch.logit_bias, *(penalty.row for penalty in batch.penalties)])
    masked = np.isin(rows, batch.mask_rows)
    return 2 * edited.astype(np.int64) + masked


def _some(batch: SampleBatch, rows: NDArray[np.intp]) -> SampleBatch:
    """What concerns how some rows, in order, are sampled."""
    place = {row: number for number, row in enumerate(rows.tolist())}
    masks = np.flatnonzero(np.isin(batch.mask_rows, rows))
    return replace(
        batch,
        rows=batch.rows[rows],
        temperature=batch.temperature[rows],
        top_p=batch.top_p[rows],
        min_p=batch.min_p[rows],
        top_k=batch.top_k[rows],
        seed=batch.seed[rows],
        sample_index=batch.sample_index[rows],
        draw_index=batch.draw_index[rows],
        masks=None if batch.masks is None or not len(masks) else batch.masks[masks],
        mask_rows=np.searchsorted(rows, batch.mask_rows[masks]),
        penalties=[replace(penalty, row=place[penalty.row]) for penalty in batch.penalties if penalty.row in place],
        logit_bias={place[row]: bias for row, bias in batch.logit_bias.items() if row in place},
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
