"""`replay(path)`: a backend that answers out of a recording, so that a run needs no model and gives the same values.

In: requests; the file of `record(path)`. Out: for each request the answer to the equal one in the file; where there is
none, a `ReplayError` that says what changed. Equal requests get their answers in the order in which they were recorded.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from pathlib import Path
from typing import Any

from ..backend import Backend, GenerateRequest, Generation, Handle, OnText, Score, ScoreRequest
from ..backends.delivery import Job, Steps
from ..backends.mock import MockBackend
from ..backends.replies import MockRequest, mock_tokens
from ..default_backend import get_default_backend, set_default_backend
from ..errors import ReplayError, SavedRunError
from ..saved.file import read_lines
from ..saved.values import decode_error
from .calls import Asked, asked_of, difference, generations_of, key_of, label_of, scores_of

__all__ = ["Replay", "replay"]

_WAIT_FOR_CANCEL_S = 30.0


def replay(path: str | os.PathLike[str], *, all_used: bool = True) -> Replay:
    """A backend that answers out of the file of `record(path)`. As a context manager it is the default backend of its
    block.

    Args:
        path: the file.
        all_used: whether the block's end raises `ReplayError` where a recorded call was not asked for.

    Raises:
        ReplayError: there is no such file, or it is no recording.
    """
    return Replay(Path(os.fspath(path)), all_used=all_used)


class Replay(MockBackend):
    """A backend made of a recording. Made by `replay`.

    Roles render as ChatML in `state.text()`, whatever the recorded model's template is; there is no tokenizer.

    Attributes:
        path: the file.
        requests: what was asked for so far.
    """

    def __init__(self, path: Path, *, all_used: bool = True) -> None:
        super().__init__()
        self.path = path
        self._all_used = all_used
        self._calls = _read(path)
        self._left: dict[str, deque[dict[str, Any]]] = {}
        for row in self._calls:
            self._left.setdefault(key_of(row["asked"]), deque()).append(row)
        self._first_error: ReplayError | None = None
        self._default: Backend | None = None

    def submit(self, request: GenerateRequest, on_text: OnText | None = None) -> Handle[list[Generation]]:
        """Answers as was recorded; see `Backend.submit`."""
        return self._again(request, on_text)

    def submit_score(self, request: ScoreRequest) -> Handle[list[Score]]:
        """Answers as was recorded."""
        return self._again(request, None)

    def unused(self) -> list[str]:
        """The recorded calls that were not asked for, such as `"gen 'verdict'"`."""
        with self._lock:
            return [label_of(row["asked"]) for row in self._rest()]

    def __enter__(self) -> Replay:
        self._default = get_default_backend()
        set_default_backend(self)
        return self

    def __exit__(self, *error: object) -> None:
        set_default_backend(self._default)
        self.close()
        if error and error[0] is not None:
            return
        if self._first_error is not None:  # an item of a batch keeps its error to itself
            raise self._first_error
        rest = self.unused() if self._all_used else []
        if rest:
            count = "a recorded call was" if len(rest) == 1 else f"{len(rest)} recorded calls were"
            raise ReplayError(
                f"{self.path}: {count} not asked for, first {rest[0]}: the program changed since it was recorded; "
                "record it again, or change it back",
                call=rest[0],
                expected=rest[0],
            )

    def _again(self, request: GenerateRequest | ScoreRequest, on_text: OnText | None) -> Handle[Any]:
        seen, asked = MockRequest.of(request), asked_of(request)
        with self._lock:
            self._check_open()
            self.requests.append(seen)
            found = self._left.get(key_of(asked))
            row = found.popleft() if found else None
            error = self._mismatch(asked) if row is None else None
            self._first_error = self._first_error or error
            job = Job(_steps(row, error, on_text), f"{seen} of {self.path}", request.sampling.timeout)
            self._delivery.start(job)
        return Handle(job.future, lambda: self._delivery.cancel(job))

    def _rest(self) -> list[dict[str, Any]]:
        return sorted((row for rows in self._left.values() for row in rows), key=lambda row: int(row["call"]))

    def _mismatch(self, asked: Asked) -> ReplayError:
        """What a request that was not recorded is told: the nearest recorded call, and what differs."""
        call, key = label_of(asked), key_of(asked)
        times = sum(key_of(row["asked"]) == key for row in self._calls)
        if times:
            before, now = f"{times} times" if times > 1 else "once", "once more"
            return self._error(call, "it is asked for more often than it was recorded", before, now)
        same = [row["asked"] for row in self._rest() if label_of(row["asked"]) == call]
        same += [row["asked"] for row in self._calls if label_of(row["asked"]) == call]
        if same:
            return self._error(call, *difference(min(same[:64], key=lambda other: -_common(other, asked)), asked))
        counts = Counter(label_of(row["asked"]) for row in self._calls)
        there = ", ".join(counts) or "nothing"
        return self._error(call, "no such call was recorded", there, call)

    def _error(self, call: str, what: str, expected: str, got: str) -> ReplayError:
        return ReplayError(
            f"{self.path}: the program changed since it was recorded. {call}: {what}; recorded: {expected!r}, "
            f"asked: {got!r}. Record it again, or change it back",
            call=call,
            expected=expected,
            got=got,
        )


def _common(one: Asked, other: Asked) -> int:
    """How much of their prompts two calls share."""
    pairs = zip(key_of(one["prompt"]), key_of(other["prompt"]))
    return next((i for i, (x, y) in enumerate(pairs) if x != y), 1 << 30)


def _steps(row: dict[str, Any] | None, error: ReplayError | None, on_text: OnText | None) -> Steps:
    yield 0.0
    if row is None:
        assert error is not None
        raise error
    asked = row["asked"]
    if "error" in row:
        raise decode_error(row["error"])
    if "answer" not in row:  # it was cancelled before it ended; so it will be again
        yield _WAIT_FOR_CANCEL_S
        raise ReplayError(
            f"{label_of(asked)} was cancelled when it was recorded, and is waited for now: the program changed",
            call=label_of(asked),
            expected="cancelled",
            got="waited for",
        )
    if asked["kind"] == "select":
        return scores_of(row["answer"])
    generations = generations_of(row["answer"])
    if on_text is not None:
        for index, generation in enumerate(generations):
            for piece in mock_tokens(generation.text):
                on_text(index, piece)
    return generations


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        message = f"no recording {path}; make it with `with record({str(path)!r}, backend=…): …`"
        raise ReplayError(message, call="", expected=str(path))
    try:
        header, *rows = read_lines(path, "record(…)") or [{}]
    except SavedRunError as error:
        raise ReplayError(str(error), call="", expected="a recording") from error
    if header.get("radicel") != "recording":
        raise ReplayError(f"{path} is no file that record(…) wrote", call="", expected="a recording")
    return rows
