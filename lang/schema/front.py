"""JSON schema → normal form: what is enforced, exactly, and nothing else.

In: JSON text of a schema of any draft from 4 to 2020-12. Out: JSON text of an equivalent schema of few keywords
(`emission.py`), or a `ConstraintError` that names the keyword and the place of what no mask enforces.

    documents.py  metaschema, drafts, references      scalars.py, arrays.py, objects.py  a case → shapes
    cases.py      branches and references → cases     graph.py     every node once, recursion as cycles
    negation.py   `not` moved inwards                 pruning.py   impossible parts taken out
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from ..errors import ConstraintError
from . import apart
from .documents import root_sub
from .emission import emitted
from .graph import Graph
from .pruning import pruned

__all__ = ["normal_form", "relaxed_form"]

_MOST_CHARACTERS = 4_000_000
_LARGE = 8_000  # characters that are not read in a few milliseconds; much of a schema is prose


def normal_form(
    source: str, *, documents: Mapping[str, Any] | None = None, strict: bool = False, any_order: bool = False
) -> str:
    """The schema in normal form, as JSON text.

    Raises:
        ConstraintError: not a schema, without any instance, or beyond what a mask enforces.
    """
    if len(source) > _MOST_CHARACTERS:
        raise ConstraintError(f"the schema has {len(source)} characters; at most {_MOST_CHARACTERS}", keyword="schema")
    try:
        if documents:
            size = len(source) + sum(len(json.dumps(document)) for document in documents.values())
            return apart.run(_normal_form, size, source, dict(documents), strict, any_order, large=_LARGE)
        return _cached(source, strict, any_order)
    except RecursionError as error:
        raise ConstraintError("the schema is nested too deeply", keyword="schema") from error


def relaxed_form(
    source: str, *, documents: Mapping[str, Any] | None = None, strict: bool = False, any_order: bool = False
) -> str:
    """The normal form of what a mask can enforce of a schema: what it cannot is left out, which allows more.

    Raises:
        ConstraintError: not a schema, without any instance, or beyond what leaving out a keyword helps.
    """
    schema = json.loads(source)
    for _ in range(_MOST_LEFT_OUT):
        try:
            return normal_form(json.dumps(schema), documents=documents, strict=strict, any_order=any_order)
        except ConstraintError as error:
            if error.keyword not in _MAY_BE_LEFT_OUT or str(error).startswith("no value obeys"):
                raise
            if not _leave_out(schema, str(error.pointer or "").lstrip("#")):
                raise
    return normal_form(json.dumps(schema), documents=documents, strict=strict, any_order=any_order)


_MOST_LEFT_OUT = 64
_MAY_BE_LEFT_OUT = frozenset(
    "not oneOf anyOf if uniqueItems contains multipleOf patternProperties propertyNames format pattern minProperties "
    "maxProperties unevaluatedItems unevaluatedProperties contentMediaType dependentSchemas dependentRequired "
    "minimum maximum exclusiveMinimum exclusiveMaximum $dynamicRef $recursiveRef".split()
)
# Below these a smaller assertion is not a wider schema, so they are left out as a whole.
_NOT_MONOTONE = frozenset(["not", "oneOf", "if", "contains", "dependentSchemas", "propertyNames"])


def _leave_out(schema: Any, pointer: str) -> bool:
    """Takes the keyword at a pointer out of a schema, or what holds it and must go with it; False: it is not there."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    here = schema
    for index, step in enumerate(steps):
        last = index == len(steps) - 1
        if isinstance(here, dict) and step in here and (last or step in _NOT_MONOTONE):
            del here[step]
            return True
        if isinstance(here, dict) and step in here:
            here = here[step]
        elif isinstance(here, list) and step.isdigit() and int(step) < len(here):
            here = here[int(step)]
        else:
            return False
    return False


@functools.lru_cache(maxsize=256)
def _cached(source: str, strict: bool, any_order: bool) -> str:
    return apart.run(_normal_form, len(source), source, None, strict, any_order, large=_LARGE)


def _normal_form(source: str, documents: Mapping[str, Any] | None, strict: bool, any_order: bool) -> str:
    graph = Graph(strict)
    root = graph.node([root_sub(source, documents)])
    graph.explore(root)
    shapes = pruned(graph.shapes)
    if not shapes[root]:
        _refuse_impossible(graph)
    return json.dumps(emitted(shapes, root, any_order))


def _refuse_impossible(graph: Graph) -> None:
    if graph.reason is None:
        raise ConstraintError("the schema has no finite instance: its recursion never ends", keyword="$ref", pointer="")
    sub, keyword = graph.reason
    raise sub.error(f"no value obeys the schema: {keyword!r} contradicts what else is asked", keyword)
