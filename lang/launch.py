"""One run of a program, from its arguments to its result: in the caller's thread, on a worker, or awaited.

In: a body with its arguments filled in. Out: its `State`, and its error raised where the run ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Any

from .backend import Backend
from .bindings import raise_again
from .errors import CancelledError
from .executor import Executor, current
from .follow import finished
from .pool import BodyPool, bodies, settle
from .state import State
from .stream import Defaults, Stream

__all__ = ["Launch", "cancel"]

_INTERRUPT_GRACE_S = 2.0


class Launch:
    """A run that has not begun.

    Args:
        body: takes the state; what is left of the program's function when its arguments are filled in.
        backend: what runs its requests.
        defaults: the sampling parameters of call and program.
        stream: whether text is wanted as it appears.

    Attributes:
        state: its state.
        executor: its executor.
    """

    def __init__(
        self, body: Callable[[State], Any], backend: Backend, defaults: Defaults, *, stream: bool = False
    ) -> None:
        parent = current()
        self.executor = Executor(backend, stream=stream or (parent is not None and parent.stream), parent=parent)
        self.state = State(Stream(self.executor, defaults))
        self._body = body

    @classmethod
    def failed(cls, error: Exception, backend: Backend) -> Launch:
        """A run that failed before it began."""

        def body(state: State) -> None:
            raise error

        return cls(body, backend, Defaults())

    def start(self, pool: BodyPool = bodies) -> None:
        """Begins the run with the body on a thread of `pool`, and returns."""
        state, body, executor = self.state, self._body, self.executor
        context = contextvars.copy_context()
        executor.open()
        executor.queue(pool, lambda: context.run(executor.run_body, lambda: body(state)))

    def run(self) -> State:
        """The whole run, the body in this thread. An interrupt cancels it."""
        self.executor.open()
        try:
            self.executor.run_body(lambda: self._body(self.state))
            self.executor.wait_finished()
        except BaseException:
            cancel([self])
            raise
        settle()
        return self.result()

    async def wait(self) -> None:
        """Waits in an event loop for the end of a run that was begun; a cancelled task cancels it."""
        try:
            await finished(self.executor)
        except asyncio.CancelledError:
            self.executor.cancel()
            raise

    def result(self) -> State:
        """The state of a finished run; raises what it failed with."""
        error = self.state.error()
        if error is not None:
            raise_again(error)
        return self.state


def cancel(launches: list[Launch], wait: bool = True) -> None:
    """Cancels the runs and (`wait`) gives their bodies a moment to end, so that nothing is left behind."""
    for launch in launches:
        launch.executor.cancel(CancelledError("the run was interrupted"))
    if not wait:
        return
    deadline = time.monotonic() + _INTERRUPT_GRACE_S
    for launch in launches:
        launch.executor.wait_finished(max(0.0, deadline - time.monotonic()))
    settle()
