"""Where each number of a radix plan lies in its one int32 buffer: what the planner writes and `radix_attention` reads.

In: capacities. Out: name → part of the buffer. No tensors: the planner fills a numpy array of this layout on the CPU,
and a buffer of the same layout on the device receives it in one copy, at addresses that never change (CUDA graphs).

    tokens [C, 2]           number in the step of each token of the plan, and its page-table row; -1 beyond them
    firsts, nums, lens [R]  by page-table row: first token in the step and how many, positions visible to the last;
                            firsts = -1 where the row is not in the step
    sizes [2]               wide and narrow items up to the last that is in use
    merges [R]              partial results of each row
    partials [R, M]         their numbers
    wide [W, 4]             (row that shows the slots, first position, end, number of rows) of each shared item
    slots [W]               the slot of its first position, where its slots follow one another; else -1
    members [W, K]          the rows of each shared item
    narrow [N, 4]           (row, first position, end, 1); the end may lie beyond what the row has: it grows into it

The parts before `sizes` change with every step, the rest only when an item comes or goes. An item that is not in use
has 0 rows. Partial number i·K + k is that of row k of wide item i; W·K + i is that of narrow item i.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMS", "RadixLayout"]

FORMS = ("any", "alone", "runs")
"""What is known of a plan beforehand: nothing; that every row has one item and shares none; that the slots of every
shared item follow one another, at least `run_items`' block of them, that its rows see all of it and more, and that no
row has so much for itself that one program for it and a key head would take longer than all others."""


@dataclass(frozen=True)
class RadixLayout:
    """Capacities of a plan.

    Attributes:
        tokens: C, most tokens of a step.
        rows: R, of the page table.
        wide, members: W shared items of at most K rows.
        narrow: N items of one row.
        merges: M, most partial results of a row.
    """

    tokens: int
    rows: int
    wide: int
    members: int
    narrow: int
    merges: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape, in the order of the buffer."""
        return {
            "tokens": (self.tokens, 2),
            "firsts": (self.rows,),
            "nums": (self.rows,),
            "lens": (self.rows,),
            "sizes": (2,),
            "merges": (self.rows,),
            "partials": (self.rows, self.merges),
            "wide": (self.wide, 4),
            "slots": (self.wide,),
            "members": (self.wide, self.members),
            "narrow": (self.narrow, 4),
        }

    @property
    def num_partials(self) -> int:
        """Partial results of a step, for each query of a row."""
        return self.wide * self.members + self.narrow

    @property
    def step_size(self) -> int:
        """Numbers that change with every step: the front of the buffer."""
        return self.places()["sizes"][0]

    @property
    def size(self) -> int:
        """Numbers of the buffer."""
        return max(end for _, end in self.places().values())

    def places(self) -> dict[str, tuple[int, int]]:
        """Name → (first, end) in the buffer; every part begins at a multiple of 4 numbers, so that loads align."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            count = 1
            for side in shape:
                count *= side
            found[name] = (at, at + count)
            at += -(-count // 4) * 4
        return found
