"""Text with values in it that are not known yet: what a trace records where a run has text.

In: what a body does to a symbolic value (`var.py`): reads an attribute, formats, joins, puts text around it.
Out: a `Template`, the payload of a TEXT node; its pieces are text and `Insert`s, which say how the values become text.

    "Score: " + f"{s['verdict'].score:>3}"    →    'Score: ' {verdict.score:>3}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .reasoning import ReasoningFormat, split_reasoning

if TYPE_CHECKING:
    from .ir import Node

__all__ = ["Attribute", "Insert", "Item", "Piece", "Shaped", "Side", "Step", "Template", "Value", "filled"]


@dataclass(frozen=True)
class Attribute:
    """An attribute of a value."""

    name: str

    def of(self, value: Any) -> Any:
        """The attribute itself."""
        return getattr(value, self.name)

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True)
class Item:
    """An item of a value: a key, or the number of a sample."""

    key: str | int

    def of(self, value: Any) -> Any:
        """The item itself."""
        return value[self.key]

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True)
class Side:
    """The `"answer"` or the `"reasoning"` of a text that holds both (`separate_reasoning`)."""

    name: str
    form: ReasoningFormat

    def of(self, value: Any) -> Any:
        """That side of the text."""
        return getattr(split_reasoning(value, self.form), self.name)

    def __str__(self) -> str:
        return f".{self.name}"


Step: TypeAlias = Attribute | Item | Side


@dataclass(frozen=True)
class Value:
    """A value as text.

    Attributes:
        variable: what the program calls the variable or the argument.
        node: the node that makes it: a generating one, a `join first`, an argument.
        steps: from the node's value to this one.
        conversion: as in an f-string: "", "s", "r" or "a".
        spec: the format specification.
        written: whether the text is meant that the model wrote, not the value that it stands for.
    """

    variable: str
    node: Node
    steps: tuple[Step, ...] = ()
    conversion: str = ""
    spec: str = ""
    written: bool = False

    @property
    def name(self) -> str:
        """The variable and the steps."""
        return self.variable + "".join(map(str, self.steps))

    def text(self, value_of: Callable[[Value], Any]) -> str:
        """The text, by the value of the variable at its node (its text, where that is meant)."""
        value = value_of(self)
        for step in self.steps:
            value = step.of(value)
        return _formatted(value, self.conversion, self.spec)

    def values(self) -> Iterator[Value]:
        """The values inside: this one."""
        yield self

    def __str__(self) -> str:
        return "{" + self.name + _shape(self) + "}"


@dataclass(frozen=True)
class Shaped:
    """Text with values in it, converted or padded as a whole.

    Attributes:
        pieces: the text before that.
        conversion: as in an f-string.
        spec: the format specification.
    """

    pieces: tuple[Piece, ...]
    conversion: str = ""
    spec: str = ""

    def text(self, value_of: Callable[[Value], Any]) -> str:
        """The text, by the values inside."""
        return _formatted(filled(self.pieces, value_of), self.conversion, self.spec)

    def values(self) -> Iterator[Value]:
        """The values inside, in order."""
        for piece in self.pieces:
            if not isinstance(piece, str):
                yield from piece.values()

    def __str__(self) -> str:
        return "{(" + " ".join(map(_shown, self.pieces)) + ")" + _shape(self) + "}"


Insert: TypeAlias = Value | Shaped
Piece: TypeAlias = str | Insert


@dataclass(frozen=True)
class Template:
    """Text with values in it.

    Attributes:
        pieces: text and inserts, in order; no two texts stand side by side.
        special: as `Text.special`.
    """

    pieces: tuple[Piece, ...]
    special: bool = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes whose values it needs, each once, in order."""
        values = (value for piece in self.pieces if not isinstance(piece, str) for value in piece.values())
        return tuple(dict.fromkeys(value.node for value in values))

    def text(self, value_of: Callable[[Value], Any]) -> str:
        """The text that it becomes."""
        return filled(self.pieces, value_of)

    def __str__(self) -> str:
        shown = " ".join(map(_shown, self.pieces))
        return f"special({shown})" if self.special else shown


def filled(pieces: tuple[Piece, ...], value_of: Callable[[Value], Any]) -> str:
    """The pieces as one text.

    Args:
        pieces: text and inserts.
        value_of: the value of a `Value`'s variable at its node, before its steps.
    """
    return "".join(piece if isinstance(piece, str) else piece.text(value_of) for piece in pieces)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"": lambda value: value, "s": str, "r": repr, "a": ascii}


def _formatted(value: Any, conversion: str, spec: str) -> str:
    return format(_CONVERSIONS[conversion](value), spec)


def _shape(insert: Value | Shaped) -> str:
    return (f"!{insert.conversion}" if insert.conversion else "") + (f":{insert.spec}" if insert.spec else "")


def _shown(piece: Piece) -> str:
    return repr(piece) if isinstance(piece, str) else str(piece)
