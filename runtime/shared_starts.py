"""What long texts begin with alike, encoded once: the texts that were encoded last, and where they may be cut.

In: texts with the borders of their pieces (`text_cuts.py`) and the ids up to each. Out: of a new text, how far it goes
as one of them went, and the ids up to there. A few slices are compared, however long the common beginning is.
"""

from __future__ import annotations

from typing import NamedTuple

from .text_cuts import SEEN_AFTER

__all__ = ["Encoded", "SharedStarts"]

_MOST_CHARS = 1_000_000


class Encoded(NamedTuple):
    """A text and its ids.

    Attributes:
        borders: characters before each border between its pieces, ascending.
        counts: ids before each of these borders.
    """

    text: str
    ids: list[int]
    borders: list[int]
    counts: list[int]


class SharedStarts:
    """Remembers a few texts, each of another beginning. Usable from many threads.

    Args:
        most: how many.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._texts: tuple[Encoded, ...] = ()  # replaced as a whole, the last one used first

    def find(self, text: str) -> tuple[Encoded, int] | None:
        """A text that begins like this one, and how many of its borders are this one's; None where none does.

        The first with which it has half of that one's borders, else the one with the longest common beginning.
        """
        best: tuple[Encoded, int] | None = None
        for known in self._texts:
            least = 0 if best is None else best[0].borders[best[1] - 1]
            if known.borders[-1] > least and _same(text, known, 0):
                count = _common(text, known)
                if 2 * count >= len(known.borders):
                    return known, count
                if known.borders[count - 1] > least:
                    best = known, count
        return best

    def keep(self, new: Encoded, instead: Encoded | None, shared: int) -> None:
        """Remembers a text, in the place of one with which it has half of that one's borders."""
        if instead is not None and 2 * shared < len(instead.borders):
            instead = None
        if new.borders and len(new.text) <= _MOST_CHARS:
            others = [known for known in self._texts if known is not instead]
            self._texts = (new, *others[: self._most - 1])


def _common(text: str, known: Encoded) -> int:
    """How many borders of a known text, of which the first is, are the text's own."""
    low, high = 1, len(known.borders) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _same(text, known, middle - 1) else (low, middle)
    return low


def _same(text: str, known: Encoded, border: int) -> bool:
    """Whether the text has this border too: it depends on what stands before it and on the characters seen there."""
    return text.startswith(known.text[: known.borders[border] + SEEN_AFTER])
