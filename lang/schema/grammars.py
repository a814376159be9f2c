"""GBNF and Lark texts, checked."""

from __future__ import annotations

from ..errors import ConstraintError


def checked(text: str) -> str:
    """The grammar."""
    if not isinstance(text, str) or not text.strip():
        raise ConstraintError(f"grammar={text!r}: must be a grammar text", keyword="grammar")
    return text


def to_lark(text: str) -> str:
    """The grammar in Lark's syntax."""
    return text
