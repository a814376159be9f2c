"""A grammar as data: rules over the algebra of `regex_ast.py` plus references, and what can be said of it unrun.

In: rules from either dialect (`grammar_parse.py`). Out: the same grammar written in GBNF or in llguidance's Lark, and
answers: is a rule missing, does the recursion end, is it left-recursive?
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import charsets
from .regex_ast import Alt, Chars, Leaf, Node, Repeat, Seq, write

__all__ = [
    "MOST_ELEMENTS", "Bag", "Foreign", "Ref", "Rules", "Special", "Token", "finite_rules", "is_left_recursive",
    "write_gbnf", "write_lark",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref(Leaf):
    """The text of another rule."""

    name: str
    __hash__ = Leaf.__hash__


@dataclass(frozen=True, slots=True)
class Token(Leaf):
    """What a lexer reads as one: a text of the node."""

    node: Node
    __hash__ = Leaf.__hash__


@dataclass(frozen=True, slots=True)
class Special(Leaf):
    """A special token of the vocabulary, which leaves no text."""

    token_id: int
    __hash__ = Leaf.__hash__


@dataclass(frozen=True, slots=True)
class Foreign(Leaf):
    """A token that the engine reads as a JSON schema; the node allows at least its texts."""

    schema: str
    node: Node
    __hash__ = Leaf.__hash__


@dataclass(frozen=True, slots=True)
class Bag(Leaf):
    """Elements in any order, each at most once; between them, any number of others.

    Attributes:
        first: the elements, where one comes first.
        later: the same, where something stands before (with the comma).
        needed: so many of the elements, the first ones, must occur.
        low: least number of elements.
        high: most.
        other_first: what may stand beside the elements, where it comes first; `NOTHING`: nothing may.
        other_later: the same, where something stands before.
        least_others: 1 where at least one of these must occur, else 0.
    """

    first: tuple[Node, ...]
    later: tuple[Node, ...]
    needed: int
    low: int
    high: int | None
    other_first: Node
    other_later: Node
    least_others: int = 0
    __hash__ = Leaf.__hash__

    def may_end(self, seen: int) -> bool:
        """Whether it may end after these elements (a bit each; the bit after them: others occurred)."""
        count = (seen & ((1 << len(self.first)) - 1)).bit_count()
        needed = (1 << self.needed) - 1
        return seen & needed == needed and count >= self.low and seen >> len(self.first) >= self.least_others

    def may_take(self, seen: int, index: int) -> bool:
        """Whether an element may still come."""
        count = (seen & ((1 << len(self.first)) - 1)).bit_count()
        return not seen >> index & 1 and (self.high is None or count < self.high)


MOST_ELEMENTS = 62
"""Of a `Bag`: the engine's parameter has 64 bits."""

Rules = Mapping[str, Node]
"""Nodes that may have `Ref`, `Token` and `Foreign` in them, by name."""


def finite_rules(rules: Rules) -> set[str]:
    """The rules that some finite text derives from."""
    return _spreading(rules, _finite)


def _spreading(rules: Rules, holds: Callable[[Node, set[str]], bool]) -> set[str]:
    """The rules for which something holds, given those for which it is known to: only users are asked again."""
    users: dict[str, list[str]] = {}
    for name, node in rules.items():
        for other in _named(node):
            users.setdefault(other, []).append(name)
    found: set[str] = set()
    asked = list(rules)
    while asked:
        more = [name for name in asked if name not in found and holds(rules[name], found)]
        found.update(more)
        asked = list(dict.fromkeys(user for name in more for user in users.get(name, ()) if user not in found))
    return found


def _named(node: Node) -> set[str]:
    """The rules that a node refers to."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Ref):
            found.add(one.name)
        elif isinstance(one, Seq):
            waiting += one.items
        elif isinstance(one, Alt):
            waiting += one.options
        elif isinstance(one, Repeat):
            waiting.append(one.item)
    return found


def _finite(node: Node, known: set[str]) -> bool:
    if isinstance(node, Ref):
        return node.name in known
    if isinstance(node, Seq):
        return all(_finite(item, known) for item in node.items)
    if isinstance(node, Alt):
        return any(_finite(option, known) for option in node.options)
    if isinstance(node, Repeat):
        return node.low == 0 or _finite(node.item, known)
    return node != Chars(())


def is_left_recursive(rules: Rules) -> bool:
    """Whether a rule can begin with itself."""
    nullable = _spreading(rules, _nullable)
    first = {name: _first(node, nullable) for name, node in rules.items()}
    leading = dict.fromkeys(rules, 0)
    for others in first.values():
        for other in others:
            leading[other] += 1
    waiting = [name for name, count in leading.items() if not count]
    while waiting:  # what no rule begins with goes; what is left then goes round in circles
        for other in first.pop(waiting.pop()):
            leading[other] -= 1
            if not leading[other]:
                waiting.append(other)
    return bool(first)


def _nullable(node: Node, known: set[str]) -> bool:
    if isinstance(node, Ref):
        return node.name in known
    if isinstance(node, Seq):
        return all(_nullable(item, known) for item in node.items)
    if isinstance(node, Alt):
        return any(_nullable(option, known) for option in node.options)
    return isinstance(node, Repeat) and (node.low == 0 or _nullable(node.item, known))


def _first(node: Node, nullable: set[str]) -> set[str]:
    """The rules that a text of `node` may begin with."""
    if isinstance(node, Ref):
        return {node.name}
    if isinstance(node, Alt):
        return {name for option in node.options for name in _first(option, nullable)}
    if isinstance(node, Repeat):
        return _first(node.item, nullable)
    found: set[str] = set()
    if isinstance(node, Seq):
        for item in node.items:
            found |= _first(item, nullable)
            if not _nullable(item, nullable):
                break
    return found


def write_gbnf(rules: Rules, root: str) -> str:
    """The grammar in GBNF.

    No rule refers to `root`: in one that does, xgrammar's masks leave out tokens that go beyond its end.
    """
    names = {name: f"r{number}" for number, name in enumerate(rules)}
    written = "".join(f"{names[name]} ::= {_gbnf(node, names)}\n" for name, node in rules.items())
    return f"root ::= {names[root]}\n{written}"


def write_lark(rules: Rules, root: str) -> str:
    """The grammar in llguidance's Lark, one character a terminal: its lexer takes the longest terminal otherwise."""
    names = {name: "start" if name == root else f"r{number}" for number, name in enumerate(rules)}
    return "".join(f"{names[name]}: {_lark(node, names)}\n" for name, node in rules.items())


def _gbnf(node: Node, names: Mapping[str, str]) -> str:
    if isinstance(node, Ref):
        return names[node.name]
    if isinstance(node, Chars):
        return _gbnf_class(node)
    if isinstance(node, Seq):
        return " ".join(_gbnf_item(item, names) for item in node.items) or '""'
    if isinstance(node, Alt):
        return " | ".join(_gbnf(option, names) for option in node.options)
    assert isinstance(node, Repeat)
    return _gbnf_item(node.item, names) + _times(node)


def _gbnf_item(node: Node, names: Mapping[str, str]) -> str:
    text = _gbnf(node, names)
    return text if isinstance(node, (Chars, Ref)) else f"({text})"


def _times(node: Repeat) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    return known or f"{{{node.low},{'' if node.high is None else node.high}}}"


def _gbnf_class(node: Chars) -> str:
    rest = charsets.complement(node.chars)
    negative = len(rest) < len(node.chars)
    if not rest:
        return "[\\u0000-\\U0010ffff]"
    shown = rest if negative else node.chars
    body = "".join(_escape(a) if a == b else f"{_escape(a)}-{_escape(b)}" for a, b in shown)
    return f"[{'^' if negative else ''}{body}]"


def _escape(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _lark(node: Node, names: Mapping[str, str]) -> str:
    if isinstance(node, Ref):
        return names[node.name]
    if isinstance(node, Chars):
        return f"/{write(node, engine=True)}/"
    if isinstance(node, Seq):
        return " ".join(_lark_item(item, names) for item in node.items) or json.dumps("")
    if isinstance(node, Alt):
        return " | ".join(_lark(option, names) for option in node.options)
    assert isinstance(node, Repeat)
    return _lark_item(node.item, names) + _times(node)


def _lark_item(node: Node, names: Mapping[str, str]) -> str:
    text = _lark(node, names)
    return text if isinstance(node, (Chars, Ref)) else f"({text})"
