"""Static checks of what nodes ask for: a table of rules, each with a place and a fix.

In: recorded or traced nodes, and perhaps the backend that will run them. Out: `Problem`s.

With a backend that shows its vocabulary, tokens are counted, and a budget that is certainly too small is an error.
Without one, bytes are counted, and it is a warning. What a body does to its variables is noted while it is traced
(`notes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .backends.mock import MockBackend
from .errors import RadicelError
from .ir import GenCall, Node, Op, SelectCall, open_role, prompt_of
from .problems import Problem, problem_at
from .prompt import Generated, Part, Prompt, Text
from .schema.shortest import fewest_tokens, never_contains, shortest_bytes
from .template import Template

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["CHECKS", "problems_of"]

_LARGE = 100_000  # characters of a grammar that is not searched for stops
_PER_HOLE = 2  # tokens by which a value can shorten the text around it


def problems_of(nodes: Iterable[Node], backend: Backend | None = None) -> list[Problem]:
    """What is wrong with what the nodes ask for.

    Args:
        nodes: the nodes.
        backend: what will run them; None, and a mock, have no tokens to count.
    """
    counted = _Counted(None if isinstance(backend, MockBackend) else backend)
    return [problem for node in nodes for check in CHECKS.get(node.op, ()) for problem in check(node, counted)]


class _Counted:
    """What a backend says about tokens."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.context: int | None = getattr(backend, "context_length", None)

    @cached_property
    def vocabulary(self) -> Collection[bytes]:
        """The bytes of every token; empty where they are not known."""
        found: Collection[bytes] = getattr(self._backend, "vocabulary", ())
        return found

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.vocabulary), default=1)

    def encode(self, prompt: Prompt) -> tuple[int, ...] | None:
        """The ids; None where the backend cannot say."""
        if self._backend is None:
            return None
        try:
            ids: tuple[int, ...] = self._backend.encode(prompt).token_ids
        except RadicelError:
            return None
        return ids


def _budget(node: Node, counted: _Counted) -> Iterator[Problem]:
    """A `max_tokens` below the shortest text."""
    call: GenCall = node.payload
    budget, constraint = call.sampling.max_tokens, call.constraint
    if constraint is None or not budget:
        return
    size = shortest_bytes(constraint)
    if budget >= size:
        return
    asked = f"max_tokens={budget} of gen {call.name!r}"
    shortest = f"the shortest text of its {constraint.kind} has {size} bytes"
    if not counted.vocabulary:
        yield problem_at(
            "warning",
            node.site,
            f"{asked} may be too few: {shortest}",
            "give it more, or ask for the exact count with trace.check(backend)",
        )
        return
    # Outside of turns the first token may begin before the value (healing), so only the bound by bytes is certain.
    exact = open_role(node.prefix) is not None
    least = fewest_tokens(constraint, counted.vocabulary, counted.longest) if exact else -(-size // counted.longest)
    if budget < least:
        yield problem_at(
            "error",
            node.site,
            f"{asked} is too few: {shortest}, which is at least {least} tokens",
            f"give it max_tokens={least} or more",
        )


def _stops(node: Node, counted: _Counted) -> Iterator[Problem]:
    """A stop string that the constraint never writes."""
    call: GenCall = node.payload
    if call.constraint is None or len(call.constraint.text) > _LARGE:
        return
    for stop in call.sampling.stop or ():
        if never_contains(call.constraint, stop):
            yield problem_at(
                "warning",
                node.site,
                f"stop={stop!r} never ends gen {call.name!r}: no text of its {call.constraint.kind} has it inside",
                "leave it out; the text ends by itself where it is complete",
            )


def _choices(node: Node, counted: _Counted) -> Iterator[Problem]:
    """Choices whose tokens are the same."""
    call: SelectCall = node.payload
    parts = _known(node.prefix, "x")
    seen: dict[tuple[int, ...], str] = {}
    for choice in call.choices:
        ids = counted.encode((*parts, Text(choice)))
        if ids is None:
            return
        if ids in seen:
            yield problem_at(
                "error",
                node.site,
                f"the choices {seen[ids]!r} and {choice!r} of select {call.name!r} cannot be told apart: they have the "
                "same tokens there",
                "reword one of them",
            )
        seen.setdefault(ids, choice)


def _context(node: Node, counted: _Counted) -> Iterator[Problem]:
    """A prompt that is longer than the context."""
    if counted.context is None:
        return
    parts = _known(node.prefix, "")
    texts = [part.text for part in parts if isinstance(part, (Text, Generated))]
    if sum(len(text.encode()) for text in texts) + 64 * len(parts) < counted.context:  # a token has a byte at least
        return
    ids = counted.encode(parts)
    if ids is None:
        return
    holes = sum(isinstance(part, (Generated, Template)) for part in prompt_of(node.prefix, lambda _: Generated("")))
    least = len(ids) - _PER_HOLE * holes
    if least + 1 > counted.context:
        about = "" if not holes else "at least "
        yield problem_at(
            "error",
            node.site,
            f"the prompt of {node.op.value} {node.payload.name!r} has {about}{least} tokens and does not fit into the "
            f"context of {counted.context}",
            "shorten it, or use a model with a longer context",
        )


Check = Callable[[Node, _Counted], Iterator[Problem]]

CHECKS: dict[Op, tuple[Check, ...]] = {
    Op.GEN: (_budget, _stops, _context),
    Op.SELECT: (_choices, _context),
}


def _known(tip: Node | None, value: str) -> Prompt:
    """The prompt up to and including `tip` with a text in the place of each value."""

    def part(found: Any) -> Part | None:
        if not isinstance(found, Template):
            return found  # type: ignore[no-any-return]
        text = "".join(piece if isinstance(piece, str) else value for piece in found.pieces)
        return Text(text, found.special) if text else None

    parts = (part(found) for found in prompt_of(tip, lambda node: Generated(value)))
    return tuple(found for found in parts if found is not None)
