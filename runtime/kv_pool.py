"""Which slots of the KV pool are free: plain CPU integers, no tensors.

In: how many slots are wanted, which ones come back. Out: slot numbers. The tensors that the numbers index belong to
the model runner.

Every slot but `TRASH_SLOT` is at any time exactly one of

    free      in this pool
    cached    on an edge of the radix tree
    owned     in `own_slots` of one running sequence

and the scheduler alone moves slots between the three: pool → tree or sequence (`take`), sequence → tree (insertion),
tree or sequence → pool (`give_back`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .batch import TRASH_SLOT

__all__ = ["SlotPool", "Slots"]

Slots = NDArray[np.int32]
"""int32 [n]: slot numbers, one per token."""


class SlotPool:
    """The free slots, as a stack: what was freed last is used first, while it is still warm in the GPU's caches.

    Args:
        num_slots: slots of the KV pool, `TRASH_SLOT` included; the others, `1 .. num_slots - 1`, start free.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 2:
            raise ValueError(f"num_slots={num_slots}: a pool needs {TRASH_SLOT=} and at least one slot more")
        self._stack: Slots = np.arange(num_slots - 1, TRASH_SLOT, -1, dtype=np.int32)
        self._num_free = num_slots - 1
        self._is_free = np.ones(num_slots, dtype=np.bool_)
        self._is_free[TRASH_SLOT] = False

    @property
    def capacity(self) -> int:
        """Slots that tokens can use: all but `TRASH_SLOT`."""
        return int(self._stack.shape[0])

    @property
    def num_free(self) -> int:
        """Slots that are free now."""
        return self._num_free

    def take(self, count: int) -> Slots:
        """Hands out `count` free slots; they are the caller's until given back.

        Raises:
            ValueError: fewer are free. Whoever calls has asked `num_free` and evicted before.
        """
        if count > self._num_free:
            raise ValueError(f"{count} slots asked for, {self._num_free} of {self.capacity} are free; evict first")
        self._num_free -= count
        slots: Slots = self._stack[self._num_free : self._num_free + count][::-1].copy()
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
        self._stack[self._num_free : self._num_free + count] = slots[::-1]
        self._is_free[slots] = True
        self._num_free += count

    def free_slots(self) -> Slots:
        """A copy of the free slots, in no particular order (for checks)."""
        free: Slots = self._stack[: self._num_free].copy()
        return free

    def check(self) -> None:
        """Raises AssertionError unless stack and flags tell the same story."""
        free = self.free_slots()
        assert len(np.unique(free)) == len(free), "a slot is free twice"
        assert int(self._is_free.sum()) == self._num_free, (int(self._is_free.sum()), self._num_free)
        assert bool(self._is_free[free].all()), "a slot on the stack is marked as in use"
        assert not self._is_free[TRASH_SLOT], "the trash slot is free"
