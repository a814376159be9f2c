"""The tokens made of some characters alone: where all of these lead on alike, a token's length says what follows it.

In: the texts of a vocabulary, a set of characters. Out: the tokens of each length as masks, and the other tokens as a
tree of what comes after the ordinary characters that they begin with. Depends on the vocabulary and the set alone, so
grammars share it. No torch here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .matcher import Mask, mask_words
from .texts import TokenTexts, texts_of
from .tries import Ints, Trie
from .vocabulary import Vocabulary

__all__ = ["FREE", "Flags", "Ordinary", "ordinary_of"]

Flags = NDArray[np.bool_]

FREE = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
"""The characters that stand for themselves in a JSON string."""
_FEWEST = 8
"""One of so many tokens must be ordinary, or following them all takes less."""
_MOST_SETS = 12  # of megabytes each


class Ordinary:
    """The tokens of some characters alone, and the others.

    Args:
        flags: of each of the vocabulary's characters (`TokenTexts.codes`), whether it is one of these.
        plain: of each token, whether it is made of these alone.
        size: of the vocabulary.

    Attributes:
        sizes: the lengths of ordinary tokens, ascending; `counts`: how many there are of each.
        longest: the most ordinary characters that any token begins with.
        others: the other tokens, as places in `TokenTexts.ids`.
        trie: what follows the ordinary characters of each of those; below the root it says how many there are.
        runs: the trie's nodes of these numbers; `run_sizes`: the numbers.
    """

    def __init__(
        self, flags: Flags, plain: Flags, texts: TokenTexts, size: int, pause: Callable[[], None] = lambda: None
    ) -> None:
        self.flags = flags
        lengths = texts.sizes[plain]
        sizes, self.counts = np.unique(lengths, return_counts=True)
        self.sizes: Ints = sizes.astype(np.int32)
        held = np.zeros(mask_words(size) * 32, np.bool_)
        self._upto: list[Mask] = [np.zeros(mask_words(size), np.int32)]
        for length in self.sizes.tolist():
            held[texts.ids[plain][lengths == length]] = True
            self._upto.append(np.packbits(held, bitorder="little").view(np.int32))
            pause()
        self.others: Ints = np.flatnonzero(~plain).astype(np.int32)
        starts, whole = texts.starts[self.others], texts.sizes[self.others]
        pause()
        runs = _runs(flags, texts.flat, starts, whole)
        pause()
        rests = whole - runs + 1
        begins = (np.cumsum(rests) - rests).astype(np.int32)
        at = np.arange(rests.sum(), dtype=np.int32) - np.repeat(begins, rests) + np.repeat(starts + runs - 1, rests)
        flat = texts.flat[np.maximum(at, 0)] if len(texts.flat) else np.zeros(len(at), np.int32)
        flat[begins] = runs
        self.trie = Trie(flat, begins, rests, pause)
        self.runs, _ = self.trie.children(np.zeros(1, np.int32))
        self.run_sizes: Ints = self.trie.symbols[self.runs]
        self.longest = int(max(self.sizes.max(initial=0), self.run_sizes.max(initial=0)))

    def mask(self, first: int, last: int) -> Mask:
        """The ordinary tokens of `sizes[first]` to `sizes[last]` characters; not to be changed."""
        if first == 0:
            return self._upto[last + 1]
        found: Mask = self._upto[last + 1] & ~self._upto[first]
        return found


def _runs(flags: Flags, flat: Ints, starts: Ints, sizes: Ints) -> Ints:
    """How many characters of these each text begins with."""
    runs = np.zeros(len(starts), np.int32)
    going = np.flatnonzero(sizes > 0)
    while len(going):
        going = going[flags[flat[starts[going] + runs[going]]]]
        runs[going] += 1
        going = going[runs[going] < sizes[going]]
    return runs


class _Known:
    """What was made of one vocabulary."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sets: dict[bytes, Ordinary | None] = {}


_known: weakref.WeakKeyDictionary[Vocabulary, _Known] = weakref.WeakKeyDictionary()
_finding = threading.Lock()


def ordinary_of(vocabulary: Vocabulary, flags: Flags, pause: Callable[[], None] = lambda: None) -> Ordinary | None:
    """The tokens made of some of the vocabulary's characters, found once; None where they are few.

    Kept until many others were asked for: who has no use for it meanwhile holds it by a weak reference.
    """
    with _finding:
        known = _known.setdefault(vocabulary, _Known())
    key = np.packbits(flags).tobytes()
    with known.lock:
        if key in known.sets:
            known.sets[key] = found = known.sets.pop(key)  # the last one to be forgotten
            return found
        while len(known.sets) >= _MOST_SETS:
            known.sets.pop(next(iter(known.sets)))
        found = known.sets[key] = _made(vocabulary, flags, pause)
        return found


def _made(vocabulary: Vocabulary, flags: Flags, pause: Callable[[], None]) -> Ordinary | None:
    texts = texts_of(vocabulary, pause)
    some = np.flatnonzero(texts.sizes > 0)
    if not len(some):
        return None
    # What begins where the next one does adds up to nothing, so only tokens with characters are looked at.
    whole = np.minimum.reduceat(flags[texts.flat].view(np.int8), texts.starts[some]).view(np.bool_)
    pause()
    plain = np.zeros(len(texts.ids), np.bool_)
    plain[some] = whole
    plain &= texts.begun < 0
    if _FEWEST * plain.sum() < len(plain):
        return None
    return Ordinary(flags, plain, texts, vocabulary.size, pause)
