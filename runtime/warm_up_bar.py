"""The bar of `LocalRuntime.warm_up`.

In: how many graphs are captured, of how many. Out: a bar on standard error, on a terminal; nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["warm_up_bar"]


@contextmanager
def warm_up_bar() -> Iterator[Callable[[int, int], None]]:
    """Gives what is told how many are done, of how many."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("Capturing graphs", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
