"""A state in a notebook: its conversation, with what models wrote highlighted.

In: a state, whose program may still be running. Out: HTML with its styles inline. Waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ir import Op, chain, expand
from .page.markup import Html, el

if TYPE_CHECKING:
    from ..state import State

__all__ = ["conversation"]

_TURN = "display:grid;grid-template-columns:6em 1fr;gap:.9em;padding:.35em 0;border-top:1px solid #8883"
_ROLE = "opacity:.6;text-align:right;font-size:.85em"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere"
_WRITTEN = "background:#e9c46a66;color:inherit;border-radius:3px;padding:0 .1em"
_BAD = "color:#d1495b;padding:.35em 0"


def conversation(state: State) -> str:
    """The text of a state so far, turn by turn; the variable of a value is its tooltip."""
    turns = [
        el("div", el("span", role, style=_ROLE), el("div", *spans, style=_TEXT), style=_TURN)
        for role, spans in _turns(state)
    ]
    error = state.error()
    failed = [] if error is None else [el("div", f"{type(error).__name__}: {error}", style=_BAD)]
    return el("div", *turns, *failed, style="max-width:60em;line-height:1.5")


def _turns(state: State) -> Iterator[tuple[str, list[Html]]]:
    stream = state._stream
    executor = stream.executor
    with executor.changed:
        cells = dict(executor.cells)
    role, spans = "", list[Html]()
    for node in (step for one in chain(stream.tip) for step in expand(one)):
        if node.op in (Op.TURN_BEGIN, Op.TURN_END):
            if any(spans):
                yield role, spans
            role, spans = str(node.payload) if node.op is Op.TURN_BEGIN else "", []
        elif node.op is Op.TEXT:
            spans.append(el("span", node.payload.text))
        elif node.op.generates:
            cell = cells[node]
            text = cell.text() or ("" if cell.done else "…")
            spans.append(el("mark", text, title=f"{node.op.value} {cell.name}", style=_WRITTEN))
    if any(spans):
        yield role, spans
