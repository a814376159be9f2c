"""What stands around a constrained value: reasoning before it, a fixed text, several of it with separators.

In: the rules of the value and a wrap. Out: the rules of the whole text; and later, from such a text, the value's part.

    ("thinking",)                      reasoning up to </think>, then the value
    ("prefix", text)                   the text, then the value
    ("list", separator, low, high)     values with separators between them; the value is a list
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import IncompleteOutputError, OutputValidationError, ResultError
from . import charsets
from .grammar_ast import Ref, Token
from .patterns import one_of
from .regex_ast import ANYTHING, Chars, Node, both, negation, repeat, seq

__all__ = ["Wrap", "unwrapped", "wrapped_rules"]

Wrap = tuple[Any, ...]

_END = "</think>"
_SPACE = Chars(((10, 10), (32, 32)))


def _reasoning() -> Node:
    """Everything up to the first end tag, and white space after it."""
    end = one_of([_END])
    first = both(seq(ANYTHING, end), negation(seq(ANYTHING, end, repeat(Chars(charsets.ANY), 1, None))))
    return seq(first, repeat(_SPACE, 0, 4))


def wrapped_rules(rules: dict[str, Node], root: str, wrap: Wrap) -> tuple[dict[str, Node], str]:
    """The rules with a wrap around their root."""
    name = root + "_"
    if wrap[0] == "thinking":
        return {name: seq(Token(_reasoning()), Ref(root)), **rules}, name
    if wrap[0] == "prefix":
        return {name: seq(Token(one_of([wrap[1]])), Ref(root)), **rules}, name
    _, separator, low, high = wrap
    more = repeat(seq(Token(one_of([separator])), Ref(root)), max(0, low - 1), None if high is None else high - 1)
    several = seq(Ref(root), more)
    return {name: several if low else repeat(several, 0, 1), **rules}, name


def unwrapped(text: str, wrap: Wrap, parse: Callable[[str], Any]) -> Any:
    """The value of a wrapped text.

    Raises:
        IncompleteOutputError: the text ends before the value begins.
        OutputValidationError: the text is not what the wrap says.
    """
    if wrap[0] == "thinking":
        _, end, rest = text.partition(_END)
        if not end:
            raise IncompleteOutputError(f"the reasoning never came to its end, {_END}", text=text)
        return parse(rest.lstrip(" \n"))
    if wrap[0] == "prefix":
        if not text.startswith(wrap[1]):
            kind = IncompleteOutputError if wrap[1].startswith(text) else OutputValidationError
            raise kind(f"the text does not begin with {wrap[1]!r}", text=text)
        return parse(text[len(wrap[1]) :])
    return _listed(text, wrap, parse)


def _listed(text: str, wrap: Wrap, parse: Callable[[str], Any]) -> list[Any]:
    """The values between separators; a separator may occur inside a value, so every cut is tried, the nearest first."""
    _, separator, low, high = wrap
    if not text and not low:
        return []
    failed: set[int] = set()
    error: ResultError = OutputValidationError(f"{text[:60]!r} is no list of values", text=text)

    def values(start: int, count: int) -> list[Any] | None:
        nonlocal error
        if start in failed or (high is not None and count >= high):
            return None
        end = start
        while end <= len(text):
            cut = text.find(separator, end)
            stop = len(text) if cut < 0 else cut
            try:
                one = parse(text[start:stop])
            except ResultError as problem:
                error = problem
            else:
                more = ([] if count + 1 >= low else None) if cut < 0 else values(cut + len(separator), count + 1)
                if more is not None:
                    return [one, *more]
            if cut < 0:
                break
            end = cut + 1
        failed.add(start)
        return None

    found = values(0, 0)
    if found is None:
        raise error
    return found
