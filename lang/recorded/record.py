"""`record(path)`: a backend that passes everything on to another one, and notes what was asked and answered.

In: requests. Out: the other backend's answers, unchanged; a file of all of them, in the order in which they were asked
for, that `replay(path)` reads. The file is written at the end, whole; one that is there is kept until then.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..backend import (
    Backend,
    GenerateRequest,
    Generation,
    GraphBackend,
    GraphSession,
    Handle,
    OnText,
    PlannedRequest,
    PrefillRequest,
    Score,
    ScoreRequest,
)
from ..default_backend import get_default_backend, resolve_backend, set_default_backend
from ..errors import CancelledError, DeadlineError, ReplayError
from ..prompt import EncodedPrompt, Prompt
from ..saved.file import dump_line
from ..saved.values import encode_error
from .calls import as_answer, asked_of

__all__ = ["Recorder", "record"]

_LAST_ANSWERS_S = 10.0


def record(path: str | os.PathLike[str], backend: Backend | None = None) -> Recorder:
    """A backend that records what goes through it. As a context manager it is the default backend of its block.

    Args:
        path: the file, written when the block ends without an exception, or by `close()`.
        backend: what answers; the default backend when None. It is not closed.

    Raises:
        NoBackendError: none is given and there is no default one.
    """
    inner = resolve_backend(backend)
    kind = _GraphRecorder if isinstance(inner, GraphBackend) else Recorder
    return kind(Path(os.fspath(path)), inner)


class Recorder:
    """A backend in front of another one. Made by `record`.

    Attributes:
        path: the file.
        backend: what answers.
    """

    def __init__(self, path: Path, backend: Backend) -> None:
        self.path = path
        self.backend = backend
        self._rows: dict[int, dict[str, Any]] = {}
        self._open = 0
        self._changed = threading.Condition()
        self._default: Backend | None = None

    def submit(self, request: GenerateRequest, on_text: OnText | None = None) -> Handle[list[Generation]]:
        """Starts a generation; see `Backend.submit`."""
        number = self._asked(request)
        return self._answered(number, self.backend.submit(request, on_text))

    def submit_score(self, request: ScoreRequest) -> Handle[list[Score]]:
        """Starts a scoring; see `Backend.submit_score`."""
        number = self._asked(request)
        return self._answered(number, self.backend.submit_score(request))

    def submit_prefill(self, prompt: Prompt) -> Handle[int]:
        """Computes a prompt ahead; not recorded, since it changes no value."""
        return self.backend.submit_prefill(prompt)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The token ids that a request with this prompt would start from."""
        return self.backend.encode(prompt)

    def flush_cache(self) -> None:
        """Drops every cached prefix that no live request holds."""
        self.backend.flush_cache()

    def close(self) -> None:
        """Writes the file. The backend behind it stays open."""
        with self._changed:  # a result is known a moment before it is noted
            self._changed.wait_for(lambda: self._open == 0, _LAST_ANSWERS_S)
            rows = [self._rows[number] for number in sorted(self._rows)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(map(dump_line, [{"radicel": "recording", "version": 1}, *rows]))
            os.chmod(part, 0o644)
            os.replace(part, self.path)
        except BaseException:
            os.unlink(part)
            raise

    def __enter__(self) -> Recorder:
        self._default = get_default_backend()
        set_default_backend(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        set_default_backend(self._default)
        if error is not None:
            return
        if not self._rows:
            raise ReplayError(
                f"nothing was recorded for {self.path}: programs in the block were given another backend, or asked for "
                "nothing; leave `backend=` out there, or give them what record(…) returns",
                call="",
            )
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "backend":  # not made yet
            raise AttributeError(name)
        return getattr(self.backend, name)  # its tokenizer, its statistics

    def _asked(self, request: GenerateRequest | ScoreRequest) -> int:
        asked = asked_of(request)
        with self._changed:
            number = len(self._rows)
            self._rows[number] = {"call": number, "asked": asked, "cancelled": True}  # until it is answered
            self._open += 1
        return number

    def _answered(self, number: int, handle: Handle[Any]) -> Handle[Any]:
        handle.future.add_done_callback(lambda future: self._note(number, future))
        return handle

    def _note(self, number: int, future: Any) -> None:
        error = None if future.cancelled() else future.exception()
        row = {"call": number, "asked": self._rows[number]["asked"]}
        if future.cancelled() or (isinstance(error, CancelledError) and not isinstance(error, DeadlineError)):
            row["cancelled"] = True
        elif error is not None:
            row["error"] = encode_error(error)
        else:
            row["answer"] = as_answer(future.result())
        with self._changed:
            self._rows[number] = row
            self._open -= 1
            self._changed.notify_all()


class _GraphRecorder(Recorder):
    """A recorder in front of a backend that makes use of the future."""

    def open_graph(self) -> GraphSession:
        """Begins a graph; see `GraphBackend.open_graph`."""
        assert isinstance(self.backend, GraphBackend)
        return _RecordedSession(self, self.backend.open_graph())


class _RecordedSession:
    """A graph's session in front of another one."""

    def __init__(self, recorder: _GraphRecorder, inner: GraphSession) -> None:
        self._recorder = recorder
        self._inner = inner

    def submit(self, requests: Sequence[PlannedRequest]) -> list[Handle[Any]]:
        """Starts the requests of a wave."""
        noted = [None if isinstance(p.request, PrefillRequest) else self._recorder._asked(p.request) for p in requests]
        handles = self._inner.submit(requests)
        for number, handle in zip(noted, handles):
            if number is not None:
                self._recorder._answered(number, handle)
        return handles

    def withdraw(self, places: Iterable[int]) -> None:
        """Says that no request will come at these places."""
        self._inner.withdraw(places)

    def close(self) -> None:
        """Ends the graph's leases."""
        self._inner.close()
