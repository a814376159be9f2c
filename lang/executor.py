"""One run of one program: its nodes and what became of them, its body, and when all of it is done.

In: nodes, as a `Stream` records them; the body; a backend.
Out: their `Cell`s (`cells.py`), which become done in any order; `finished` when the body and every cell are.

Nodes go to the program's `Waves`, which say when they are compiled together, and are sent by `sending.py`. No thread
belongs to a program or a value: a node is submitted by whoever closes its wave, or by the dispatcher when the last
request before it ends. Everything that changes is guarded by `changed`; backends are called without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from .backend import Backend
from .bindings import Cell
from .calls import UnstartedCall
from .cells import Cells
from .errors import CancelledError
from .ir import Node, frontier
from .pool import BodyPool, Task, dispatcher, in_worker, while_blocked
from .sending import Ready
from .waves import Waves

__all__ = ["Executor", "current", "start_calls_of_caller"]

_current: ContextVar[Executor | None] = ContextVar("radicel_program", default=None)


def current() -> Executor | None:
    """The program whose body the caller runs in, or None."""
    return _current.get()


def _body_here() -> Executor | None:
    """The program whose body runs in this very thread."""
    program = _current.get()
    return program if program is not None and program._thread == threading.get_ident() else None


class _Waiting:
    """A body that waits for something of a program; it is at work for `waves` again when that changes."""

    __slots__ = ("waves",)

    def __init__(self, waves: Waves) -> None:
        self.waves = waves


def start_calls_of_caller() -> None:
    """Starts the programs that the caller's body called and did not inline (`calls.py`)."""
    program = _current.get()
    if program is not None:
        program.start_calls()


class Executor(Cells):
    """One run of one program.

    Args:
        backend: what runs its requests.
        stream: whether text is wanted as it appears.
        parent: the program that started this one.

    Attributes:
        finished: whether body, cells and the programs it started are done (`Lifetime`).
        body_done, ret_value, body_error: what became of the body.
        seen: errors that reads raised in the body; if it goes on, it has dealt with them.
        calls: programs that the body called and that are neither started nor inlined yet.
        task: the body, while it waits for a thread.
    """

    launcher: Callable[[str], Callable[..., Any]] | None = None
    """What a program that the body calls, by its name, is launched with instead of a `Launch` (`tracer.py`)."""

    def __init__(self, backend: Backend, *, stream: bool = False, parent: Executor | None = None) -> None:
        shared = parent is not None and parent.waves.backend is backend
        super().__init__(parent.waves if parent is not None and shared else Waves(backend), stream=stream)
        self.backend = backend
        self.parent = parent
        self.item: int | None = parent.item if parent is not None else None
        self._waiting: list[_Waiting] = []
        self._thread: int | None = None
        self._queued_in: BodyPool | None = None
        self.children: list[Executor] = []
        self.calls: list[UnstartedCall] = []
        self.task: Task | None = None
        self.body_done = False
        self.body_error: BaseException | None = None
        self.ret_value: Any = None
        self._cancelled: CancelledError | None = None
        self.seen: list[BaseException] = []
        self._unnamed = 0

    # --- the body ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The program begins: it is not finished before `end_body`."""
        self.hold()
        if self.parent is not None:
            self.parent.adopt(self)

    def run_body(self, body: Callable[[], Any]) -> None:
        """Runs the body here and now. Raises nothing: what the body raises is kept in `body_error`."""
        outer = _body_here()
        if not self._leave_queue(at_work=True):
            self.waves.work()
        if outer is not None:
            outer.waves.leave()
        token = _current.set(self)
        self._thread = threading.get_ident()
        value, error = None, None
        try:
            self._refuse_cancelled()
            value = body()
            self.start_calls()
        except BaseException as raised:
            vars(raised)["_radicel_traceback"] = raised.__traceback__  # with the lines of the body
            error = raised
        finally:
            _current.reset(token)
            self._thread = None
        self.end_body(value, error)
        if outer is not None:
            outer.waves.work()
        self.waves.leave()

    def queue(self, pool: BodyPool, body: Callable[[], None]) -> None:
        """The body, which calls `run_body`, waits for a thread of the pool."""
        self.task, self._queued_in = Task(body), pool
        self.waves.queue(pool)
        pool.put(self.task)

    def _leave_queue(self, at_work: bool) -> bool:
        pool, self._queued_in = self._queued_in, None
        if pool is not None:
            self.waves.unqueue(pool, at_work)
        return pool is not None

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as its body is to be run here: as it is."""
        return function

    def end_body(self, value: Any = None, error: BaseException | None = None) -> None:
        """The body is over. After an error everything that the program still waits for is cancelled."""
        with self.changed:
            self.body_done, self.ret_value, self.body_error = True, value, error
            self.notify()
        if error is not None:
            cancelled = CancelledError(f"cancelled because the program's body raised {type(error).__name__}")
            cancelled.__cause__ = error
            self.cancel(cancelled)
        self.release()

    def may_go_on(self) -> bool:
        """Whether a body may still ask for more: the program's own, or one that started it."""
        return not self.body_done or (self.parent is not None and self.parent.may_go_on())

    def start_calls(self) -> None:
        """Starts the programs that the body called and did not inline."""
        while self.calls:
            self.calls.pop(0).start()

    def adopt(self, child: Executor) -> None:
        """This program is not finished before `child` is."""
        with self.changed:
            self.children.append(child)
        self.hold()
        child.on_finish(self.release)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def add(self, node: Node) -> Cell:
        """Takes a generating node; it is sent when its wave is closed and the text before it is known.

        Raises:
            CancelledError: the program was cancelled.
        """
        with self.changed:
            self._refuse_cancelled()
            self.hold()
            needs = tuple(self.cells[n] for n in frontier(node.prefix))
            waiting = [cell for cell in needs if not cell.done]
            cell = self.cells[node] = Cell(node, needs, blockers=len(waiting))
            for needed in waiting:
                needed.dependents.append(cell)
        self.waves.record(Ready(self, cell))
        return cell

    def fresh_number(self) -> int:
        """A number that was not given before, for the name of a value that has none."""
        with self.changed:
            self._unnamed += 1
            return self._unnamed

    # --- cancelling -------------------------------------------------------------------------------------------------

    def cancel(self, error: CancelledError | None = None) -> None:
        """Ends the program: values not finished fail with `error`, and nothing more is asked of the backend."""
        error = error or CancelledError("the program was cancelled")
        with self.changed:
            if self.finished:
                return
            self._cancelled = self._cancelled or error
            children, cells = list(self.children), list(self.cells.values())
            self.notify()
        body = self.task.claim() if self.task is not None else None
        if body is not None:
            self.end_body(error=error)
            self._leave_queue(at_work=False)
            dispatcher.put(self.waves.check)  # whoever cancels many programs has cancelled them all by then
        for child in children:
            child.cancel(error)
        self.cancel_cells(cells, error)

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled is not None

    def _refuse_cancelled(self) -> None:
        if self._cancelled is not None:
            raise CancelledError(str(self._cancelled)) from self._cancelled

    # --- waiting and errors -----------------------------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> None:
        """Waits in this thread until `until()`, which is called with `changed` held, or for `timeout` seconds."""
        start_calls_of_caller()
        # The pool may be full of bodies that wait like this one, so a worker runs the body that it waits for.
        body = self.task.claim() if self.task is not None and in_worker() else None
        if body is not None:
            body()
        waiter = _body_here()
        if waiter is None:
            super().wait(until, timeout)
            return
        with self.changed:
            if until():
                return
        with while_blocked():
            self._wait_in_body(waiter.waves, until, None if timeout is None else time.monotonic() + timeout)

    def _wait_in_body(self, waves: Waves, until: Callable[[], bool], deadline: float | None) -> None:
        """Waits; while what the body waits for cannot be there, the body is not at work."""
        waiting = _Waiting(waves)
        try:
            while True:
                with self.changed:
                    if until() or (deadline is not None and time.monotonic() >= deadline):
                        return
                    self._waiting.append(waiting)
                    waves.rest()
                waves.check()
                with self.changed:
                    while waiting in self._waiting:
                        left = None if deadline is None else deadline - time.monotonic()
                        if not self.changed.wait(left):
                            break
                    self._wake(waiting)
        finally:
            with self.changed:
                self._wake(waiting)

    def _wake(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            waiting.waves.work()

    def notify(self) -> None:
        """Something changed: bodies that wait for it are at work until they have looked."""
        for waiting in self._waiting:
            waiting.waves.work()
        self._waiting.clear()
        super().notify()

    def inside(self) -> bool:
        """Whether the caller runs in this program's body, or in that of a program started by it."""
        caller = current()
        while caller is not None and caller is not self:
            caller = caller.parent
        return caller is self

    def error(self, main: Node | None) -> BaseException | None:
        """What the program failed with: the body's exception, else the first failure that the body did not deal with.

        Args:
            main: the end of the program's own stream. A node on it that has no text is never dealt with: the text
                of the program is then not what it says.
        """
        if self.body_error is not None:
            return self.body_error
        with self.changed:
            cells = list(self.cells.values())
        broken = next((self.cells[n].failure for n in frontier(main)), None)
        for cell in cells:
            error = cell.error()
            if error is None or cell.dropped:
                continue
            if error is broken or not any(error is seen for seen in self.seen):
                return error
        for child in self.children:
            error = child.error(None)
            if error is not None and not any(error is seen for seen in self.seen):
                return error
        return None
