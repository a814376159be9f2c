"""The rows of a radix plan, by what they share: rows that begin with the same node are a family.

In: what `RadixPlanner` puts into the fields. Out: the same; no more is done here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..batch import Chain
from .slot_runs import SlotRun

__all__ = ["Family", "Row", "Stretch"]


@dataclass
class Row:
    """A row of the plan.

    Attributes:
        chain: the nodes that it stands on, as given.
        family: its key.
        narrow: items in use.
        own: positions that they showed when they were placed.
    """

    chain: Chain
    family: tuple[int, int]
    narrow: list[int] = field(default_factory=list)
    own: int = 0


@dataclass
class Stretch:
    """Positions [start, end) that these rows share; `runs` say where slots of all that they see follow one another."""

    start: int
    end: int
    rows: list[int]
    runs: list[SlotRun]


@dataclass
class Family:
    """Rows that begin with the same node, in order of entry.

    Attributes:
        stretches: shared ones, those above before those below.
        wide: items in use.
        in_runs: whether the slots of each of these follow one another, and all its rows see it whole and more.
        shared: positions of these, each as often as an item reads it.
        saved: positions that sharing spares.
    """

    rows: dict[int, None] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    wide: list[int] = field(default_factory=list)
    in_runs: bool = True
    shared: int = 0
    saved: int = 0

    def forget(self) -> None:
        """Shares nothing."""
        self.stretches, self.shared, self.saved = [], 0, 0
