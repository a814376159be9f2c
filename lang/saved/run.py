"""The saved run of a batch: which items are there already, and the writing of those that end.

In: the runs of a batch, in item order; a file. Out: restored runs in the place of those that ended well before;
a line for each other one as it ends. Lines are written on a thread of their own, so that no item waits for a disk.

An item is known by its number and the fingerprint of its arguments, its program by its own (`fingerprint.py`). Where
any of them differs, the file is refused whole: results of two programs never stand in one file. Errors are saved, too;
their items run again, and the later line counts.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CancelledError, SavedRunError
from ..executor import current
from ..state import State
from .file import JsonLines
from .fingerprint import digest_of, program_print
from .restore import RestoredLaunch, state_as_row
from .values import encode_error

__all__ = ["SavedRun", "saved_run"]

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


def saved_run(path: Any, program: Any, **said: Any) -> SavedRun | None:
    """The saved run at a path; None without one, and inside a trace, which makes no results."""
    caller = current()
    if path is None or (caller is not None and caller.launcher is not None):
        return None
    return SavedRun(path, program, program.name, bound=program.bound, **said)


class SavedRun:
    """The file of one `run_batch(save=path)`.

    Args:
        path: the file.
        program: whose results it holds.
        name: of the program.
        said: what is part of the call beside the items' arguments, by name: bound arguments, sampling parameters.

    Raises:
        TypeError: `path` is none; a bound argument that has no fingerprint.
    """

    def __init__(self, path: Any, program: Callable[..., Any], name: str, **said: Any) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise TypeError(f"save={path!r}: give the path of a file, such as save='results.jsonl'")
        self.path = Path(os.fspath(path))
        self._name = name
        self._print = program_print(program, **{key: value for key, value in said.items() if value})
        self._digests: list[str] = []

    def expect(self, arguments: Sequence[Arguments]) -> None:
        """Takes the arguments of all items.

        Raises:
            TypeError: one that has no fingerprint.
        """
        for index, (args, kwargs) in enumerate(arguments):
            try:
                self._digests.append(digest_of([args, kwargs]))
            except TypeError as error:
                raise TypeError(f"save={str(self.path)!r}: item {index} of the batch: {error}") from error

    @contextlib.contextmanager
    def writing(self, launches: list[Any]) -> Iterator[None]:
        """Puts restored runs into the places of those that the file has, and saves the others as they end.

        Raises:
            SavedRunError: the file is of another program or batch, is damaged, is written by another process, or
                could not be written.
        """
        with JsonLines(self.path, "batch", "run_batch(save=…)") as file:
            done = self._done(file)
            if not file.header:
                file.start({"program": self._name, "parts": self._print.parts})
            for index, row in done.items():
                backend = launches[index].executor.backend
                launches[index] = RestoredLaunch(row, backend, index, self._find)
                launches[index].executor.program = self._name
            with _Writer(file, launches) as writer:
                for index, launch in enumerate(launches):
                    if index not in done:
                        launch.executor.on_finish(partial(writer.put, self._as_row, index, launch.state))
                yield

    def _done(self, file: JsonLines) -> dict[int, dict[str, Any]]:
        """The rows of the items that ended well, checked against this run."""
        if file.header:
            changed = self._print.changed(file.header.get("parts") or {})
            if changed:
                raise SavedRunError(
                    f"{file.path} holds results of another version of {file.header.get('program')!r}; changed since: "
                    f"{', '.join(changed)}. Give another file to begin anew, or change the program back"
                )
        done: dict[int, dict[str, Any]] = {}
        for row in file.rows:
            index = row.get("item")
            if not isinstance(index, int) or not 0 <= index < len(self._digests):
                raise SavedRunError(
                    f"{file.path} has item {index}, and this batch has {len(self._digests)} items; "
                    "give the items that were saved, further ones after them, or another file"
                )
            if row.get("arguments") != self._digests[index]:
                raise SavedRunError(
                    f"{file.path}: item {index} was saved with other arguments than it has now; items keep their "
                    "order, and further ones go to the end. Give another file to begin anew"
                )
            if "error" not in row:
                done[index] = row
        return done

    def _find(self, name: str) -> type | None:
        """A class of the program's own, wherever its module is now."""
        return self._print.classes.get(name.partition(":")[2])

    def _as_row(self, index: int, state: State) -> dict[str, Any] | None:
        """The line of an item that ended; None for one that did not end by itself."""
        error = state.error()
        if type(error) is CancelledError or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return None
        row = {"item": index, "arguments": self._digests[index]}
        return {**row, **(state_as_row(state) if error is None else {"error": encode_error(error)})}


class _Writer:
    """Writes on a thread of its own what it is given; at the end, everything is written."""

    def __init__(self, file: JsonLines, launches: Sequence[Any]) -> None:
        self._file = file
        self._launches = launches
        self._jobs: queue.SimpleQueue[Callable[[], dict[str, Any] | None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="radicel-save", daemon=True)

    def put(self, make: Callable[..., dict[str, Any] | None], *of: Any) -> None:
        """Takes what makes a line."""
        self._jobs.put(partial(make, *of))

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._jobs.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            message = f"{self._file.path} could not be written: {self._error} (all states are in `.states`)"
            raise SavedRunError(message, states=[launch.state for launch in self._launches]) from self._error

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                row = job()
                if row is not None and self._error is None:
                    self._file.append(row)
            except BaseException as error:
                self._error = self._error or error
