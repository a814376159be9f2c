"""`not` moved inwards: the schemas of which an instance obeys at least one exactly when it breaks a given schema.

In: a sub-schema. Out: a list of schemas (an `anyOf`). What has no such form is marked, and refused only where an
instance of that type can be reached.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConstraintError
from .documents import Sub
from .patterns import other_names, search
from .regex_text import spell_node

__all__ = ["FULL_MATCH", "NOT_FULL_MATCH", "NOT_WHOLE", "REFUSE", "REFUSE_REF", "TYPES", "broken"]

TYPES = ("null", "boolean", "number", "string", "array", "object")

# Keywords of our own inside rewritten schemas; a private-use character keeps them out of anybody's way.
FULL_MATCH = "\ue000full_match"
REFUSE = "\ue000refuse"
REFUSE_REF = "\ue000not_ref"
NOT_WHOLE = "\ue000not_whole"
NOT_FULL_MATCH = "\ue000not_full_match"

_ANNOTATIONS = frozenset(
    "$schema $id id $comment $anchor $defs definitions title description default examples readOnly writeOnly "
    "deprecated contentMediaType contentEncoding contentSchema $vocabulary $dynamicAnchor $recursiveAnchor "
    "then else".split()
)
_SHARED = frozenset("properties patternProperties additionalProperties required minItems maxItems".split())


def broken(sub: Sub) -> list[Any]:
    """The alternatives of "not this schema"."""
    schema = sub.schema
    if isinstance(schema, bool):
        return [not schema]
    if "$ref" in schema and sub.draft.year < 2019 and sub.draft.year > 3:
        return [{"not": {"$ref": schema["$ref"]}}] if len(schema) > 1 else [{REFUSE_REF: schema["$ref"]}]
    alternatives: list[Any] = []
    for keyword, value in schema.items():
        if keyword not in _ANNOTATIONS:
            alternatives += _breaks(keyword, value, schema)
    return alternatives or [False]


def _breaks(keyword: str, value: Any, schema: dict[str, Any]) -> list[Any]:
    simple = _SIMPLE.get(keyword)
    if simple is not None:
        return list(simple(value, schema))
    if keyword == "type":
        return _not_type([value] if isinstance(value, str) else value)
    if keyword in ("enum", "const"):
        return _not_in(value if keyword == "enum" else [value])
    if keyword == "pattern":
        return _not_pattern(value)
    if keyword in ("$ref",):
        return [{REFUSE_REF: value}]
    if keyword in _TYPE_OF:
        return [{"type": _TYPE_OF[keyword], REFUSE: keyword}]
    if keyword in _EVERYWHERE:
        return [{REFUSE: keyword}]
    return []


def _not_pattern(pattern: str) -> list[Any]:
    try:
        node = search(pattern)
    except ConstraintError:
        return [{"type": "string", REFUSE: "pattern"}]
    return [{"type": "string"} if node is None else {"type": "string", NOT_FULL_MATCH: spell_node(node)}]


_TYPE_OF = {
    "format": "string", "multipleOf": "number", "items": "array", "prefixItems": "array",
    "additionalItems": "array", "contains": "array", "uniqueItems": "array", "unevaluatedItems": "array",
    "patternProperties": "object", "additionalProperties": "object", "propertyNames": "object",
    "unevaluatedProperties": "object", "dependentSchemas": "object", "dependencies": "object",
}  # fmt: skip
_EVERYWHERE = frozenset(["$dynamicRef", "$recursiveRef"])


def _not_type(types: list[str]) -> list[Any]:
    others = [t for t in TYPES if t not in types and not (t == "number" and "integer" in types)]
    found: list[Any] = [{"type": others}] if others else []
    if "integer" in types and "number" not in types:
        found.append({"type": "number", NOT_WHOLE: True})
    return found


def _not_in(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    if not any(v is None for v in values):
        found.append({"type": "null"})
    left = [b for b in (True, False) if not any(v is b for v in values)]
    if left:
        found.append({"enum": left})
    found += _not_numbers(sorted({v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)}))
    strings = [v for v in values if isinstance(v, str)]
    found.append({"type": "string", FULL_MATCH: spell_node(other_names(strings))} if strings else {"type": "string"})
    for type_, kind, low in (("array", list, "minItems"), ("object", dict, "minProperties")):
        own = [v for v in values if isinstance(v, kind)]
        if any(own):
            found.append({"type": type_, REFUSE: "enum"})
        else:
            found.append({"type": type_, low: 1} if own else {"type": type_})
    return found


def _not_numbers(numbers: list[float]) -> list[Any]:
    if not numbers:
        return [{"type": "number"}]
    edges = [None, *numbers, None]
    ranges: list[Any] = []
    for low, high in zip(edges, edges[1:]):  # noqa: RUF007 (itertools.pairwise loses the type of None)
        ends = {"exclusiveMinimum": low, "exclusiveMaximum": high}
        ranges.append({"type": "number", **{k: v for k, v in ends.items() if v is not None}})
    return ranges


def _not_minimum(value: Any, schema: dict[str, Any]) -> list[Any]:
    if schema.get("exclusiveMinimum") is True:
        return [{"type": "number", "maximum": value}]
    return [{"type": "number", "exclusiveMaximum": value}]


def _not_maximum(value: Any, schema: dict[str, Any]) -> list[Any]:
    if schema.get("exclusiveMaximum") is True:
        return [{"type": "number", "minimum": value}]
    return [{"type": "number", "exclusiveMinimum": value}]


def _not_exclusive_minimum(value: Any, _: dict[str, Any]) -> list[Any]:
    return [] if isinstance(value, bool) else [{"type": "number", "maximum": value}]


def _not_exclusive_maximum(value: Any, _: dict[str, Any]) -> list[Any]:
    return [] if isinstance(value, bool) else [{"type": "number", "minimum": value}]


def _below(type_: str, keyword: str) -> Any:
    return lambda value, _: [{"type": type_, keyword: int(value) - 1}] if value >= 1 else []


def _above(type_: str, keyword: str) -> Any:
    return lambda value, _: [{"type": type_, keyword: int(value) + 1}]


def _not_required(names: Any, _: dict[str, Any]) -> list[Any]:
    if not isinstance(names, list):
        return []
    return [{"type": "object", "properties": {name: False}} for name in names]


def _not_properties(properties: dict[str, Any], _: dict[str, Any]) -> list[Any]:
    return [
        {"type": "object", "required": [name], "properties": {name: {"not": schema}}}
        for name, schema in properties.items()
        if schema is not True and schema != {}
    ]


def _not_if(value: Any, schema: dict[str, Any]) -> list[Any]:
    found = []
    if "then" in schema:
        found.append({"allOf": [value, {"not": schema["then"]}]})
    if "else" in schema:
        found.append({"allOf": [{"not": value}, {"not": schema["else"]}]})
    return found


def _not_one_of(options: list[Any], _: dict[str, Any]) -> list[Any]:
    none = {"allOf": [{"not": option} for option in options]}
    pairs = [{"allOf": [a, b]} for i, a in enumerate(options) for b in options[i + 1 :]]
    return [none, *pairs]


def _not_dependent(dependent: dict[str, list[str]], _: dict[str, Any]) -> list[Any]:
    return [
        {"type": "object", "required": [name], "properties": {other: False}}
        for name, others in dependent.items()
        for other in others
        if other != name
    ]


_SIMPLE: dict[str, Any] = {
    "minimum": _not_minimum,
    "maximum": _not_maximum,
    "exclusiveMinimum": _not_exclusive_minimum,
    "exclusiveMaximum": _not_exclusive_maximum,
    "minLength": _below("string", "maxLength"),
    "maxLength": _above("string", "minLength"),
    "minItems": _below("array", "maxItems"),
    "maxItems": _above("array", "minItems"),
    "minProperties": _below("object", "maxProperties"),
    "maxProperties": _above("object", "minProperties"),
    "required": _not_required,
    "properties": _not_properties,
    "allOf": lambda options, _: [{"not": option} for option in options],
    "anyOf": lambda options, _: [{"allOf": [{"not": option} for option in options]}],
    "oneOf": _not_one_of,
    "not": lambda value, _: [value],
    "if": _not_if,
    "dependentRequired": _not_dependent,
}
