"""The threads of the language: one that answers backends, and a few that run bodies.

In: small tasks of the executor (`Dispatcher`), bodies of programs (`BodyPool`).
Out: they run, in order; the threads end by themselves when there is nothing left for them.

A body that waits for a value costs a thread but no time, so the pool counts only the bodies that are not waiting:
a new thread is started when bodies are queued and too few are at work, never more than `limit` in all. A worker that
waits for a program whose body is still queued runs that body itself (`Task.claim`), so bodies that wait for programs
they started cannot lock the pool.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .backend import refuse_to_wait

__all__ = ["BodyPool", "Dispatcher", "Task", "bodies", "dispatcher", "in_worker", "settle", "while_blocked"]

_log = logging.getLogger("radicel")
_SETTLE_S = 1.0


class _Alarm(NamedTuple):
    """A task for later; alarms compare by time, then by number."""

    when: float
    number: int
    task: Callable[[], object]


class Dispatcher:
    """One daemon thread that runs tasks in order, and some of them later; alive only while somebody holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Callable[[], object] | _Alarm | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._users = 0
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Keeps the thread alive until `release`."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Lets the thread end when nobody else holds it and its tasks are done."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._thread is not None:
                self._tasks.put(None)

    def ensure(self) -> None:
        """Starts the thread if there is none."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="radicel-dispatcher", daemon=True)
                self._thread.start()
                if self._users == 0:
                    self._tasks.put(None)

    def put(self, task: Callable[[], object]) -> None:
        """Runs `task` on the thread, after those put before it."""
        self._tasks.put(task)
        self.ensure()

    def later(self, seconds: float, task: Callable[[], object]) -> None:
        """Runs `task` on the thread after so many seconds; earlier where nobody holds the thread any more."""
        self._tasks.put(_Alarm(time.monotonic() + seconds, next(self._numbers), task))
        self.ensure()

    def put_from_finalizer(self, task: Callable[[], object]) -> None:
        """`put` for `__del__`, which may interrupt any code: takes no lock and needs the thread to be there."""
        self._tasks.put(task)

    def join(self) -> None:
        """Waits for a thread that was told to end; returns at once when it is still held."""
        with self._lock:
            thread = self._thread if self._users == 0 else None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_SETTLE_S)

    def _loop(self) -> None:
        alarms: list[_Alarm] = []  # a heap
        while True:
            task = self._next(alarms)
            if task is None:
                with self._lock:
                    if self._users == 0 and self._tasks.empty():
                        self._thread = None
                        break
            elif isinstance(task, _Alarm):
                heapq.heappush(alarms, task)
            else:
                _run(task)
            del task  # it may hold the last reference to a state
        for alarm in alarms:
            _run(alarm.task)

    def _next(self, alarms: list[_Alarm]) -> Callable[[], object] | _Alarm | None:
        """The alarm that is due, else the next task."""
        if not alarms:
            return self._tasks.get()
        try:
            seconds = alarms[0].when - time.monotonic()
            return self._tasks.get(timeout=seconds) if seconds > 0 else heapq.heappop(alarms).task
        except queue.Empty:
            return heapq.heappop(alarms).task


def _run(task: Callable[[], object]) -> None:
    try:
        task()
    except BaseException:
        _log.exception("a task of the dispatcher failed")


class Task:
    """A body that waits for a thread. Exactly one of those who `claim` it runs or drops it."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run
        self._lock = threading.Lock()

    def claim(self) -> Callable[[], None] | None:
        """What to run, for the first caller; None for all others."""
        with self._lock:
            run, self._run = self._run, None
        return run


class BodyPool:
    """Threads that run bodies.

    Args:
        limit: most threads at a time.
        eager: most threads whose body is not waiting, when a new one is started.
    """

    def __init__(self, limit: int, eager: int) -> None:
        self._limit = limit
        self._eager = eager
        self._lock = threading.Lock()
        self._queue: deque[Task] = deque()
        self._threads = 0
        self._at_work = 0
        self._leaving: list[threading.Thread] = []

    def put(self, task: Task) -> None:
        """Runs the task on a thread of the pool, after those put before it."""
        with self._lock:
            self._queue.append(task)
            grows = self._grows()
        if grows:
            self._grow()

    def allow(self, bodies: int) -> None:
        """So many bodies may wait at a time, at least."""
        with self._lock:
            self._limit = max(self._limit, bodies)

    def is_stuck(self) -> bool:
        """Whether no body that is queued here can begin before one that waits goes on."""
        with self._lock:
            return self._at_work <= 0 and self._threads >= self._limit

    @contextlib.contextmanager
    def while_blocked(self) -> Iterator[None]:
        """Around a wait of a worker's body: another body may use its place."""
        with self._lock:
            self._at_work -= 1
            grows = self._grows()
        if grows:
            self._grow()
        try:
            yield
        finally:
            with self._lock:
                self._at_work += 1

    def join(self) -> None:
        """Waits for threads that have nothing more to do."""
        with self._lock:
            leaving = list(self._leaving)
        for thread in leaving:
            if thread is not threading.current_thread():
                thread.join(_SETTLE_S)

    def _grows(self) -> bool:
        """Whether one more thread is wanted, which counts from here on; asked with the lock held."""
        if not self._queue or self._at_work >= self._eager or self._threads >= self._limit:
            return False
        self._threads += 1
        self._at_work += 1
        return True

    def _grow(self) -> None:
        """Starts the thread that was counted; without the lock, as it is waited for until it runs."""
        thread = threading.Thread(target=self._loop, name="radicel-body", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads: those that run will take the task
            with self._lock:
                self._threads -= 1
                self._at_work -= 1
                none = self._threads == 0
            if none:
                raise

    def _loop(self) -> None:
        _worker.pool = self
        while True:
            with self._lock:
                if not self._queue or self._at_work > self._eager:
                    self._threads -= 1
                    self._at_work -= 1
                    self._leaving = [t for t in self._leaving if t.is_alive()] + [threading.current_thread()]
                    return
                task = self._queue.popleft()
            run = task.claim()
            if run is not None:
                run()
            del task, run  # they hold the state of the program


class _Worker(threading.local):
    pool: BodyPool | None = None


_worker = _Worker()

MAX_BODIES = 256
EAGER_BODIES = min(16, (os.cpu_count() or 1) + 4)  # they share the interpreter: more gain nothing

dispatcher = Dispatcher()
bodies = BodyPool(MAX_BODIES, EAGER_BODIES)


def in_worker() -> bool:
    """Whether the caller runs on a thread of a `BodyPool`."""
    return _worker.pool is not None


def while_blocked() -> contextlib.AbstractContextManager[None]:
    """Around every wait of the language: `BodyPool.while_blocked` on a worker, nothing elsewhere."""
    refuse_to_wait()
    return _worker.pool.while_blocked() if _worker.pool is not None else contextlib.nullcontext()


def settle(pool: BodyPool = bodies) -> None:
    """Waits a moment for threads that have nothing more to do, so that a call that returns leaves none behind."""
    if not in_worker():
        pool.join()
        dispatcher.join()


def _after_fork() -> None:
    """A child process has none of its parent's threads, and its locks may be held by them."""
    dispatcher.__init__()  # type: ignore[misc]
    bodies.__init__(MAX_BODIES, EAGER_BODIES)  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
