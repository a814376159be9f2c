"""A `Constraint` → our own grammar of it, whatever its kind.

In: a constraint in normal form. Out: its rules (`grammar_ast.py`) and the one to start from.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from .grammar_ast import Ref, Token
from .grammar_parse import parse_grammar
from .patterns import one_of, regex_node
from .regex_ast import Node, seq
from .rules import schema_rules, text_node
from .tool_calls import calls_rules
from .wraps import wrapped_rules

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["constraint_rules"]


@functools.lru_cache(maxsize=32)
def constraint_rules(constraint: Constraint, tool_format: str = "hermes") -> tuple[dict[str, Node], str]:
    """The rules of a constraint, and the name of the rule to start from.

    Args:
        constraint: any constraint.
        tool_format: how tool calls are written (`tool_calls.py`).
    """
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
