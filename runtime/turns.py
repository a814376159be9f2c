"""The order of graphs where the pool has room for everything: as they came, and runs take turns.

In: the waiting sequences of graphs. Out: `next()`, the one whose turn it is.

A run of programs sends graph after graph: first requests, and what goes on from their answers. Within a run, what came
in an earlier wave goes first; within a wave, what more may follow from, and then the lower place. So the first requests
of all programs go before what follows from the first answers, and the batch is full to the end. Were it the other way
round, the last programs to begin would go on alone when all others are through. It is no order of stages: who finishes
a program waits for what came before, not for the beginning of all that are still to come.

Runs take turns, one admission each: a small one does not wait until a big one that came before is through.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

from .request import Sequence

__all__ = ["Turns", "line_of"]


class _Line:
    """The waiting sequences of one run and priority.

    Attributes:
        members: by wave; in it those that are awaited first, and of these the lower place.
        turn: since when it waits: of its first arrival, or of the last admission from it.
    """

    __slots__ = ("members", "priority", "run", "turn")

    def __init__(self, run: object, priority: int, turn: int) -> None:
        self.run = run
        self.priority = priority
        self.turn = turn
        self.members: list[Sequence] = []


class Turns:
    """Waiting sequences of graphs, by run."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []  # by (priority, turn)
        self._line_of: dict[tuple[object, int], _Line] = {}
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Sequence]:
        return itertools.chain.from_iterable(line.members for line in self._lines)

    def add(self, seq: Sequence) -> None:
        """One more; one that comes back keeps its wave."""
        key = line_of(seq)
        line = self._line_of.get(key)
        if line is None:
            line = self._line_of[key] = _Line(*key, next(self._numbers))
            bisect.insort(self._lines, line, key=_turn_key)
        bisect.insort(line.members, seq, key=_wave_key)

    def remove(self, seq: Sequence, *, served: bool = False) -> None:
        """It waits no more; where it was `served`, the others of its run wait for their next turn."""
        line = self._line_of[line_of(seq)]
        del line.members[bisect.bisect_left(line.members, _wave_key(seq), key=_wave_key)]
        if line.members and not served:
            return
        del self._lines[bisect.bisect_left(self._lines, _turn_key(line), key=_turn_key)]
        if line.members:
            line.turn = next(self._numbers)
            bisect.insort(self._lines, line, key=_turn_key)
        else:
            del self._line_of[line_of(seq)]

    def next(self) -> Sequence:
        """The first of the run whose turn it is, among those of the highest priority."""
        return self._lines[0].members[0]

    def check(self) -> None:
        """Raises AssertionError where the order is not what the docstrings say."""
        assert self._lines == sorted(self._lines, key=_turn_key), "the runs are out of order"
        assert set(self._lines) == set(self._line_of.values()), "a run is lost"
        for line in self._lines:
            assert line.members, "a run of which nobody waits"
            assert line.members == sorted(line.members, key=_wave_key), "a run is out of order"
            assert all(line_of(seq) == (line.run, line.priority) for seq in line.members), "a stray"


def line_of(seq: Sequence) -> tuple[object, int]:
    """The run and priority in whose line a sequence of a graph waits."""
    return (seq.graph if seq.run is None else seq.run), seq.priority


def _turn_key(line: _Line) -> tuple[int, int]:
    return -line.priority, line.turn


def _wave_key(seq: Sequence) -> tuple[int, bool, int, int]:
    return seq.wave, not seq.awaited, seq.place, seq.arrival
