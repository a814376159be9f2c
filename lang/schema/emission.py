"""A graph of shapes → JSON schema in normal form.

In: pruned shapes. Out: a JSON schema that uses only what `rules.py` writes as a grammar: one `type` a schema, `anyOf`,
`enum`, bounds, lengths, anchored patterns, `prefixItems`, `properties`, key patterns that do not overlap, and `$ref`
into `$defs` for recursion. Keywords of our own (`x-…`) hold what JSON schema has no word for; without them a reader
allows more, never less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import ConstraintError
from .grammar_ast import MOST_ELEMENTS
from .regex_text import is_ordinary
from .shapes import AnyJson, ArrayShape, NodeId, ObjectShape, Scalar, Shape

__all__ = ["emitted"]

_MOST_OPTIONAL = 4_000
_MOST_PARTS = 12_000


def emitted(shapes: Mapping[NodeId, list[Shape]], root: NodeId, any_order: bool = False) -> dict[str, Any]:
    """The schema of the root node, with `$defs` for what is used twice or recursive."""
    return _Writer(shapes, root, any_order).schema()


class _Writer:
    def __init__(self, shapes: Mapping[NodeId, list[Shape]], root: NodeId, any_order: bool) -> None:
        self._any_order = any_order
        self._shapes = shapes
        self._root = root
        self._defs: dict[str, Any] = {}
        self._waiting: list[NodeId] = []

    def schema(self) -> dict[str, Any]:
        top = self._node(self._root)
        while self._waiting:
            node = self._waiting.pop()
            self._defs[str(node)] = self._node(node)
        if self._defs:
            top = {**top, "$defs": dict(sorted(self._defs.items(), key=lambda item: int(item[0])))}
        return top

    def _node(self, node: NodeId) -> dict[str, Any]:
        written = [self._shape(shape) for shape in self._shapes[node]]
        return written[0] if len(written) == 1 else {"anyOf": written}

    def _child(self, node: NodeId) -> Any:
        options = self._shapes[node]
        if not options:
            return False
        if all(isinstance(option, (AnyJson, Scalar)) for option in options):
            return self._node(node)
        if str(node) not in self._defs:
            self._defs[str(node)] = None
            self._waiting.append(node)
        return {"$ref": f"#/$defs/{node}"}

    def _shape(self, shape: Shape) -> dict[str, Any]:
        if isinstance(shape, Scalar):
            parts = sum(isinstance(value, (list, dict)) for value in shape.schema.get("enum", ()))
            self._count(parts, _MOST_PARTS, "lists and objects in an enum", "enum")
            return dict(shape.schema)
        if isinstance(shape, ArrayShape):
            return self._array(shape)
        return self._object(shape) if isinstance(shape, ObjectShape) else {}

    def _count(self, found: int, most: int, what: str, keyword: str) -> None:
        """Refuses what an engine could not hold, before the work of writing it."""
        if found > most:
            raise ConstraintError(f"the schema has {found} {what}; at most {most}", keyword=keyword)

    def _array(self, shape: ArrayShape) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if shape.states:
            states = [[[self._child(node), target] for node, target in ways] for ways in shape.states]
            return {**schema, "x-states": states, "x-ends": sorted(shape.ends)}
        if shape.prefix:
            schema["prefixItems"] = [self._child(node) for node in shape.prefix]
        schema["items"] = False if shape.rest is None else self._child(shape.rest)
        if shape.unique:
            schema["uniqueItems"] = True
            schema["items"] = {"enum": self._values(shape)}
        if shape.low:
            schema["minItems"] = shape.low
        if shape.high is not None:
            schema["maxItems"] = shape.high
        return schema

    def _values(self, shape: ArrayShape) -> list[Any]:
        """The items of a list without repeats."""
        assert shape.rest is not None
        found: dict[str, Any] = {}
        for option in self._shapes[shape.rest]:
            assert isinstance(option, Scalar)
            known: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
            for value in option.schema.get("enum") or known[option.schema["type"]]:
                found.setdefault(json.dumps(value, sort_keys=True), value)
        return list(found.values())

    def _object(self, shape: ObjectShape) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        optional = sum(not needed for _, _, needed in shape.fields)
        self._count(optional, _MOST_OPTIONAL, "optional keys in one object", "properties")
        self._count(len(shape.fields) - optional, _MOST_PARTS, "keys in one object", "required")
        if shape.fields or shape.absent:
            schema["properties"] = {
                **{name: self._child(node) for name, node, _ in shape.fields},
                **dict.fromkeys(sorted(shape.absent), False),
            }
        required = [name for name, _, needed in shape.fields if needed]
        if required:
            schema["required"] = required
        patterns = {text: self._child(node) for text, node in shape.patterns}
        ordinary = {text: value for text, value in patterns.items() if is_ordinary(text)}
        if ordinary:
            schema["patternProperties"] = ordinary
        if len(ordinary) < len(patterns):
            schema["x-patternProperties"] = {t: value for t, value in patterns.items() if not is_ordinary(t)}
        schema["additionalProperties"] = False if shape.rest is None else self._child(shape.rest)
        if self._any_order and len(shape.fields) > 1:
            names = ", ".join(name for name, _, _ in shape.fields[:3])
            if len(shape.fields) > MOST_ELEMENTS or shape.high is not None:
                raise ConstraintError(
                    f"any_order=True: the object with the keys {names}, … has more than {MOST_ELEMENTS} of them, or "
                    "counts its open keys; leave any_order out",
                    keyword="any_order",
                )
            schema["x-any-order"] = True
        if shape.low:
            schema["minProperties"] = shape.low
        if shape.high is not None:
            schema["maxProperties"] = shape.high
        return schema
