"""When something with several open ends is over, and how to wait for it: the base of `Executor`.

In: `hold` and `release` around everything that is still open.
Out: `finished`, callbacks when it becomes true, waiting in a thread, watching every change.

Everything that changes is guarded by `changed`, one condition per program, which is notified at every change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .pool import dispatcher, while_blocked

__all__ = ["Lifetime"]


class Lifetime:
    """Open while anything holds it; while it is open the dispatcher lives.

    Attributes:
        changed: guards what changes; notified at every change.
        finished: whether it was opened and nothing holds it any more.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.finished = False
        self._open = 0
        self._on_finish: list[Callable[[], None]] = []
        self._watchers: list[Callable[[], None]] = []

    def hold(self) -> None:
        """One more thing is open."""
        with self.changed:
            self._open += 1
            if self._open == 1:
                self.finished = False
                dispatcher.acquire()

    def release(self, count: int = 1) -> None:
        """`count` things are no longer open."""
        with self.changed:
            self._open -= count
            if self._open > 0 or count == 0:
                return
            self.finished = True
            callbacks, self._on_finish = self._on_finish, []
            self.notify()
        dispatcher.release()
        for callback in callbacks:
            callback()

    def notify(self) -> None:
        """Something changed. Called with `changed` held."""
        self.changed.notify_all()
        for watcher in self._watchers:
            watcher()

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> None:
        """Waits in this thread until `until()`, which is called with `changed` held, or for `timeout` seconds."""
        with self.changed:
            if until():
                return
        with while_blocked(), self.changed:
            self.changed.wait_for(until, timeout)

    def wait_finished(self, timeout: float | None = None) -> None:
        """Waits in this thread until it is finished, or for `timeout` seconds."""
        self.wait(lambda: self.finished, timeout)

    def on_finish(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when it is finished (at once if it is). It must be quick."""
        with self.changed:
            if not self.finished:
                self._on_finish.append(callback)
                return
        callback()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` at every change, with `changed` held, until the returned function is called."""
        with self.changed:
            self._watchers.append(callback)

        def unwatch() -> None:
            with self.changed:
                self._watchers.remove(callback)

        return unwatch
