"""A regex run character by character: exact matching and the shortest rest, for every node.

In: a node without anchors, a character. Out: the node of what may follow it (Brzozowski's derivative, 1964), whether a
text matches, the shortest text that completes one. Nothing is expanded ahead: a repeat of a million costs one step.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator

from . import charsets, hurry
from .charsets import CharSet
from .regex_ast import (
    ANYTHING,
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Node,
    Not,
    Repeat,
    Seq,
    alt,
    both,
    is_plain,
    min_width,
    negation,
    nullable,
    repeat,
    seq,
)  # fmt: skip

__all__ = ["after", "completion", "first_sets", "is_empty", "kinds", "matches"]

_MOST_STATES = 500
_MOST_CHARACTERS = 100_000
_MOST_GUESSED = 64
_NICE = [ord(c) for c in "a0A-_ :/.1"]


def matches(node: Node, text: str) -> bool:
    """Whether the whole text is one of the node's."""
    for char in text:
        node = after(node, ord(char))
        if node == NOTHING:
            return False
    return nullable(node)


@functools.lru_cache(maxsize=1 << 15)
def after(node: Node, code: int) -> Node:
    """What may follow the character `code` at the start of the node; `NOTHING` where it cannot stand there."""
    if isinstance(node, Chars):
        return EMPTY if charsets.contains(node.chars, code) else NOTHING
    if isinstance(node, Alt):
        return alt(*(after(option, code) for option in node.options))
    if isinstance(node, And):
        return both(*(after(part, code) for part in node.parts))
    if isinstance(node, Not):
        return negation(after(node.part, code))
    if isinstance(node, Repeat):
        if node == ANYTHING:
            return ANYTHING if not 0xD800 <= code <= 0xDFFF else NOTHING
        first = after(node.item, code)
        high = None if node.high is None else node.high - 1
        return seq(first, repeat(node.item, max(0, node.low - 1), high)) if first != NOTHING else NOTHING
    assert isinstance(node, Seq)
    ways: list[Node] = []
    for index, item in enumerate(node.items):
        first = after(item, code)
        if first != NOTHING:
            ways.append(seq(first, *node.items[index + 1 :]))
        if not nullable(item):
            break
    return alt(*ways)


@functools.lru_cache(maxsize=4096)
def completion(node: Node) -> str | None:
    """A shortest text of the node (for an ordinary pattern; else found within a bound), None where it is too long."""
    return _shortest(node)


def is_empty(node: Node) -> bool:
    """Whether the node is proven to have no text."""
    if is_plain(node):
        return not _has_text(node)
    text, exhausted = _searched(node)
    return text is None and exhausted


def _has_text(node: Node) -> bool:
    if isinstance(node, Chars):
        return bool(node.chars)
    if isinstance(node, Seq):
        return all(map(_has_text, node.items))
    if isinstance(node, Alt):
        return any(map(_has_text, node.options))
    return isinstance(node, Repeat) and (node.low == 0 or _has_text(node.item))


def _searched(node: Node) -> tuple[str | None, bool]:
    """The shortest text, breadth first; and whether the search went through everything."""
    if nullable(node):
        return "", True
    seen = {node}
    waiting = deque([(node, "")])
    while waiting:
        hurry.check()
        state, text = waiting.popleft()
        for code in _representatives(state):
            follower = after(state, code)
            if follower != NOTHING and follower not in seen:
                if nullable(follower):
                    return text + chr(code), True
                if len(seen) >= _MOST_STATES:
                    return None, False
                seen.add(follower)
                waiting.append((follower, text + chr(code)))
    return None, True


def _shortest(node: Node) -> str | None:
    if isinstance(node, Chars):
        return chr(_nice(node.chars)) if node.chars else None
    if isinstance(node, Seq):
        parts = [completion(item) for item in node.items]
        return None if None in parts else "".join(part or "" for part in parts)
    if isinstance(node, Alt):
        found = [text for text in map(completion, sorted(node.options, key=min_width)[:8]) if text is not None]
        return min(found, key=len, default=None)
    if isinstance(node, (And, Not)):
        return "" if nullable(node) else _guessed(node) or _searched(node)[0]
    assert isinstance(node, Repeat)
    if node.low == 0:
        return ""
    one = completion(node.item)
    return None if one is None or len(one) * node.low > _MOST_CHARACTERS else one * node.low


def _guessed(node: Node) -> str | None:
    """A text of an intersection that is the shortest one of a part, and therefore of the whole."""
    parts = node.parts if isinstance(node, And) else ()
    texts = [text for text in (_shortest(part) for part in parts if is_plain(part)) if text is not None]
    found = [text for text in texts if len(text) <= _MOST_GUESSED and matches(node, text)]
    return min(found, key=len, default=None)


def _nice(chars: CharSet) -> int:
    return next((code for code in _NICE if charsets.contains(chars, code)), chars[0][0])


def _representatives(node: Node) -> list[int]:
    """A character of each class that the node's beginning tells apart."""
    edges: set[int] = set()
    _edges(node, edges)
    nice = [code for code in _NICE if not any(code == edge for edge in edges)][:1]
    return [*nice, *sorted(code for code in edges if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF)]


def kinds(node: Node, low: int, high: int) -> list[int]:
    """A character of each class from `low` to `high` that the node's beginning tells apart."""
    edges = {low}
    _edges(node, edges)
    return sorted(code for code in edges if low <= code <= high and not 0xD800 <= code <= 0xDFFF)


def _edges(node: Node, edges: set[int]) -> None:
    for chars in first_sets(node):
        for low, high in chars:
            edges.update((low, high + 1))


def first_sets(node: Node) -> Iterator[CharSet]:
    """The sets of characters that the node's beginning asks of; what is in the same ones leads to the same node."""
    if isinstance(node, Chars):
        yield node.chars
    elif isinstance(node, (Alt, And)):
        for one in node.options if isinstance(node, Alt) else node.parts:
            yield from first_sets(one)
    elif isinstance(node, (Repeat, Not)):
        yield from first_sets(node.item if isinstance(node, Repeat) else node.part)
    elif isinstance(node, Seq):
        for item in node.items:
            yield from first_sets(item)
            if not nullable(item):
                break
