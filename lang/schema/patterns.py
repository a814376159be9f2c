"""Python regex → the pattern that the engines read the same way."""

from __future__ import annotations

import re
from typing import Any

from ..errors import ConstraintError


def pattern_text(pattern: Any) -> str:
    """The pattern's text, from a string or a compiled pattern."""
    if isinstance(pattern, re.Pattern):
        pattern = pattern.pattern
    if not isinstance(pattern, str):
        raise ConstraintError(f"regex={pattern!r}: must be a string", keyword="regex")
    return pattern


def translate(pattern: str) -> str:
    """The pattern in the engines' syntax."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConstraintError(
            f"the regex {pattern!r} is invalid: {error}", keyword="regex", pointer=str(error.pos)
        ) from error
    return pattern
