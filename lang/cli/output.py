"""What the command writes: JSON, columns, sizes, one-line messages.

In: values. Out: text on standard output; messages and progress on standard error.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["as_size", "complain", "print_columns", "print_json", "prints_aside", "say"]


def complain(message: str) -> None:
    """One line on standard error."""
    print("radicel: " + " ".join(message.split()), file=sys.stderr)


def say(message: str) -> None:
    """Progress, where somebody watches: on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(message, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def prints_aside(as_json: bool) -> AbstractContextManager[object]:
    """Where a user's code runs: with `--json`, what it prints goes to standard error, since the value stands alone."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows with their columns aligned; the last one as long as it is, so that a path can be copied."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row[:-1], widths)), row[-1], sep="  ")


def as_size(size: float | None) -> str:
    """Bytes for people, in powers of 1024."""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
