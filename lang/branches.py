"""`s.fork(n)`: several continuations of one text, and the three ways in which they come back.

In: the streams of the branches. Out: variables as lists (`gather_variable`), their text (`append`), or the branch that
ended first in the place of its parent (`first`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from .bindings import Gathered, raise_again
from .errors import CancelledError, InvalidValueError, ProgramError, RoleError
from .executor import current
from .ir import Op
from .primitives.expr import Expr, as_expr
from .state import State
from .stream import ANONYMOUS, Stream

__all__ = ["Branches"]

_MODES = {
    "gather_variable": "gather_variable",
    "concate_and_append": "append",
    "append": "append",
    "first": "first",
}


class Branches(Sequence[State]):
    """The branches of a fork: a sequence of states, and a context manager that joins them when its block ends."""

    def __init__(self, parent: Stream, states: Sequence[State]) -> None:
        self._parent = parent
        self._states = list(states)
        self._streams = [state._stream for state in self._states]
        self._forked_at = len(parent.nodes)
        self._joined: str | None = None

    # --- as a sequence ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    def __getitem__(self, key: Any) -> Any:
        """`b[i]` is a branch, `b[1:]` a list of them, `b["x"]` the list of the branches' values of `x`."""
        if isinstance(key, str):
            return [state[key] for state in self._states]
        return self._states[key]

    def __setitem__(self, index: int, value: State) -> None:
        # `b[i] += x` ends with an assignment of the state that was there.
        if value is not self._states[index]:
            raise TypeError(f"a branch cannot be replaced; append to it: branches[{index}] += …")

    def __iadd__(self, other: object) -> Branches:
        """Appends to every branch: the same expression, the i-th of a list, or what a function of i returns."""
        for state, part in zip(self._states, self._spread(other)):
            state += part
        return self

    def _spread(self, other: object) -> list[object]:
        if isinstance(other, (list, tuple)):
            if len(other) != len(self):
                raise InvalidValueError(f"{len(other)} items for {len(self)} branches; give one for each branch")
            return list(map(as_expr, other))
        if callable(other) and not isinstance(other, (Expr, State)):
            return self._made_by(other)
        return [as_expr(other)] * len(self)

    def _made_by(self, function: Callable[[int], object]) -> list[object]:
        return [as_expr(function(index)) for index in range(len(self))]

    # --- joining ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Branches:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self._cancel("the fork's block raised", self._streams)
        elif self._joined is None:
            self.join()

    def join(self, mode: str = "gather_variable") -> None:
        """Brings the branches back; nothing can be appended to them afterwards.

        Args:
            mode: `"gather_variable"`: waits; every name that a branch made becomes a list in branch order, also when
                the parent had it. `"append"` (or `"concate_and_append"`): the text of the branches since the fork
                is appended, in order; does not wait. `"first"`: waits for the branch that ends first, which
                continues as the parent with its text and its variables; the others are cancelled.

        Raises:
            InvalidValueError: an unknown mode.
            ProgramError: joined before; for `"first"`, the parent wrote text after the fork.
            RoleError: a branch whose text comes back left a turn open.
            what a branch failed with, with a note that names the branch (for `"first"`: if all of them failed).
        """
        if mode not in _MODES:
            known = ", ".join(map(repr, _MODES))
            raise InvalidValueError(f"join({mode!r}): must be one of {known}")
        if self._joined is not None:
            raise ProgramError(f"these branches were joined before, with join({self._joined!r})")
        _JOIN[_MODES[mode]](self)
        self._joined = mode
        for stream in self._streams:
            stream.close(f"the branch was joined with join({mode!r})")

    def _gather(self) -> None:
        for index, stream in enumerate(self._streams):
            self._wait_for(stream)
            self._raise_failure(index, stream)
        tips = tuple(stream.tip for stream in self._streams if stream.tip is not None)
        self._parent.add(Op.JOIN, "gather_variable", data=tips)
        names = dict.fromkeys(
            name for stream in self._streams for name in stream.made if not name.startswith(ANONYMOUS)
        )
        for name in names:
            made = [stream.made[name] for stream in self._streams if name in stream.made]
            self._parent.bind(name, Gathered(made))

    def _append(self) -> None:
        self._check_turns(self._streams)
        starts = tuple(stream.start for stream in self._streams)
        tips = tuple(stream.tip for stream in self._streams if stream.tip is not None)
        self._parent.add(Op.APPEND, starts, data=tips)
        self._parent.cells.extend(cell for stream in self._streams for cell in stream.cells)

    def _first(self) -> None:
        if len(self._parent.nodes) != self._forked_at:
            raise ProgramError("join('first'): the parent wrote text after the fork, which the branch does not have")
        executor = self._parent.executor
        executor.wait(lambda: self._winner() is not None or all(map(_is_done, self._streams)))
        with executor.changed:
            winner = self._winner()
        if winner is None:
            self._raise_failure(0, self._streams[0])
        assert winner is not None
        self._check_turns([winner])
        self._cancel("another branch ended first", [s for s in self._streams if s is not winner], drop=True)
        tips = tuple(stream.tip for stream in self._streams if stream.tip is not None)
        self._parent.continue_as(winner)
        self._parent.add(Op.JOIN, "first", data=tips)
        for name, binding in winner.made.items():
            self._parent.bind(name, binding)

    def _winner(self) -> Stream | None:
        """The first branch that has all its values."""
        return next((s for s in self._streams if _is_done(s) and _failure(s) is None), None)

    def _wait_for(self, stream: Stream) -> None:
        stream.executor.wait(lambda: _is_done(stream) or _failure(stream) is not None)

    def _raise_failure(self, index: int, stream: Stream) -> None:
        error = _failure(stream)
        if error is None:
            return
        note = f"in branch {index} of {len(self)} of the fork at {stream.start.site if stream.start else None}"
        notes = vars(error).setdefault("__notes__", [])
        if note not in notes:
            notes.insert(0, note)
        reader = current()
        if reader is not None:
            reader.seen.append(error)
        raise_again(error)

    def _check_turns(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            if stream.role != self._parent.role:
                index = self._streams.index(stream)
                raise RoleError(
                    f"branch {index} ends in {_turn(stream.role)}, its parent is in {_turn(self._parent.role)}: "
                    "end the turns that a branch begins before joining it"
                )

    def _cancel(self, why: str, streams: Sequence[Stream], drop: bool = False) -> None:
        for stream in streams:
            if drop:
                stream.drop()  # a failure of the losers is nobody's
            stream.cancel(CancelledError(f"the branch was cancelled: {why}"))


_JOIN: dict[str, Callable[[Branches], None]] = {
    "gather_variable": Branches._gather,
    "append": Branches._append,
    "first": Branches._first,
}


def _is_done(stream: Stream) -> bool:
    return all(cell.done for cell in stream.cells)


def _failure(stream: Stream) -> BaseException | None:
    return next((cell.error() for cell in stream.cells if cell.error() is not None), None)


def _turn(role: str | None) -> str:
    return "no turn" if role is None else f"a turn of {role!r}"
