"""The plan of a decode step: which stretches of keys and values are read once for many rows, and how all are cut.

In: the rows that decode, how long they are, the radix nodes each stands on. Out: the arrays of a `RadixLayout`, in one
numpy buffer. No tensors.

Rows that begin with the same node are a family. A family's nodes are walked from the top; nodes with the same rows
below them are one stretch. Where sharing pays (`RadixTuning`), the stretch is cut into pieces, and each piece is a wide
item for every `members` of its rows. What is not shared is cut into narrow items of one row; the last is open at its
end. So a step in which every row grows by a token changes only the lengths, and a row's items change when it outgrows
its last one. A family is planned anew when a row enters or leaves it; all of them when the load has so changed that
pieces of another size fill the device better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...kernels.radix_items import RadixLayout
from ..batch import Chain
from .families import Family, Row, Stretch
from .item_numbers import NoRoom, Numbers
from .slot_runs import SlotRun, covering_runs, runs_of

__all__ = ["RadixPlanner", "RadixTuning"]

Int = NDArray[np.int32]

_STEP = 64
"""Pieces are multiples of this many positions."""
_STALE = 1.5
"""Pieces may be this much longer or shorter than planned anew they would be."""


@dataclass(frozen=True)
class RadixTuning:
    """What was measured on a device.

    Attributes:
        units, wide_units: (piece, key head) pairs of one row, and of several, that fill the device.
        least_piece: shortest piece that is worth cutting off.
        row_cost: positions that a row could read in the time that one more partial result costs it.
        least_saved: positions that sharing must save in all before it pays for a family.
        long_tail: positions of its own that a program reads for a row, where others read as many or the device has
            few: more are split among programs.
        sharing: whether anything is shared; False is flat decoding.
    """

    units: int = 264
    wide_units: int = 132
    least_piece: int = 128
    row_cost: int = 96
    least_saved: int = 1024
    long_tail: int = 1024
    sharing: bool = True


class RadixPlanner:
    """Keeps the plan of one kind of decode step up to date. Used by one thread.

    Attributes:
        buffer: int32, laid out by `layout`; `parts` are its views by name.
        changed: whether more than the step's own front of the buffer changed in the last `update`.
        form: what is known of the plan, one of `radix_items.FORMS`.

    Args:
        run: positions of a shared item from which on its slots are looked at; 0 for never.
    """

    def __init__(self, layout: RadixLayout, *, kv_heads: int, tuning: RadixTuning, run: int = 0) -> None:
        self.layout = layout
        self.tuning = tuning
        self.buffer: Int = np.zeros(layout.size, dtype=np.int32)
        self.parts: dict[str, Int] = {
            name: self.buffer[first:end].reshape(layout.shapes[name]) for name, (first, end) in layout.places().items()
        }
        self.changed = True
        self.form = "any"
        self._run = run
        self._kv_heads = kv_heads
        self._rows: dict[int, Row] = {}
        self._families: dict[tuple[int, int], Family] = {}
        self._piece = self._wide_piece = tuning.least_piece
        self._seen = 0  # positions that all rows of the step see
        self._ends = np.zeros(layout.rows, dtype=np.int64)  # of each row's last narrow item
        self._placed: list[tuple[int, int, int, int, int]] = []  # narrow items to write: item, row, partial, positions
        self._free_wide = Numbers(layout.wide)
        self._free_narrow = Numbers(layout.narrow)
        self.parts["firsts"][:] = -1
        self.parts["tokens"][:] = -1

    def update(self, rows: Int, firsts: Int, nums: Int, lens: Int, chains: Sequence[Chain] | None) -> None:
        """Plans a step (changes the buffer).

        Args:
            rows: [B], page-table rows that decode, each once.
            firsts: [B], the first token of each in the step.
            nums: [B], tokens of each in the step.
            lens: [B], positions visible to its last query.
            chains: the radix nodes of each; the same object as in the last step where they are the same.
        """
        self.changed = False
        self._set_step(rows, firsts, nums, lens)
        self._seen = int(lens.sum())
        stale = self._enter_and_leave(rows.tolist(), chains)
        grown = rows[lens > self._ends[rows]].tolist()
        if stale:
            for key in stale:
                self._find_stretches(self._families[key])
        if stale or grown or self.changed:
            self.changed = True
            self._place(stale, grown)

    def _set_step(self, rows: Int, firsts: Int, nums: Int, lens: Int) -> None:
        count = int(nums.sum())
        tokens = self.parts["tokens"]
        tokens[:count, 0] = np.repeat(firsts - np.cumsum(nums) + nums, nums) + np.arange(count)
        tokens[:count, 1] = np.repeat(rows, nums)
        tokens[count:] = -1
        self.parts["firsts"][:] = -1
        self.parts["firsts"][rows] = firsts
        self.parts["nums"][rows] = nums
        self.parts["lens"][rows] = lens

    def _enter_and_leave(self, rows: list[int], chains: Sequence[Chain] | None) -> dict[tuple[int, int], None]:
        """Moves rows into and out of families; the families that changed and still have rows."""
        stale: dict[tuple[int, int], None] = {}
        known = self._rows
        listed = chains if chains is not None else [()] * len(rows)
        fresh = [
            (row, chain)
            for row, chain in zip(rows, listed)
            if (held := known.get(row)) is None or (held.chain is not chain and held.chain != chain)
        ]
        if len(known) + sum(1 for row, _ in fresh if row not in known) > len(rows):
            present = set(rows)
            for row in [row for row in known if row not in present]:
                self._leave(row, stale)
        for row, chain in fresh:
            if row in known:
                self._leave(row, stale)
            key = (0, chain[0].node) if chain and self.tuning.sharing else (1, row)
            known[row] = Row(chain, key)
            self._families.setdefault(key, Family()).rows[row] = None
            stale[key] = None
        return {key: None for key in stale if key in self._families}

    def _leave(self, row: int, stale: dict[tuple[int, int], None]) -> None:
        self.changed = True
        gone = self._rows.pop(row)
        self._free_narrow_of(gone)
        self.parts["merges"][row] = 0
        family = self._families[gone.family]
        del family.rows[row]
        stale[gone.family] = None
        if not family.rows:
            self._free_wide_of(family)
            del self._families[gone.family]

    def _find_stretches(self, family: Family) -> None:
        """Decides what the rows of a family share."""
        family.forget()
        rows = list(family.rows)
        if len(rows) > 1:
            self._descend(family.stretches, rows, 0, 0)
            family.shared = sum(self._groups(s) * (s.end - s.start) for s in family.stretches)
            family.saved = sum(len(s.rows) * (s.end - s.start) for s in family.stretches) - family.shared
            if family.saved < self.tuning.least_saved:
                family.forget()

    def _descend(self, found: list[Stretch], rows: list[int], depth: int, start: int) -> None:
        """Looks at the node number `depth` of the chains of rows that stand on the same one, and at those below."""
        chain = self._rows[rows[0]].chain
        end = start + chain[depth].length
        depth += 1
        below = self._below(rows, depth)
        while len(below) == 1 and len(next(iter(below.values()))) == len(rows):
            end += chain[depth].length
            depth += 1
            below = self._below(rows, depth)
        stretch = Stretch(start, end, rows, runs_of(chain[:depth]))
        if (len(rows) - self._groups(stretch)) * (end - start) > len(rows) * self.tuning.row_cost:
            found.append(stretch)
        for members in below.values():
            if len(members) > 1:
                self._descend(found, members, depth, end)

    def _below(self, rows: list[int], depth: int) -> dict[int, list[int]]:
        """The rows by the node number `depth` of their chains; rows that end before it are left out."""
        found: dict[int, list[int]] = {}
        for row in rows:
            chain = self._rows[row].chain
            if depth < len(chain):
                found.setdefault(chain[depth].node, []).append(row)
        return found

    def _groups(self, stretch: Stretch) -> int:
        return -(-len(stretch.rows) // self.layout.members)

    def _place(self, stale: dict[tuple[int, int], None], grown: list[int]) -> None:
        """Writes the items of these families, of rows that outgrew theirs, or of all where the pieces no longer fit."""
        ideal = self._ideal_pieces()
        pieces = (self._piece, self._wide_piece)
        if any(not now / _STALE <= best <= now * _STALE for now, best in zip(pieces, ideal)) or self._is_sparse():
            self._place_all(*ideal)
            return
        try:
            for key in stale:
                self._place_family(self._families[key])
            for row in grown:
                family = self._rows[row].family
                if family not in stale:
                    self._place_row(row, [s for s in self._families[family].stretches if row in s.rows])
            self._set_sizes()
        except NoRoom:
            self._place_all(*ideal)

    def _ideal_pieces(self) -> tuple[int, int]:
        """Lengths of narrow and of wide pieces that fill the device."""
        tuning = self.tuning
        shared = sum(family.shared for family in self._families.values())
        own = self._seen - shared - sum(family.saved for family in self._families.values())
        narrow = -(-own * self._kv_heads // (tuning.units * _STEP)) * _STEP
        wide = -(-shared * self._kv_heads // tuning.wide_units) if shared else self._wide_piece
        return max(tuning.least_piece, narrow), max(tuning.least_piece, wide)

    def _is_sparse(self) -> bool:
        used = self._free_wide.in_use + self._free_narrow.in_use
        return self._free_wide.high + self._free_narrow.high > 2 * used + 64

    def _place_all(self, piece: int, wide_piece: int) -> None:
        """Plans everything anew, with longer pieces where there is no room, at last without sharing."""
        shares = True
        while True:
            for family in self._families.values():
                family.wide, family.in_runs = [], True
                if not shares:
                    family.forget()
            for held in self._rows.values():
                held.narrow = []
            self._free_wide.give_back_all()
            self._free_narrow.give_back_all()
            self.parts["wide"][:] = 0
            self.parts["narrow"][:] = 0
            self._placed = []
            self._piece, self._wide_piece = piece, wide_piece
            try:
                for family in self._families.values():
                    self._place_family(family)
                self._set_sizes()
                return
            except NoRoom:
                longest = int(self.parts["lens"].max())
                if piece > longest:
                    if not shares:
                        raise
                    shares = False
                piece, wide_piece = 2 * piece, 2 * wide_piece

    def _place_family(self, family: Family) -> None:
        """Gives a family its items."""
        self._free_wide_of(family)
        shared: dict[int, list[Stretch]] = {row: [] for row in family.rows}
        for row in family.rows:
            self.parts["merges"][row] = 0
        for stretch in family.stretches:
            for row in stretch.rows:
                shared[row].append(stretch)
            self._place_wide(family, stretch)
        for row in family.rows:
            self._place_row(row, shared[row], fresh=True)

    def _place_wide(self, family: Family, stretch: Stretch) -> None:
        runs = self._runs_of(stretch)
        family.in_runs = family.in_runs and bool(runs)
        for run in runs or [SlotRun(stretch.start, stretch.end, -1)]:
            self._place_pieces(family, run, stretch.rows)

    def _runs_of(self, stretch: Stretch) -> list[SlotRun]:
        """The runs of slots that a stretch consists of, if its rows see all of it and more; else none."""
        seen = self.parts["lens"][stretch.rows] - self.parts["nums"][stretch.rows]
        if not self._run or int(seen.min()) < stretch.end:
            return []
        return covering_runs(stretch.runs, stretch.start, stretch.end, self._run)

    def _place_pieces(self, family: Family, run: SlotRun, shared_by: list[int]) -> None:
        width = self.layout.members
        merges, partials = self.parts["merges"], self.parts["partials"]
        for start, end in _cut(run.first, run.end, (run.end - run.first) // max(self._wide_piece, self._run + 16)):
            for first in range(0, len(shared_by), width):
                rows = shared_by[first : first + width]
                item = self._free_wide.take()
                family.wide.append(item)
                self.parts["wide"][item] = (rows[0], start, end, len(rows))
                self.parts["slots"][item] = -1 if run.slot < 0 else run.slot + start - run.first
                self.parts["members"][item, : len(rows)] = rows
                counts = merges[rows]
                if int(counts.max()) >= self.layout.merges:
                    raise NoRoom
                partials[rows, counts] = np.arange(item * width, item * width + len(rows))
                merges[rows] = counts + 1

    def _place_row(self, row: int, shared: list[Stretch], fresh: bool = False) -> None:
        """Narrow items for what a row does not share; without `fresh`, its partial results of wide items stay."""
        held = self._rows[row]
        merges = self.parts["merges"]
        if not fresh:
            merges[row] -= len(held.narrow)
        self._free_narrow_of(held)
        at, count = 0, int(merges[row])
        gaps = []
        for stretch in shared:
            if stretch.start > at:
                gaps.append((at, stretch.start))
            at = stretch.end
        pieces = [piece for gap in gaps for piece in self._pieces(*gap)]
        length = int(self.parts["lens"][row])
        held.own = sum(end - start for start, end in gaps) + max(0, length - at)
        if length > at:
            tail = self._pieces(at, length)
            start = tail[-1][0]
            open_end = start + self._piece + self._piece // 2
            pieces += [*tail[:-1], (start, open_end)]
            self._ends[row] = open_end
        else:
            self._ends[row] = at
        if count + len(pieces) > self.layout.merges:
            raise NoRoom
        for start, end in pieces:
            item = self._free_narrow.take()
            held.narrow.append(item)
            self._placed.append((item, row, count, start, end))
            count += 1
        merges[row] = count

    def _pieces(self, start: int, end: int) -> list[tuple[int, int]]:
        return _cut(start, end, round((end - start) / self._piece))

    def _free_wide_of(self, family: Family) -> None:
        for item in family.wide:
            self._free_wide.give_back(item)
            self.parts["wide"][item] = 0
        family.wide, family.in_runs = [], True

    def _free_narrow_of(self, row: Row) -> None:
        for item in row.narrow:
            self._free_narrow.give_back(item)
            self.parts["narrow"][item] = 0
        row.narrow = []

    def _set_sizes(self) -> None:
        if self._placed:
            item, row, partial, start, end = np.array(self._placed, np.int32).T
            self.parts["narrow"][item] = np.stack((row, start, end, np.ones_like(row)), 1)
            self.parts["partials"][row, partial] = self.layout.wide * self.layout.members + item
            self._placed = []
        self.parts["sizes"][:] = (self._free_wide.high, self._free_narrow.high)
        if self._free_wide.high == 0:
            self.form = "alone" if int(self.parts["merges"].max()) <= 1 else "any"
        else:
            in_runs = self._run and all(family.in_runs for family in self._families.values())
            self.form = "runs" if in_runs and self._tails_are_even() else "any"

    def _tails_are_even(self) -> bool:
        """Whether a program for each row and key head reads what rows have for themselves as fast as more would."""
        own = [held.own for held in self._rows.values()]
        return max(own) <= max(self.tuning.long_tail, 2 * sum(own) * self._kv_heads // self.tuning.units)


def _cut(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """[start, end) in `count` (at least one) nearly equal pieces, all but the last of multiples of 16."""
    count = max(1, min(count, (end - start) // 16))
    ends = [start + (end - start) * i // count // 16 * 16 for i in range(count)]
    return list(zip([start, *ends[1:]], [*ends[1:], end]))
