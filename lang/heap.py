"""Python's collector of cycles, kept from going through everything while much is being asked of a model.

In: the times in which that is so (`undisturbed`, `Busy`). Out: a collector that meanwhile looks only at what
was made since.

A full collection goes through every object of the process, a second where torch and a tokenizer are loaded, and holds
up every thread, a GPU that waits for its next step included. The objects of a batch are many, so that it would come
about twice a batch. What was there before is therefore set aside at the beginning and given back at the end (both take
no time): nothing is kept from being collected for longer than there is work. `RADICEL_FREEZE=0` leaves the collector
alone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

__all__ = ["Busy", "undisturbed"]


class _Times:
    """How many of them are open, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._enabled: bool | None = None

    def change(self, by: int) -> None:
        with self._lock:
            if self._enabled is None:  # who has set objects aside for good must find them so
                self._enabled = os.environ.get("RADICEL_FREEZE") != "0" and not gc.get_freeze_count()
            self._open += by
            if self._enabled and self._open == max(by, 0):
                (gc.freeze if by > 0 else gc.unfreeze)()


_times = _Times()


class Busy:
    """Somebody who has much to do at times; used by one thread."""

    def __init__(self) -> None:
        self._busy = False

    def set(self, busy: bool) -> None:
        """Whether it has now."""
        if busy != self._busy:
            self._busy = busy
            _times.change(1 if busy else -1)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Around what is much."""
    _times.change(1)
    try:
        yield
    finally:
        _times.change(-1)


def _after_fork() -> None:
    """A child process has none of its parent's threads, which may have been in the middle of it."""
    if _times._open:
        gc.unfreeze()
    _times.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
