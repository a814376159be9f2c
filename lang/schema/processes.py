"""Processes that answer questions for this one, started beside whoever asks and killed where they are late.

In: a pickled question, and how long it may take. Out: the answer, a tuple that begins with its kind. What the processes
do is `apart.py`, which they run.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["LateError", "LostError", "Pool"]

_MOST = 2  # processes
_START = 120.0  # seconds that one may take to start
_PATIENCE = 0.05  # seconds to wait for one before another is started

_log = logging.getLogger("radicel")


class LateError(Exception):
    """It took longer than it may, and was killed."""


class LostError(Exception):
    """It died over a question."""


class Clock:
    """One thread that kills processes which are late: a timer's thread for each question would cost more than most."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends: dict[Process, float] = {}
        self._next = math.inf  # when the thread looks again
        self._thread: threading.Thread | None = None
        self._stopping = False

    @contextlib.contextmanager
    def limited(self, process: Process, seconds: float) -> Iterator[None]:
        """Kills the process unless the work is done in so many seconds."""
        end = time.monotonic() + seconds
        with self._changed:
            self._ends[process] = end
            self._stopping = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="radicel-compile-limit", daemon=True)
                self._thread.start()
            elif end < self._next:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._ends.pop(process, None)
                if self._stopping:
                    self._changed.notify()

    def stop(self) -> None:
        """Ends the thread once nothing is watched; returns then, if that is now."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            thread = None if self._ends else self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        with self._changed:
            while self._ends or not self._stopping:
                now = time.monotonic()
                for process in [process for process, end in self._ends.items() if end <= now]:
                    del self._ends[process]
                    process.late = True
                    process.kill()
                self._next = min(self._ends.values(), default=math.inf)
                self._changed.wait(None if math.isinf(self._next) else self._next - now)
            self._thread = None


class Process:
    """One process, which answers one question at a time."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise OSError("this program has no interpreter to start")
        code = f"import sys; sys.path[:] = {sys.path!r}; from radicel.schema.apart import _serve; _serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.late = False

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait_until_ready(self, clock: Clock) -> None:
        """Returns once it answers questions.

        Raises:
            OSError: it never will.
        """
        try:
            if self.ask(b"", _START, clock) == ("ready",):
                return
        except EOFError:
            pass
        raise OSError("the process did not start")

    def ask(self, question: bytes, limit: float, clock: Clock) -> tuple[Any, ...]:
        """The answer.

        Raises:
            EOFError: the process ended instead, or was killed after `limit` seconds.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with clock.limited(self, limit):
            try:
                stdin.write(question)
                stdin.flush()
                answer: tuple[Any, ...] = pickle.load(stdout)
                return answer
            except (OSError, pickle.UnpicklingError) as error:
                raise EOFError from error

    def end(self) -> None:
        """Kills it."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # what was not sent is not wanted any more
                stream.close()
        self._process.wait()

    def kill(self) -> None:
        """Ends it where it stands; whoever waits for its answer is told, and calls `end`."""
        self._process.kill()


class Pool:
    """The processes. They are started beside whoever asks, who takes the first that has nothing to do."""

    def __init__(self) -> None:
        self.users = 0
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._clock = Clock()
        self._idle: list[Process] = []
        self._busy = self._waiting = 0
        self._starting: threading.Thread | None = None
        self._young: Process | None = None  # the one that is starting
        self._failures = 0  # to start one

    def add(self, users: int) -> None:
        """Counts engines: with the first a process is started, with the last one they go."""
        self._forget_after_fork()
        idle: list[Process] = []
        starting: threading.Thread | None = None
        with self._changed:
            self.users += users
            if users > 0 and not (self._idle or self._busy or self._starting):
                self._start_another()
            if not self.users:
                idle, self._idle = self._idle, []
                if not self._waiting:
                    starting = self._starting
                    if self._young is not None:
                        self._young.kill()
        for process in idle:
            process.end()
        if starting is not None:
            starting.join()
        if not self.users:
            self._clock.stop()

    def ask(self, question: bytes, limit: float) -> tuple[Any, ...]:
        """The answer of some process.

        Raises:
            LateError: it took longer than `limit` seconds, and was killed.
            LostError: it died.
            OSError: no process can be started.
        """
        process = self._taken()
        is_well = False
        try:
            answer = process.ask(question, limit, self._clock)
            is_well = True
        except EOFError:
            raise (LateError if process.late else LostError) from None
        finally:
            self._done(process, keep=is_well)
        return answer

    def _taken(self) -> Process:
        """A process that has nothing to do; where none has for a while, one more is started meanwhile."""
        self._forget_after_fork()
        with self._changed:
            patience = time.monotonic() + (_PATIENCE if self._busy else 0.0)
            failures = self._failures
            self._waiting += 1
            try:
                while (found := self._living()) is None:
                    if self._failures > failures:  # then those that are there have to do
                        if not self._busy:
                            raise OSError("no process can be started")
                    elif self._starting is None and self._busy < _MOST and time.monotonic() >= patience:
                        self._start_another()
                    left = patience - time.monotonic()
                    self._changed.wait(left if left > 0 else None)
            finally:
                self._waiting -= 1
            self._busy += 1
            return found

    def _living(self) -> Process | None:
        """One of those that have nothing to do, if there are any; one may have died meanwhile."""
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.end()
        return None

    def _done(self, process: Process, *, keep: bool) -> None:
        with self._changed:
            self._busy -= 1
            kept = keep and self._is_wanted and not process.late
            if kept:
                self._idle.append(process)
            self._changed.notify_all()
        if not kept:
            process.end()

    def _start_another(self) -> None:
        self._starting = threading.Thread(target=self._start, name="radicel-compile-start", daemon=True)
        self._starting.start()

    def _start(self) -> None:
        process: Process | None = None
        is_ready = False
        try:
            process = Process()
            with self._changed:
                self._young = process
                if not self._is_wanted:
                    process.kill()
            process.wait_until_ready(self._clock)
            is_ready = True
        except Exception:
            _log.debug("no process for compiling", exc_info=True)
        with self._changed:
            self._starting = self._young = None
            self._failures += not is_ready
            kept = is_ready and self._is_wanted
            if process is not None and kept:
                self._idle.append(process)
            self._changed.notify_all()
        if process is not None and not kept:
            process.end()

    @property
    def _is_wanted(self) -> bool:
        return self.users > 0 or self._waiting > 0

    def _forget_after_fork(self) -> None:
        if self._pid != os.getpid():  # they are the parent's
            self.users = 0
            self._reset()
