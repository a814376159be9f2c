"""What can stand on the right of `s +=`, and the interface that primitives lower to.

In: strings, expressions made by the user functions beside this file, sums and lists of them.
Out: calls of a `Recorder`, which makes core nodes (`ir.py`) of them. A new primitive is a file like its neighbours:
a function with a docstring, an `Expr` whose `record` is its rule, and an export line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from ..errors import InvalidValueError

if TYPE_CHECKING:
    from ..bindings import Binding, Cell
    from ..ir import Node, Op
    from ..sampling import SamplingParams

__all__ = ["Expr", "Recorder", "Sum", "as_expr"]


class Recorder(Protocol):
    """What a primitive may do to a stream (`stream.py`)."""

    def add(self, op: Op, payload: Any = None, *, variable: str | None = None, data: tuple[Node, ...] = ()) -> Node:
        """Records a node that generates nothing."""
        ...

    def ask(self, op: Op, payload: Any) -> Cell:
        """Records a generating node and starts it as soon as it can run."""
        ...

    def bind(self, name: str, binding: Binding) -> None:
        """Makes `name` a variable of the state."""
        ...

    def begin_turn(self, role: str) -> None:
        """Opens a role turn; RoleError when one is open."""
        ...

    def end_turn(self, role: str | None = None) -> None:
        """Ends the open turn; RoleError when it is not one of `role`."""
        ...

    def name_for(self, name: str | None) -> str:
        """The name itself, or a fresh one for an unnamed value."""
        ...

    def merged(self, own: SamplingParams) -> SamplingParams:
        """A node's own sampling parameters over those of call and program."""
        ...


class Expr:
    """Something to append to a state. `+` makes sums with strings, lists and other expressions, keeping order."""

    __slots__ = ()

    def record(self, to: Recorder) -> None:
        """Lowers the expression to core nodes: the primitive's rule."""
        raise NotImplementedError

    def children(self) -> Sequence[Expr]:
        """The expressions inside this one."""
        return ()

    def __add__(self, other: object) -> Sum:
        return Sum(self, as_expr(other))

    def __radd__(self, other: object) -> Sum:
        return Sum(as_expr(other), self)

    def __format__(self, spec: str) -> str:
        # It would stand in the prompt as "<… object at 0x…>".
        raise TypeError("an expression such as gen(…) cannot stand inside an f-string; write 'text ' + gen(…)")


class Sum(Expr):
    """Expressions one after another."""

    __slots__ = ("items",)

    def __init__(self, *items: Expr) -> None:
        self.items: tuple[Expr, ...] = tuple(flat for item in items for flat in _flatten(item))

    @override
    def record(self, to: Recorder) -> None:
        for item in self.items:
            item.record(to)

    @override
    def children(self) -> Sequence[Expr]:
        return self.items


def as_expr(value: object) -> Expr:
    """The expression that `value` stands for.

    Raises:
        TypeError: it is neither text nor an expression nor a list of these; names its type.
        InvalidValueError: text with a lone surrogate, which no tokenizer can have; a list that is inside itself.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        from .text import Literal

        return Literal(checked_text(value))
    if isinstance(value, (list, tuple)):
        try:
            return Sum(*map(as_expr, value))
        except RecursionError:
            raise InvalidValueError("a list inside lists is too deep (or is inside itself)") from None
    convert = getattr(type(value), "_as_expr", None)
    if convert is not None:
        converted: Expr = convert(value)
        return converted
    raise TypeError(
        f"a {type(value).__name__} cannot be appended to a state: {_short(value)}; "
        "append a str, gen, select, a role turn, or a sum or list of these (use str(...) for other values)"
    )


def checked_text(value: str) -> str:
    """The text as a plain str; InvalidValueError where it holds a lone surrogate."""
    text = str.__str__(value)
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidValueError(
                f"the text has a lone surrogate, {text[error.start]!r}, at position {error.start}; it is not Unicode "
                "text (decode it with errors='replace')"
            ) from None
    return text


def _flatten(item: Expr) -> Iterator[Expr]:
    if isinstance(item, Sum):
        yield from item.items
    else:
        yield item


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
