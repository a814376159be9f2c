"""Arrays of a case: what all its sub-schemas together say of items, lengths, `contains` and `uniqueItems`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .cases import Case
from .documents import Sub, subschema
from .shapes import ArrayShape, NodeId, Scalar, Shape

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["array_shapes"]

MOST_VALUES = 60
_MOST_STATES = 512
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
    wanted = [sub for sub in case.subs if "contains" in sub.schema and sub.draft.year != 4]
    wanted = [sub for sub in wanted if sub.get("minContains", 1) > 0 or "maxContains" in sub.schema]
    asking = [sub for sub in case.subs if sub.get("uniqueItems") is True]
    if wanted and asking and (high is None or high > 1):
        raise wanted[0].error("'contains' beside 'uniqueItems' cannot be enforced by a mask", "contains")
    if wanted:
        return [_Counting(case, wanted, prefix, rest, low, high).shape(graph)]
    return _unique(asking, ArrayShape(tuple(map(graph.node, prefix)), graph.node(rest), low, high), graph)


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
            found.append(_unevaluated(case, number))
    return found


def _unevaluated(case: Case, number: int) -> Sub:
    """What an item must be that no keyword looked at, or that `contains` found (2020-12)."""
    sub = case.subs[number]
    left = sub.schema["unevaluatedItems"]
    found = [other for other in case.below(number) if "contains" in other.schema and other.draft.year == 2020]
    if any(other.resolver is not sub.resolver for other in found):
        raise sub.error(
            "'contains' of another document beside 'unevaluatedItems' cannot be enforced", "unevaluatedItems"
        )
    if not found:
        return subschema(sub, left, "unevaluatedItems")
    return subschema(sub, {"anyOf": [left, *(other.schema["contains"] for other in found)]}, "unevaluatedItems")


def _evaluated(case: Case, number: int, index: int) -> bool:
    for position, sub in enumerate(case.below(number)):
        if index < len(_prefix(sub)) or _rest_keyword(sub) in sub.schema:
            return True
        if position and "unevaluatedItems" in sub.schema:
            return True
    return False


class _Counting:
    """Arrays under `contains`, as an automaton that counts places and what was found."""

    def __init__(
        self, case: Case, wanted: list[Sub], prefix: list[list[Sub]], rest: list[Sub], low: int, high: int | None
    ) -> None:
        self._case = case
        self._wanted = wanted
        self._prefix = prefix
        self._rest = rest
        self._low = low
        self._high = high
        self._least = [int(sub.get("minContains", 1)) for sub in wanted]
        self._most = [int(sub.schema["maxContains"]) if "maxContains" in sub.schema else None for sub in wanted]
        self._places = max(len(prefix), low) if high is None else high

    def shape(self, graph: Graph) -> ArrayShape:
        """The automaton, its states numbered from the first on."""
        start = (0, (0,) * len(self._wanted))
        numbers = {start: 0}
        states: list[tuple[tuple[NodeId, int], ...]] = []
        waiting = [start]
        while waiting:
            state = waiting.pop(0)
            ways: list[tuple[NodeId, int]] = []
            for item, target in self._ways(state):
                if target not in numbers:
                    numbers[target] = len(numbers)
                    waiting.append(target)
                ways.append((graph.node(item), numbers[target]))
            states.append(tuple(ways))
            if len(numbers) > _MOST_STATES:
                raise self._wanted[0].error("this 'contains' has too many items to count for a mask", "contains")
        ends = frozenset(number for (place, counts), number in numbers.items() if self._may_end(place, counts))
        return ArrayShape((), None, 0, None, tuple(states), ends)

    def _may_end(self, place: int, counts: tuple[int, ...]) -> bool:
        return place >= self._low and all(count >= least for count, least in zip(counts, self._least))

    def _ways(self, state: tuple[int, tuple[int, ...]]) -> Iterator[tuple[list[Sub], tuple[int, tuple[int, ...]]]]:
        place, counts = state
        if self._high is not None and place >= self._high:
            return
        item = self._prefix[place] if place < len(self._prefix) else self._rest
        options = [self._options(number, count) for number, count in enumerate(counts)]
        for chosen in itertools.product(*options):
            more = [sub for subs, _ in chosen for sub in subs]
            target = (min(place + 1, self._places), tuple(count for _, count in chosen))
            yield [*item, *more], target

    def _options(self, number: int, count: int) -> list[tuple[list[Sub], int]]:
        """What the next item may be to one `contains`: (what it must obey, the count after it)."""
        sub, least, most = self._wanted[number], self._least[number], self._most[number]
        needed = subschema(sub, sub.schema["contains"], "contains")
        if most is None:  # an item that counts may as well be left uncounted
            return [([], count), ([needed], count + 1)] if count < least else [([], count)]
        other = subschema(sub, {"not": sub.schema["contains"]}, "contains")
        return [([other], count), *([([needed], count + 1)] if count < most else [])]


def _unique(asking: list[Sub], shape: ArrayShape, graph: Graph) -> list[Shape]:
    if not asking or (shape.high is not None and shape.high <= 1):
        return [shape]
    values = None if shape.prefix or shape.rest is None else graph.values(shape.rest)
    if values is not None and len(values) <= MOST_VALUES:
        most = len(values) if shape.high is None else min(shape.high, len(values))
        return [dataclasses.replace(shape, high=most, unique=True)] if shape.low <= most else []
    lists = _all_lists(shape, graph)
    if lists is None:
        message = "'uniqueItems' cannot be enforced by a mask, except for items out of a few known values"
        raise asking[0].error(message, "uniqueItems")
    return [Scalar({"enum": lists})] if lists else []


def _all_lists(shape: ArrayShape, graph: Graph) -> list[Any] | None:
    """Every array of different items, where each place has a few known values and no place is beyond them."""
    if shape.high != len(shape.prefix) and shape.rest is not None and graph.expand(shape.rest):
        return None
    places = [graph.values(node) for node in shape.prefix]
    if any(values is None for values in places):
        return None
    known = [values for values in places if values is not None]
    if math.prod(len(values) + 1 for values in known) > _MOST_LISTS:
        return None
    return [
        list(items)
        for count in range(shape.low, len(known) + 1)
        for items in itertools.product(*known[:count])
        if len({json.dumps(item, sort_keys=True) for item in items}) == count
    ]
