"""Rules of tokens → llguidance's dialect of Lark.

In: rules (`rules.py`) and the one to start from. Out: the grammar's text. Intersections and complements, which its
patterns do not have, are written between patterns (`/…/ & ~/…/`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from ..errors import ConstraintError
from . import hurry
from .grammar_ast import Bag, Foreign, Ref, Rules, Special, Token
from .regex_ast import (
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Node,
    Not,
    Repeat,
    Seq,
    is_plain,
    max_width,
    min_width,
    seq,
    write,
)

__all__ = ["expression", "lark_text"]


def lark_text(rules: Rules, start: str) -> str:
    """The grammar's text.

    Raises:
        ConstraintError: rules that lean on each other too deeply: engines follow them by recursion.
    """
    if len(rules) > _DEEPEST and _depth(rules, start) > _DEEPEST:
        raise ConstraintError(f"it is nested more than {_DEEPEST} rules deep", keyword="$ref")
    return _Writer(rules).text(start)


_DEEPEST = 400


def _depth(rules: Rules, start: str) -> int:
    """How deep a walk over the rules gets that visits each once."""
    known = {start}
    stack = [iter(_names(rules[start]))]
    deepest = 1
    while stack:
        name = next(stack[-1], None)
        if name is None:
            stack.pop()
        elif name not in known:
            known.add(name)
            stack.append(iter(_names(rules[name])))
            deepest = max(deepest, len(stack))
    return deepest


def _names(node: Node) -> list[str]:
    """The rules that a node refers to."""
    if isinstance(node, Ref):
        return [node.name]
    if isinstance(node, (Seq, Alt)):
        return [name for part in (node.items if isinstance(node, Seq) else node.options) for name in _names(part)]
    if isinstance(node, Bag):
        parts = (*node.first, *node.later, node.other_first, node.other_later)
        return [name for part in parts for name in _names(part)]
    return _names(node.item) if isinstance(node, Repeat) else []


def expression(node: Node) -> str:
    """A token's expression."""
    if node == EMPTY:
        return '""'
    if is_plain(node):
        text = write(node, engine=True)
        return f"/{text}/"
    if isinstance(node, And):
        return " & ".join(_grouped(part) for part in node.parts)
    if isinstance(node, Not):
        return f"~({expression(node.part)})"
    if isinstance(node, Alt):
        return " | ".join(map(_grouped, node.options))
    if isinstance(node, Seq):
        inner = _drawn_out(node)
        return " ".join(map(_grouped, _runs(node))) if inner is None else expression(inner)
    assert isinstance(node, Repeat)
    return f"({expression(node.item)}){_times(node)}"


def _grouped(node: Node) -> str:
    text = expression(node)
    return text if is_plain(node) else f"({text})"


def _drawn_out(node: Seq) -> Node | None:
    """An intersection inside of a sequence, as an intersection of sequences; None where that may be another language.

    It is the same where what stands around it has one length. The engine then sees that a string is free to go on,
    whatever names are excluded, and need not walk over its whole vocabulary.
    """
    inside = [index for index, item in enumerate(node.items) if isinstance(item, And)]
    if len(inside) != 1:
        return None
    before, after = node.items[: inside[0]], node.items[inside[0] + 1 :]
    if not all(is_plain(item) and min_width(item) == max_width(item) for item in (*before, *after)):
        return None
    inner = node.items[inside[0]]
    assert isinstance(inner, And)
    return And(
        tuple(
            Not(seq(*before, part.part, *after)) if isinstance(part, Not) else seq(*before, part, *after)
            for part in inner.parts
        )
    )


def _runs(node: Seq) -> list[Node]:
    """The items, ordinary ones beside each other as one."""
    runs: list[Node] = []
    for item in node.items:
        if runs and is_plain(item) and is_plain(runs[-1]):
            last = runs[-1]
            runs[-1] = Seq((*(last.items if isinstance(last, Seq) else (last,)), item))
        else:
            runs.append(item)
    return runs


def _times(node: Repeat) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    return known or f"{{{node.low},{'' if node.high is None else node.high}}}"


class _Writer:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._names: Mapping[str, str] = {name: f"r{number}" for number, name in enumerate(rules)}
        self._tokens: dict[Node, str] = {}
        self._foreign: dict[str, str] = {}
        self._bags: dict[Bag, str] = {}
        self._more: list[str] = []

    def text(self, start: str) -> str:
        lines = [f"{self._names[name]}: {self._node(node)}" for name, node in self._rules.items()]
        lines += self._more
        lines += [f"{name}: {expression(node)}" for node, name in self._tokens.items()]
        lines += [f"{name}: %json {schema}" for schema, name in self._foreign.items()]
        return "\n".join([f"start: {self._names[start]}", *lines]) + "\n"

    def _node(self, node: Node) -> str:
        hurry.check()
        if isinstance(node, Ref):
            return self._names[node.name]
        if isinstance(node, Chars):  # of a grammar text: a token for each character
            node = Token(node)
        if isinstance(node, Token):
            return self._tokens.setdefault(node.node, f"T{len(self._tokens)}")
        if isinstance(node, Special):
            return f"<[{node.token_id}]>"
        if isinstance(node, Foreign):
            return self._foreign.setdefault(node.schema, f"j{len(self._foreign)}")
        if isinstance(node, Bag):
            return self._bag(node)
        if isinstance(node, Seq):
            return " ".join(map(self._item, node.items)) or '""'
        if isinstance(node, Alt):
            return " | ".join(map(self._node, node.options))
        assert isinstance(node, Repeat)
        return self._item(node.item) + _times(node)

    def _bag(self, bag: Bag) -> str:
        """A rule whose parameter has a bit for each element that occurred."""
        if bag in self._bags:
            return self._bags[bag]
        name = self._bags[bag] = f"b{len(self._bags)}"
        size = len(bag.first)
        firsts = [f"{self._item(node)} {name}m::0x{1 << i:x}" for i, node in enumerate(bag.first)]
        laters = []
        for index, node in enumerate(bag.later):
            free = f"bit_clear({index})"
            if bag.high is not None and bag.high < size:
                free = f"and({free}, bit_count_lt([0:{size}], {bag.high}))"
            laters.append(f"{self._item(node)} {name}m::set_bit({index}) %if {free}")
        if bag.other_first != NOTHING:
            firsts.append(f"{self._item(bag.other_first)} {name}m::0x{1 << size:x}")
            laters.append(f"{self._item(bag.other_later)} {name}m::set_bit({size})")
        if bag.may_end(0):
            firsts.append('""')
        ends = [f"is_ones([0:{bag.needed}])"] if bag.needed else []
        ends += [f"bit_count_ge([0:{size}], {bag.low})"] if bag.low else []
        ends += [f"bit_set({size})"] if bag.least_others else []
        laters.append('""' + (f" %if {functools.reduce(lambda a, b: f'and({a}, {b})', ends)}" if ends else ""))
        self._more += [f"{name}: {' | '.join(firsts)}", f"{name}m::_: {' | '.join(laters)}"]
        return name

    def _item(self, node: Node) -> str:
        text = self._node(node)
        return text if isinstance(node, (Ref, Token, Foreign, Bag, Chars)) else f"({text})"
