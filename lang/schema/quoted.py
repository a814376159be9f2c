"""A regex over characters → the regex of the same texts inside a JSON string.

Every character has one spelling: itself, or a short escape, or (other control characters) `\\u00XX`. Spellings are a
prefix code, so intersections and complements stay what they are.
"""

from __future__ import annotations

import functools

from . import charsets
from .regex_ast import ANYTHING, NOTHING, Alt, And, Chars, Node, Not, Repeat, Seq, alt, both, negation, repeat, seq

__all__ = ["json_string", "quoted", "quoted_text"]

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_RAW = charsets.complement(charsets.of_ranges([(0, 31), (34, 34), (92, 92)]))
_SPECIAL = charsets.complement(_RAW)


def _char(char: str) -> Node:
    return Chars(charsets.of_ranges([(ord(char), ord(char))]))


def quoted_text(text: str) -> Node:
    """One text, as it stands between the quotes."""
    return seq(*(_chars(charsets.of_ranges([(ord(c), ord(c))])) for c in text))


@functools.lru_cache(maxsize=4096)
def quoted(node: Node) -> Node:
    """The node's texts, as they stand between the quotes."""
    if isinstance(node, Chars):
        return _chars(node.chars)
    if isinstance(node, Seq):
        return seq(*map(quoted, node.items))
    if isinstance(node, Alt):
        return alt(*map(quoted, node.options)) if node != NOTHING else NOTHING
    if isinstance(node, Repeat):
        return repeat(quoted(node.item), node.low, node.high)
    if isinstance(node, And):
        return both(*map(quoted, node.parts))
    assert isinstance(node, Not)
    return both(_CONTENT, negation(quoted(node.part)))


@functools.lru_cache(maxsize=1024)
def _chars(chars: charsets.CharSet) -> Node:
    raw = charsets.intersection(chars, _RAW)
    special = charsets.intersection(chars, _SPECIAL)
    short = [ord(_SHORT[c]) for c in _SHORT if charsets.contains(special, c)]
    ways: list[Node] = [Chars(raw)] if raw else []
    if short:
        ways.append(seq(_char("\\"), Chars(charsets.of_ranges((c, c) for c in short))))
    for high in (0, 1):
        codes = [c for c in range(high * 16, high * 16 + 16) if c not in _SHORT and charsets.contains(special, c)]
        if codes:
            last = [ord(f"{c & 15:x}") for c in codes]
            ways.append(seq(*map(_char, f"\\u00{high}"), Chars(charsets.of_ranges((c, c) for c in last))))
    return alt(*ways)


_CONTENT = quoted(ANYTHING)


def json_string(node: Node) -> Node:
    """A whole JSON string, quotes included, whose text is one of the node's."""
    return seq(_char('"'), quoted(node), _char('"'))
