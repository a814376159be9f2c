"""A file of JSON objects, one a line, that survives whatever ends its writer.

In: objects to append; a file that an earlier run left, perhaps with half a line at its end. Out: the objects in it.
One process writes at a time: a lock beside the file says so. Whoever is killed leaves whole lines and at most one
torn one, which the next writer cuts off.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from ..errors import SavedRunError

__all__ = ["JsonLines", "dump_line", "read_lines"]

_MAGIC = "radicel"


class JsonLines:
    """A file that is open for appending, under its lock. Use it as a context manager.

    Args:
        path: the file; it and its folder are made where they are not there.
        kind: what its first line says it is.
        made_by: how such a file comes about, for messages.

    Attributes:
        header: the first line's object; empty where the file is new.
        rows: the objects after it.
    """

    def __init__(self, path: Path, kind: str, made_by: str) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self._kind = kind
        self._made_by = made_by
        self._lock = FileLock(f"{path}.lock", timeout=0)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> JsonLines:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise SavedRunError(
                f"{self.path} is being written by another process (its lock is {self.path}.lock); "
                "wait for its end, or give another file"
            ) from None
        except OSError as error:
            raise SavedRunError(f"{self.path} cannot be written: {error}") from error
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # on the disk, where there is one
                os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        self._lock.release()

    def start(self, header: dict[str, Any]) -> None:
        """Writes the first line of a new file."""
        self.header = {_MAGIC: self._kind, "version": 1, **header}
        self.append(self.header)

    def append(self, row: dict[str, Any]) -> None:
        """Appends a line; it is the system's, not this process's, when this returns.

        Raises:
            OSError: it could not be written.
        """
        assert self._file is not None
        self._file.write(dump_line(row))
        self._file.flush()

    def _open(self) -> None:
        if self.path.exists() and not self.path.is_file():
            raise SavedRunError(f"{self.path} cannot be written: it is no plain file")
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise SavedRunError(f"{self.path} cannot be written: {error}") from error
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        rows = list(_parsed(data[:whole], self.path, self._made_by))
        first = rows[0] if rows else {}
        if data and not (first.get(_MAGIC) == self._kind if rows else self._is_torn_header(data)):
            raise SavedRunError(f"{self.path} is no file that {self._made_by} wrote; give another one")
        if whole < len(data):  # the line of a writer that was killed
            self._file.truncate(whole)
        self.header = first
        self.rows = rows[1:]

    def _is_torn_header(self, data: bytes) -> bool:
        beginning = dump_line({_MAGIC: self._kind}).rstrip(b"}\n")
        return beginning.startswith(data) or data.startswith(beginning)


def read_lines(path: Path, made_by: str) -> list[dict[str, Any]]:
    """The objects in a file that nobody writes.

    Raises:
        SavedRunError: a line that is none.
    """
    return list(_parsed(path.read_bytes(), path, made_by))


def _parsed(data: bytes, path: Path, made_by: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SavedRunError(
                f"{path}, line {number} is no JSON ({error}): not what {made_by} wrote, or damaged"
            ) from error
        yield row if isinstance(row, dict) else {}


def dump_line(row: dict[str, Any]) -> bytes:
    """An object as a line."""
    try:
        return json.dumps(row, ensure_ascii=False, separators=(", ", ": ")).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(row, separators=(", ", ": ")).encode() + b"\n"
