"""Conjunctions → the graph of shapes, each conjunction expanded once, recursion as cycles.

In: the root conjunction. Out: for every node that can be reached its alternative shapes, the impossible ones pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConstraintError
from .arrays import array_shapes
from .cases import Budget, Case, cases_of, types_of
from .documents import Sub
from .negation import FULL_MATCH, NOT_FULL_MATCH, NOT_WHOLE, REFUSE, TYPES
from .objects import object_shapes
from .regex_ast import ANYTHING, Node
from .rules import string_node
from .scalars import number_shape, string_shape
from .shapes import AnyJson, ArrayShape, NodeId, ObjectShape, Scalar, Shape

__all__ = ["Graph"]

_STEPS = 4_000
_DEPTH = 3
_ASSERTIONS = frozenset(
    "type minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format items "
    "prefixItems additionalItems minItems maxItems contains uniqueItems unevaluatedItems properties patternProperties "
    "additionalProperties required minProperties maxProperties propertyNames unevaluatedProperties "
    "contentEncoding contentMediaType".split()
) | {FULL_MATCH, NOT_FULL_MATCH, NOT_WHOLE, REFUSE}


class Graph:
    """The nodes of one schema. `strict` closes objects that say nothing about other keys."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.shapes: dict[NodeId, list[Shape]] = {}
        self.reason: tuple[Sub, str] | None = None
        self._ids: dict[frozenset[str], NodeId] = {}
        self._subs: dict[NodeId, list[Sub]] = {}
        self._budget = Budget(_STEPS)
        self._open: set[NodeId] = set()
        self._empty: dict[tuple[NodeId, int], bool] = {}

    def node(self, subs: Sequence[Sub]) -> NodeId:
        """The node of a conjunction; its shapes are found when it is explored."""
        unique = {sub.key: sub for sub in subs if sub.schema is not True and sub.schema != {}}
        key = frozenset(unique)
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            self._subs[self._ids[key]] = list(unique.values())
        return self._ids[key]

    def explore(self, root: NodeId) -> None:
        """Finds the shapes of every node that can be reached from `root`."""
        waiting = [root]
        seen = {root}
        while waiting:
            node = waiting.pop()
            for shape in self.expand(node):
                for child in children(shape):
                    if child not in seen:
                        seen.add(child)
                        waiting.append(child)

    def expand(self, node: NodeId) -> list[Shape]:
        """The alternative shapes of a node."""
        if node in self.shapes:
            return self.shapes[node]
        self._open.add(node)
        try:
            shapes: list[Shape] = []
            for case in cases_of(self._subs[node], self._budget, self._is_empty, self.note):
                shapes += [shape for shape in self._of_case(case) if shape not in shapes]
        finally:
            self._open.discard(node)
        self.shapes[node] = [AnyJson()] if any(isinstance(s, AnyJson) for s in shapes) else shapes
        return self.shapes[node]

    def note(self, sub: Sub, keyword: str) -> None:
        """Remembers why something is impossible, for the message."""
        if self.reason is None:
            self.reason = (sub, keyword)

    def values(self, node: NodeId) -> list[Any] | None:
        """The values of a node, where they are a known few."""
        found: list[Any] = []
        for shape in self.expand(node):
            if not isinstance(shape, Scalar):
                return None
            if "enum" in shape.schema:
                found += shape.schema["enum"]
            elif shape.schema == {"type": "boolean"}:
                found += [True, False]
            elif shape.schema == {"type": "null"}:
                found.append(None)
            else:
                return None
        return found

    def one_pattern(self, node: NodeId) -> Node | None:
        """The texts of a node of strings; None where it takes more than one shape."""
        shapes = self.expand(node)
        if len(shapes) != 1 or not isinstance(shapes[0], Scalar):
            return None
        schema = shapes[0].schema
        if set(schema) == {"type"}:
            return ANYTHING
        return None if "enum" in schema else string_node(schema)

    def _of_case(self, case: Case) -> list[Shape]:
        if case.values is not None:
            return [Scalar({"enum": [_written(value) for value in case.values]})]
        types = types_of(case.subs)
        asserted = any(not _ASSERTIONS.isdisjoint(sub.schema) for sub in case.subs)
        if not asserted and len(types) == len(TYPES) and not self.strict:
            return [AnyJson()]
        found: list[Shape] = []
        for name, whole in types.items():
            found += self._of_type(case, name, whole)
        return [AnyJson()] if found == self._everything() else found

    def _of_type(self, case: Case, name: str, whole: bool) -> list[Shape]:
        if name == "array":
            return array_shapes(case, self)
        if name == "object":
            return object_shapes(case, self)
        one: Scalar | None = Scalar({"type": name})
        if name == "number":
            one = number_shape(case.subs, whole, self.note)
        elif name == "string":
            one = string_shape(case.subs, self.note)
        return [] if one is None else [one]

    def _everything(self) -> list[Shape]:
        any_node = self.node([])
        scalars = [Scalar({"type": name}) for name in TYPES[:4]]
        array = ArrayShape((), any_node, 0, None)
        return [*scalars, array, ObjectShape((), (), any_node, frozenset(), 0, None)]

    def _is_empty(self, subs: Sequence[Sub]) -> bool:
        try:
            return self._proven_empty(self.node(subs), _DEPTH)
        except ConstraintError:
            return False

    def _proven_empty(self, node: NodeId, depth: int) -> bool:
        if node in self._open or depth == 0:
            return False
        if (node, depth) not in self._empty:
            shapes = self.expand(node)
            self._empty[node, depth] = all(self._impossible(shape, depth) for shape in shapes)
        return self._empty[node, depth]

    def _impossible(self, shape: Shape, depth: int) -> bool:
        if isinstance(shape, ArrayShape):
            needed = shape.prefix[: shape.low]
            return any(self._proven_empty(node, depth - 1) for node in needed)
        if isinstance(shape, ObjectShape):
            return any(self._proven_empty(node, depth - 1) for _, node, required in shape.fields if required)
        return False


def _written(value: Any) -> Any:
    """A value of an `enum` in its one spelling: whole numbers without a point."""
    if isinstance(value, float):
        return int(value) if value == int(value) else value
    if isinstance(value, list):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        return {name: _written(item) for name, item in value.items()}
    return value


def children(shape: Shape) -> list[NodeId]:
    """The nodes that a shape refers to."""
    if isinstance(shape, ArrayShape):
        items = [node for ways in shape.states for node, _ in ways]
        return [*items, *shape.prefix, *([] if shape.rest is None else [shape.rest])]
    if isinstance(shape, ObjectShape):
        inner = [node for _, node, _ in shape.fields] + [node for _, node in shape.patterns]
        return [*inner, *([] if shape.rest is None else [shape.rest])]
    return []
