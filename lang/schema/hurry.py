"""Work that gives up when it takes too long for where it runs.

In: a limit for the calling thread. Out: `TooLongError` from `check`, which long loops call, once the limit has passed.
Nothing is half done then: whoever set the limit runs the work again elsewhere (`apart.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

__all__ = ["TooLongError", "check", "limited"]


class TooLongError(Exception):
    """The work has used up its time."""


class _Local(threading.local):
    end: float | None = None  # of this thread's time
    due = 0.0  # of the clock, before which it cannot be over; the clock costs less to read


_local = _Local()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Gives this thread so many seconds of the processor."""
    before, due = _local.end, _local.due
    _local.end, _local.due = time.thread_time() + seconds, time.perf_counter() + seconds
    try:
        yield
    finally:
        _local.end, _local.due = before, due


def check() -> None:
    """Raises `TooLongError` where this thread's time is used up."""
    end = _local.end
    if end is None or time.perf_counter() < _local.due:
        return
    left = end - time.thread_time()
    if left < 0:
        raise TooLongError
    _local.due = time.perf_counter() + left
