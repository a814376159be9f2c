"""The bars of `radicel pull`.

In: how many bytes have arrived and how many tensors are converted. Out: two bars on standard error, on a terminal;
elsewhere one line when it starts, so that a log says what is going on.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["PullProgress"]


class PullProgress:
    """A context manager around one pull.

    Args:
        title: the model's name.
        size: bytes to download.
        shown: False makes every method do nothing.
    """

    def __init__(self, title: str, size: int, *, shown: bool) -> None:
        self._title = title
        self._size = size
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not shown or not console.is_terminal,
        )
        self._says = shown and not console.is_terminal
        self._download = self._bars.add_task(f"Downloading {title}", total=size)
        self._convert = self._bars.add_task("Converting", total=None, visible=False)

    def __enter__(self) -> PullProgress:
        if self._says:
            self._bars.console.print(f"Fetching {self._title} ({self._size / 1e6:.0f} MB), once", highlight=False)
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def downloaded(self, num_bytes: int) -> None:
        """So many bytes have arrived, in all."""
        self._bars.update(self._download, completed=min(num_bytes, self._size))

    def converted(self, done: int, total: int) -> None:
        """So many tensors of so many are converted."""
        self._bars.update(self._convert, completed=done, total=total, visible=True)
