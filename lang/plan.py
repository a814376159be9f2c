"""What a batch of calls will ask for, before it runs: every call is traced, all traces become one graph.

In: a program, the items of a batch, the backend that would run them (nothing is asked of a model).
Out: a `RequestGraph`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .graph import RequestGraph
from .lower import lower
from .tracer import trace_call

if TYPE_CHECKING:
    from .backend import Backend
    from .program import Program
    from .sampling import SamplingParams
    from .trace import OpenEnd

__all__ = ["plan"]

Item: TypeAlias = "Mapping[str, Any] | tuple[Any, ...]"


def plan(
    program: Program,
    batch: Iterable[Item] | Item,
    backend: Backend | None = None,
    sampling: SamplingParams | Mapping[str, Any] | None = None,
) -> RequestGraph:
    """The graph of a batch; see `Program.plan`.

    Raises:
        TypeError: an item that is neither a dict nor a tuple, or whose arguments the program does not have.
        what a body raises.
    """
    nodes, items, calls = [], [], 0
    opens: list[tuple[int, OpenEnd]] = []
    for number, item in enumerate(_listed(batch)):
        trace = trace_call(program, *_arguments(program, number, item, sampling))
        found = trace.generating
        nodes += found
        items += [number] * len(found)
        opens += [(number, end) for end in trace.opens]
        calls += 1
    graph = lower(nodes, backend, items=items)
    graph.items, graph.opens = calls, opens
    return graph


def _listed(batch: Iterable[Item] | Item) -> Iterable[Item]:
    """The items; a single dict or tuple is a batch of one."""
    return [batch] if isinstance(batch, (Mapping, tuple)) else batch


def _arguments(
    program: Program, number: int, item: object, sampling: SamplingParams | Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an item, by position and by name."""
    if isinstance(item, tuple):
        return item, {"sampling": sampling}
    if isinstance(item, Mapping):
        return (), {"sampling": sampling, **item}
    raise TypeError(
        f"{program.name}.plan: item {number} is a {type(item).__name__}; give a dict of arguments, or a tuple of them"
    )
