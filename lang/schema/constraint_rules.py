"""A `Constraint` → our own grammar of it, whatever its kind.

In: a constraint in normal form. Out: its rules (`grammar_ast.py`) and the one to start from.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import apart
from .grammar_ast import Ref, Token
from .grammar_parse import parse_grammar
from .lark import lark_text
from .patterns import one_of, regex_node
from .regex_ast import Node, seq
from .rules import schema_rules, text_node
from .tool_calls import calls_rules
from .wraps import wrapped_rules

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["bare", "constraint_lark", "constraint_rules", "rules_in_turns", "size"]


def constraint_rules(constraint: Constraint, tool_format: str = "hermes") -> tuple[dict[str, Node], str]:
    """The rules of a constraint, and the name of the rule to start from.

    Args:
        constraint: any constraint.
        tool_format: how tool calls are written (`tool_calls.py`).
    """
    return apart.run(_found, size(constraint), bare(constraint), tool_format)


def rules_in_turns(constraint: Constraint, tool_format: str, pause: Callable[[], None]) -> tuple[dict[str, Node], str]:
    """The same of a large constraint, read in from another process rule by rule, with a `pause` after each.

    Asked after `constraint_lark` they are most likely made already there.
    """
    packed = apart.run(_packed, size(constraint), bare(constraint), tool_format)
    source = pickle.Unpickler(io.BytesIO(packed))
    rules: dict[str, Node] = {}
    for _ in range(source.load()):
        rules.update(source.load())
        pause()
    return rules, source.load()


def _packed(constraint: Constraint, tool_format: str) -> bytes:
    """The rules one after the other; what they share is written once."""
    rules, root = _found(constraint, tool_format)
    data = io.BytesIO()
    pickler = pickle.Pickler(data, pickle.HIGHEST_PROTOCOL)
    pickler.dump(len(rules))
    for name, node in rules.items():
        pickler.dump({name: node})
    pickler.dump(root)
    return data.getvalue()


def constraint_lark(constraint: Constraint, tool_format: str = "hermes") -> str:
    """The rules of a constraint in llguidance's Lark.

    Raises:
        ConstraintError: rules that no engine follows.
    """
    return apart.run(_lark, size(constraint), bare(constraint), tool_format)


def bare(constraint: Constraint) -> Constraint:
    """What counts of a constraint for its texts, which is plain data."""
    return dataclasses.replace(constraint, type=constraint.type if constraint.kind == "dtype" else None, source="")


def size(constraint: Constraint) -> int:
    """The characters that a constraint is read from."""
    return len(constraint.text) + sum(map(len, constraint.options))


def _lark(constraint: Constraint, tool_format: str) -> str:
    return lark_text(*_found(constraint, tool_format))


@functools.lru_cache(maxsize=32)
def _found(constraint: Constraint, tool_format: str) -> tuple[dict[str, Node], str]:
    rules, root = _rules(constraint, tool_format)
    for wrap in constraint.wraps:
        rules, root = wrapped_rules(rules, root, wrap)
    if constraint.after and (constraint.wraps or constraint.form not in ("regex", "choices")):
        start = root + "_after"
        return {start: seq(Token(text_node(constraint.after)), Ref(root)), **rules}, start
    return rules, root


def _rules(constraint: Constraint, tool_format: str) -> tuple[dict[str, Node], str]:
    before = text_node("" if constraint.wraps else constraint.after)
    if constraint.form == "tools":
        tools = [(name, *schema_rules(schema)) for name, schema in json.loads(constraint.text)]
        return calls_rules(tools, tool_format)
    if constraint.form == "regex":
        return {"top": Token(seq(before, regex_node(constraint.text)))}, "top"
    if constraint.form == "choices":
        return {"top": Token(seq(before, one_of(constraint.options)))}, "top"
    if constraint.form == "json":
        return schema_rules(json.loads(constraint.text), flexible=constraint.whitespace == "flexible")
    return parse_grammar(constraint.text)
