"""A program appended to a state (`s += helper(x)`): its body records into that state."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from .expr import Expr, Recorder

__all__ = ["Inline"]


class Inline(Expr):
    """A program in the place where it stands. Lowers to the nodes that its body records."""

    __slots__ = ("_body",)

    def __init__(self, body: Callable[[Recorder], object]) -> None:
        self._body = body

    @override
    def record(self, to: Recorder) -> None:
        self._body(to)
