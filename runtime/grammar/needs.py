"""What a text takes after each token that is allowed at a place, ready to be compared with a budget.

In: tokens and what each needs. Out: the mask of those that fit. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .matcher import Mask, mask_words
from .texts import Ints

__all__ = ["NEVER", "Needs"]

NEVER = 1 << 20
"""Tokens that finish what nothing is known to finish."""


@dataclass
class Needs:
    """What the text takes after each token that is allowed at a place.

    Attributes:
        most: the most of all of them.
        by_size: (tokens needed, mask of the tokens) for those that are alike.
        ids: the others.
        needs: what each of those needs.
    """

    most: int
    by_size: list[tuple[int, Mask]]
    ids: Ints
    needs: Ints
    _last: tuple[int, Mask] | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes that it takes, what others share left out."""
        return 200 + self.ids.nbytes + self.needs.nbytes + (0 if self._last is None else self._last[1].nbytes)

    def within(self, remaining: int, vocab_size: int) -> Mask:
        """The mask of the tokens after which fewer than `remaining` are needed."""
        fits = self.needs < remaining
        sizes = [mask for need, mask in self.by_size if need < remaining]
        key = len(sizes) << 32 | int(fits.sum())  # more fit as more remain, never others
        if self._last is None or self._last[0] != key:
            flags = np.zeros(mask_words(vocab_size) * 32, np.bool_)
            flags[self.ids[fits]] = True
            mask: Mask = np.packbits(flags, bitorder="little").view(np.int32)
            for one in sizes:
                mask |= one
            self._last = key, mask
        return self._last[1]

    def least(self, row: Mask) -> int | None:
        """The token of a mask after which the fewest are needed, among those that are not alike."""
        held = np.flatnonzero(row[self.ids >> 5] >> (self.ids & 31) & 1)
        return int(self.ids[held[self.needs[held].argmin()]]) if len(held) else None
