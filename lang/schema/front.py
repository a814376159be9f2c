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
from .documents import root_sub
from .emission import emitted
from .graph import Graph
from .pruning import pruned

__all__ = ["normal_form"]

_MOST_CHARACTERS = 4_000_000


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
            return _normal_form(source, documents, strict, any_order)
        return _cached(source, strict, any_order)
    except RecursionError as error:
        raise ConstraintError("the schema is nested too deeply", keyword="schema") from error


@functools.lru_cache(maxsize=256)
def _cached(source: str, strict: bool, any_order: bool) -> str:
    return _normal_form(source, None, strict, any_order)


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
