"""Patterns, brought to the syntax and meaning that the engines share with us.

In: a Python regex (a full match), a JSON schema `pattern` (ECMAScript, a search), a set of property names.
Out: a node (`regex_ast.py`): only classes with explicit ranges, alternatives, repeats, intersections, complements, so
that nothing is left that two engines could read in two ways.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection
from typing import Any

from ..errors import ConstraintError
from . import apart, charsets
from .ecma import to_python
from .regex_anchors import language
from .regex_ast import EMPTY, NOTHING, Alt, Node, char, max_width, min_width, negation, seq
from .regex_parse import RegexParser
from .regex_run import is_empty, matches
from .regex_text import is_ordinary, read_node, spell_node

__all__ = [
    "full_match", "one_of", "other_names", "pattern_text", "pattern_widths", "regex_node", "search", "searches",
    "translate",
]  # fmt: skip


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
    return apart.run(_translate, len(pattern), pattern)


def _translate(pattern: str) -> str:
    node = _full_match(pattern)
    if is_empty(node):
        raise ConstraintError(f"no text matches the regex {pattern!r}", keyword="regex")
    if max_width(node) == 0:
        raise ConstraintError(
            f"only the empty text matches the regex {pattern!r}; nothing to generate", keyword="regex"
        )
    text = spell_node(node)
    return text[4:-2] if is_ordinary(text) else text


def regex_node(text: str) -> Node:
    """The node of what `translate` gave."""
    return read_node(f"^(?:{text})$" if is_ordinary(text) else text)


def full_match(pattern: str) -> Node:
    """A pattern of our own (a `format`), to be matched by a whole string."""
    return _full_match(pattern)


def search(pattern: str) -> Node | None:
    """The strings in which a JSON schema `pattern` is found; None where there is none.

    Raises:
        ConstraintError: invalid, or not regular (named).
    """
    node = _search(pattern)
    return None if is_empty(node) else node


def searches(pattern: str, text: str) -> bool:
    """Whether a JSON schema `pattern` matches somewhere in `text`."""
    return matches(_search(pattern), text)


def pattern_widths(pattern: str) -> tuple[int, int | None]:
    """Characters of the shortest and longest texts that a JSON schema `pattern` matches; None without end."""
    node = _search(pattern)
    return min_width(node), max_width(node)


def other_names(names: Collection[str]) -> Node:
    """Every text that is none of `names`."""
    return negation(one_of(names))


def one_of(texts: Collection[str]) -> Node:
    """Exactly these texts; beginnings that they share are written once."""
    if len(texts) == 1:
        return seq(*map(char, *texts))
    return _tree(sorted(set(texts)), 0) if texts else NOTHING


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
        start = [char(c) for c in same[0][depth:shared]]
        options.append(seq(*start, _tree(same, shared)))
    return Alt(tuple(options)) if len(options) > 1 else options[0]


@functools.lru_cache(maxsize=1024)
def _full_match(pattern: str) -> Node:
    node = RegexParser(ecma=False).parse(pattern)
    # Only a border of a word asks which characters are of one, and finding them all takes time.
    word = charsets.category("word", False) if "\\b" in pattern.lower() else ()
    return language(node, word, search=False)


@functools.lru_cache(maxsize=1024)
def _search(pattern: str) -> Node:
    node = RegexParser(ecma=True).parse(to_python(pattern))
    return language(node, charsets.category("word", True), search=True)
