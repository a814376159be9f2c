"""A conjunction of sub-schemas → cases: conjunctions in which nothing is referred to or branched any more.

In: sub-schemas that an instance must all obey. Out: cases of which it must obey one: each a list of plain assertions,
or a finite list of values. The cases are found by following references and choosing branches; what a branch excludes
(`oneOf`, `if`) is added to it as a `not` that has been moved inwards (`negation.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConstraintError
from . import hurry
from .documents import Sub, referred, subschema
from .finite import values_left
from .negation import REFUSE, REFUSE_REF, TYPES, broken

__all__ = ["Budget", "Case", "cases_of", "types_of"]

Disjoint = Callable[["Sequence[Sub]"], bool]
# Left out where two branches are shown to exclude each other: fewer assertions prove less, never too much.
_LEFT_OUT = frozenset("anyOf oneOf not if allOf $ref unevaluatedProperties unevaluatedItems".split())
_MOST_TOGETHER = 6
_CHOICES = ("anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies")


class Budget:
    """A bound on the work for one schema: an exponential schema is refused, not expanded."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, sub: Sub, steps: int = 1) -> None:
        """Takes some steps.

        Raises:
            ConstraintError: none is left.
        """
        hurry.check()
        self.left -= steps
        if self.left < 0:
            raise ConstraintError(
                f"the schema has too many combinations of branches (at {sub.pointer or 'the root'}); simplify it",
                keyword="anyOf",
                pointer=sub.pointer,
            )


@dataclass
class Case:
    """Plain assertions that hold together.

    Attributes:
        subs: the sub-schemas; only their assertions count, their applicators are done.
        parents: index → indexes of the sub-schemas that pulled it in, in place.
        led: index → indexes of the sub-schemas that led to it in any way, below a `not` too.
        values: the only values that are left, where an `enum` or `const` takes part.
        pending: (index, keyword) of branches that are not chosen yet.
    """

    subs: list[Sub] = field(default_factory=list)
    parents: dict[int, set[int]] = field(default_factory=dict)
    led: dict[int, set[int]] = field(default_factory=dict)
    values: list[Any] | None = None
    pending: list[tuple[int, str]] = field(default_factory=list)

    def copy(self) -> Case:
        """An independent copy."""
        parents, led = ({k: set(v) for k, v in links.items()} for links in (self.parents, self.led))
        return Case(list(self.subs), parents, led, None, list(self.pending))

    def below(self, index: int) -> list[Sub]:
        """The sub-schemas that `index` pulled in, directly or not, itself first."""
        found = {index}
        grew = True
        while grew:
            more = {child for child, parents in self.parents.items() if parents & found} - found
            grew = bool(more)
            found |= more
        return [self.subs[index], *(self.subs[i] for i in sorted(found - {index}))]


def cases_of(subs: Sequence[Sub], budget: Budget, empty: Disjoint, note: Callable[[Sub, str], None]) -> Iterator[Case]:
    """The cases of a conjunction.

    Args:
        subs: what must hold together.
        budget: bounds the work.
        empty: whether a conjunction has provably no instance.
        note: told why a case fell away.

    Raises:
        ConstraintError: a keyword that cannot be enforced, named.
    """
    start = Case()
    if all(_add(start, sub, None, budget, note) for sub in subs):
        yield from _expand(start, budget, empty, note)


def _expand(case: Case, budget: Budget, empty: Disjoint, note: Callable[[Sub, str], None]) -> Iterator[Case]:
    types = types_of(case.subs)
    if not types:
        note(case.subs[-1], "type")
        return
    values = _finite(case)
    if values is not None:
        if not values:
            note(next(s for s in case.subs if "enum" in s.schema or "const" in s.schema), "enum")
            return
        case.values = values
        yield case
        return
    if not case.pending:
        _refuse_marked(case)
        yield case
        return
    index, keyword = case.pending.pop(0)
    # What `not` finds out about an instance does not count as evaluated.
    parent = None if keyword == "not" else index
    for option in _options(case, index, keyword, empty):
        budget.spend(case.subs[index], 1 + len(case.subs) // 4)
        branch = case.copy()
        if all(_add(branch, sub, parent, budget, note, index) for sub in option):
            yield from _expand(branch, budget, empty, note)


def _add(
    case: Case,
    sub: Sub,
    parent: int | None,
    budget: Budget,
    note: Callable[[Sub, str], None],
    origin: int | None = None,
) -> bool:
    """Adds a sub-schema and what it pulls in without a choice; False where nothing can obey it."""
    budget.spend(sub)
    if isinstance(sub.schema, bool):
        if not sub.schema:
            note(sub, "false")
        return bool(sub.schema)
    known = next((i for i, other in enumerate(case.subs) if other.key == sub.key), None)
    if known is not None:
        if origin is not None:
            _refuse_loop(case, known, origin)
            case.led[known].add(origin)
        if parent is not None and parent != known:
            case.parents.setdefault(known, set()).add(parent)
        return True
    index = len(case.subs)
    alone = "$ref" in sub.schema and sub.draft.year < 2019
    case.subs.append(subschema(sub, {"$ref": sub.schema["$ref"]}) if alone and len(sub.schema) > 1 else sub)
    case.parents[index] = set() if parent is None else {parent}
    case.led[index] = set() if origin is None else {origin}
    sub = case.subs[index]
    if not alone:
        case.pending += [(index, keyword) for keyword in _CHOICES if keyword in sub.schema]
    return all(_add(case, pulled, index, budget, note, index) for pulled in _pulled(sub))


def _refuse_loop(case: Case, known: int, origin: int) -> None:
    """Refuses what leads back to itself in the same place: what it says of a value is undefined."""
    led, waiting = {origin}, [origin]
    while waiting:
        more = case.led[waiting.pop()] - led
        led |= more
        waiting += more
    if known in led:
        of, keyword = next(
            (case.subs[i], name)
            for i in (origin, *sorted(led, reverse=True))
            for name in ("$ref", "$dynamicRef", REFUSE_REF)
            if name in case.subs[i].schema
        )
        raise of.error(
            "the schema refers to itself in the same place, without end: whether a value obeys it is undefined",
            "$ref" if keyword == REFUSE_REF else keyword,
        )


def _pulled(sub: Sub) -> Iterator[Sub]:
    if sub.draft.name == "2019-09" and "$recursiveRef" in sub.schema:
        raise sub.error("$recursiveRef depends on the path that led to it, which is not supported", "$recursiveRef")
    for keyword in ("$ref", "$dynamicRef"):
        if isinstance(sub.schema.get(keyword), str):
            yield referred(sub, keyword)
    if REFUSE_REF in sub.schema:
        target = referred(subschema(sub, {"$ref": sub.schema[REFUSE_REF]}), "$ref")
        # "not" of what a reference names, in the place of that name.
        yield subschema(target, {"not": target.schema})
    for position, part in enumerate(sub.schema.get("allOf", ())):
        yield subschema(sub, part, "allOf", position)


def _options(case: Case, index: int, keyword: str, empty: Disjoint) -> Iterator[list[Sub]]:
    sub = case.subs[index]
    value = sub.schema[keyword]
    if keyword == "anyOf":
        yield from _any_of(case, sub, value)
    elif keyword == "oneOf":
        yield from _one_of(case, sub, value, empty)
    elif keyword == "not":
        yield from ([subschema(sub, part)] for part in broken(subschema(sub, value, "not")))
    elif keyword == "if":
        then, other = sub.schema.get("then", True), sub.schema.get("else", True)
        if then is not True or other is not True or _counts_evaluated(case):
            yield [subschema(sub, value, "if"), subschema(sub, then, "then")]
            yield [subschema(sub, {"not": value}), subschema(sub, other, "else")]
        else:
            yield []
    else:
        yield from _dependent(sub, value)


def _any_of(case: Case, sub: Sub, parts: list[Any]) -> Iterator[list[Sub]]:
    """One branch, or, where it counts which keys and items were evaluated, any set of branches."""
    options = [subschema(sub, part, "anyOf", i) for i, part in enumerate(parts)]
    if not _counts_evaluated(case):
        yield from ([option] for option in options)
        return
    if len(options) > _MOST_TOGETHER:
        raise sub.error(f"more than {_MOST_TOGETHER} branches beside 'unevaluated…' are too many to combine", "anyOf")
    for count in range(1, len(options) + 1):
        yield from map(list, itertools.combinations(options, count))


def _counts_evaluated(case: Case) -> bool:
    return any("unevaluatedProperties" in sub.schema or "unevaluatedItems" in sub.schema for sub in case.subs)


def _one_of(case: Case, sub: Sub, parts: list[Any], empty: Disjoint) -> Iterator[list[Sub]]:
    options = [subschema(sub, part, "oneOf", i) for i, part in enumerate(parts)]
    around = [subschema(s, {k: v for k, v in s.schema.items() if k not in _LEFT_OUT}) for s in case.subs]
    for i, option in enumerate(options):
        excluded = [
            subschema(sub, {"not": parts[j]}, "oneOf", j)
            for j, other in enumerate(options)
            if j != i and not empty([*around, option, other])
        ]
        yield [option, *excluded]


def _dependent(sub: Sub, dependent: dict[str, Any]) -> Iterator[list[Sub]]:
    """Every way to obey all entries: each name absent, or present together with what depends on it."""
    ways: list[list[Any]] = [[]]
    for name, need in dependent.items():
        absent = {"properties": {name: False}}
        present: list[Any] = [{"type": "object", "required": [name]}]
        present.append({"required": need} if isinstance(need, list) else need)
        ways = [[*way, *more] for way in ways for more in ([absent], present)]
        if len(ways) > 256:
            raise sub.error("too many dependent properties", "dependentRequired")
    for way in ways:
        yield [subschema(sub, part) for part in way]


def types_of(subs: Sequence[Sub]) -> dict[str, bool]:
    """The types that are left: name → whether only whole numbers are (for `"number"`)."""
    left = dict.fromkeys(TYPES, False)
    for sub in subs:
        given = sub.schema.get("type")
        if given is None or given == "any":
            continue
        names = {given} if isinstance(given, str) else set(given)
        if "integer" in names and "number" not in names and "number" in left:
            left["number"] = True
            names.add("number")
        left = {name: whole for name, whole in left.items() if name in names}
    return left


def _finite(case: Case) -> list[Any] | None:
    """The values that an `enum` or `const` leaves."""
    waiting = {index for index, keyword in case.pending if keyword == "anyOf"}
    branched = [] if _counts_evaluated(case) else [i for i, s in enumerate(case.subs) if "anyOf" in s.schema]
    return values_left(case.subs, [index for index in branched if index not in waiting])


def _refuse_marked(case: Case) -> None:
    for sub in case.subs:
        if REFUSE in sub.schema:
            keyword = sub.schema[REFUSE]
            raise sub.error(f"'not' of {keyword!r} cannot be enforced by a mask", "not")
