"""Role turns: `user("…")`, `user_begin()` … `user_end()`; `with s.user():` is `State`'s spelling of the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..errors import RoleError
from .expr import Expr, Recorder, as_expr

__all__ = [
    "assistant",
    "assistant_begin",
    "assistant_end",
    "role",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
]

_ROLE = re.compile(r"[\w.-]+")


class Turn(Expr):
    """A whole turn. Lowers to TURN_BEGIN, what is inside, TURN_END."""

    __slots__ = ("inside", "name")

    def __init__(self, name: str, inside: object) -> None:
        self.name = checked_role(name)
        self.inside = as_expr(inside)
        inner = next(_turns(self.inside), None)
        if inner is not None:
            raise RoleError(f"a turn of {inner!r} inside a turn of {name!r}; put them one after the other")

    def record(self, to: Recorder) -> None:
        to.begin_turn(self.name)
        try:
            self.inside.record(to)
        except Exception:
            to.end_turn(self.name)
            raise
        to.end_turn(self.name)

    def children(self) -> Sequence[Expr]:
        return (self.inside,)


class TurnMark(Expr):
    """The begin or the end of a turn by itself. Lowers to TURN_BEGIN or TURN_END."""

    __slots__ = ("begins", "name")

    def __init__(self, name: str, begins: bool) -> None:
        self.name = name
        self.begins = begins

    def record(self, to: Recorder) -> None:
        if self.begins:
            to.begin_turn(self.name)
        else:
            to.end_turn(self.name)


def checked_role(name: object) -> str:
    """The role's name; TypeError or RoleError where it is none."""
    if not isinstance(name, str):
        raise TypeError(f"a role is a str, not a {type(name).__name__}")
    if not name:
        raise RoleError("a role has an empty name; give one that the chat template knows, such as 'user'")
    if not _ROLE.fullmatch(name):
        # A template writes the name into its markup, where a special token's spelling would be the token.
        raise RoleError(f"a role cannot be called {name!r}: letters, digits, '_', '-' and '.' only, such as 'user'")
    return name


def role(name: str, content: object) -> Expr:
    """A turn of any role that the model's chat template knows, such as `"tool"`.

    Args:
        name: the role.
        content: text, `gen`, `select`, or a sum or list of these.

    Raises:
        RoleError: a role inside a role.
        TypeError: content that cannot be appended.
    """
    return Turn(name, content)


def system(content: object) -> Expr:
    """A system turn (see `role`)."""
    return Turn("system", content)


def user(content: object) -> Expr:
    """A user turn (see `role`)."""
    return Turn("user", content)


def assistant(content: object) -> Expr:
    """An assistant turn (see `role`)."""
    return Turn("assistant", content)


def system_begin() -> Expr:
    """Opens a system turn; what is appended until `system_end()` stands in it."""
    return TurnMark("system", True)


def system_end() -> Expr:
    """Ends the system turn."""
    return TurnMark("system", False)


def user_begin() -> Expr:
    """Opens a user turn; what is appended until `user_end()` stands in it."""
    return TurnMark("user", True)


def user_end() -> Expr:
    """Ends the user turn."""
    return TurnMark("user", False)


def assistant_begin() -> Expr:
    """Opens an assistant turn; what is appended until `assistant_end()` stands in it."""
    return TurnMark("assistant", True)


def assistant_end() -> Expr:
    """Ends the assistant turn."""
    return TurnMark("assistant", False)


def _turns(expr: Expr) -> Iterator[str]:
    if isinstance(expr, (Turn, TurnMark)):
        yield expr.name
    for child in expr.children():
        yield from _turns(child)
