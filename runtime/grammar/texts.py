"""The texts of a vocabulary's tokens as arrays, so that all of them can be followed at once.

In: a `Vocabulary`. Out: its characters, each token as indexes into them, the bytes with which a token ends inside a
character. Made once for a vocabulary. No torch here.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

import numpy as np

from .tries import Ints, Trie
from .vocabulary import Vocabulary

__all__ = ["Ints", "TokenTexts", "texts_of", "whole_characters"]

_LATER = bytes(range(0x80, 0xC0))
_TAILS = (b"\x80", b"\xbf", b"\x80\x80", b"\xbf\xbf", b"\xa0\x80", b"\x80\x80\x80", b"\x90\x80\x80")
_MOST_TAILS = 3
_TURN = 512


class TokenTexts:
    """Every token that begins with a character; `late` has those that begin inside one.

    Attributes:
        codes: the code points that occur, ascending.
        index: character → its place in `codes`.
        ids: the tokens.
        starts: token → where its characters begin in `flat`.
        sizes: token → how many there are.
        flat: the characters of all tokens, as places in `codes`.
        begun: token → a number of the bytes that follow its characters and begin one more; -1: none do.
        finishes: beginning → places in `codes` of characters that begin so, -1 where there are fewer.
        finish_sizes: the bytes that each of them still takes.
        late: tokens that begin inside a character.
        firsts: how many tokens begin with each of the characters.
        trie: the characters of all tokens, those that begin inside of one left out.
    """

    def __init__(self, vocabulary: Vocabulary, pause: Callable[[], None] = lambda: None) -> None:
        ids: list[int] = []
        texts: list[str] = []
        begun: list[int] = []
        known: dict[bytes, int] = {}
        late: list[int] = []
        for token_id, data in enumerate(vocabulary.text_bytes):
            if token_id % _TURN == 0:
                pause()
            if not data:
                continue
            text, rest = _read(data)
            if text is None:
                late.append(token_id)
                continue
            ids.append(token_id)
            texts.append(text)
            begun.append(known.setdefault(rest, len(known)) if rest else -1)
        self._singles = frozenset(byte for byte in _LATER if vocabulary.single_bytes[byte] is not None)
        self._tails: dict[bytes, dict[str, bytes]] = {}
        ways = list(map(self.tails, known))
        pause()
        points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32).astype(np.int32)
        finishing = [ord(char) for found in ways for char in found]
        self.codes: Ints = np.unique(np.concatenate([points, np.array(finishing, np.int32)]))
        pause()
        self.flat: Ints = np.searchsorted(self.codes, points).astype(np.int32)
        pause()
        self.ids: Ints = np.array(ids, np.int32)
        self.sizes: Ints = np.array([len(text) for text in texts], np.int32)
        self.starts: Ints = (np.cumsum(self.sizes) - self.sizes).astype(np.int32)
        self.begun: Ints = np.array(begun, np.int32)
        self.finishes: Ints = np.full((len(ways), _MOST_TAILS), -1, np.int32)
        self.finish_sizes: Ints = np.zeros((len(ways), _MOST_TAILS), np.int32)
        for row, found in enumerate(ways):
            for column, (char, tail) in enumerate(found.items()):
                self.finishes[row, column] = np.searchsorted(self.codes, ord(char))
                self.finish_sizes[row, column] = len(tail)
        self.late: Ints = np.array(late, np.int32)
        self.index = {chr(code): place for place, code in enumerate(self.codes.tolist())}
        begin = self.starts[self.sizes > 0]
        self.firsts: Ints = np.bincount(self.flat[begin], minlength=len(self.codes)).astype(np.int32)
        pause()
        self.trie = Trie(self.flat, self.starts, self.sizes, pause)

    def tails(self, rest: bytes) -> dict[str, bytes]:
        """Characters that begin so, and what of each is left; only such as tokens of one byte can spell."""
        found = self._tails.get(rest)
        if found is None:
            found = {}
            for tail in _TAILS:
                if self._singles.issuperset(tail):
                    with contextlib.suppress(UnicodeDecodeError):
                        found.setdefault((rest + tail).decode(), tail)
            self._tails[rest] = found = dict(list(found.items())[:_MOST_TAILS])
        return found


def _read(data: bytes) -> tuple[str | None, bytes]:
    """The characters of a token and the first bytes of one more; None where it begins inside one."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if data[0] in _LATER or error.reason != "unexpected end of data":
            return None, b""
        return data[: error.start].decode(), data[error.start :]


_made: weakref.WeakKeyDictionary[Vocabulary, TokenTexts] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def texts_of(vocabulary: Vocabulary, pause: Callable[[], None] = lambda: None) -> TokenTexts:
    """The texts of a vocabulary, made once.

    Args:
        vocabulary: it.
        pause: called now and then while they are made, so that other threads get their turn.
    """
    with _making:
        found = _made.get(vocabulary)
        if found is None:
            found = _made[vocabulary] = TokenTexts(vocabulary, pause)
        return found


def whole_characters(data: bytes) -> str:
    """The characters of data, up to where it ends inside one or is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
