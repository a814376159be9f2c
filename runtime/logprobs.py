"""Log probabilities looked up in the logits of a step.

In: the step's logit rows, a `SampleBatch`, the sampled ids. Out: tensors still on the device (`Found`), which
`model_runner` copies and shapes into a `StepResult`. They are those of the unmodified distribution at temperature 1.
Rows are taken in chunks, so that a prompt's log probabilities never hold all its logits at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels import find
from .batch import SampleBatch
from .kv_cache import upload
from .sampler import top_entries

__all__ = ["Found", "Top", "look_up"]

Tensor = torch.Tensor

Index = NDArray[np.intp]

_HOST = torch.device("cpu")
"""Where what nobody asks for is made: on the device it would be a launch and a copy back in every step."""


@dataclass(frozen=True)
class Top:
    """Alternatives of some entries: `counts[i]` of them wanted by entry `entries[i]`, of the sampled or queried ones.

    Attributes:
        values, ids: [len(entries), largest count].
    """

    sampled: bool
    entries: Index
    counts: NDArray[np.int32]
    values: Tensor
    ids: Tensor


@dataclass
class Found:
    """What was looked up: `sampled` [S] (NaN where not wanted), `queries` [Q], `ends` [E], and the alternatives."""

    sampled: Tensor
    queries: Tensor
    ends: Tensor
    tops: list[Top] = field(default_factory=list)


def look_up(
    logits_of: Callable[[NDArray[np.int64]], Tensor], batch: SampleBatch, sampled: Tensor, *, vocab: int, chunk: int
) -> Found:
    """Looks up everything that `batch` asks for.

    Args:
        logits_of: gives [n, width] logits of n indices into the step's logit rows.
        batch: what is wanted.
        sampled: int64 [S], the sampled ids.
        vocab: alternatives are listed below this id only.
        chunk: most rows at once.
    """
    wanted = np.flatnonzero(batch.want_logprobs | (batch.top_logprobs > 0))
    found = Found(
        torch.full((len(batch.rows),), torch.nan, device=sampled.device if len(wanted) else _HOST),
        torch.empty(len(batch.query_rows), device=sampled.device if len(batch.query_rows) else _HOST),
        torch.empty(len(batch.end_rows), device=sampled.device if len(batch.end_rows) else _HOST),
    )
    rows = np.unique(np.concatenate((batch.rows[wanted], batch.query_rows, batch.end_rows)))
    for first in range(0, len(rows), chunk):
        part = rows[first : first + chunk]
        logits = logits_of(part)
        look = _Chunk(part, logits, vocab)
        look.sampled(found, batch, sampled, wanted)
        look.queries(found, batch)
        look.ends(found, batch)
    return found


class _Chunk:
    """Some logit rows (`rows`, sorted)."""

    def __init__(self, rows: NDArray[np.int64], logits: Tensor, vocab: int) -> None:
        self.rows = rows
        self.vocab = vocab
        self._given = logits
        self._fused = find("logprobs_of", logits.device) if logits.device.type == "cuda" else None

    @cached_property
    def logits(self) -> Tensor:
        """In float32 or wider."""
        return self._given.to(torch.promote_types(self._given.dtype, torch.float32))

    @cached_property
    def norm(self) -> Tensor:
        """The log normalisers."""
        return self.logits.logsumexp(-1)

    def sampled(self, found: Found, batch: SampleBatch, ids: Tensor, wanted: Index) -> None:
        entries, local = self._mine(batch.rows, wanted)
        if len(entries):
            where, rows = upload(entries, ids.device), upload(local, ids.device)
            found.sampled.index_copy_(0, where, self._logprob(rows, ids[where]).float())
            self._tops(found, True, entries, local, batch.top_logprobs)

    def queries(self, found: Found, batch: SampleBatch) -> None:
        entries, local = self._mine(batch.query_rows)
        if len(entries):
            device = self._given.device
            logprobs = self._logprob(upload(local, device), upload(batch.query_ids[entries], device))
            found.queries.index_copy_(0, upload(entries, device), logprobs.float())
            self._tops(found, False, entries, local, batch.query_top)

    def ends(self, found: Found, batch: SampleBatch) -> None:
        entries, local = self._mine(batch.end_rows)
        if not len(entries):
            return
        device = self.logits.device
        sets = [sorted(batch.end_ids[entry]) for entry in entries]
        ids = np.full((len(sets), max(1, max(map(len, sets)))), -1, np.int64)
        for line, members in zip(ids, sets):
            line[: len(members)] = members
        index, rows = upload(ids, device), upload(local, device)
        picked = self.logits[rows.unsqueeze(-1), index.clamp(min=0)].masked_fill(index < 0, -torch.inf)
        # One after the other: the size of another entry's set must not change how this one's is summed.
        total = functools.reduce(torch.logaddexp, picked.unbind(-1))
        found.ends.index_copy_(0, upload(entries, device), (total - self.norm[rows]).float())

    def _mine(self, rows: NDArray[np.int64], among: Index | None = None) -> tuple[Index, Index]:
        """Which entries (of `among`) look at a row of this chunk, and which of its rows that is."""
        entries = np.arange(len(rows)) if among is None else among
        inside = entries[(rows[entries] >= self.rows[0]) & (rows[entries] <= self.rows[-1])]
        return inside, np.searchsorted(self.rows, rows[inside])

    def _logprob(self, rows: Tensor, ids: Tensor) -> Tensor:
        if self._fused is not None:
            looked_up: Tensor = self._fused(self._given, rows, ids)
            return looked_up
        # On a CPU a normaliser serves all ids of its row.
        return self.logits[rows, ids] - self.norm[rows]

    def _tops(self, found: Found, sampled: bool, entries: Index, local: Index, counts: NDArray[np.int32]) -> None:
        some = np.flatnonzero(counts[entries] > 0)
        if not len(some):
            return
        most = min(int(counts[entries[some]].max()), self.vocab)
        rows = upload(local[some], self.logits.device)
        values, ids = top_entries(self.logits[rows, : self.vocab], most)
        values = values - self.norm[rows].unsqueeze(-1)
        found.tops.append(Top(sampled, entries[some], counts[entries[some]], values, ids))
