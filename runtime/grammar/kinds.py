"""Characters taken together where no part of a grammar tells them apart.

In: the code points of a vocabulary, the rules of a grammar. Out: a number for each, equal for those that are in the
same ones of the sets of the grammar. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ...schema.charsets import CharSet
from ...schema.grammar_ast import Bag, Foreign, Token
from ...schema.regex_ast import Alt, And, Chars, Node, Not, Repeat, Seq
from .texts import Ints

__all__ = ["borders_of", "first_of_each", "kinds_of", "nodes_of", "sets_of", "within"]


def first_of_each(kinds: Ints, count: int) -> Ints:
    """For each kind, where it is found first."""
    first = np.unique(kinds, return_index=True)[1].astype(np.int32)
    assert len(first) == count
    return first


def kinds_of(codes: Ints, sets: Iterable[CharSet], pause: Callable[[], None]) -> Ints:
    """A number for each character: equal where none of the sets tells them apart."""
    labels = np.zeros(len(codes), np.int64)
    packed = np.zeros(len(codes), np.uint64)
    bits = 0
    for chars in sets:
        packed |= within(codes, chars) << np.uint64(bits)
        bits += 1
        if bits == 48:
            labels, packed, bits = _refined(labels, packed), np.zeros_like(packed), 0
            pause()
    return _refined(labels, packed).astype(np.int32)


def borders_of(sets: Iterable[CharSet]) -> NDArray[np.int64]:
    """The code points at which one of the sets begins or has ended, in order: none tells apart what is between."""
    edges = {edge for chars in sets for low, high in chars for edge in (low, high + 1)}
    return np.array(sorted(edges), np.int64)


def within(codes: Ints, chars: CharSet) -> NDArray[np.uint64]:
    """1 for each code point in the set, 0 for the others."""
    edges = np.array([edge for low, high in chars for edge in (low, high + 1)], np.int64)
    found: NDArray[np.uint64] = (np.searchsorted(edges, codes, "right") & 1).astype(np.uint64)
    return found


def _refined(labels: NDArray[np.int64], packed: NDArray[np.uint64]) -> NDArray[np.int64]:
    own = np.unique(packed, return_inverse=True)[1].astype(np.int64)
    found: NDArray[np.int64] = np.unique(labels * (int(own.max(initial=0)) + 1) + own, return_inverse=True)[1]
    return found.astype(np.int64)


def sets_of(rules: Iterable[Node], pause: Callable[[], None]) -> Iterator[CharSet]:
    """The sets of characters in a grammar, each once."""
    found: set[CharSet] = set()
    for node in nodes_of(rules, pause):
        if isinstance(node, Chars) and node.chars not in found:
            found.add(node.chars)
            yield node.chars


def nodes_of(rules: Iterable[Node], pause: Callable[[], None]) -> Iterator[Node]:
    """The parts of a grammar, each object once."""
    seen: set[int] = set()
    waiting = list(rules)
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) % 256 == 0:
            pause()
        yield node
        if isinstance(node, (Token, Foreign)):
            waiting.append(node.node)
        elif isinstance(node, Bag):
            waiting += [*node.first, *node.later, node.other_first, node.other_later]
        elif isinstance(node, Seq):
            waiting += node.items
        elif isinstance(node, Alt):
            waiting += node.options
        elif isinstance(node, And):
            waiting += node.parts
        elif isinstance(node, Not):
            waiting.append(node.part)
        elif isinstance(node, Repeat):
            waiting.append(node.item)
