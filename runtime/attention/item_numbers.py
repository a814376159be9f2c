"""Numbers that are taken and given back: places of items in a plan of fixed size.

In: a capacity. Out: the lowest free number, so that those in use stay together.
"""

from __future__ import annotations

import heapq

__all__ = ["NoRoom", "Numbers"]


class NoRoom(Exception):
    """A capacity of the layout does not take the plan."""


class Numbers:
    """Numbers 0 .. capacity - 1, the lowest free one first.

    Attributes:
        in_use: how many are taken.
        high: one above the highest that is taken, or was since all below it were.
    """

    def __init__(self, capacity: int) -> None:
        self.in_use = 0
        self.high = 0
        self._capacity = capacity
        self._free: list[int] = []

    def take(self) -> int:
        """The lowest free number.

        Raises:
            NoRoom: all are taken.
        """
        if self._free:
            number = heapq.heappop(self._free)
        elif self.high < self._capacity:
            number = self.high
            self.high += 1
        else:
            raise NoRoom
        self.in_use += 1
        return number

    def give_back_all(self) -> None:
        """None is taken any more."""
        self.in_use, self.high, self._free = 0, 0, []

    def give_back(self, number: int) -> None:
        """A number is free again."""
        self.in_use -= 1
        if self.in_use == 0:
            self._free, self.high = [], 0
        else:
            heapq.heappush(self._free, number)
