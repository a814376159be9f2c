"""Which slots of the KV pool are free: plain CPU integers, no tensors.

In: how many slots are wanted, which ones come back. Out: slot numbers. The tensors that the numbers index belong to
the model runner.

Every slot but `TRASH_SLOT` is at any time exactly one of

    free      in this pool
    cached    on an edge of the radix tree
    owned     in `own_slots` of one running sequence

and the scheduler alone moves slots between the three: pool → tree or sequence (`take`), sequence → tree (insertion),
tree or sequence → pool (`give_back`).

Prompts get slots that follow one another, where there are such: attention reads them in whole blocks, without looking
each one up. What comes back lies scattered, since rows that decode side by side take turns; so free slots are *loose*
on a stack, or in *runs*, and from time to time the loose ones are looked through for runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .batch import TRASH_SLOT

__all__ = ["SlotPool", "Slots"]

Slots = NDArray[np.int32]
"""int32 [n]: slot numbers, one per token."""

LEAST_RUN = 64
"""Slots asked for at a time from which on they should follow one another, and free ones that are worth keeping so."""
_LOOSENED = 1024
"""Slots of a run that become loose at a time."""
_LOOK_AGAIN = 1 / 32
"""Share of the pool that came back, from which on it is worth looking for runs in it: a few ms for 700,000 slots."""


class SlotPool:
    """The free slots.

    Args:
        num_slots: slots of the KV pool, `TRASH_SLOT` included; the others, `1 .. num_slots - 1`, start free.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 2:
            raise ValueError(f"num_slots={num_slots}: a pool needs {TRASH_SLOT=} and at least one slot more")
        self._is_free = np.ones(num_slots, dtype=np.bool_)
        self._is_free[TRASH_SLOT] = False
        self._stack: Slots = np.empty(num_slots - 1, dtype=np.int32)
        self._num_loose = 0  # on the stack: what was freed last is used first, while the GPU's caches still have it
        self._runs: list[tuple[int, int]] = [(TRASH_SLOT + 1, num_slots)]  # (first, end); the last one is used first
        self._num_free = num_slots - 1
        self._came_back = 0  # since runs were looked for

    @property
    def capacity(self) -> int:
        """Slots that tokens can use: all but `TRASH_SLOT`."""
        return int(self._stack.shape[0])

    @property
    def num_free(self) -> int:
        """Slots that are free now."""
        return self._num_free

    def take(self, count: int) -> Slots:
        """Hands out `count` free slots; they are the caller's until given back. Many follow one another, if they can.

        Raises:
            ValueError: fewer are free. Whoever calls has asked `num_free` and evicted before.
        """
        if count > self._num_free:
            raise ValueError(f"{count} slots asked for, {self._num_free} of {self.capacity} are free; evict first")
        if count >= LEAST_RUN and self._find_run(count):
            first, end = self._runs.pop()
            if end > first + count:
                self._runs.append((first + count, end))
            slots: Slots = np.arange(first, first + count, dtype=np.int32)
        else:
            self._loosen(count)
            self._num_loose -= count
            slots = self._stack[self._num_loose : self._num_loose + count][::-1].copy()
        self._num_free -= count
        self._is_free[slots] = False
        return slots

    def give_back(self, slots: Slots) -> None:
        """Takes slots back; nobody may read or write them any more, but steps that were launched before.

        Raises:
            ValueError: one of them is free already, or is `TRASH_SLOT`, or comes twice.
        """
        count = int(slots.shape[0])
        if count == 0:
            return
        if self._is_free[slots].any() or (slots == TRASH_SLOT).any() or self._num_free + count > self.capacity:
            raise ValueError(f"slots {slots[self._is_free[slots] | (slots == TRASH_SLOT)]} are not in use")
        self._stack[self._num_loose : self._num_loose + count] = slots[::-1]
        self._is_free[slots] = True
        self._num_loose += count
        self._num_free += count
        self._came_back += count

    def tidy(self) -> None:
        """Looks for runs in all that is free."""
        free = np.flatnonzero(self._is_free).astype(np.int32)
        ends = np.flatnonzero(np.diff(free, append=-1) != 1) + 1
        begins = np.concatenate(([0], ends[:-1])) if len(ends) else ends
        long = ends - begins >= LEAST_RUN
        runs = [(int(free[begin]), int(free[end - 1]) + 1) for begin, end in zip(begins[long], ends[long])]
        self._runs = sorted(runs, key=_length)
        loose = free[~np.repeat(long, ends - begins)]
        self._num_loose = len(loose)
        self._stack[: self._num_loose] = loose[::-1]
        self._came_back = 0

    def free_slots(self) -> Slots:
        """A copy of the free slots, in no particular order (for checks)."""
        runs = [np.arange(first, end, dtype=np.int32) for first, end in self._runs]
        return np.concatenate((self._stack[: self._num_loose], *runs))

    def check(self) -> None:
        """Raises AssertionError unless stack, runs and flags tell the same story."""
        free = self.free_slots()
        assert len(free) == self._num_free, (len(free), self._num_free)
        assert len(np.unique(free)) == len(free), "a slot is free twice"
        assert int(self._is_free.sum()) == self._num_free, (int(self._is_free.sum()), self._num_free)
        assert bool(self._is_free[free].all()), "a slot in the pool is marked as in use"
        assert not self._is_free[TRASH_SLOT], "the trash slot is free"
        assert all(first < end for first, end in self._runs), "an empty run"

    def _find_run(self, count: int) -> bool:
        """Whether the run that is used first has so many slots. The one in use goes on as long as it does, so that a
        prompt whose chunks come one by one stays in one run; then it is the turn of the longest."""
        if self._runs and _length(self._runs[-1]) >= count:
            return True
        self._runs.sort(key=_length)
        if not (self._runs and _length(self._runs[-1]) >= count) and self._came_back > _LOOK_AGAIN * self.capacity:
            self.tidy()
        return bool(self._runs) and _length(self._runs[-1]) >= count

    def _loosen(self, count: int) -> None:
        """Sees to it that so many slots are on the stack, with slots from the shortest runs."""
        while self._num_loose < count:
            place = min(range(len(self._runs)), key=lambda i: _length(self._runs[i]))
            first, end = self._runs[place]
            middle = min(end, first + max(count - self._num_loose, _LOOSENED))
            # Below what is loose already, which is used before.
            kept = self._stack[: self._num_loose].copy()
            self._stack[: middle - first] = np.arange(middle - 1, first - 1, -1, dtype=np.int32)
            self._num_loose += middle - first
            self._stack[middle - first : self._num_loose] = kept
            self._runs[place : place + 1] = [(middle, end)] if middle < end else []


def _length(run: tuple[int, int]) -> int:
    return run[1] - run[0]
