"""Anchors resolved: a pattern with `^ $ \\A \\Z \\b \\B` becomes a plain language, or is refused by name.

In: a node with anchors, and what is known of its surroundings. Out: a node without anchors that matches the same
texts in that place. What the surroundings leave open is refused, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConstraintError
from . import charsets
from .charsets import CharSet
from .regex_ast import EMPTY, NOTHING, Alt, Anchor, Chars, Node, Repeat, Seq, alt, ends, min_width, repeat, seq

__all__ = ["Side", "has_anchor", "resolve"]


@dataclass(frozen=True)
class Side:
    """What stands on one side of a node: maybe the text's edge, maybe a character of a set."""

    edge: bool
    chars: CharSet

    def over(self, node: Node, first: bool) -> Side:
        """This side seen through `node`, which stands between."""
        chars = ends(node, first)
        if min_width(node):
            return Side(False, chars)
        return Side(self.edge, charsets.union(self.chars, chars))


EDGE = Side(True, ())
INSIDE = Side(False, charsets.ANY)


def has_anchor(node: Node) -> bool:
    """Whether an anchor is left in the node."""
    if isinstance(node, Anchor):
        return True
    if isinstance(node, Seq):
        return any(map(has_anchor, node.items))
    if isinstance(node, Alt):
        return any(map(has_anchor, node.options))
    return isinstance(node, Repeat) and has_anchor(node.item)


def resolve(node: Node, before: Side, after: Side, word: CharSet) -> Node:
    """The node without anchors, in its surroundings.

    Raises:
        ConstraintError: an anchor whose truth depends on what the mask cannot know, by name.
    """
    if isinstance(node, Anchor):
        return _anchor(node, before, after, word)
    if isinstance(node, Alt):
        return alt(*(resolve(option, before, after, word) for option in node.options))
    if isinstance(node, Seq):
        return _sequence(node, before, after, word)
    if isinstance(node, Repeat) and has_anchor(node.item):
        return _repetition(node, before, after, word)
    return node


def _sequence(node: Seq, before: Side, after: Side, word: CharSet) -> Node:
    done: list[Node] = []
    for index, item in enumerate(node.items):
        if has_anchor(item):
            left, right = before, after
            for earlier in node.items[:index]:
                left = left.over(earlier, first=False)
            for later in reversed(node.items[index + 1 :]):
                right = right.over(later, first=True)
            item = resolve(item, left, right, word)
        done.append(item)
    return seq(*done)


def _repetition(node: Repeat, before: Side, after: Side, word: CharSet) -> Node:
    if node.high is not None and node.high <= 1:
        return repeat(resolve(node.item, before, after, word), node.low, node.high)
    own = (ends(node.item, first=True), ends(node.item, first=False))
    left = Side(before.edge, charsets.union(before.chars, own[1]))
    right = Side(after.edge, charsets.union(after.chars, own[0]))
    return repeat(resolve(node.item, left, right, word), node.low, node.high)


def _anchor(node: Anchor, before: Side, after: Side, word: CharSet) -> Node:
    if node.kind in ("start", "line_start"):
        return _edge(node, before, node.kind == "line_start")
    if node.kind in ("end", "line_end", "end_or_newline"):
        return _edge(node, after, node.kind != "end")
    left, right = _is_word(before, word), _is_word(after, word)
    if left is None or right is None:
        _refuse(node)
    return EMPTY if (left != right) == (node.kind == "boundary") else NOTHING


def _edge(node: Anchor, side: Side, newline_counts: bool) -> Node:
    newline = newline_counts and charsets.contains(side.chars, 10)
    if side.edge and not side.chars:
        return EMPTY
    if not side.edge and not newline:
        return NOTHING
    return _refuse(node)


def _is_word(side: Side, word: CharSet) -> bool | None:
    """Whether the character on this side is one of a word; None where it may be or not."""
    inside = charsets.intersection(side.chars, word)
    if not inside:
        return False
    return True if inside == side.chars and not side.edge else None


def _refuse(node: Anchor) -> Node:
    raise ConstraintError(
        f"the regex construct {node.spelled} stands where no mask can decide it; anchors are supported at the edges",
        keyword=node.spelled,
    )


def _least(node: Node) -> Node:
    """A smaller node that is found in the same texts: a repeat at its edge need not go on."""
    if isinstance(node, Repeat):
        return repeat(node.item, node.low, node.low)
    if isinstance(node, Seq) and len(node.items) > 1:
        return seq(_least(node.items[0]), *node.items[1:-1], _least(node.items[-1]))
    return node


def language(node: Node, word: CharSet, *, search: bool) -> Node:
    """All texts that match the node: wholly, or (`search`) somewhere in them."""
    if not search:
        return resolve(node, EDGE, EDGE, word)
    anything = repeat(Chars(charsets.ANY), 0, None)
    if not has_anchor(node):
        return seq(anything, _least(node), anything)
    some = repeat(Chars(charsets.ANY), 1, None)
    variants = [
        (seq(*([] if left is EDGE else [some])), left, right, seq(*([] if right is EDGE else [some])))
        for left in (EDGE, INSIDE)
        for right in (EDGE, INSIDE)
    ]
    return alt(*(seq(pre, resolve(node, left, right, word), post) for pre, left, right, post in variants))
