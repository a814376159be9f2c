"""A program called without a state inside another program: inlined if it is appended next, else a program of its own.

In: `helper(x)` in a running body. Out: a `State` at once, and one of two things later: `s += helper(x)` records the
helper's nodes into `s`; the caller's next step of any other kind (append, read, end) starts the helper by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from .primitives.expr import Recorder

__all__ = ["UnstartedCall"]


class UnstartedCall:
    """A call that is either started or inlined, once.

    Args:
        start: starts it as a program of its own.
        inline: records its body's nodes.
    """

    def __init__(self, start: Callable[[], None], inline: Callable[[Recorder], object]) -> None:
        self._start: Callable[[], None] | None = start
        self._inline = inline
        self.inlined = False

    def start(self) -> None:
        """Starts it, unless that happened or it was inlined."""
        start, self._start = self._start, None
        if start is not None:
            start()

    def take_inline(self) -> Callable[[Recorder], object] | None:
        """What records it, if it was not started; from then on it never is."""
        if self._start is None:
            return None
        self._start, self.inlined = None, True
        return self._inline
