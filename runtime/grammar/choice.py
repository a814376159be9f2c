"""Which engine enforces a constraint: soundness first, then measured cost.

In: a constraint in normal form. Out: `"llguidance"` or `"xgrammar"`.

JSON schemas and patterns go to llguidance: xgrammar is measured not to enforce many schemas that it accepts, and takes
two hundred times longer to compile. Grammars go to xgrammar: llguidance's lexer takes the longest terminal, so that
`("a" "b" "c") | ("ab" "d")` would lose "abc"; cut into one-character terminals it is right, but slow, and is used where
xgrammar cannot follow (a left-recursive rule) or would take seconds that nothing could cut short (a grammar that allows
nearly any character in very many places: 7 to 20 ms for each, measured with 49k tokens).
"""

from __future__ import annotations

from ...constraint import Constraint
from ...schema.grammars import free_characters, left_recursive

__all__ = ["engine_for"]

_MOST_FREE = 100


def engine_for(constraint: Constraint) -> str:
    """The engine that enforces the constraint soundly at the least cost."""
    text = constraint.text
    if constraint.form != "grammar" or constraint.wraps or left_recursive(text) or free_characters(text) > _MOST_FREE:
        return "llguidance"
    return "xgrammar"
