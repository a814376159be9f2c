"""The cells of one program: how its nodes are sent, answered, failed and dropped.

In: a cell that can be sent, its request's handle, what became of it (`sending.py`, `waves.py`).
Out: `Cell`s that are done; those that can be sent after them.

Everything that changes is guarded by `changed`; backends and graphs are told without it.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from .backend import Handle, OnText
from .bindings import Cell
from .errors import CancelledError
from .ir import Node, prompt_of
from .lifetime import Lifetime
from .prompt import Generated, Prompt
from .requests import Outcome, outcome
from .sending import Ready, SentGraph
from .waves import Waves

__all__ = ["Cells"]

_MOST_NOTES = 16  # a backend may raise one error for many requests


class Cells(Lifetime):
    """The base of `Executor`: one hold per cell that is not done.

    Attributes:
        cells: of the generating nodes, in the order they were recorded.
        stream: whether text is wanted as it appears.
        waves: what its nodes are compiled with: those of its batch, and of the programs that they start.
        item: which item of a batch it is, or was started by.
        answered: how many of its cells are done.
        program: the name of the program, for people.
    """

    def __init__(self, waves: Waves, *, stream: bool) -> None:
        super().__init__()
        self.cells: dict[Node, Cell] = {}
        self.stream = stream
        self.waves = waves
        self.item: int | None = None
        self.answered = 0
        self.program = ""

    def may_go_on(self) -> bool:
        """Whether a body may still ask for more: the program's own, or one that started it."""
        return False

    def prompt(self, tip: Node | None) -> Prompt:
        """The prompt up to and including `tip`, whose text must be known."""
        return prompt_of(tip, self._written)

    def claim(self, cell: Cell) -> bool:
        """Whether the cell is to be sent now, by the caller."""
        with self.changed:
            claimed = not (cell.is_done or cell.sent)
            cell.sent = cell.sent or claimed
            cell.sent_at = time.monotonic() if claimed else cell.sent_at
        return claimed

    def on_text(self, cell: Cell) -> OnText | None:
        """What takes the cell's text as it appears, where that is wanted."""
        return partial(self._on_text, cell) if self.stream else None

    def take(self, cell: Cell, handle: Handle[Any]) -> list[Ready]:
        """The cell's request is in flight; returns what can be sent after it, where it ended on the spot."""
        with self.changed:
            cell.handle, cancelled = handle, cell.done
        if cancelled:
            handle.cancel()
            return []
        if handle.future.done():
            return self.receive(cell)
        self.waves.expect(Ready(self, cell), handle.future)
        return []

    def receive(self, cell: Cell) -> list[Ready]:
        """Takes the result of a request that ended; returns the cells that can be sent now."""
        assert cell.handle is not None
        try:
            result = outcome(cell.node, cell.handle.future.result())
        except concurrent.futures.CancelledError:
            return self.settle(cell, CancelledError(f"the request for {cell.name!r} was cancelled"))
        except BaseException as error:
            return self.settle(cell, error)
        return self.settle(cell, result)

    def settle(self, cell: Cell, result: Outcome | BaseException) -> list[Ready]:
        """Makes a cell done, and after a failure the cells that need it; returns those that can be sent now."""
        ready: list[Ready] = []
        settled: list[Cell] = []
        error = result.fault if isinstance(result, Outcome) else result
        if error is not None:
            self._blame(cell, error)
        todo = [(cell, result)]
        with self.changed:
            while todo:
                cell, result = todo.pop()
                if cell.done:
                    continue
                settled.append(cell)
                cell.is_done, cell.done_at = True, time.monotonic()
                if isinstance(result, Outcome):
                    cell.generations, cell.written, cell.fault = result.generations, result.written, result.fault
                else:
                    vars(result).setdefault("_radicel_traceback", result.__traceback__)
                    cell.failure = result
                for dependent in cell.dependents:
                    dependent.blockers -= 1
                    if cell.failure is not None:
                        dependent.dropped = dependent.dropped or cell.dropped
                        todo.append((dependent, cell.failure))
                    elif dependent.blockers == 0 and dependent.place is not None and not dependent.done:
                        ready.append(Ready(self, dependent))
                cell.dependents = []
            self.answered += len(settled)
            self.notify()
        self._over(settled)
        self.release(len(settled))
        return ready

    def cancel_cells(self, cells: Iterable[Cell], error: CancelledError) -> None:
        """Fails those of `cells` that are not done, and stops their requests."""
        for cell in cells:
            if not cell.done:
                self.settle(cell, error)
                if cell.handle is not None:
                    cell.handle.cancel()

    def drop(self, cells: Iterable[Cell]) -> None:
        """`cancel_cells` for values that nobody will read: their failures, also earlier ones, do not count."""
        unread = list(cells)
        for cell in unread:
            cell.dropped = True
        self.cancel_cells(unread, CancelledError("the branch was dropped before its value came"))

    def _written(self, node: Node) -> Generated:
        written = self.cells[node].written
        assert written is not None, f"{node} has no text yet"
        return written

    def _on_text(self, cell: Cell, sample: int, piece: str) -> None:
        if sample == 0 and piece:
            with self.changed:
                if not cell.done:
                    cell.pieces.append(piece)
                    self.notify()

    def _over(self, settled: Iterable[Cell]) -> None:
        """Tells the graphs of these cells that they are done."""
        graphs: dict[SentGraph, list[Cell]] = {}
        for cell in settled:
            if cell.place is not None:
                graphs.setdefault(cell.place.graph, []).append(cell)
        for graph, cells in graphs.items():
            graph.over(cells)

    def _blame(self, cell: Cell, error: BaseException) -> None:
        """Notes at the error which node failed, where it was recorded, and in which item of a batch."""
        if isinstance(error, CancelledError):
            return
        item = "" if self.item is None else f", item {self.item} of the batch"
        where = "" if cell.node.site is None else f" at {cell.node.site.file}:{cell.node.site.line}"
        note = f"{cell.node.op.value} {cell.name!r}{where}{item}"
        notes = vars(error).setdefault("__notes__", [])
        if note not in notes and len(notes) < _MOST_NOTES:
            notes.append(note)
