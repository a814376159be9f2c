"""Arrays of a case: what all its sub-schemas together say of items, lengths, `contains` and `uniqueItems`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .cases import Case
from .documents import Sub, subschema
from .shapes import ArrayShape, Scalar, Shape

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["array_shapes"]

_MOST_PLACES = 8
_MOST_LISTS = 512


def array_shapes(case: Case, graph: Graph) -> list[Shape]:
    """The arrays that obey every sub-schema of the case.

    Raises:
        ConstraintError: `contains` or `uniqueItems` where no mask can keep count.
    """
    low = max((int(sub.get("minItems", 0)) for sub in case.subs), default=0)
    highs = [int(sub.schema["maxItems"]) for sub in case.subs if "maxItems" in sub.schema]
    high = min(highs) if highs else None
    if high is not None and low > high:
        graph.note(next(sub for sub in case.subs if "minItems" in sub.schema), "minItems")
        return []
    places = max((len(_prefix(sub)) for sub in case.subs), default=0)
    if high is not None:
        places = min(places, high)
    prefix = [_at(case, index) for index in range(places)]
    rest = _at(case, places)
    shapes: list[Shape] = []
    for found, least in _containing(case, prefix, rest, low, high):
        shape = ArrayShape(tuple(map(graph.node, found)), graph.node(rest), least, high)
        shapes += _unique(case, shape, graph)
    return shapes


def _prefix(sub: Sub) -> list[Any]:
    items = sub.get("items")
    if isinstance(items, list):
        return items
    prefix = sub.get("prefixItems", []) if sub.draft.year == 2020 else []
    return prefix if isinstance(prefix, list) else []


def _rest_keyword(sub: Sub) -> str:
    return "additionalItems" if isinstance(sub.get("items"), list) else "items"


def _at(case: Case, index: int) -> list[Sub]:
    """What an item at this place must obey."""
    found: list[Sub] = []
    for number, sub in enumerate(case.subs):
        prefix, keyword = _prefix(sub), _rest_keyword(sub)
        if index < len(prefix):
            found.append(subschema(sub, prefix[index], "prefixItems" if keyword == "items" else "items", index))
        elif keyword in sub.schema:
            found.append(subschema(sub, sub.schema[keyword], keyword))
        if "unevaluatedItems" in sub.schema and not _evaluated(case, number, index):
            found.append(subschema(sub, sub.schema["unevaluatedItems"], "unevaluatedItems"))
    return found


def _evaluated(case: Case, number: int, index: int) -> bool:
    for position, sub in enumerate(case.below(number)):
        if "contains" in sub.schema and sub.draft.year == 2020:
            raise sub.error("'contains' beside 'unevaluatedItems' cannot be enforced by a mask", "unevaluatedItems")
        if index < len(_prefix(sub)) or _rest_keyword(sub) in sub.schema:
            return True
        if position and "unevaluatedItems" in sub.schema:
            return True
    return False


def _containing(
    case: Case, prefix: list[list[Sub]], rest: list[Sub], low: int, high: int | None
) -> Iterator[tuple[list[list[Sub]], int]]:
    """The prefixes, with a least length, that put what `contains` asks for at each possible place."""
    wanted = [sub for sub in case.subs if "contains" in sub.schema and sub.draft.year != 4]
    wanted = [sub for sub in wanted if sub.get("minContains", 1) > 0 or "maxContains" in sub.schema]
    if not wanted:
        yield prefix, low
        return
    sub = wanted[0]
    if len(wanted) > 1 or sub.get("minContains", 1) != 1 or "maxContains" in sub.schema:
        raise sub.error("more than one counted 'contains' cannot be enforced by a mask", "contains")
    if high is None or high > _MOST_PLACES:
        message = f"'contains' needs maxItems of at most {_MOST_PLACES} to be enforced by a mask"
        raise sub.error(message, "contains")
    needed = subschema(sub, sub.schema["contains"], "contains")
    for index in range(high):
        places = [*prefix, *([rest] * (index + 1 - len(prefix)))]
        places[index] = [*places[index], needed]
        yield places, max(low, index + 1)


def _unique(case: Case, shape: ArrayShape, graph: Graph) -> list[Shape]:
    asking = [sub for sub in case.subs if sub.get("uniqueItems") is True]
    if not asking or (shape.high is not None and shape.high <= 1):
        return [shape]
    lists = _all_lists(shape, graph)
    if lists is None:
        message = "'uniqueItems' cannot be enforced by a mask, except for few items out of few values"
        raise asking[0].error(message, "uniqueItems")
    return [Scalar({"enum": lists})] if lists else []


def _all_lists(shape: ArrayShape, graph: Graph) -> list[Any] | None:
    """Every array of different items, where the items are a few known values."""
    if shape.prefix or shape.rest is None:
        return None
    values = graph.values(shape.rest)
    if values is None:
        return None
    most = len(values) if shape.high is None else min(shape.high, len(values))
    if sum(math.perm(len(values), count) for count in range(shape.low, most + 1)) > _MOST_LISTS:
        return None
    return [list(p) for count in range(shape.low, most + 1) for p in itertools.permutations(values, count)]
