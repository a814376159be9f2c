"""A backend without a model that answers everything with something allowed: the shortest texts the masks lead to."""

from __future__ import annotations

from typing import Any

from radicel import MockBackend
from radicel.accepts import _byte_compiler
from radicel.constraint import Constraint

_END = 256
_LIKED = [_END, *b'"}]0123456789.', *b"aeiou", *b" "]


def babble(constraint: Constraint | None, limit: int = 4000) -> str:
    """A text that the constraint allows, of one byte a token."""
    if constraint is None:
        return "So be it."
    compiler = _byte_compiler()
    matcher = compiler.compile(constraint).matcher()
    row = compiler.vocabulary.empty_mask()
    out = bytearray()
    while len(out) < limit:
        matcher.fill_mask(row)
        allowed = [i for i in range(257) if row[i >> 5] >> (i & 31) & 1]
        chosen = next((i for i in _LIKED if i in allowed), allowed[0])
        if chosen == _END:
            return out.decode()
        assert matcher.accept(chosen)
        out.append(chosen)
    raise AssertionError(f"no end after {limit} bytes: {constraint}")


class Babbler(MockBackend):
    """In the place of a runtime: takes what a runtime is made with."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._made: dict[Constraint | None, str] = {}
        super().__init__(self._answer)

    def _answer(self, request: Any) -> str:
        if request.kind == "select":
            return str(request.choices[0])
        if request.constraint not in self._made:
            self._made[request.constraint] = babble(request.constraint)
        return self._made[request.constraint]
