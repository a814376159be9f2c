"""The places of an outline, numbered as they are seen, and where each kind of character leads from them.

In: an `Outline`, a vocabulary. Out: numbers of places, and a table [place, kind of character] of what follows. The
characters of a kind are those that no part of the grammar tells apart; one of each is tried.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ...schema.charsets import CharSet
from .kinds import borders_of, first_of_each, kinds_of, sets_of, within
from .outline import Outline, Place
from .texts import Ints, texts_of
from .vocabulary import Vocabulary

__all__ = ["DEAD", "UNKNOWN", "Places", "TooMuchWork"]

DEAD = -1
"""Where a character leads nowhere."""
UNKNOWN = -2
"""Where nobody has tried yet."""
_MOST_PLACES = 20_000
_MOST_WORK = 1_500
"""Readings looked at for one mask."""
_MOST_BYTES = 16 * 1024 * 1024
_BITS = 20  # a number of kinds fits in


class TooMuchWork(Exception):
    """To follow all tokens would take too long; what was found is kept."""


class _Told:
    """The kinds of characters that some sets tell apart.

    Args:
        first: a kind of each class.
        own: the class of each kind.
        outside: the class of those that are in none of the sets.
    """

    def __init__(self, first: list[int], own: NDArray[np.int64], outside: int | None) -> None:
        self.first = first
        self.own = own
        self.outside = outside
        self._among: dict[int, list[int]] = {}

    def among(self, kinds: Ints, mark: int) -> list[int]:
        """A kind of each class that some kinds are of; `mark` stands for these."""
        found = self._among.get(mark)
        if found is None:
            found = self._among[mark] = [self.first[own] for own in np.unique(self.own[kinds]).tolist()]
        return found


class Places:
    """The numbered places of one outline.

    Args:
        outline: it.
        vocabulary: the tokens whose characters are told apart.
        pause: called now and then while it is made.

    Attributes:
        exact: whether what is asked is followed to its end, however long that takes, and so depends on nothing else.
        generation: goes up when numbers are forgotten.
        start: where a text begins.
    """

    def __init__(self, outline: Outline, vocabulary: Vocabulary, pause: Callable[[], None]) -> None:
        self.exact = False
        self._outline = outline
        self._vocabulary = vocabulary
        self._texts = texts_of(vocabulary, pause)
        sets = list(sets_of(outline.rules.values(), pause))
        self._kinds = kinds_of(self._texts.codes, sets, pause)
        self._count = int(self._kinds.max(initial=-1)) + 1
        self._sample_codes = self._texts.codes[first_of_each(self._kinds, self._count)]
        self._samples = list(map(chr, self._sample_codes.tolist()))
        # The borders of the sets, and for the ranges between them that have a token's character its kind.
        borders = borders_of(sets)
        pause()
        ranges, first = np.unique(np.searchsorted(borders, self._texts.codes, "right"), return_index=True)
        self._borders: list[int] = borders.tolist()
        self._kind_of_range: dict[int, int] = dict(zip(ranges.tolist(), self._kinds[first].tolist()))
        pause()
        self.generation = 0
        self.start = outline.start
        self._forget()

    def _forget(self) -> None:
        self.generation += 1
        self._places: list[Place] = []
        self._numbers: dict[object, int] = {}
        self._sets: dict[int, tuple[CharSet, NDArray[np.uint64]]] = {}  # by identity; kept so that it stays theirs
        self._told: dict[tuple[int, ...], _Told] = {}
        self._next: Ints = np.full((64, max(1, self._count)), UNKNOWN, np.int32)
        self._odd: dict[tuple[int, int], int] = {}  # place, range between two borders → what follows
        self._work = 0
        self._bytes = 0

    @property
    def _worked_enough(self) -> bool:
        return not self.exact and self._work > _MOST_WORK

    def _make_room(self) -> None:
        """For as many places again."""
        self._next = np.concatenate([self._next, np.full_like(self._next, UNKNOWN)])

    def number(self, place: Place) -> int:
        """The number of a place, of this generation."""
        found = self._numbers.get(place.key)
        if found is None:
            found = self._numbers[place.key] = len(self._places)
            self._places.append(place)
            if found == len(self._next):
                self._make_room()
        return found

    def settle(self) -> None:
        """Forgets what was found where that has become too much; numbers are of the next generation then."""
        if len(self._places) > _MOST_PLACES or self._bytes > _MOST_BYTES:
            self._forget()

    def place(self, number: int) -> Place:
        """The place of a number."""
        return self._places[number]

    def walk(self, number: int, text: str) -> int:
        """Where a text leads; -1: nowhere.

        Raises:
            OutlineError: too many readings.
        """
        for char in text:
            at = self._texts.index.get(char)
            number = self._stepped(number, int(self._kinds[at])) if at is not None else self._odd_step(number, char)
            if number < 0:
                break
        return number

    def _odd_step(self, number: int, char: str) -> int:
        """A step over a character that is in no token as a whole: as over any that no set tells apart from it."""
        between = bisect_right(self._borders, ord(char))
        kind = self._kind_of_range.get(between)
        if kind is not None:
            return self._stepped(number, kind)
        found = self._odd.get((number, between))
        if found is None:
            found = self._odd[number, between] = self._tried(number, char)
            self._bytes += 100
        return found

    def _tried(self, number: int, char: str) -> int:
        """Where the outline says that a character leads."""
        place = self._places[number]
        before = self._outline.work
        later = self._outline.step(place, char)
        self._work += self._outline.work - before
        return self.number(later) if later.readings else DEAD

    def _stepped(self, number: int, kind: int) -> int:
        found = int(self._next[number, kind])
        if found == UNKNOWN:
            found = self._tried(number, self._samples[kind])
            self._next[number, kind] = found
        return found

    def _fill(self, numbers: Ints, kinds: Ints) -> Ints:
        """What follows each place by each kind of character."""
        found: Ints = self._next[numbers, kinds]
        unknown = found == UNKNOWN
        if unknown.any():
            for number in sorted(set(numbers[unknown].tolist())):
                self._fill_row(number)
            found = self._next[numbers, kinds]
        return found

    def _fill_row(self, number: int) -> None:
        """What follows a place, by every kind of character; those that it does not tell apart are tried once."""
        told = self._told_apart(number)
        row = np.full(len(told.first), DEAD, np.int32)
        outside = told.outside if self._places[number].is_plain else None
        for at, kind in enumerate(told.first):
            if at == outside:
                continue
            if self._worked_enough:
                raise TooMuchWork
            row[at] = self._stepped(number, kind)
        self._next[number] = row[told.own]

    def _told_apart(self, number: int) -> _Told:
        """The kinds of characters that a place tells apart: many places ask of the same sets."""
        sets = self._places[number].sets
        key = tuple(map(id, sets))
        found = self._told.get(key)
        if found is None:
            found = self._told[key] = self._parted({id(chars): chars for chars in sets}.values())
        return found

    def _parted(self, sets: Iterable[CharSet]) -> _Told:
        signs = np.zeros(self._count, np.uint64)
        inside = np.zeros(self._count, np.uint64)
        bits = 0
        for chars in sets:
            if bits == 64:
                signs = np.unique(signs, return_inverse=True)[1].astype(np.uint64)
                bits = _BITS
            members = self._members(chars)
            signs |= members << np.uint64(bits)
            inside |= members
            bits += 1
        _, first, own = np.unique(signs, return_index=True, return_inverse=True)
        outside = np.flatnonzero(inside[first] == 0)
        return _Told(first.tolist(), own.reshape(-1), int(outside[0]) if len(outside) else None)

    def _members(self, chars: CharSet) -> NDArray[np.uint64]:
        """Of each kind of character, whether it is in a set of the grammar."""
        known = self._sets.get(id(chars))
        if known is None:
            known = self._sets[id(chars)] = chars, within(self._sample_codes, chars)
        return known[1]
