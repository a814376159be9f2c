"""A `Constraint` → our own grammar of it, whatever its kind.

In: a constraint in normal form. Out: its rules (`grammar_ast.py`) and the one to start from.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .grammar_ast import Ref, Token
from .grammar_parse import parse_grammar
from .patterns import one_of, regex_node
from .regex_ast import Node, seq
from .rules import schema_rules, text_node

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["constraint_rules"]


def constraint_rules(constraint: Constraint) -> tuple[dict[str, Node], str]:
    """The rules of a constraint, and the name of the rule to start from."""
    before = text_node(constraint.after)
    if constraint.form == "regex":
        return {"top": Token(seq(before, regex_node(constraint.text)))}, "top"
    if constraint.form == "choices":
        return {"top": Token(seq(before, one_of(constraint.options)))}, "top"
    if constraint.form == "json":
        rules, root = schema_rules(json.loads(constraint.text), flexible=constraint.whitespace == "flexible")
    else:
        rules, root = parse_grammar(constraint.text)
    if constraint.after:
        start = root + "_after"
        return {start: seq(Token(before), Ref(root)), **rules}, start
    return rules, root
