"""Role turns as methods of a state: `with s.user(): …` and `s.user("…")`."""

from __future__ import annotations

from types import TracebackType
from typing import overload

from .executor import start_calls_of_caller
from .primitives.roles import Turn, checked_role
from .stream import Stream

__all__ = ["TurnBlock", "Turns"]


class TurnBlock:
    """The block of `with s.user(): …`: a turn of what is appended inside."""

    def __init__(self, stream: Stream, role: str) -> None:
        self._stream = stream
        self._role = role

    def __enter__(self) -> None:
        start_calls_of_caller()
        self._stream.begin_turn(self._role)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # A body may catch an Exception and go on outside the turn; anything else ends the program as it stands.
        if error is None:
            start_calls_of_caller()
            self._stream.end_turn(self._role)
        elif isinstance(error, Exception) and self._stream.role == self._role:
            self._stream.end_turn(self._role)


class Turns:
    """The methods that make role turns, for `State`."""

    _stream: Stream

    @overload
    def system(self) -> TurnBlock: ...
    @overload
    def system(self, content: object) -> None: ...
    def system(self, content: object = None) -> TurnBlock | None:
        """`s.system("…")` appends a system turn; `with s.system(): …` makes one of what is appended inside."""
        return self._turn("system", content)

    @overload
    def user(self) -> TurnBlock: ...
    @overload
    def user(self, content: object) -> None: ...
    def user(self, content: object = None) -> TurnBlock | None:
        """`s.user("…")` appends a user turn; `with s.user(): …` makes one of what is appended inside."""
        return self._turn("user", content)

    @overload
    def assistant(self) -> TurnBlock: ...
    @overload
    def assistant(self, content: object) -> None: ...
    def assistant(self, content: object = None) -> TurnBlock | None:
        """`s.assistant(…)` appends an assistant turn; `with s.assistant(): …` makes one of what is appended inside."""
        return self._turn("assistant", content)

    @overload
    def role(self, name: str) -> TurnBlock: ...
    @overload
    def role(self, name: str, content: object) -> None: ...
    def role(self, name: str, content: object = None) -> TurnBlock | None:
        """A turn of any role that the chat template knows: appended at once, or made by a `with` block."""
        return self._turn(name, content)

    def _turn(self, name: str, content: object) -> TurnBlock | None:
        if content is None:
            return TurnBlock(self._stream, checked_role(name))
        self._stream.append(Turn(name, content))
        return None
