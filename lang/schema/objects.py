"""Objects of a case: keys and their values, from all its sub-schemas together."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..errors import ConstraintError
from .cases import Case
from .documents import Sub, admits, subschema
from .patterns import search, searches
from .regex_ast import ANYTHING, Node, both, negation
from .regex_run import is_empty
from .regex_text import spell_node
from .shapes import NodeId, ObjectShape, Shape

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["object_shapes"]

_MOST_WAYS = 64
_MOST_KEY_SETS = 24
_MOST_KEY_PATTERNS = 24


def object_shapes(case: Case, graph: Graph) -> list[Shape]:
    """The objects that obey every sub-schema of the case.

    Raises:
        ConstraintError: `propertyNames`, `patternProperties` or a number of keys that no mask can enforce.
    """
    low = max((int(sub.get("minProperties", 0)) for sub in case.subs), default=0)
    highs = [int(sub.schema["maxProperties"]) for sub in case.subs if "maxProperties" in sub.schema]
    high = min(highs) if highs else None
    required = {name: sub for sub in case.subs for name in _required(sub)}
    if high is not None and (low > high or len(required) > high):
        graph.note(next(sub for sub in case.subs if "maxProperties" in sub.schema), "maxProperties")
        return []
    rest, patterns, extra = _open_keys(case, graph)
    names = dict.fromkeys([*(name for sub in case.subs for name in sub.get("properties", {})), *extra, *required])
    fields: list[tuple[str, NodeId, bool]] = []
    for name in names:
        value = _value(case, name, extra.get(name, []))
        fields.append((name, graph.node(value), name in required))
    return list(_counted(ObjectShape(tuple(fields), patterns, rest, frozenset(), low, high), case))


def _required(sub: Sub) -> list[str]:
    required = sub.get("required", [])
    return required if isinstance(required, list) else []


def _value(case: Case, name: str, extra: list[Sub]) -> list[Sub]:
    """What the value of a key must obey."""
    found = list(extra)
    for number, sub in enumerate(case.subs):
        found += _own(sub, name)
        if "unevaluatedProperties" in sub.schema and not _evaluated(case, number, name):
            found.append(subschema(sub, sub.schema["unevaluatedProperties"], "unevaluatedProperties"))
        if "propertyNames" in sub.schema and not admits(subschema(sub, sub.schema["propertyNames"]), name):
            found.append(subschema(sub, False, "propertyNames"))
    return found


def _own(sub: Sub, name: str) -> list[Sub]:
    found: list[Sub] = []
    properties = sub.get("properties", {})
    if name in properties:
        found.append(subschema(sub, properties[name], "properties", name))
    for pattern, schema in sub.get("patternProperties", {}).items():
        if _matches(sub, pattern, name):
            found.append(subschema(sub, schema, "patternProperties", pattern))
    if not found and "additionalProperties" in sub.schema:
        found.append(subschema(sub, sub.schema["additionalProperties"], "additionalProperties"))
    return found


def _matches(sub: Sub, pattern: str, name: str) -> bool:
    try:
        return searches(pattern, name)
    except ValueError as error:
        message = f"the key pattern {pattern!r} cannot be enforced: {error}"
        raise sub.error(message, "patternProperties") from error


def _evaluated(case: Case, number: int, name: str | None) -> bool:
    """Whether another keyword speaks for a key (None: for any key that no name or pattern covers)."""
    for position, sub in enumerate(case.below(number)):
        if "additionalProperties" in sub.schema or (position and "unevaluatedProperties" in sub.schema):
            return True
        if name is None:
            continue
        if name in sub.get("properties", {}):
            return True
        if any(_matches(sub, pattern, name) for pattern in sub.get("patternProperties", {})):
            return True
    return False


def _open_keys(case: Case, graph: Graph) -> tuple[NodeId | None, tuple[tuple[str, NodeId], ...], dict[str, list[Sub]]]:
    """What keys may be written that no `properties` names: (node of the rest, patterns, further names)."""
    rest = _rest(case, ())
    closed = any(sub.schema is False for sub in rest)
    patterns = list(dict.fromkeys(p for sub in case.subs for p in sub.get("patternProperties", {})))
    asking = [sub for sub in case.subs if "propertyNames" in sub.schema]
    if asking:
        return _named(asking, rest, patterns, closed, graph)
    if graph.strict and _is_silent(case):
        closed = True
    return None if closed else graph.node(rest), _apart(case, patterns, graph), {}


def _apart(case: Case, patterns: list[str], graph: Graph) -> tuple[tuple[str, NodeId], ...]:
    """The patterns cut so that no key is in two: one for each set of patterns that a key can match together."""
    asked = {pattern: _pattern_node(case, pattern) for pattern in patterns}
    nodes = {pattern: node for pattern, node in asked.items() if node is not None}
    if len(nodes) > _MOST_KEY_PATTERNS:
        raise _overlapping(case)
    apart = {(p, q) for p, q in itertools.combinations(nodes, 2) if is_empty(both(nodes[p], nodes[q]))}
    meeting = {p: [q for q in nodes if q != p and (p, q) not in apart and (q, p) not in apart] for p in nodes}
    found: list[tuple[str, NodeId]] = []
    waiting: list[tuple[str, ...]] = [(pattern,) for pattern in nodes]
    order = list(nodes)
    while waiting:
        chosen = waiting.pop()
        others = [negation(nodes[q]) for q in meeting[chosen[0]] if q not in chosen]
        keys = both(*(nodes[p] for p in chosen), *others)
        if not meeting[chosen[0]] or not is_empty(keys):
            found.append((spell_node(keys), graph.node(_rest(case, chosen))))
        further = [q for q in order[order.index(chosen[-1]) + 1 :] if all(q in meeting[p] for p in chosen)]
        waiting += [(*chosen, q) for q in further]
        if len(found) + len(waiting) > _MOST_KEY_SETS:
            raise _overlapping(case)
    return tuple(found)


def _overlapping(case: Case) -> ConstraintError:
    sub = next(sub for sub in case.subs if "patternProperties" in sub.schema)
    return sub.error("so many overlapping key patterns cannot be enforced together", "patternProperties")


def _is_silent(case: Case) -> bool:
    """Whether named properties are all that the case says about keys."""
    said = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")
    return any("properties" in sub.schema for sub in case.subs) and not any(
        k in s.schema for s in case.subs for k in said
    )


def _rest(case: Case, matched: Collection[str]) -> list[Sub]:
    """What the value of a key must obey that no name covers, but exactly these patterns match."""
    found: list[Sub] = []
    for number, sub in enumerate(case.subs):
        own = [pattern for pattern in sub.get("patternProperties", {}) if pattern in matched]
        for pattern in own:
            found.append(subschema(sub, sub.schema["patternProperties"][pattern], "patternProperties", pattern))
        if not own and "additionalProperties" in sub.schema:
            found.append(subschema(sub, sub.schema["additionalProperties"], "additionalProperties"))
        if "unevaluatedProperties" in sub.schema and not _covered(case, number, matched):
            found.append(subschema(sub, sub.schema["unevaluatedProperties"], "unevaluatedProperties"))
    return found


def _covered(case: Case, number: int, matched: Collection[str]) -> bool:
    if any(pattern in sub.get("patternProperties", {}) for sub in case.below(number) for pattern in matched):
        return True
    return _evaluated(case, number, None)


def _pattern_node(case: Case, pattern: str) -> Node | None:
    sub = next(sub for sub in case.subs if pattern in sub.get("patternProperties", {}))
    try:
        return search(pattern)
    except ValueError as error:
        message = f"the key pattern {pattern!r} cannot be enforced: {error}"
        raise sub.error(message, "patternProperties") from error


def _named(
    asking: list[Sub], rest: list[Sub], patterns: list[str], closed: bool, graph: Graph
) -> tuple[NodeId | None, tuple[tuple[str, NodeId], ...], dict[str, list[Sub]]]:
    """Keys under `propertyNames`: a few known names, or one pattern."""
    if closed and not patterns:
        return None, (), {}
    names = [subschema(sub, sub.schema["propertyNames"], "propertyNames") for sub in asking]
    node = graph.node([*names, subschema(asking[0], {"type": "string"})])
    known = graph.values(node)
    if known is not None:
        # As fields of their own: `_value` gives each what properties, patterns and the rest say.
        return None, (), {name: [] for name in known}
    if patterns:
        raise asking[0].error(
            "'propertyNames' beside 'patternProperties' cannot be enforced by a mask", "propertyNames"
        )
    keys = graph.one_pattern(node)
    if keys is None:
        raise asking[0].error("this 'propertyNames' cannot be enforced by a mask; use one pattern", "propertyNames")
    if keys == ANYTHING:
        return graph.node(rest), (), {}
    return None, ((spell_node(keys), graph.node(rest)),), {}


def _counted(shape: ObjectShape, case: Case) -> list[Shape]:
    """The shape with its number of keys enforced, as alternatives where optional fields count."""
    needed = sum(required for _, _, required in shape.fields)
    optional = [name for name, _, required in shape.fields if not required]
    low, high = max(0, shape.low - needed), None if shape.high is None else shape.high - needed
    is_open = shape.rest is not None or bool(shape.patterns)
    if low == 0 and (high is None or (not is_open and len(optional) <= high)):
        return [_with(shape, low=0, high=None)]
    if low > 1 and is_open:
        # Two open keys may be equal, and then count as one.
        raise _counting(case, "minProperties")
    most = len(optional) if high is None else min(high, len(optional))
    ways: list[Shape] = []
    for count in range(most + 1):
        for chosen in itertools.combinations(optional, count):
            ways += _way(shape, chosen, optional, low - count, None if high is None else high - count, is_open)
            if len(ways) > _MOST_WAYS:
                raise _counting(case, "minProperties" if low else "maxProperties")
        if high is None and count >= low:
            break
    return ways


def _way(
    shape: ObjectShape, chosen: tuple[str, ...], optional: list[str], low: int, high: int | None, is_open: bool
) -> list[Shape]:
    if low > 0 and not is_open:
        return []
    # With enough fields present the others are free, unless there may be too many.
    free = high is None and low <= 0
    others = frozenset() if free else frozenset(optional) - set(chosen)
    fields = tuple((n, node, r or n in chosen) for n, node, r in shape.fields if n not in others)
    needed = sum(r for _, _, r in fields)
    least = needed + max(0, low)
    return [
        ObjectShape(
            fields, shape.patterns, shape.rest, others, least if low > 0 else 0, None if high is None else needed + high
        )
    ]


def _with(shape: ObjectShape, *, low: int, high: int | None) -> ObjectShape:
    return ObjectShape(shape.fields, shape.patterns, shape.rest, shape.absent, low, high)


def _counting(case: Case, keyword: str) -> Any:
    sub = next((sub for sub in case.subs if keyword in sub.schema), case.subs[0])
    return sub.error(f"this {keyword!r} cannot be enforced by a mask: too many optional keys to count", keyword)
