"""Look-around resolved: what stands around a position becomes an intersection of whole languages.

In: a node with `Look`s, being everything between two edges of the text. Out: a node without them. `a(?!b)c*` is `a`
followed by (`c*` and not `b…`): what follows a position is everything up to the end of the text, so the sequence around
a `Look` is needed; options and short repeats are written out for it. A `Look` in a loop is resolved where it cannot see
beyond its own round, else refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConstraintError
from . import charsets
from .regex_ast import (
    ANYTHING,
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Look,
    Node,
    Repeat,
    Seq,
    alt,
    both,
    max_width,
    min_width,
    negation,
    nullable,
    repeat,
    seq,
)  # fmt: skip

__all__ = ["LookLowering", "has_look"]

_MOST_ROUNDS = 4
_MOST_STEPS = 2_000
SOMETHING = repeat(Chars(charsets.ANY), 1, None)


def has_look(node: Node) -> bool:
    """Whether look-around is left in the node."""
    if isinstance(node, Look):
        return True
    if isinstance(node, Seq):
        return any(map(has_look, node.items))
    if isinstance(node, Alt):
        return any(map(has_look, node.options))
    if isinstance(node, And):
        return any(map(has_look, node.parts))
    return isinstance(node, Repeat) and has_look(node.item)


class LookLowering:
    """Resolves the look-around of one pattern; the work is counted."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def whole(self, node: Node) -> Node:
        """The node, which is the whole text, without look-around.

        Raises:
            ConstraintError: look-around that would have to see out of a loop, or too much of it.
        """
        return self._sequence(list(node.items) if isinstance(node, Seq) else [node])

    def _sequence(self, items: list[Node]) -> Node:
        self._left -= 1
        if self._left < 0:
            raise _refused(Look(True, False, EMPTY), "there is too much of it")
        index = next((i for i, item in enumerate(items) if has_look(item)), None)
        if index is None:
            return seq(*items)
        before, item, after = items[:index], items[index], items[index + 1 :]
        if isinstance(item, Look):
            return self._look(before, item, after)
        if isinstance(item, Seq):
            return self._sequence([*before, *item.items, *after])
        if isinstance(item, Alt):
            return alt(*(self._sequence([*before, option, *after]) for option in item.options))
        if not isinstance(item, Repeat):
            raise _refused(Look(True, False, EMPTY), "a round of its loop may be empty")
        if item.high is not None and item.high <= _MOST_ROUNDS:
            counts = range(item.low, item.high + 1)
            return alt(*(self._sequence([*before, *[item.item] * count, *after]) for count in counts))
        return self._sequence([*before, repeat(_local(item.item), item.low, item.high), *after])

    def _look(self, before: Sequence[Node], look: Look, after: list[Node]) -> Node:
        if look.negated and look.item == Chars(charsets.ANY):  # an edge of the text
            if look.ahead:
                return seq(*before) if nullable(self._sequence(after)) else NOTHING
            return self._sequence(after) if nullable(seq(*before)) else NOTHING
        if look.ahead:
            seen = self.whole(seq(look.item, ANYTHING))
            rest = self._sequence(after)
            return seq(*before, both(rest, negation(seen) if look.negated else seen))
        seen = self.whole(seq(ANYTHING, look.item))
        start = both(seq(*before), negation(seen) if look.negated else seen)
        return self._sequence([start, *after])


def _local(node: Node) -> Node:
    """One round of a loop, whose look-around sees nothing outside it."""
    if not has_look(node):
        return node
    if isinstance(node, Alt):
        return alt(*map(_local, node.options))
    if isinstance(node, Repeat):
        return repeat(_local(node.item), node.low, node.high)
    if isinstance(node, And):
        raise _refused(Look(True, False, EMPTY), "a round of its loop may be empty")
    items = list(node.items) if isinstance(node, Seq) else [node]
    index = next(i for i, item in enumerate(items) if has_look(item))
    look, before, after = items[index], items[:index], items[index + 1 :]
    if not isinstance(look, Look):
        return seq(*before, _local(look), *map(_local, after))
    sees = max_width(look.item)
    known = sum(map(min_width, after if look.ahead else before))
    if has_look(look.item) or sees is None or sees > known:
        raise _refused(look, "it sees beyond one round of its loop")
    if look.ahead:
        seen = seq(look.item, ANYTHING)
        return seq(*before, both(_local(seq(*after)), negation(seen) if look.negated else seen))
    seen = seq(ANYTHING, look.item)
    return seq(both(seq(*before), negation(seen) if look.negated else seen), _local(seq(*after)))


def _refused(look: Look, why: str) -> ConstraintError:
    spelled = f"(?{'' if look.ahead else '<'}{'!' if look.negated else '='}…)"
    return ConstraintError(
        f"the regex uses look-around {spelled}, which no mask can enforce here: {why}; spell the allowed texts",
        keyword=f"look-around {spelled}",
    )
