"""Runs many slow-moving jobs on one thread: how a `MockBackend` answers later, as a real one does.

In: jobs, each a generator that yields how many seconds to wait before its next step and returns its result.
Out: the result, or what was raised, on the job's future; all on the one thread, which lives only while there are jobs.

Steps run in the order in which they are due; jobs begin in the order in which they were started.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..errors import BackendClosedError, CancelledError, DeadlineError

__all__ = ["Delivery", "Job", "Steps"]

Steps = Generator[float, None, Any]


@dataclass(eq=False)
class Job:
    """A generator in progress.

    Attributes:
        steps: yields seconds to wait; its return value is the result.
        label: for messages.
        timeout: seconds from now after which the job fails with `DeadlineError`, or None.
    """

    steps: Steps
    label: str
    timeout: float | None = None
    future: Future[Any] = field(default_factory=Future, init=False)
    deadline: float | None = field(default=None, init=False)
    cancelled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.timeout is not None:
            self.deadline = time.monotonic() + self.timeout
        self.future.set_running_or_notify_cancel()  # from here on `future.cancel()` does nothing

    def fail(self, error: BaseException) -> None:
        """Ends the job with an error."""
        self.steps.close()
        self.future.set_exception(error)


class Delivery:
    """The thread and its jobs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Job]] = []  # a heap; every unfinished job but the one in its step is in it
        self._jobs: set[Job] = set()
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, job: Job) -> None:
        """Takes a job.

        Raises:
            BackendClosedError: after `close`.
        """
        with self._changed:
            if self._closed:
                raise BackendClosedError(f"{job.label}: the backend is closed")
            self._jobs.add(job)
            self._push(time.monotonic(), job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def cancel(self, job: Job) -> None:
        """Makes a job fail with `CancelledError` unless it ended already."""
        with self._changed:
            if job not in self._jobs:
                return
            job.cancelled = True
            if any(entry[2] is job for entry in self._due):
                self._due = [entry for entry in self._due if entry[2] is not job]
                heapq.heapify(self._due)
                self._push(time.monotonic(), job)

    def close(self) -> None:
        """Fails every unfinished job with `BackendClosedError` and waits for the thread's end."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _push(self, due: float, job: Job) -> None:
        heapq.heappush(self._due, (due, next(self._order), job))
        self._changed.notify_all()

    def _run(self) -> None:
        while (job := self._wait()) is not None:
            self._step(job)

    def _wait(self) -> Job | None:
        """The next job that is due; None, and no thread any more, where there is none or the backend was closed."""
        with self._changed:
            while self._due and not self._closed:
                wait = self._due[0][0] - time.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            self._thread = None
            jobs = sorted((entry for entry in self._due), key=lambda entry: entry[1])
            self._due.clear()
            self._jobs.clear()
        for _, _, job in jobs:
            job.fail(BackendClosedError(f"{job.label}: the backend was closed before it ended"))
        return None

    def _step(self, job: Job) -> None:
        try:
            now = time.monotonic()
            if job.cancelled:
                raise CancelledError(f"{job.label} was cancelled")
            if job.deadline is not None and now >= job.deadline:
                raise DeadlineError(f"{job.label} did not end within its timeout of {job.timeout} s")
            delay = next(job.steps)
        except StopIteration as end:
            self._forget(job)
            job.future.set_result(end.value)
        except BaseException as error:  # whatever a reply or a callback raises belongs to its request
            self._forget(job)
            job.fail(error)
        else:
            due = now + delay
            with self._changed:
                self._push(now if job.cancelled else due if job.deadline is None else min(due, job.deadline), job)

    def _forget(self, job: Job) -> None:
        with self._changed:
            self._jobs.discard(job)
