"""Marks: how a value that is not known yet stands in a `str`, whole or not at all.

In: an `Insert`. Out: its mark, a text that passes through f-strings, `+` and `join`; and, of any text with marks in it,
the pieces, or `DamagedMark` where something of a mark is left that is no whole mark.

A mark cannot be written by accident or on purpose: it is spelled in Unicode's noncharacters, which no text has, and
carries a random number of its trace. It also holds what text functions like to change: white space at both ends and
inside, letters of both cases, line ends, quotes and markup. So stripping, splitting, changing case, escaping,
replacing or cutting text with a mark in it damages the mark instead of acting on a value that is not there.
"""

from __future__ import annotations

import re
import secrets

from .errors import RadicelError
from .template import Insert, Piece

__all__ = ["DamagedMark", "Marks"]

_DIGITS = "".join(map(chr, range(0xFDD0, 0xFDE0)))
_OPEN, _BETWEEN, _CLOSE = "\ufde0", "\ufde1", "\ufde2"
_EDGE = "\u1680"  # white space to strip(), of Ogham
_CASES = "\U00010400\U00010428"  # a capital and a small letter, of Deseret
_WORD = "AaEe019"
_BAIT = "\ufde3".join(["\n \n", *" \t,.:;-|&<>'\"\\/", *_WORD, "e\u0301", "\u00e9", "\ufb01"])  # the last: normalize()

_WHOLE = re.compile(
    f"{_EDGE}{_OPEN}{_CASES}([{_DIGITS}]+){_BETWEEN}([{_DIGITS}]+){_BETWEEN}{re.escape(_BAIT)}{_CLOSE}{_EDGE}"
)
# Also as json.dumps, ascii() and urllib write them, and what is left where all but ASCII was taken out.
_REST = re.compile(f"[{_EDGE}\ufdd0-\ufdef{_CASES}]|\\\\u[fF][dD][dDeE][0-9a-fA-F]|%EF%B7%[9Aa]|{_WORD}")
_ASCII = ("\\u", "%EF", _WORD)


class DamagedMark(RadicelError):
    """Text holds a part of a mark, or a mark of another trace."""


class Marks:
    """The marks of one trace."""

    def __init__(self) -> None:
        self._number = _spelled(secrets.randbits(64))
        self._inserts: list[Insert] = []

    def mark(self, insert: Insert) -> str:
        """A text that stands for the insert."""
        self._inserts.append(insert)
        index = _spelled(len(self._inserts) - 1)
        return f"{_EDGE}{_OPEN}{_CASES}{self._number}{_BETWEEN}{index}{_BETWEEN}{_BAIT}{_CLOSE}{_EDGE}"

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """The text and the inserts that it is made of, in order.

        Raises:
            DamagedMark: something of a mark is left that is no whole mark of this trace.
        """
        if text.isascii() and not any(part in text for part in _ASCII):  # nearly all texts
            return (text,) if text else ()
        found: list[Piece] = []
        end = 0
        for match in _WHOLE.finditer(text):
            found += [self._checked(text[end : match.start()]), self._insert(match)]
            end = match.end()
        found.append(self._checked(text[end:]))
        return tuple(piece for piece in found if piece != "")

    @staticmethod
    def touched(text: str) -> bool:
        """Whether there is a mark in the text, or a part of one."""
        return _REST.search(text) is not None

    def _insert(self, match: re.Match[str]) -> Insert:
        number, index = match.groups()
        if number != self._number:
            raise DamagedMark("a value of another trace stands in the text")
        return self._inserts[_read(index)]

    def _checked(self, text: str) -> str:
        if self.touched(text):
            raise DamagedMark("the text was cut or changed after a value was put into it")
        return text


def _spelled(number: int) -> str:
    return "".join(_DIGITS[int(digit, 16)] for digit in f"{number:x}")


def _read(digits: str) -> int:
    return int("".join(f"{_DIGITS.index(digit):x}" for digit in digits), 16)
