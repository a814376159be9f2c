"""What the name of a variable stands for: a value that may still be on its way.

In: generating nodes, values that a body sets, what `join` and scopes collect.
Out: `Binding`s, which all answer the same questions: are you there, your value, your meta, your text so far.

A `Cell` is the life of one generating node. The executor alone changes it, under its lock:

    recorded ──its wave closes, the text before it is there──► submitted ──► done: `written`; `fault` if no whole value
       └──────────────a node before it failed──────────────────────┴───────► done: `failure`, no text
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from .backend import Generation, Handle, Meta
from .ir import Node
from .prompt import Generated
from .reasoning import ReasoningFormat, ReasoningSplitter, split_reasoning

if TYPE_CHECKING:
    from .sending import Place

__all__ = ["Answer", "Binding", "Cell", "Gathered", "Plain", "Reasoning", "Scope", "raise_again"]


def raise_again(error: BaseException) -> NoReturn:
    """Raises an exception that was raised before; its traceback does not grow with each reader."""
    raise error.with_traceback(getattr(error, "_radicel_traceback", error.__traceback__))


class Binding(ABC):
    """A variable's value, once its cells are done."""

    @property
    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """The cells it waits for."""

    @abstractmethod
    def value(self) -> Any:
        """The value; raises what went wrong. Only when all cells are done."""

    def meta(self) -> Any:
        """A `Meta`, or a list of them. Only when all cells are done."""
        return Meta()

    def text(self) -> str:
        """The text so far, for streaming; grows by appending. May be asked at any time."""
        return str(self.value()) if self.done else ""

    @property
    def done(self) -> bool:
        """Whether all cells are."""
        return all(cell.done for cell in self.cells)

    def error(self) -> BaseException | None:
        """What went wrong in any of its cells."""
        return next((cell.error() for cell in self.cells if cell.error() is not None), None)


@dataclass(eq=False)
class Cell(Binding):
    """The life of a generating node.

    Attributes:
        node: the node.
        needs: cells whose text must be there first.
        blockers: how many of them are not done yet.
        dependents: cells that need this one's text and are not submitted yet.
        place: where it stands in the graph of its wave, once that is closed (`sending.py`).
        sent: whether it is being submitted, or was.
        handle: the request, once submitted.
        pieces: streamed text of the first sample.
        generations: the samples; one for a `select`.
        written: the text as a part of the prompts that follow.
        failure: why there is no text.
        fault: why the text is not the value that was asked for.
        dropped: nobody can read it any more, so its failure is nobody's.
        recorded_at, sent_at, done_at: when it got so far, in seconds of `time.monotonic()`.
    """

    node: Node
    needs: tuple[Cell, ...] = ()
    blockers: int = 0
    dependents: list[Cell] = field(default_factory=list)
    place: Place | None = None
    sent: bool = False
    handle: Handle[Any] | None = None
    pieces: list[str] = field(default_factory=list)
    generations: tuple[Generation, ...] = ()
    written: Generated | None = None
    failure: BaseException | None = None
    fault: BaseException | None = None
    is_done: bool = False
    dropped: bool = False
    recorded_at: float = field(default_factory=time.monotonic)
    sent_at: float | None = None
    done_at: float | None = None

    @property
    def name(self) -> str:
        """The variable that the node makes."""
        name: str = self.node.payload.name
        return name

    @property
    @override
    def cells(self) -> Sequence[Cell]:
        return (self,)

    @property
    @override
    def done(self) -> bool:
        return self.is_done

    @override
    def error(self) -> BaseException | None:
        return self.failure or self.fault

    @override
    def value(self) -> Any:
        error = self.error()
        if error is not None:
            raise_again(error)
        values = [generation.value for generation in self.generations]
        return values if self._many else values[0]

    @override
    def meta(self) -> Any:
        if self.failure is not None:
            raise_again(self.failure)
        metas = [generation.meta for generation in self.generations]
        return metas if self._many else metas[0]

    @override
    def text(self) -> str:
        return self.written.text if self.written is not None else "".join(self.pieces)

    @property
    def _many(self) -> bool:
        return (self.node.payload.sampling.n or 1) > 1


@dataclass(eq=False)
class Plain(Binding):
    """A value that the body set."""

    given: Any

    @property
    @override
    def cells(self) -> Sequence[Cell]:
        return ()

    @override
    def value(self) -> Any:
        return self.given


@dataclass(eq=False)
class Gathered(Binding):
    """A list of what branches made, in branch order."""

    items: Sequence[Binding]

    @property
    @override
    def cells(self) -> Sequence[Cell]:
        return [cell for item in self.items for cell in item.cells]

    @override
    def value(self) -> Any:
        return [item.value() for item in self.items]

    @override
    def meta(self) -> Any:
        return [item.meta() for item in self.items]


@dataclass(eq=False)
class Scope(Binding):
    """The text written between two points of a stream: literals and cells, in order."""

    parts: Sequence[str | Cell]

    @property
    @override
    def cells(self) -> Sequence[Cell]:
        return [part for part in self.parts if isinstance(part, Cell)]

    @override
    def value(self) -> Any:
        failure = next((cell.failure for cell in self.cells if cell.failure is not None), None)
        if failure is not None:
            raise_again(failure)
        return self.text()

    @override
    def text(self) -> str:
        shown: list[str] = []
        for part in self.parts:
            shown.append(part if isinstance(part, str) else part.text())
            if isinstance(part, Cell) and not part.done:
                break
        return "".join(shown)


@dataclass(eq=False)
class _Side(Binding):
    """One side of a text that holds reasoning and an answer; constrained text is answer only."""

    cell: Cell
    form: ReasoningFormat

    @property
    def cells(self) -> Sequence[Cell]:
        return (self.cell,)

    def meta(self) -> Any:
        return self.cell.meta()

    @property
    def _constrained(self) -> bool:
        return getattr(self.cell.node.payload, "constraint", None) is not None

    def _split(self) -> tuple[str, str]:
        if self.cell.done:
            return split_reasoning(self.cell.text(), self.form)
        splitter = ReasoningSplitter(self.form)
        return splitter.feed(self.cell.text())


class Answer(_Side):
    """What a model answers, without its reasoning."""

    @override
    def value(self) -> Any:
        value = self.cell.value()
        if self._constrained:
            return value
        if isinstance(value, list):
            return [split_reasoning(text, self.form).answer for text in value]
        return split_reasoning(value, self.form).answer

    @override
    def text(self) -> str:
        return self.cell.text() if self._constrained else self._split()[1]


class Reasoning(_Side):
    """What a model thinks before it answers."""

    @override
    def value(self) -> Any:
        value = self.cell.value()
        if isinstance(value, list):
            return ["" if self._constrained else split_reasoning(text, self.form).reasoning for text in value]
        return "" if self._constrained else split_reasoning(value, self.form).reasoning

    @override
    def text(self) -> str:
        return "" if self._constrained else self._split()[0]
