"""Runs steps on a `Runner` without an engine: who owns which slot is decided here, in the plainest way.

Slots are handed out in random order, so that nothing can rely on their being neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from radicel.runtime.batch import TRASH_SLOT, RowUpdate, SampleBatch, StepBatch


class Driver:
    """Page-table rows of a runner: `slots[row]` are those of the row's positions so far."""

    def __init__(self, runner: Any, seed: int = 0) -> None:
        self.runner = runner
        self.free = (np.random.default_rng(seed).permutation(runner.num_slots - 1) + 1).tolist()
        self.slots: dict[int, list[int]] = {}
        self._updates: list[RowUpdate] = []

    def fork(self, row: int, parent: int, length: int | None = None) -> None:
        """Row `row` starts with the slots of `parent`, the first `length` of them."""
        self.slots[row] = list(self.slots[parent][:length])
        self._updates.append(RowUpdate(row, 0, np.asarray(self.slots[row], np.int32)))

    def feed(self, parts: Sequence[tuple[int, Sequence[int]]], logits: str = "all", again: Sequence[int] = ()) -> Any:
        """One step: new ids for each row; rows in `again` repeat ids they hold, as queries on the trash slot.

        Returns the runner's step output, of "all" tokens or of the "last" of each row.
        """
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        lens: list[tuple[int, int]] = []
        for row, new in parts:
            held = self.slots.setdefault(row, [])
            if row in again:
                start = len(held) - len(new)
                slots += [TRASH_SLOT] * len(new)
            else:
                start = len(held)
                own = [self.free.pop() for _ in new]
                held += own
                slots += own
                self._updates.append(RowUpdate(row, start, np.asarray(own, np.int32)))
            ids += new
            positions += range(start, start + len(new))
            lens.append((len(new), start + len(new)))
        ends = np.cumsum([q for q, _ in lens])
        batch = StepBatch(
            token_ids=np.asarray(ids, np.int64),
            positions=np.asarray(positions, np.int64),
            slots=np.asarray(slots, np.int64),
            rows=np.asarray([row for row, _ in parts], np.int32),
            q_lens=np.asarray([q for q, _ in lens], np.int32),
            kv_lens=np.asarray([n for _, n in lens], np.int32),
            logit_rows=np.arange(len(ids)) if logits == "all" else ends - 1,
            updates=tuple(self._updates),
        )
        self._updates = []
        return self.runner.forward(batch)

    def logits(self, parts: Sequence[tuple[int, Sequence[int]]], **options: Any) -> Any:
        """`feed`, and the logits of every wanted row as a tensor."""
        output = self.feed(parts, **options)
        return output.rows(np.arange(len(output.hidden)))


def sampling(size: int, **fields: Any) -> SampleBatch:
    """`size` rows, greedy unless fields say otherwise; a plain number stands for all rows."""
    kinds = {"temperature": np.float32, "top_p": np.float32, "min_p": np.float32, "top_k": np.int32}
    kinds |= {"seed": np.int64, "sample_index": np.int64, "draw_index": np.int64}
    defaults: dict[str, Any] = dict.fromkeys(kinds, 0) | {"top_p": 1.0}
    arrays = {name: np.broadcast_to(fields.pop(name, defaults[name]), size).astype(kinds[name]) for name in kinds}
    rest: dict[str, Any] = {
        "rows": np.arange(size),
        "masks": None,
        "mask_rows": np.empty(0, np.int64),
        "penalties": (),
        "logit_bias": {},
        "want_logprobs": np.zeros(size, np.bool_),
        "top_logprobs": np.zeros(size, np.int32),
        "query_rows": np.empty(0, np.int64),
        "query_ids": np.empty(0, np.int64),
        "query_top": np.empty(0, np.int32),
        "end_rows": np.empty(0, np.int64),
        "end_ids": (),
    }
    return SampleBatch(**arrays, **{**rest, **fields})
