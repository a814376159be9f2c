"""When the nodes that bodies record are compiled: together, in waves.

In: which bodies are at work, and the nodes that they record. Out: waves, sent by `sending.py`.

A wave closes when no body is at work: every one that was started has ended or waits for a value. It also closes when
no node came for 10 ms (30 ms while bodies of the first wave wait to begin), since a body that is busy in its own code
must not hold others back; and when nodes keep coming for long, or many of one program, since the backend may have
nothing to do meanwhile.

A body is at work from the moment at which what it waits for may be there, not from when its thread goes on; and so is
an answer that has come and is not taken in yet. So what many answers make possible is one wave.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from .backend import Backend
from .pool import BodyPool, bodies, dispatcher
from .sending import Ready, release, send

__all__ = ["Waves"]

TICK_S = 0.005
QUIET_TICKS = 2  # one tick alone may be late, where the whole process stood still
FIRST_QUIET_TICKS = 6  # while bodies of the first wave wait to begin: a part of a batch leaves the device half empty
FIRST_OPEN_S = 2.0  # the first wave should be the whole batch
LATER_OPEN_S = 0.2
MANY_OF_ONE = 1000  # nodes of one program: what a body appends for ever must get to run
_FEW = 16  # nodes that are compiled at once also where other things wait for the thread


class Waves:
    """The waves of a run or a batch, with all programs that they start on the same backend.

    Args:
        backend: what runs them.

    Attributes:
        backend: the same.
        count: how many waves were closed.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.count = 0
        self._direct = os.environ.get("RADICEL_WAVES") == "0"
        self._run = object()  # what requests carry: it keeps nothing alive
        self._lock = threading.Lock()
        self._recorded: list[Ready] = []
        self._opened = 0.0
        self._at_work = 0
        self._queued: Counter[BodyPool] = Counter()
        self._allowed = False
        self._ticking = False
        self._seen = 0
        self._quiet = 0
        self._answered: list[Ready] = []

    # --- who is at work ---------------------------------------------------------------------------------------------

    def work(self) -> None:
        """One more body is at work."""
        with self._lock:
            self._at_work += 1

    def rest(self) -> None:
        """One body less is at work; whoever calls it calls `check` next, without a lock."""
        with self._lock:
            self._at_work -= 1

    def leave(self, block: bool = True) -> None:
        """`rest` and `check`.

        Args:
            block: whether this thread may be used to compile a wave; an event loop's may not.
        """
        with self._lock:
            self._at_work -= 1
            wave = self._complete()
        self._release(wave, block)

    def queue(self, pool: BodyPool) -> None:
        """A body waits for a thread of the pool."""
        if pool is bodies and not self._allowed:
            self._allowed = True
            most = getattr(self.backend, "max_running", 0)  # so many values bodies can wait for at a time
            pool.allow(most if isinstance(most, int) else 0)
        with self._lock:
            self._queued[pool] += 1

    def unqueue(self, pool: BodyPool, at_work: bool) -> None:
        """It does no longer; it is at work now, or was dropped."""
        with self._lock:
            self._at_work += at_work
            self._queued[pool] -= 1
            if not self._queued[pool]:
                del self._queued[pool]

    @contextlib.contextmanager
    def starting(self, block: bool = True) -> Iterator[None]:
        """While bodies are being started: no wave is complete before they all are. `block` as in `leave`."""
        self.work()
        try:
            yield
        finally:
            self.leave(block)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def record(self, ready: Ready) -> None:
        """Takes a node into the open wave."""
        if self._direct:
            release([ready], self.backend, run=self._run)
            return
        with self._lock:
            if not self._recorded:
                self._opened = time.monotonic()
            self._recorded.append(ready)
            ticks, self._ticking = not self._ticking, True
            outside = self._at_work == 0 and not self._queued
            many = len(ready.executor.cells) % MANY_OF_ONE == 0
            wave = self._take() if outside or many else []
        if ticks:
            dispatcher.later(TICK_S, self._tick)
        self._release(wave)

    def check(self) -> None:
        """Closes the wave if no body is at work. Called without a lock, and by no body that is at work."""
        if not self._recorded:
            return
        with self._lock:
            wave = self._complete()
        self._release(wave)

    def _complete(self) -> list[Ready]:
        """The wave, if no body is at work."""
        if not self._recorded or self._at_work > 0 or not all(pool.is_stuck() for pool in self._queued):
            return []
        return self._take()

    def _take(self) -> list[Ready]:
        wave, self._recorded = self._recorded, []
        self.count += 1
        self._seen = 0
        return wave

    def _release(self, wave: list[Ready], block: bool = True) -> None:
        if not wave:
            return
        if block or len(wave) <= _FEW:
            release(wave, self.backend, run=self._run)
        else:
            call = partial(release, wave, self.backend, run=self._run)
            threading.Thread(target=call, name="radicel-wave", daemon=True).start()

    def _tick(self) -> None:
        """On the dispatcher: closes a wave that got no node for a while, or that has been open for long."""
        wave: list[Ready] = []
        with self._lock:
            if not self._recorded:
                self._ticking, self._quiet = False, 0
                return
            self._quiet = self._quiet + 1 if self._seen == len(self._recorded) else 0
            self._seen = len(self._recorded)
            longest = LATER_OPEN_S if self.count else FIRST_OPEN_S
            enough = FIRST_QUIET_TICKS if self._queued and not self.count else QUIET_TICKS
            if self._quiet >= enough or time.monotonic() - self._opened > longest:
                wave = self._take()
        dispatcher.later(TICK_S, self._tick)
        self._release(wave, block=False)  # answers are waiting for this thread

    # --- answers ----------------------------------------------------------------------------------------------------

    def expect(self, ready: Ready, future: Any) -> None:
        """The node's answer is taken in when it comes, together with those that came with it."""
        dispatcher.ensure()
        future.add_done_callback(partial(self._on_answer, ready))

    def _on_answer(self, ready: Ready, _: Any) -> None:
        if ready.cell.done:
            return
        with self._lock:
            self._answered.append(ready)
            if len(self._answered) > 1:
                return
            self._at_work += 1
        dispatcher.put(self._take_answers)

    def _take_answers(self) -> None:
        with self._lock:
            answered, self._answered = self._answered, []
        try:
            send(more for one in answered for more in one.executor.receive(one.cell))
        finally:
            self.leave()
