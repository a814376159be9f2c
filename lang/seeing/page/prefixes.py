"""The tree of prefixes, drawn to scale: as wide as it has tokens, as high as requests share it.

In: `Costs`. Out: a section of the page. What lies to the left stands before what lies to the right of it; two boxes
under each other are two ways in which the text goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...shown import counted
from ..model import Costs, Stretch
from .markup import Html, el, style

__all__ = ["prefixes"]

_MOST_ROWS = 300
_AGAIN = 1.05
"""Stretches of which each token was computed so often, or more, were computed again."""


_KEYS = {
    "plain": "prompt",
    "once": "prompt, computed once",
    "held": "prompt, in the cache before",
    "again": "prompt, computed again",
    "wrote": "generated",
}


def prefixes(costs: Costs) -> Html:
    """The section."""
    if len(costs.stretches) < 2:
        why = "Not known: the programs ran on several backends, or their prompts have no token ids."
        return el("section", el("h2", "Shared prefixes"), el("p", why), id="prefixes")
    stretches, unit = costs.stretches, costs.stretch_unit
    distinct = sum(one.length for one in stretches if not one.written)
    total = sum(one.length * len(one.calls) for one in stretches if not one.written)
    about = (
        f"{counted(costs.sharing_of, 'request')} with {total:,} prompt {unit}, {distinct:,} of them distinct. Text "
        f"runs from left to right. A box is as wide as it has {unit}, and as high as the boxes behind it: a tall "
        "one was shared."
    )
    drawing = _Drawing(stretches, unit)
    kinds = {_kind(one) for one in stretches[1:]}
    legend = [
        el("li", el("i", class_=f"key {kind}"), el("span", text)) for kind, text in _KEYS.items() if kind in kinds
    ]
    boxes = el(
        "div",
        *drawing.boxes(),
        id="tree",
        class_="tree",
        role="tree",
        aria_label="Prefix tree; arrow keys move",
        style=f"height:{drawing.height}px",
    )
    cut = el("p", f"… {drawing.left_out:,} more rows are not drawn", class_="more") if drawing.left_out else ""
    return el(
        "section",
        el("h2", "Shared prefixes"),
        el("p", about, class_="about"),
        el("ul", *legend, class_="legend"),
        el("div", boxes, class_="scroll"),
        cut,
        el("output", "Point at a box, or move with the arrow keys.", id="stretch", class_="panel"),
        id="prefixes",
    )


class _Drawing:
    """Where each box is.

    Attributes:
        height: of the whole, in pixels.
        left_out: rows that have no place.
    """

    def __init__(self, stretches: Sequence[Stretch], unit: str) -> None:
        self._stretches = stretches
        self._unit = unit
        self._rows = [0] * len(stretches)
        self._top = [0] * len(stretches)
        for at in range(len(stretches) - 1, -1, -1):
            self._rows[at] = sum(self._rows[child] for child in stretches[at].children) or 1
        self._level = [0] * len(stretches)
        for at, one in enumerate(stretches):
            top = self._top[at]
            for child in one.children:
                self._top[child], self._level[child] = top, self._level[at] + 1
                top += self._rows[child]
        rows = self._rows[0]
        self._row = 26 if rows <= 16 else 18 if rows <= 40 else 9 if rows <= 100 else 5
        self.left_out = max(0, rows - _MOST_ROWS)
        self.height = min(rows, _MOST_ROWS) * self._row
        self._width = max(one.begin + one.length for one in stretches)

    def boxes(self) -> list[Html]:
        """Every box that has a place, parents first."""
        return [self._box(at) for at in range(1, len(self._stretches)) if self._top[at] < _MOST_ROWS]

    def _box(self, at: int) -> Html:
        one = self._stretches[at]
        rows = min(self._rows[at], _MOST_ROWS - self._top[at])
        shown = one.text if one.text.strip() else repr(one.text)
        where = style(
            left=100 * one.begin / self._width,
            width=100 * one.length / self._width,
            top=f"{self._top[at] * self._row}px",
            height=f"{rows * self._row}px",
        )
        count = f"×{len(one.calls)}" if len(one.calls) > 1 else ""
        label = el("span", el("b", count), " ", " ".join(shown.split())[:240]) if self._row >= 18 or rows > 3 else ""
        return el(
            "button",
            label,
            type="button",
            class_=f"box {_kind(one)}",
            style=where,
            role="treeitem",
            tabindex=0 if at == 1 else -1,
            data_at=at,
            data_up=one.parent,
            data_first=one.children[0] if one.children else None,
            data_text=one.text,
            data_facts=self._facts(one),
            aria_level=self._level[at],
            data_calls=" ".join(map(str, one.calls[:40])),
            aria_label=f"{one.length} {self._unit}, {len(one.calls)} requests: {shown[:80]}",
        )

    def _facts(self, one: Stretch) -> str:
        shared = f"shared by {len(one.calls):,} requests" if len(one.calls) > 1 else "of one request"
        span = f"{one.length:,} {self._unit} ({one.begin:,}–{one.begin + one.length:,}), {shared}"
        return f"{span}; {_cost(one)}"


def _kind(one: Stretch) -> str:
    if one.written:
        return "wrote"
    if one.computed is None:
        return "plain"
    if one.computed == 0:
        return "held"
    return "again" if one.computed > _AGAIN * one.length else "once"


def _cost(one: Stretch) -> str:
    if one.computed is None:
        return "generated" if one.written else "the backend does not say how often it was computed"
    times = one.computed / one.length
    if one.written:
        return "generated" + (f", and computed {times:.1f} times as a prompt" if one.computed else "")
    if one.computed == 0:
        return "was in the cache"
    if one.computed == one.length:
        return "computed once"
    return f"computed {times:.2g} times, {one.computed:,} tokens"
