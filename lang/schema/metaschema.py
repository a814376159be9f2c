"""Whether a schema obeys the metaschema of its draft, without running a validator over it.

In: a parsed schema and the year of a draft. Out: yes or no, as the metaschemas of drafts 4 to 2020-12 say (formats are
annotations there). A validator says the same and says why, and takes a hundred times as long, so it is asked only for
the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["obeys_metaschema"]

_TYPES = frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])
_NAMES_2020 = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\n?")
_NAMES_2019 = re.compile(r"[A-Za-z][-A-Za-z0-9.:_]*\n?")
_NO_FRAGMENT = re.compile(r"[^#]*#?\n?")


def obeys_metaschema(schema: Any, year: int) -> bool:
    """Whether the schema obeys the metaschema of draft 4, 6, 7, 2019 or 2020."""
    table = _TABLES[year]
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, bool) and year > 4:
            continue
        if not isinstance(one, dict):
            return False
        for keyword, value in one.items():
            kind = table.get(keyword)
            if kind is None:
                continue
            if kind in _NESTED:
                inner = _NESTED[kind](value)
                if inner is None:
                    return False
                waiting += inner
            elif not _SIMPLE[kind](value):
                return False
        if year == 4 and not _bounds_are_there(one):
            return False
    return True


def _bounds_are_there(schema: Mapping[str, Any]) -> bool:
    wanting = ("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")
    return all(needed in schema for keyword, needed in wanting if keyword in schema)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _number(value) and value >= 0 and value == value // 1


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


def _type(value: Any) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return _strings(value) and bool(value) and _TYPES.issuperset(value)


def _values(value: Any) -> bool:
    """A list of different values, at least one."""
    if not isinstance(value, list):
        return False
    same = (int(one) if isinstance(one, float) and one.is_integer() else one for one in value)
    return 0 < len(value) == len({json.dumps(one, sort_keys=True) for one in same})


def _named(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _all_in(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(check, value.values()))


_SIMPLE: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "flag": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "number": _number,
    "step": lambda value: _number(value) and value > 0,
    "count": _count,
    "count 4": lambda value: _count(value) and isinstance(value, int),
    "type": _type,
    "names": _strings,
    "names 4": lambda value: _strings(value) and bool(value),
    "values": _values,
    "id": _named(_NO_FRAGMENT),
    "anchor": _named(_NAMES_2020),
    "anchor 2019": _named(_NAMES_2019),
    "flags": lambda value: _all_in(value, lambda flag: isinstance(flag, bool)),
    "dependent": lambda value: _all_in(value, _strings),
}


def _some(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) and value else None


def _by_name(value: Any) -> list[Any] | None:
    return list(value.values()) if isinstance(value, dict) else None


def _dependencies(names: str) -> Callable[[Any], list[Any] | None]:
    def found(value: Any) -> list[Any] | None:
        inner = _by_name(value)
        if inner is None or not all(_SIMPLE[names](one) for one in inner if isinstance(one, list)):
            return None
        return [one for one in inner if not isinstance(one, list)]

    return found


_NESTED: dict[str, Callable[[Any], list[Any] | None]] = {
    "schema": lambda value: [value],
    "schemas": _some,
    "by name": _by_name,
    "items": lambda value: _some(value) if isinstance(value, list) else [value],
    "rest 4": lambda value: [] if isinstance(value, bool) else [value],
    "dependencies": _dependencies("names"),
    "dependencies 4": _dependencies("names 4"),
}
"""What a keyword has schemas in → these, or None where it is not made so."""


def _kinds(text: str) -> dict[str, str]:
    """Lines of `kind: keyword keyword …` as keyword → kind."""
    pairs = (line.split(":") for line in text.strip().splitlines())
    return {keyword: kind.strip() for kind, keywords in pairs for keyword in keywords.split()}


_4 = _kinds("""
    text: id $schema title description pattern format
    step: multipleOf
    number: maximum minimum
    flag: exclusiveMaximum exclusiveMinimum uniqueItems
    count 4: maxLength minLength maxItems minItems maxProperties minProperties
    rest 4: additionalItems additionalProperties
    items: items
    names 4: required
    by name: definitions properties patternProperties
    dependencies 4: dependencies
    values: enum
    type: type
    schemas: allOf anyOf oneOf
    schema: not
""")
_6 = {keyword: kind for keyword, kind in _4.items() if keyword != "id"} | _kinds("""
    text: $id $ref
    number: exclusiveMaximum exclusiveMinimum
    count: maxLength minLength maxItems minItems maxProperties minProperties
    list: examples enum
    schema: additionalItems additionalProperties contains propertyNames
    names: required
    dependencies: dependencies
""")
_7 = _6 | _kinds("""
    text: $comment contentMediaType contentEncoding
    flag: readOnly
    schema: if then else
""")
_2019 = _7 | _kinds("""
    text: $recursiveRef
    id: $id
    anchor 2019: $anchor
    flag: $recursiveAnchor deprecated writeOnly
    flags: $vocabulary
    count: maxContains minContains
    schema: unevaluatedItems unevaluatedProperties contentSchema
    by name: $defs dependentSchemas
    dependent: dependentRequired
""")
_2020 = {keyword: kind for keyword, kind in _2019.items() if keyword != "additionalItems"} | _kinds("""
    text: $dynamicRef
    anchor: $anchor $dynamicAnchor $recursiveAnchor
    schemas: prefixItems
    schema: items
""")
_TABLES = {4: _4, 6: _6, 7: _7, 2019: _2019, 2020: _2020}
