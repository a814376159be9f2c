"""The pool that runs bodies: how its threads begin."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from radicel.pool import BodyPool, Task


def _until(true: Any) -> bool:
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.001)
    return bool(true())


def test_a_thread_begins_while_others_use_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BodyPool(limit=4, eager=2)
    stuck: list[bool] = []
    locked: list[bool] = []
    start = threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        if thread.name == "radicel-body":
            asks = threading.Thread(target=lambda: stuck.append(pool.is_stuck()), daemon=True)
            start(asks)
            asks.join(5)
            locked.append(asks.is_alive())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    ran = threading.Event()
    pool.put(Task(ran.set))
    assert ran.wait(10)
    assert locked == [False]
    assert stuck == [False]  # a body that is about to begin counts as at work
    assert _until(lambda: pool._threads == 0)
    assert pool._at_work == 0


def test_a_system_without_threads_leaves_the_pool_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BodyPool(limit=4, eager=2)
    ran = threading.Event()

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.put(Task(ran.set))
        assert (pool._threads, pool._at_work) == (0, 0)
    pool.put(Task(lambda: None))  # whose thread takes the other task, too
    assert ran.wait(10)
