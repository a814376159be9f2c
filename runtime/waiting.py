"""The sequences that wait for admission, and which of them is next.

In: sequences as they arrive or come back from preemption. Out: `next()`, the one to admit now.

Order: higher priority first; within a priority, "prefix" takes the longest cached prefix first, so that a prefix is
used while it is there, and those that end in the same node together (depth first); "fcfs" takes them as they came.
Ageing: whoever waits longest of all is next once `max_overtakes` others were admitted past it. Everybody becomes the
longest waiting at some time, so nobody starves.

The work of a step is bounded whatever the length of the queue: cached lengths are found for a window of
`match_window` sequences at a time, in order of arrival, and only when somebody can be admitted. They are estimates (a
later admission may lengthen them); admission itself matches exactly.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator

from .engine_config import EngineConfig
from .request import Sequence, SequenceState

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """The waiting sequences.

    Args:
        peek: length of a sequence's cached prefix, and the serial of the node it ends in.
    """

    def __init__(self, config: EngineConfig, peek: Callable[[Sequence], tuple[int, int]]) -> None:
        self._config = config
        self._peek = peek
        self._order: list[Sequence] = []  # by (priority, arrival)
        self._oldest: list[tuple[int, Sequence]] = []  # heap by arrival; entries of those that left stay until on top
        self._listed: set[int] = set()  # the arrivals in that heap
        self._overtaken = 0  # admissions past the sequence on top of the heap
        self._window: list[Sequence] = []  # the best last; only within one step

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._order)

    def add(self, seq: Sequence) -> None:
        """One more; `arrival` says where it stands among its priority."""
        bisect.insort(self._order, seq, key=_order_key)
        if self._oldest and seq.arrival < self._oldest[0][0]:
            self._overtaken = 0
        if seq.arrival not in self._listed:
            self._listed.add(seq.arrival)
            heapq.heappush(self._oldest, (seq.arrival, seq))
        self._window = []

    def remove(self, seq: Sequence) -> None:
        """It was cancelled or failed; nobody overtook anybody."""
        self._drop(seq)
        self._settle_oldest(seq)

    def admitted(self, seq: Sequence) -> None:
        """`next()` was admitted."""
        self._drop(seq)
        if not self._settle_oldest(seq):
            self._overtaken += 1

    def new_step(self) -> None:
        """The tree has changed; cached lengths found before are out of date."""
        self._window = []

    def next(self) -> Sequence | None:
        """Who is to be admitted next; stays in the queue until `admitted` or `remove`."""
        if not self._order:
            return None
        if self._overtaken >= self._config.max_overtakes:
            return self._oldest[0][1]
        if self._config.policy == "fcfs":
            return self._order[0]
        if not self._window:
            self._window = self._ranked_window()
        return self._window[-1]

    def check(self) -> None:
        """Raises AssertionError where the queue is not what its docstring says."""
        assert self._order == sorted(self._order, key=_order_key), "the queue is out of order"
        assert len({id(seq) for seq in self._order}) == len(self._order), "a sequence waits twice"
        assert all(seq.state is SequenceState.WAITING for seq in self._order), "one that does not wait is in the queue"
        if self._order:
            assert self._oldest[0][1] is min(self._order, key=lambda seq: seq.arrival), "the oldest is another one"

    def _ranked_window(self) -> list[Sequence]:
        priority = self._order[0].priority
        window = [seq for seq in self._order[: self._config.match_window] if seq.priority == priority]
        ranked = []
        for seq in window:
            length, node = self._peek(seq)
            ranked.append((length, -node, -seq.arrival, seq))
        ranked.sort(key=lambda entry: entry[:3])
        return [seq for *_, seq in ranked]

    def _drop(self, seq: Sequence) -> None:
        index = self._index(seq)
        if index is None:
            raise ValueError(f"sequence {seq.id} does not wait")
        del self._order[index]
        if seq in self._window:
            self._window.remove(seq)

    def _settle_oldest(self, left: Sequence) -> bool:
        """Whether `left` was the oldest; then the next one is, and nobody has overtaken it yet."""
        if self._oldest[0][1] is not left:
            return False
        self._overtaken = 0
        while self._oldest and self._index(self._oldest[0][1]) is None:
            self._listed.discard(heapq.heappop(self._oldest)[0])
        return True

    def _index(self, seq: Sequence) -> int | None:
        index = bisect.bisect_left(self._order, _order_key(seq), key=_order_key)
        return index if index < len(self._order) and self._order[index] is seq else None


def _order_key(seq: Sequence) -> tuple[int, int]:
    return -seq.priority, seq.arrival
