"""Questions about what a constraint allows: how long is its shortest text, can a stop string occur in one?

In: a `Constraint`. Out: a lower bound in bytes or tokens (exact for few short texts); whether a string is impossible.
Both err on the safe side: "at least so long" and "never" are certain (`language.py`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import apart, charsets, hurry
from .constraint_rules import bare, size
from .grammar_ast import Ref
from .language import language_of
from .regex_ast import Alt, Chars, Repeat, Seq

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["few_texts", "fewest_tokens", "never_contains", "shortest_bytes"]

_MOST_TEXTS = 64
_MOST_CHARACTERS = 256
_MOST_STOP = 256


@functools.lru_cache(maxsize=256)
def shortest_bytes(constraint: Constraint) -> int:
    """The constraint allows no text of fewer UTF-8 bytes."""
    return apart.run(_shortest_bytes, size(constraint), bare(constraint))


def _shortest_bytes(constraint: Constraint) -> int:
    rules, root = language_of(constraint)
    known: dict[str, float] = dict.fromkeys(rules, math.inf)
    while True:  # each round, a rule's figure is right once those it needs are: as many rounds as rules at most
        hurry.check()
        found = {name: _bytes(node, known) for name, node in rules.items()}
        if found == known:
            break
        known = found
    return 0 if math.isinf(known[root]) else int(known[root])


def few_texts(constraint: Constraint) -> tuple[str, ...] | None:
    """All texts that are allowed, where these are few and short; else None."""
    if constraint.form == "choices":
        short = len(constraint.options) <= _MOST_TEXTS and max(map(len, constraint.options)) <= _MOST_CHARACTERS
        return constraint.options if short else None
    if constraint.form != "regex":
        return None
    rules, root = language_of(constraint)
    try:
        return tuple(dict.fromkeys(_texts(rules[root])))
    except _Many:
        return None


def fewest_tokens(constraint: Constraint, vocabulary: Collection[bytes], longest: int | None = None) -> int:
    """The constraint allows no text of fewer tokens; exact where `few_texts` knows them all.

    Args:
        constraint: the constraint.
        vocabulary: the bytes of every token; a set where it is asked often.
        longest: those of the longest one.
    """
    longest = longest or max(map(len, vocabulary), default=1)
    texts = few_texts(constraint)
    if texts:
        exact = [_pieces(text.encode("utf-8", "surrogatepass"), vocabulary, longest) for text in texts]
        known = [count for count in exact if count is not None]
        if known:
            return min(known)
    return -(-shortest_bytes(constraint) // longest)


def never_contains(constraint: Constraint, stop: str) -> bool:
    """Whether it is certain that no text of the constraint has `stop` in it."""
    if not 0 < len(stop) <= _MOST_STOP:
        return False
    rules, root = language_of(constraint)
    finder = _Finder(stop)
    return not finder.reaches(rules, root)


def _bytes(node: Any, known: Mapping[str, float]) -> float:
    if isinstance(node, Ref):
        return known[node.name]
    if isinstance(node, Chars):
        return len(chr(node.chars[0][0]).encode("utf-8", "surrogatepass")) if node.chars else math.inf
    if isinstance(node, Seq):
        return sum(_bytes(item, known) for item in node.items)
    if isinstance(node, Alt):
        return min((_bytes(option, known) for option in node.options), default=math.inf)
    assert isinstance(node, Repeat)
    return _bytes(node.item, known) * node.low if node.low else 0


class _Many(Exception):
    """There are too many texts, or too long ones."""


def _texts(node: Any) -> list[str]:
    """Every text of a node; raises _Many."""
    if isinstance(node, Chars):
        if sum(b - a + 1 for a, b in node.chars) > _MOST_TEXTS:
            raise _Many
        return [chr(code) for a, b in node.chars for code in range(a, b + 1)]
    if isinstance(node, Alt):
        return _few(itertools.chain.from_iterable(_texts(option) for option in node.options))
    if isinstance(node, Seq):
        return _joined([_texts(item) for item in node.items])
    if not isinstance(node, Repeat) or node.high is None or node.high > _MOST_CHARACTERS:
        raise _Many
    item = _texts(node.item)
    counts = range(node.low, node.high + 1)
    return _few(itertools.chain.from_iterable(_joined([item] * count) for count in counts))


def _joined(parts: Sequence[list[str]]) -> list[str]:
    found = [""]
    for part in parts:
        if len(found) * len(part) > _MOST_TEXTS * 4:
            raise _Many
        found = _few(before + after for before in found for after in part)
    return found


def _few(texts: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(itertools.islice(texts, _MOST_TEXTS * 4)))
    if len(found) > _MOST_TEXTS or any(len(text) > _MOST_CHARACTERS for text in found):
        raise _Many
    return found


def _pieces(data: bytes, vocabulary: Collection[bytes], longest: int) -> int | None:
    """The fewest tokens that spell the bytes; None where none do."""
    best: list[float] = [0] + [math.inf] * len(data)
    for end in range(1, len(data) + 1):
        for start in range(max(0, end - longest), end):
            if best[start] + 1 < best[end] and data[start:end] in vocabulary:
                best[end] = best[start] + 1
    return None if math.isinf(best[-1]) else int(best[-1])


class _Finder:
    """Looks for a string in all texts of a grammar at once: which states of the search can follow which.

    A relation is a tuple, per state, of the set (as bits) of states that some text leads to. The last state, "found",
    is never left.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._size = len(text) + 1
        self._letters = sorted(set(text))
        self._next = {
            letter: tuple(self._after(state, letter) for state in range(self._size)) for letter in self._letters
        }
        self._same = tuple(1 << state for state in range(self._size))
        self._none = (0,) * self._size

    def reaches(self, rules: Mapping[str, Any], root: str) -> bool:
        """Whether some text of the rule has the string in it. Repeats count as without an upper end."""
        known = dict.fromkeys(rules, self._none)
        while True:
            found = {name: self._relation(node, known) for name, node in rules.items()}
            if found == known:
                return bool(known[root][0] >> (self._size - 1))
            known = found

    def _after(self, state: int, letter: str) -> int:
        if state == self._size - 1:
            return state
        seen = self._text[:state] + letter
        return next(
            length for length in range(min(len(seen), len(self._text)), -1, -1) if seen.endswith(self._text[:length])
        )

    def _relation(self, node: Any, known: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        if isinstance(node, Ref):
            return known[node.name]
        if isinstance(node, Chars):
            return self._chars(node.chars)
        if isinstance(node, Seq):
            return functools.reduce(self._then, (self._relation(item, known) for item in node.items), self._same)
        if isinstance(node, Alt):
            return functools.reduce(self._either, (self._relation(o, known) for o in node.options), self._none)
        assert isinstance(node, Repeat)
        item = self._relation(node.item, known)
        many = item
        while (more := self._either(many, self._then(many, item))) != many:
            many = more
        return many if node.low else self._either(self._same, many)

    def _chars(self, chars: charsets.CharSet) -> tuple[int, ...]:
        inside = [letter for letter in self._letters if charsets.contains(chars, ord(letter))]
        others = sum(b - a + 1 for a, b in chars) > len(inside)
        found = [0] * self._size
        for state in range(self._size):
            for letter in inside:
                found[state] |= 1 << self._next[letter][state]
            if others:
                found[state] |= 1 << (state if state == self._size - 1 else 0)
        return tuple(found)

    def _then(self, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._image(states, second) for states in first)

    def _image(self, states: int, relation: tuple[int, ...]) -> int:
        found = 0
        for state in range(self._size):
            if states >> state & 1:
                found |= relation[state]
        return found

    @staticmethod
    def _either(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a | b for a, b in zip(first, second))
