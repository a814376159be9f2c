"""How reports of plans and of runs are written: as plain text, with counts that read as English.

In: a rich renderable, numbers. Out: text.
"""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

__all__ = ["counted", "plain"]


def plain(renderable: RenderableType, width: int) -> str:
    """The renderable as text without colours, in lines of at most so many characters."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def counted(number: int, what: str) -> str:
    """A number of things: `1 value`, `1,200 values`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
