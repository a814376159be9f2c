"""Which engine enforces a constraint: soundness first, then measured cost.

In: a constraint in normal form. Out: `"llguidance"` or `"xgrammar"`.

JSON schemas and patterns go to llguidance: xgrammar is measured not to enforce many schemas that it accepts, and takes
two hundred times longer to compile. Grammars go to xgrammar: llguidance's lexer takes the longest terminal, so that
`("a" "b" "c") | ("ab" "d")` would lose "abc"; cut into one-character terminals it is right, but slow, and is used where
xgrammar cannot follow (a left-recursive rule).
"""

from __future__ import annotations

from ...constraint import Constraint
from ...schema.grammars import left_recursive

__all__ = ["engine_for"]


def engine_for(constraint: Constraint) -> str:
    """The engine that enforces the constraint soundly at the least cost."""
    if constraint.form == "grammar" and not constraint.wraps and not left_recursive(constraint.text):
        return "xgrammar"
    return "llguidance"
