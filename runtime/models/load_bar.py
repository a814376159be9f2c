"""The bar of a model that is loaded: bytes read of bytes there are.

In: sizes. Out: a bar on standard error, on a terminal and for a model that takes a while; otherwise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

__all__ = ["LEAST", "load_bar"]

LEAST = 500_000_000
"""Bytes from which a bar is shown."""


@contextmanager
def load_bar(title: str, size: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Shows how much of `size` bytes is read; gives what to call with the bytes of each tensor.

    Args:
        title: the model's name.
        size: bytes in all.
        console: where to; standard error without it.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=size < LEAST or not console.is_terminal) as bars:
        task = bars.add_task(f"Loading {title}", total=size)
        yield lambda read: bars.advance(task, read)
