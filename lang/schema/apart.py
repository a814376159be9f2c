"""Long work of compiling, in a process of its own: it holds up no thread of this one, and can be killed.

In: a pure function of this package and its arguments. Out: what it returns or raises.

Python threads take turns, so a schema that takes a second to read would hold up an engine's steps for a second.
While an engine runs (`start` to `stop`) work is therefore done here only while it is quick; what is large, or turns
out to take longer, goes to a process that imports nothing but this package. It is killed after `LIMIT` seconds, and may
take `MEMORY` bytes. Without an engine there is nothing to hold up, and everything is done in place.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pickle
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ..errors import ConstraintError
from . import hurry
from .processes import LateError, LostError, Pool

__all__ = ["LIMIT", "MEMORY", "goes", "run", "start", "stop", "warm"]

LIMIT = 20.0
"""Seconds after which the process is killed."""
MEMORY = 4 * 1024**3
"""Bytes of address space that it may take (where the system can say so)."""

_LARGE = 3_000  # characters of a constraint whose rules nearly always take longer than _QUICK
_QUICK = 0.004  # seconds
_MOST_LONG = 256

T = TypeVar("T")

_pool = Pool()


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


class _Long:
    """What turned out to take long: whatever else is made of it is not tried here again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, None] = OrderedDict()

    def add(self, subject: Hashable) -> None:
        with self._lock:
            self._known[subject] = None
            if len(self._known) > _MOST_LONG:
                self._known.popitem(last=False)

    def __contains__(self, subject: Hashable) -> bool:
        with self._lock:
            return subject in self._known


_long = _Long()


def goes(size: int, subject: Hashable = None, large: int = _LARGE) -> bool:
    """Whether `run` takes work of this size, or on this subject, to another process from the start."""
    return _pool.users > 0 and (size > large or subject in _long)


def stop() -> None:
    """Takes back a `start`; what an engine leaves can be collected."""
    _pool.add(-1)
    gc.unfreeze()


def run(function: Callable[..., T], size: int, *args: Any, large: int = _LARGE) -> T:
    """What `function(*args)` returns, here or in a process of its own.

    Args:
        function: at the top of a module of this package, as pure as its arguments.
        size: the characters that it reads.
        args: plain data; the first is its subject.
        large: what is larger is not tried here at first.

    Raises:
        ConstraintError: what the function raises; or it took more than `LIMIT` seconds or `MEMORY` bytes.
    """
    if not _pool.users:
        return function(*args)
    subject = args[0] if args else None
    if not goes(size, subject, large):
        try:
            with hurry.limited(_QUICK):
                return function(*args)
        except hurry.TooLongError:
            _long.add(subject)
    return _elsewhere(function, args, LIMIT)


def _elsewhere(function: Callable[..., T], args: tuple[Any, ...], limit: float) -> T:
    try:
        kind, value, *about = _pool.ask(pickle.dumps((function, args), pickle.HIGHEST_PROTOCOL), limit)
    except OSError:  # no process can be started: better late than never
        return function(*args)
    except LateError:
        raise _lost(f"took more than {limit:g} s, the limit") from None
    except LostError:
        raise _lost(f"ended the process that did it: it may take more than {MEMORY >> 30} GiB, the limit") from None
    if kind == "value":
        answer: T = value
        return answer
    if kind == "refused":
        raise ConstraintError(value, keyword=about[0], pointer=about[1])
    raise (RecursionError if kind == "deep" else RuntimeError)(value)


def _lost(problem: str) -> ConstraintError:
    return ConstraintError(f"compiling the constraint {problem}; simplify it", keyword="schema")


def _serve() -> None:
    """The process: a pickled function and its arguments in, a pickled answer out, until its input ends."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory()
    warm()
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
