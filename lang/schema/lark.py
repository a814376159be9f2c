"""Rules of tokens → llguidance's dialect of Lark.

In: rules (`rules.py`) and the one to start from. Out: the grammar's text. Intersections and complements, which its
patterns do not have, are written between patterns (`/…/ & ~/…/`).
"""

from __future__ import annotations

from collections.abc import Mapping

from .grammar_ast import Foreign, Ref, Rules, Token
from .regex_ast import EMPTY, Alt, And, Node, Not, Repeat, Seq, is_plain, write

__all__ = ["expression", "lark_text"]


def lark_text(rules: Rules, start: str) -> str:
    """The grammar's text."""
    return _Writer(rules).text(start)


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
        return " ".join(map(_grouped, _runs(node)))
    assert isinstance(node, Repeat)
    return f"({expression(node.item)}){_times(node)}"


def _grouped(node: Node) -> str:
    text = expression(node)
    return text if is_plain(node) else f"({text})"


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

    def text(self, start: str) -> str:
        lines = [f"{self._names[name]}: {self._node(node)}" for name, node in self._rules.items()]
        lines += [f"{name}: {expression(node)}" for node, name in self._tokens.items()]
        lines += [f"{name}: %json {schema}" for schema, name in self._foreign.items()]
        return "\n".join([f"start: {self._names[start]}", *lines]) + "\n"

    def _node(self, node: Node) -> str:
        if isinstance(node, Ref):
            return self._names[node.name]
        if isinstance(node, Token):
            return self._tokens.setdefault(node.node, f"T{len(self._tokens)}")
        if isinstance(node, Foreign):
            return self._foreign.setdefault(node.schema, f"j{len(self._foreign)}")
        if isinstance(node, Seq):
            return " ".join(map(self._item, node.items)) or '""'
        if isinstance(node, Alt):
            return " | ".join(map(self._node, node.options))
        assert isinstance(node, Repeat)
        return self._item(node.item) + _times(node)

    def _item(self, node: Node) -> str:
        text = self._node(node)
        return text if isinstance(node, (Ref, Token, Foreign)) else f"({text})"
