"""A `Constraint` in the languages of the engines.

In: a constraint in normal form. Out: the grammar text that each engine compiles. Pure functions, no engine state.
"""

from __future__ import annotations

import json
import re

from ...constraint import Constraint
from ...errors import ConstraintError
from ...schema.constraint_rules import constraint_lark
from ...schema.grammars import following, to_lark

__all__ = ["llguidance_grammar", "xgrammar_grammar"]

# Without forcing, a mask holds every legal token: which spelling of a forced text is taken is decided in `forced.py`.
_HEAD = '%llguidance {"no_forcing": true}\n'
_FORCING = "%llguidance {}\n"


def llguidance_grammar(constraint: Constraint, tool_format: str = "hermes") -> str:
    """What llguidance compiles for this constraint (its dialect of Lark)."""
    if constraint.form == "grammar" and not constraint.wraps:
        return _HEAD + to_lark(_gbnf(constraint))
    # Without forcing, the engine fails at a special token beside a fixed text.
    head = _FORCING if constraint.form == "tools" and re.match(r"mistral\w*:\d", tool_format) else _HEAD
    return head + constraint_lark(constraint, tool_format)


def xgrammar_grammar(constraint: Constraint) -> str:
    """What xgrammar compiles for this constraint (GBNF)."""
    if constraint.form == "grammar" and not constraint.wraps:
        return _gbnf(constraint)
    if constraint.form == "choices" and not constraint.wraps:
        return "root ::= " + " | ".join(json.dumps(constraint.after + option) for option in constraint.options)
    raise ConstraintError(f"xgrammar is not given a {constraint.kind} constraint", keyword=constraint.kind)


def _gbnf(constraint: Constraint) -> str:
    return following(constraint.after, constraint.text) if constraint.after else constraint.text
