"""The shapes that a schema in normal form is made of.

A node is a list of alternative shapes; shapes refer to nodes by number, so that recursion is a cycle of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["AnyJson", "ArrayShape", "NodeId", "ObjectShape", "Scalar", "Shape"]

NodeId: TypeAlias = int


@dataclass(frozen=True)
class AnyJson:
    """Any JSON value."""


@dataclass(frozen=True)
class Scalar:
    """A null, boolean, number or string, or one of some values, as an engine reads it."""

    schema: dict[str, Any]

    def __hash__(self) -> int:
        return hash(str(self.schema))


@dataclass(frozen=True)
class ArrayShape:
    """An array: `prefix` items, then `rest` items (None: no more), `low` to `high` in all.

    With `states`, an automaton says which items may follow instead: in each state, (node, state after such an item);
    it begins in the first one and may end in `ends`. With `unique`, items are a few known values, each at most once.
    """

    prefix: tuple[NodeId, ...]
    rest: NodeId | None
    low: int
    high: int | None
    states: tuple[tuple[tuple[NodeId, int], ...], ...] = ()
    ends: frozenset[int] = frozenset()
    unique: bool = False


@dataclass(frozen=True)
class ObjectShape:
    """An object.

    Attributes:
        fields: (name, node, required), in the order in which they are written.
        patterns: (pattern as `regex_text.py` spells it, node) of other keys; no key is in two.
        rest: node of the keys that are neither; None: there are none.
        absent: names that may not occur.
        low: least number of keys.
        high: most number of keys.
    """

    fields: tuple[tuple[str, NodeId, bool], ...]
    patterns: tuple[tuple[str, NodeId], ...]
    rest: NodeId | None
    absent: frozenset[str]
    low: int
    high: int | None


Shape: TypeAlias = AnyJson | Scalar | ArrayShape | ObjectShape
