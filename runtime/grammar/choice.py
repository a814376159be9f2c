"""Which engine enforces a constraint: soundness first, then measured cost.

In: a constraint in normal form. Out: `"llguidance"` or `"xgrammar"`.
"""

from __future__ import annotations

from ...constraint import Constraint

__all__ = ["engine_for"]


def engine_for(constraint: Constraint) -> str:
    """The engine that enforces the constraint soundly at the least cost."""
    return "llguidance"
