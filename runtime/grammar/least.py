"""The fewest tokens that any text of a grammar takes, found by trying tokens from its start, shortest way first.

In: the outline of a grammar, the vocabulary, a budget. Out: the number where it is above the budget and that is
certain, else None. What is left out of account makes texts shorter here than they are, never longer: a character that a
token only begins is finished for nothing.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...schema.charsets import union
from ...schema.regex_ast import ends
from ...schema.regex_run import kinds
from .outline import Outline, Place
from .vocabulary import Vocabulary

__all__ = ["TooMuchWork", "more_than"]

_MOST_STEPS = 120_000
_ENDS_STRINGS = frozenset([*map(chr, range(0x20)), '"', "\\"])
_FEW_RANGES = 16

_Text = tuple[str, bytes]
"""Whole characters, and the first bytes of one more."""


class TooMuchWork(Exception):
    """It would take too long to tell."""


def more_than(budget: int, outline: Outline, vocabulary: Vocabulary, *, crossing: bool) -> int | None:
    """The fewest tokens of a text (or a few less), where these are more than the budget; None where it may fit.

    Args:
        budget: tokens.
        outline: of the grammar; used by this thread alone.
        vocabulary: its tokens spell the texts.
        crossing: whether the first token may begin before the text (token healing): it then costs nothing.

    Raises:
        TooMuchWork: it would take too long to tell.
        OutlineError: too many readings.
    """
    search = _Search(outline, _texts(vocabulary))
    here: dict[object, Place] = {place.key: place for place in search.starts(_ends(vocabulary) if crossing else ())}
    if any(place.may_end for place in here.values()):
        return None
    seen = set(here)
    count = 0
    while here:
        count += 1
        there: dict[object, Place] = {}
        try:
            for place in here.values():
                for after in search.after(place):
                    if after.may_end:
                        return count if count > budget else None
                    if after.key not in seen:
                        seen.add(after.key)
                        there[after.key] = after
        except TooMuchWork:
            if count > budget:  # no text has fewer
                return count
            raise
        here = there
    return None


@dataclass(frozen=True)
class _Texts:
    """What tokens spell, sorted; and what is left of them from the first character on that may end a JSON string."""

    whole: tuple[_Text, ...]
    tails: tuple[_Text, ...]


@functools.lru_cache(maxsize=4)
def _texts(vocabulary: Vocabulary) -> _Texts:
    whole = {_read(data) for data in vocabulary.text_bytes if data} - {("", b"")}
    tails = set()
    for text, begun in whole:
        at = next((i for i, char in enumerate(text) if char in _ENDS_STRINGS), None)
        if at is not None:
            tails.add((text[at:], begun))
    return _Texts(tuple(sorted(whole)), tuple(sorted(tails)))


@functools.lru_cache(maxsize=4)
def _ends(vocabulary: Vocabulary) -> tuple[_Text, ...]:
    """What tokens may spell after a part of them that belongs to what stands before, sorted."""
    cut = {_read(data) for data in vocabulary.text_bytes if data[:1].lstrip(_LATER) != data[:1]}
    whole = _texts(vocabulary).whole
    ends = {(text[i:], begun) for text, begun in whole for i in range(1, len(text) + bool(begun))}
    return tuple(sorted(ends | cut))


def _read(data: bytes) -> _Text:
    """A token's text; the end of a character that it begins with is left out."""
    data = data.lstrip(_LATER)
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return "", b""  # no text has it
        return data[: error.start].decode(), data[error.start :]


_LATER = bytes(range(0x80, 0xC0))


class _Search:
    def __init__(self, outline: Outline, texts: _Texts) -> None:
        self._outline = outline
        self._texts = texts
        self._steps = 0

    def starts(self, ends: Sequence[_Text]) -> Iterator[Place]:
        """Where a text may stand before its first token, which may be the end of one from before."""
        yield self._outline.start
        yield from self._walked(self._outline.start, ends)

    def after(self, place: Place) -> Iterator[Place]:
        """Where it may stand after one token more."""
        if place.in_free_string and self._step(place, '"') is not None:
            # More characters of a string that may end open no shorter way: what counts is what follows them.
            return self._walked(place, self._texts.tails)
        return self._walked(place, self._texts.whole)

    def _walked(self, start: Place, texts: Sequence[_Text]) -> Iterator[Place]:
        """After each of the sorted texts; what they share is gone over once, and left where it is not allowed."""
        texts = _able(start, texts)
        path: list[Place] = [start]
        before = ""
        index = 0
        while index < len(texts):
            text, begun = texts[index]
            shared = _shared(before, text)
            del path[shared + 1 :]
            for size in range(shared, len(text)):
                following = self._step(path[-1], text[size])
                if following is None:
                    before = text[:size]
                    index = bisect_left(texts, (text[:size] + chr(ord(text[size]) + 1), b""), index)
                    break
                path.append(following)
            else:
                before = text
                index += 1
                if begun:
                    yield from self._begun(path[-1], begun)
                else:
                    yield path[-1]

    def _begun(self, place: Place, begun: bytes) -> Iterator[Place]:
        """After each kind of character that begins so."""
        low, high = _reach(begun)
        codes = {code for token, state, _ in place.readings if token for code in kinds(token.node(state), low, high)}
        for code in sorted(codes):
            after = self._step(place, chr(code))
            if after is not None:
                yield after

    def _step(self, place: Place, char: str) -> Place | None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise TooMuchWork
        later = self._outline.step(place, char)
        return later if later.readings else None


def _able(place: Place, texts: Sequence[_Text]) -> Sequence[_Text]:
    """Those of the sorted texts that begin with a character which may stand there, or within one."""
    nodes = [token.node(state) for token, state, _ in place.readings if token]
    allowed = union(*(ends(node, first=True) for node in nodes))
    if len(allowed) > _FEW_RANGES:
        return texts
    found = list(texts[: bisect_left(texts, ("\0", b""))])
    for low, high in allowed:
        stop = len(texts) if high >= 0x10FFFF else bisect_left(texts, (chr(high + 1), b""))
        found += texts[bisect_left(texts, (chr(low), b"")) : stop]
    return found


@functools.cache
def _reach(begun: bytes) -> tuple[int, int]:
    """The code points whose UTF-8 begins with these bytes."""
    length = 2 if begun[0] < 0xE0 else 3 if begun[0] < 0xF0 else 4
    known = begun[0] & (0xFF >> (length + 1))
    for byte in begun[1:]:
        known = known << 6 | byte & 0x3F
    spare = 6 * (length - len(begun))
    least = {2: 0x80, 3: 0x800, 4: 0x10000}[length]
    return max(known << spare, least), min(((known + 1) << spare) - 1, 0x10FFFF)


def _shared(one: str, other: str) -> int:
    size = 0
    for a, b in zip(one, other):
        if a != b:
            break
        size += 1
    return size
