"""Anchors resolved: a pattern with `^ $ \\A \\Z \\b \\B` becomes a plain language, or is refused by name.

In: a node with anchors, and what is known of its surroundings. Out: a node without anchors that matches the same
texts in that place. What the surroundings leave open becomes look-around, to be resolved with the whole text in view
(`regex_look.py`); it is never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import charsets
from .charsets import CharSet
from .regex_ast import (
    ANYTHING,
    EMPTY,
    NOTHING,
    Alt,
    Anchor,
    Chars,
    Look,
    Node,
    Repeat,
    Seq,
    alt,
    both,
    ends,
    min_width,
    repeat,
    seq,
)  # fmt: skip
from .regex_look import SOMETHING, LookLowering, has_look

__all__ = ["Side", "has_anchor", "language", "resolve"]


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
ANYWHERE = Side(True, charsets.ANY)


def has_anchor(node: Node) -> bool:
    """Whether an anchor is left in the node."""
    if isinstance(node, Anchor):
        return True
    if isinstance(node, Look):
        return has_anchor(node.item)
    if isinstance(node, Seq):
        return any(map(has_anchor, node.items))
    if isinstance(node, Alt):
        return any(map(has_anchor, node.options))
    return isinstance(node, Repeat) and has_anchor(node.item)


def resolve(node: Node, before: Side, after: Side, word: CharSet) -> Node:
    """The node without anchors, in its surroundings; what they do not decide is left as look-around."""
    if isinstance(node, Anchor):
        return _anchor(node, before, after, word)
    if isinstance(node, Look):
        # It looks over what stands around it, so its own surroundings say nothing.
        return Look(node.ahead, node.negated, resolve(node.item, ANYWHERE, ANYWHERE, word))
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
    item = resolve(node.item, left, right, word)
    if not has_look(item) or has_look(node.item) or node.low > 1 or node.high is not None:
        return repeat(item, node.low, node.high)
    # Rounds that match nothing may be left out, so the first and the last of several have a character beside them.
    left, right = Side(False, own[1]), Side(False, own[0])
    several = [(before, right), (left, right), (left, after)]
    first, middle, last = (_something(resolve(node.item, *sides, word)) for sides in several)
    ways = [EMPTY] if node.low == 0 else []
    return alt(*ways, resolve(node.item, before, after, word), seq(first, repeat(middle, 0, None), last))


def _something(node: Node) -> Node:
    return node if min_width(node) else both(node, SOMETHING)


def _anchor(node: Anchor, before: Side, after: Side, word: CharSet) -> Node:
    if node.kind in ("start", "line_start"):
        return _edge(node, before, node.kind == "line_start")
    if node.kind in ("end", "line_end", "end_or_newline"):
        return _edge(node, after, node.kind != "end")
    left, right = _is_word(before, word), _is_word(after, word)
    if left is None or right is None:
        return _border(node, word)
    return EMPTY if (left != right) == (node.kind == "boundary") else NOTHING


def _edge(node: Anchor, side: Side, newline_counts: bool) -> Node:
    newline = newline_counts and charsets.contains(side.chars, 10)
    others = charsets.intersection(side.chars, charsets.complement(_NEWLINE.chars))
    if (side.edge and not side.chars) or (node.kind in ("line_start", "line_end") and not others):
        return EMPTY
    if not side.edge and not newline:
        return NOTHING
    if node.kind == "end_or_newline":
        return Look(True, False, seq(repeat(_NEWLINE, 0, 1), Look(True, True, Chars(charsets.ANY))))
    ahead = node.kind in ("end", "line_end")
    lines = node.kind in ("line_start", "line_end")
    return Look(ahead, True, Chars(charsets.complement(_NEWLINE.chars) if lines else charsets.ANY))


_NEWLINE = Chars(charsets.of_ranges([(10, 10)]))


def _border(node: Anchor, word: CharSet) -> Node:
    """The border of a word, or no such border, as look-around."""
    letter = Chars(word)
    pairs = [(True, False), (False, True)] if node.kind == "boundary" else [(True, True), (False, False)]
    return alt(*(seq(Look(False, not left, letter), Look(True, not right, letter)) for left, right in pairs))


def _is_word(side: Side, word: CharSet) -> bool | None:
    """Whether the character on this side is one of a word; None where it may be or not."""
    inside = charsets.intersection(side.chars, word)
    if not inside:
        return False
    return True if inside == side.chars and not side.edge else None


def _least(node: Node) -> Node:
    """A smaller node that is found in the same texts: a repeat at its edge need not go on."""
    if isinstance(node, Repeat):
        return repeat(node.item, node.low, node.low)
    if isinstance(node, Seq) and len(node.items) > 1:
        return seq(_least(node.items[0]), *node.items[1:-1], _least(node.items[-1]))
    return node


def language(node: Node, word: CharSet, *, search: bool) -> Node:
    """All texts that match the node: wholly, or (`search`) somewhere in them.

    Raises:
        ConstraintError: look-around that cannot be resolved, by name.
    """
    look = LookLowering()
    if not search:
        return look.whole(resolve(node, EDGE, EDGE, word))
    if not has_anchor(node):
        found = node if has_look(node) else _least(node)
        return look.whole(seq(ANYTHING, found, ANYTHING))
    if not has_look(node):
        found = _at_edges(node, word)
        if not has_look(found):
            return found
    return look.whole(resolve(seq(ANYTHING, node, ANYTHING), EDGE, EDGE, word))


def _at_edges(node: Node, word: CharSet) -> Node:
    """The node found at the start, at the end, at both or at neither, each apart: that decides most anchors."""
    variants = [
        (seq(*([] if left is EDGE else [SOMETHING])), left, right, seq(*([] if right is EDGE else [SOMETHING])))
        for left in (EDGE, INSIDE)
        for right in (EDGE, INSIDE)
    ]
    return alt(*(seq(pre, resolve(node, left, right, word), post) for pre, left, right, post in variants))
