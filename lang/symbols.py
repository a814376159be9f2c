"""What the variables of a traced program stand for: bindings (`bindings.py`) whose values are symbols.

In: generating nodes, what a join or `separate_reasoning` makes of them. Out: `Var`s and `Typed` values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from typing_extensions import override

from .bindings import Answer, Binding, Cell, Plain, Reasoning
from .ir import Node, Op
from .prompt import Generated
from .template import Item, Side, Step, Value
from .var import Opener, Typed, Var, symbol

__all__ = ["FirstOf", "SideSymbol", "SymbolCell", "value_type"]


def value_type(node: Node) -> Any:
    """The type of a generating node's value: str for text, `Any` where plain data of any type may come."""
    constraint = node.payload.constraint if node.op is Op.GEN else None
    if constraint is None or constraint.kind not in ("schema", "dtype"):
        return str
    return Any if constraint.type is None else constraint.type


@dataclass(eq=False)
class SymbolCell(Cell):
    """A generating node that no model writes: its value is a symbol, at once.

    Attributes:
        opener: the trace.
    """

    opener: Opener | None = None

    def __post_init__(self) -> None:
        assert self.opener is not None
        self.is_done = True
        plain = value_type(self.node) is str and not self._many and self._text_is_value
        value = Value(self.name, self.node, written=not plain)
        self.written = Generated(Var.over(self.opener.marks.mark(value), self.opener))

    @override
    def value(self) -> Any:
        return self.stepped()

    def stepped(self, *steps: Step, type_: Any = None) -> Any:
        """The symbol of the value, each sample with these steps."""
        assert self.opener is not None
        value = Value(self.name, self.node, steps)
        type_ = type_ or value_type(self.node)
        if not self._many:
            return symbol(value, type_, self.opener)
        count = self.node.payload.sampling.n
        return [symbol(replace(value, steps=(Item(i), *steps)), type_, self.opener) for i in range(count)]

    @override
    def meta(self) -> Any:
        assert self.opener is not None
        self.opener.open(self.name, "reads its meta, which a run has")

    @property
    def _text_is_value(self) -> bool:
        constraint = self.node.payload.constraint if self.node.op is Op.GEN else None
        return constraint is None or constraint.kind != "dtype"


@dataclass(eq=False)
class SideSymbol(Plain):
    """The reasoning or the answer of a text that holds both."""

    given: Any = None
    of: Answer | Reasoning | None = None

    @classmethod
    def made(cls, side: Answer | Reasoning) -> SideSymbol:
        """The symbol of one side of a traced node."""
        return cls(of=side)

    @override
    def value(self) -> Any:
        assert self.of is not None
        cell = self.of.cell
        assert isinstance(cell, SymbolCell)
        answer = isinstance(self.of, Answer)
        if self.of._constrained:
            return cell.value() if answer else ""
        return cell.stepped(Side("answer" if answer else "reasoning", self.of.form))


@dataclass(eq=False)
class FirstOf(Binding):
    """A variable after `join("first")`: that of whichever branch ends first.

    Attributes:
        name: the variable.
        node: the join.
        found: what each branch made under that name, None where it made nothing.
        opener: the trace.
    """

    name: str
    node: Node
    found: Sequence[Binding | None]
    opener: Opener

    @property
    @override
    def cells(self) -> Sequence[Cell]:
        return ()

    @override
    def value(self) -> Any:
        values = [None if binding is None else binding.value() for binding in self.found]
        if all(type(value) is Var for value in values):
            return symbol(Value(self.name, self.node), str, self.opener)
        first = values[0]
        if not (type(first) is Typed and all(type(v) is Typed and v._type == first._type for v in values)):
            self._unlike()
        return symbol(Value(self.name, self.node), first._type, self.opener)

    def _unlike(self) -> NoReturn:
        self.opener.open(
            self.name, "reads it after join('first'), and not every branch makes it, or not as the same type"
        )

    @override
    def meta(self) -> Any:
        self.opener.open(self.name, "reads its meta, which a run has")
