"""Long work of compiling, in a process of its own: it holds up no thread of this one, and can be killed.

In: a pure function of this package and its arguments. Out: what it returns or raises.

Python threads take turns, so a schema that takes a second to read would hold up an engine's steps for a second.
While an engine runs (`start` to `stop`) work is therefore done here only while it is quick; what is large, or turns
out to take longer, goes to a process that imports nothing but this package. It is killed after `LIMIT` seconds, and may
take `MEMORY` bytes. Without an engine there is nothing to hold up, and everything is done in place.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import ConstraintError
from . import hurry

__all__ = ["LIMIT", "MEMORY", "goes", "run", "start", "stop", "warm"]

LIMIT = 20.0
"""Seconds after which the process is killed."""
MEMORY = 4 * 1024**3
"""Bytes of address space that it may take (where the system can say so)."""

_MOST = 2  # processes
_START = 120.0  # seconds that it may take to start
_PATIENCE = 0.5  # seconds to wait for one before another is started
_LARGE = 4_000  # characters that take longer than _QUICK
_QUICK = 0.004  # seconds

T = TypeVar("T")


class _Process:
    """One process, which answers one question at a time."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise OSError("this program has no interpreter to start")
        code = f"import sys; sys.path[:] = {sys.path!r}; from radicel.schema.apart import _serve; _serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.late = False
        self._is_ready = False

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ask(self, question: bytes, limit: float) -> tuple[Any, ...]:
        """The answer.

        Raises:
            EOFError: the process ended instead, or was killed after `limit` seconds.
            OSError: it never started.
        """
        if not self._is_ready:
            try:
                self._is_ready = self._exchanged(b"", _START) == ("ready",)
            except EOFError as error:
                raise OSError("the process did not start") from error
        return self._exchanged(question, limit)

    def _exchanged(self, question: bytes, limit: float) -> tuple[Any, ...]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        clock = threading.Timer(limit, self._kill_late)
        clock.daemon = True
        clock.start()
        try:
            stdin.write(question)
            stdin.flush()
            answer: tuple[Any, ...] = pickle.load(stdout)
            return answer
        except (OSError, pickle.UnpicklingError) as error:
            raise EOFError from error
        finally:
            clock.cancel()

    def end(self) -> None:
        """Kills it."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # what was not sent is not wanted any more
                stream.close()
        self._process.wait()

    def _kill_late(self) -> None:
        self.late = True
        self._process.kill()


class _Pool:
    """The processes, started when they are needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Process] = []
        self._busy = 0
        self._pid = os.getpid()
        self.users = 0

    def add(self, users: int) -> None:
        """Counts engines; with the last one the processes go."""
        with self._changed:
            self._forget_after_fork()
            self.users += users
            idle = [] if self.users else self._idle
            self._idle = self._idle if self.users else []
        for process in idle:
            process.end()

    def ask(self, question: bytes, limit: float) -> tuple[Any, ...]:
        """The answer of some process.

        Raises:
            ConstraintError: it took too long, or died.
            OSError: no process can be started.
        """
        process = self._taken()
        waited = process is not None
        try:
            process = process or _Process()
            answer = process.ask(question, limit)
        except BaseException as error:
            self._done(None)
            if process is not None:
                process.end()
            if process is None or not isinstance(error, EOFError):
                raise
            if not waited or process.late:
                raise _lost(process.late, limit) from None
            return self.ask(question, limit)  # it died before it was asked, perhaps
        self._done(process)
        return answer

    def _taken(self) -> _Process | None:
        """An idle process; None: one more may be started."""
        with self._changed:
            self._forget_after_fork()
            if not self._idle and self._busy:  # it is often done sooner than another is there
                self._changed.wait_for(lambda: bool(self._idle), _PATIENCE)
            self._changed.wait_for(lambda: self._idle or self._busy < _MOST)
            self._busy += 1
            return self._idle.pop() if self._idle else None

    def _done(self, process: _Process | None) -> None:
        with self._changed:
            self._busy -= 1
            kept = process is not None and self.users > 0 and not process.late
            if kept and process is not None:
                self._idle.append(process)
            self._changed.notify_all()
        if process is not None and not kept:
            process.end()

    def _forget_after_fork(self) -> None:
        if self._pid != os.getpid():  # they are the parent's
            self._pid, self._idle, self._busy, self.users = os.getpid(), [], 0, 0


_pool = _Pool()


@atexit.register
def _end() -> None:
    _pool.add(-_pool.users)


def start() -> None:
    """Says that an engine runs in this process.

    What is in memory by now is then left out of garbage collection: to look through all of a loaded model and its
    libraries takes a third of a second, in which no thread gets on.
    """
    _pool.add(1)
    gc.freeze()


def warm() -> None:
    """Imports what compiling may need and what takes a second to import: before steps run, not between them."""
    importlib.import_module("jsonschema")


def goes(size: int) -> bool:
    """Whether `run` takes work of this size to another process from the start."""
    return _pool.users > 0 and size > _LARGE


def stop() -> None:
    """Takes back a `start`; what an engine leaves can be collected."""
    _pool.add(-1)
    gc.unfreeze()


def run(function: Callable[..., T], size: int, *args: Any) -> T:
    """What `function(*args)` returns, here or in a process of its own.

    Args:
        function: at the top of a module of this package, as pure as its arguments.
        size: the characters that it reads.
        args: plain data.

    Raises:
        ConstraintError: what the function raises; or it took more than `LIMIT` seconds or `MEMORY` bytes.
    """
    if not _pool.users:
        return function(*args)
    if not goes(size):
        try:
            with hurry.limited(_QUICK):
                return function(*args)
        except hurry.TooLongError:
            pass
    return _elsewhere(function, args, LIMIT)


def _elsewhere(function: Callable[..., T], args: tuple[Any, ...], limit: float) -> T:
    try:
        kind, value, *about = _pool.ask(pickle.dumps((function, args)), limit)
    except OSError:  # no process can be started: better late than never
        return function(*args)
    if kind == "value":
        answer: T = value
        return answer
    if kind == "refused":
        raise ConstraintError(value, keyword=about[0], pointer=about[1])
    raise (RecursionError if kind == "deep" else RuntimeError)(value)


def _lost(late: bool, limit: float) -> ConstraintError:
    if late:
        problem = f"took more than {limit:g} s, the limit"
    else:
        problem = f"ended the process that did it: it may take more than {MEMORY >> 30} GiB, the limit"
    return ConstraintError(f"compiling the constraint {problem}; simplify it", keyword="schema")


def _serve() -> None:
    """The process: a pickled function and its arguments in, a pickled answer out, until its input ends."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory()
    gc.freeze()
    answers.write(pickle.dumps(("ready",)))
    answers.flush()
    while True:
        try:
            function, args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answers.write(_answer(function, args))
        answers.flush()


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(("value", function(*args)), pickle.HIGHEST_PROTOCOL)
    except ConstraintError as error:
        return pickle.dumps(("refused", str(error), error.keyword, error.pointer))
    except RecursionError as error:
        return pickle.dumps(("deep", str(error)))
    except MemoryError:
        problem = f"compiling the constraint takes more than {MEMORY >> 30} GiB, the limit; simplify it"
        return pickle.dumps(("refused", problem, "schema", None))
    except Exception as error:
        return pickle.dumps(("failed", f"{type(error).__name__}: {error}"))


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on every system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
