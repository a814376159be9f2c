"""What a static check found: a plain record, and how it prints.

In: `checks.py`, and the tracer where it sees a mistake as it is made. Out: `trace.problems`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .ir import Site

__all__ = ["Problem", "problem_at"]


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a program (`"error"`: a run will fail) or looks wrong (`"warning"`).

    Attributes:
        severity: `"error"` or `"warning"`.
        message: what is wrong, with its values.
        file: where, in the program's source.
        line: its line, from 1; 0 where it is not known.
        fix: what to do about it.
    """

    severity: Literal["error", "warning"]
    message: str
    file: str
    line: int
    fix: str

    def __str__(self) -> str:
        return f"{self.severity} at {self.file}:{self.line}: {self.message}; {self.fix}"


def problem_at(severity: Literal["error", "warning"], site: Site | None, message: str, fix: str) -> Problem:
    """The problem at a place in the program."""
    return Problem(severity, message, site.file if site else "?", site.line if site else 0, fix)
