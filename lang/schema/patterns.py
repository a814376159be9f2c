"""Patterns, brought to the syntax and meaning that the engines share with us.

In: a Python regex (a full match), a JSON schema `pattern` (ECMAScript, a search), a set of property names.
Out: pattern text for an engine: only classes with explicit ranges, groups, alternatives and repeats, so that nothing is
left that two engines could read in two ways.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection
from typing import Any

import regex

from ..errors import ConstraintError
from . import charsets
from .ecma import to_python
from .regex_anchors import language
from .regex_ast import EMPTY, NOTHING, Alt, Chars, Node, Repeat, Seq, alt, max_width, min_width, repeat, seq, write
from .regex_parse import RegexParser

__all__ = ["full_match", "one_of", "other_names", "pattern_text", "pattern_widths", "search", "searches", "translate"]


def pattern_text(pattern: Any) -> str:
    """The pattern's text, from a string or a compiled pattern (its flags as inline flags).

    Raises:
        ConstraintError: neither of them.
    """
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        names = {re.I: "i", re.M: "m", re.S: "s", re.X: "x", re.A: "a"}
        flags = "".join(letter for flag, letter in names.items() if pattern.flags & flag)
        return f"(?{flags}:{pattern.pattern})" if flags else pattern.pattern
    if not isinstance(pattern, str):
        raise ConstraintError(f"regex={pattern!r}: must be a string", keyword="regex")
    return pattern


def translate(pattern: str) -> str:
    """A Python regex, to be matched by the whole text, for the engines.

    Raises:
        ConstraintError: invalid; matched by no text, or by the empty text only; or not regular (named).
    """
    node = _full_match(pattern)
    if node == NOTHING:
        raise ConstraintError(f"no text matches the regex {pattern!r}", keyword="regex")
    if max_width(node) == 0:
        raise ConstraintError(
            f"only the empty text matches the regex {pattern!r}; nothing to generate", keyword="regex"
        )
    return write(node, engine=True)


@functools.lru_cache(maxsize=64)
def full_match(pattern: str) -> str:
    """A pattern of our own (a `format`), to be matched by a whole JSON string, for the engines."""
    return write(_in_json(_full_match(pattern)), engine=True)


def search(pattern: str) -> str | None:
    """A JSON schema `pattern` for the engines, anchored at both edges; None where no text matches.

    Raises:
        ConstraintError: invalid, or not regular (named).
    """
    node = _in_json(_search(pattern))
    return None if node == NOTHING else write(node, engine=True)


def searches(pattern: str, text: str) -> bool:
    """Whether a JSON schema `pattern` matches somewhere in `text`."""
    return _compiled(pattern).fullmatch(text) is not None


def pattern_widths(pattern: str) -> tuple[int, int | None]:
    """Characters of the shortest and longest texts that a JSON schema `pattern` matches; None without end."""
    node = _search(pattern)
    return min_width(node), max_width(node)


def other_names(names: Collection[str]) -> str:
    """A pattern, for the engines, for every JSON string that is none of `names`."""
    return write(_in_json(_others(sorted(set(names)))), engine=True)


_ESCAPED = (ord('"'), ord("\\"))


def _in_json(node: Node) -> Node:
    """The node without U+0000 in classes that lack the quote or the backslash.

    In JSON strings, llguidance takes a class that holds every control character for one that holds every escape, and
    would let `[^"]` match an escaped quote.
    """
    if isinstance(node, Chars):
        whole = all(charsets.contains(node.chars, code) for code in _ESCAPED)
        return node if whole else Chars(charsets.intersection(node.chars, _NOT_NUL))
    if isinstance(node, Seq):
        return seq(*map(_in_json, node.items))
    if isinstance(node, Alt):
        return alt(*map(_in_json, node.options))
    return repeat(_in_json(node.item), node.low, node.high) if isinstance(node, Repeat) else node


_NOT_NUL = charsets.of_ranges([(1, 0x10FFFF)])


def one_of(texts: Collection[str]) -> str:
    """A pattern, for the engines, for exactly these texts."""
    return write(_tree(sorted(set(texts)), 0), engine=True)


def _tree(texts: list[str], depth: int) -> Node:
    """The alternatives of sorted texts that agree up to `depth`, shared beginnings written once."""
    options: list[Node] = []
    rest = texts
    if rest and len(rest[0]) == depth:
        options.append(EMPTY)
        rest = rest[1:]
    for _, group in itertools.groupby(rest, key=lambda text: text[depth]):
        same = list(group)
        # Sorted, so what the first and the last share, all share.
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(same[0], same[-1])))
        start = [Chars(charsets.of_ranges([(ord(c), ord(c))])) for c in same[0][depth:shared]]
        options.append(seq(*start, _tree(same, shared)))
    return Alt(tuple(options)) if len(options) > 1 else options[0]


@functools.lru_cache(maxsize=1024)
def _full_match(pattern: str) -> Node:
    node = RegexParser(ecma=False).parse(pattern)
    return language(node, charsets.category("word", False), search=False)


@functools.lru_cache(maxsize=1024)
def _search(pattern: str) -> Node:
    node = RegexParser(ecma=True).parse(to_python(pattern))
    return language(node, charsets.category("word", True), search=True)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(write(_search(pattern), engine=False), regex.VERSION0)


def _others(names: list[str]) -> Node:
    """All texts but `names` (sorted): not a name and over, or off the names' tree at some character."""
    anything = repeat(Chars(charsets.ANY), 0, None)
    if not names:
        return anything
    options: list[Node] = [] if "" in names else [EMPTY]
    firsts = sorted({name[0] for name in names if name})
    off = charsets.complement(charsets.of_ranges((ord(c), ord(c)) for c in firsts))
    options.append(seq(Chars(off), anything))
    for first in firsts:
        tails = [name[1:] for name in names if name[:1] == first]
        options.append(seq(Chars(charsets.of_ranges([(ord(first), ord(first))])), _others(tails)))
    return alt(*options)
