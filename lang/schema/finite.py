"""The values that an `enum` or `const` leaves, checked against everything else that is asked.

In: the sub-schemas of a case. Out: the values, each once, or None where none is given. An independent validator checks
them; what it would look through again for every value, another long `enum`, is looked up instead.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from .bounded import start
from .documents import Sub, admits

__all__ = ["values_left"]

_MOST_KEYWORDS = 1_000_000


def values_left(subs: Sequence[Sub], chosen: Collection[int] = ()) -> list[Any] | None:
    """The values of the first `enum` or `const` that obey every sub-schema; None where there is none.

    Args:
        subs: what must hold together.
        chosen: indexes of those of whose `anyOf` a branch is among `subs` already: it need not be asked again.
    """
    givers = [sub for sub in subs if "enum" in sub.schema or "const" in sub.schema]
    if not givers:
        return None
    first = givers[0].schema
    values = [first["const"]] if "const" in first else list(first["enum"])
    checks = [check for index, sub in enumerate(subs) for check in _checks(sub, index in chosen, sub is givers[0])]
    start(_MOST_KEYWORDS)
    kept: dict[str, Any] = {}
    for value in values:
        if all(check(value) for check in checks):
            kept.setdefault(json.dumps(value, sort_keys=True), value)
    return list(kept.values())


def _checks(sub: Sub, chosen: bool, gives: bool) -> list[Callable[[Any], bool]]:
    left_out = {"anyOf"} if chosen else set()
    found: list[Callable[[Any], bool]] = []
    if gives:
        left_out.add("const" if "const" in sub.schema else "enum")
    elif isinstance(sub.schema.get("enum"), list):
        left_out.add("enum")
        known = {_same(value) for value in sub.schema["enum"]}
        found.append(lambda value: _same(value) in known)
    schema = {keyword: value for keyword, value in sub.schema.items() if keyword not in left_out}
    if not _ANNOTATIONS.issuperset(schema):
        rest = dataclasses.replace(sub, schema=schema)
        found.append(lambda value: admits(rest, value, goes_on=True))
    return found


_ANNOTATIONS = frozenset(["$schema", "$comment", "title", "description", "default", "examples", "$defs", "definitions"])


def _same(value: Any) -> str:
    """Equal for values that JSON schema calls equal: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value
