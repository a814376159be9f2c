"""An asyncio loop on one background thread: how a backend that talks over a network runs many requests at once.

In: coroutines, from any thread. Out: a `Handle` for each, whose future resolves on the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from ..backend import Handle
from ..errors import BackendClosedError, CancelledError, DeadlineError

__all__ = ["LoopThread"]


class LoopThread:
    """The loop and what runs on it. The thread starts with the first coroutine and ends with `close`.

    Args:
        name: of the thread.
        at_close: awaited on the loop after its last task, to release what the tasks used.
    """

    def __init__(self, name: str, at_close: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._at_close = at_close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # used on the loop's thread only
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any], label: str, timeout: float | None = None) -> Handle[Any]:
        """Runs a coroutine.

        Args:
            work: the coroutine; what it raises is set on the handle's future.
            label: for messages.
            timeout: seconds after which it is cancelled and the future fails with `DeadlineError`, or None.

        Raises:
            BackendClosedError: after `close`.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # from here on `future.cancel()` does nothing
        box: list[asyncio.Task[Any]] = []
        with self._lock:
            if self._closed:
                work.close()
                raise BackendClosedError(f"{label}: the backend is closed")
            loop = self._running_loop()
            loop.call_soon_threadsafe(lambda: box.append(self._launch(work, label, timeout, future)))

        def cancel() -> None:
            with self._lock:
                if not self._closed:
                    loop.call_soon_threadsafe(lambda: box[0].cancel())

        return Handle(future, cancel)

    def close(self) -> None:
        """Cancels everything (`BackendClosedError`), runs `at_close`, and waits for the thread's end."""
        with self._lock:
            thread, loop, first = self._thread, self._loop, not self._closed
            self._closed = True
            if first and loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()  # until `close`
            loop.run_until_complete(self._wind_up())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _wind_up(self) -> None:
        await asyncio.sleep(0)  # whatever was started before `close` exists as a task now
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._at_close()
        await asyncio.get_running_loop().shutdown_asyncgens()

    def _launch(
        self, work: Coroutine[Any, Any, Any], label: str, timeout: float | None, future: Future[Any]
    ) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work if timeout is None else _within(work, timeout, label))
        self._tasks.add(task)

        def settle(done: asyncio.Task[Any]) -> None:
            self._tasks.discard(done)
            if done.cancelled():
                work.close()  # a task that was cancelled before its first step never ran it
                closed = BackendClosedError(f"{label}: the backend was closed before it ended")
                future.set_exception(closed if self._closed else CancelledError(f"{label} was cancelled"))
            elif (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        task.add_done_callback(settle)
        return task


async def _within(work: Coroutine[Any, Any, Any], timeout: float, label: str) -> Any:
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if done:
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    raise DeadlineError(f"{label} did not end within its timeout of {timeout} s")
