"""When each value waited, prefilled and decoded: a row per value on one time axis.

In: `Costs`. Out: a section of the page.
"""

from __future__ import annotations

from ..model import Costs, NodeCost
from ..text import seconds
from .markup import Html, el, style

__all__ = ["timeline"]

_MOST_ROWS = 400
_TICKS = 6
_LAST_LABEL = 0.88  # where a label still has room to its right


def timeline(costs: Costs) -> Html:
    """The section."""
    nodes = sorted(costs.nodes, key=lambda node: (node.program, node.recorded_s, node.number))
    shown = nodes[:_MOST_ROWS]
    whole = costs.wall_s or 1e-9
    keys = [
        ("values", "waits for values before it"),
        ("queue", "waits for its turn"),
        ("prefill", "prefill, or scoring of choices"),
        ("decode", "decode"),
    ]
    legend = [el("li", el("i", class_=f"key {name}"), el("span", text)) for name, text in keys]
    left = len(nodes) - len(shown)
    return el(
        "section",
        el("h2", "Timeline"),
        el("ul", *legend, class_="legend"),
        el("div", _axis(whole), *(_row(costs, node, whole) for node in shown), class_="time"),
        el("p", f"… and {left:,} more values", class_="more") if left else "",
        id="timeline",
    )


def _axis(whole: float) -> Html:
    step = _nice(whole / _TICKS)
    marks = [at * step for at in range(int(whole / step) + 1)]
    labels = [seconds(mark) if mark and mark / whole <= _LAST_LABEL else "" if mark else "0" for mark in marks]
    ticks = [el("span", label, style=style(left=100 * mark / whole)) for label, mark in zip(labels, marks)]
    return el(
        "div", el("span", class_="who"), el("div", *ticks, class_="track axis"), class_="row head", aria_hidden="true"
    )


def _nice(least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below."""
    size = 1e-9
    while True:
        for factor in (1, 2, 5):
            if size * factor >= least:
                return size * factor
        size *= 10


def _row(costs: Costs, node: NodeCost, whole: float) -> Html:
    program = costs.programs[node.program]
    branch = f" [{' / '.join(node.branch)}]" if node.branch else ""
    end = whole if node.ended_s is None else node.ended_s
    running = end if node.started_s is None else node.started_s
    sent = running if node.sent_s is None else min(node.sent_s, running)
    first = end if node.first_token_s is None else node.first_token_s
    phases = [
        ("values", node.recorded_s, sent),
        ("queue", sent, running),
        ("prefill", running, first),
        ("decode", first, end),
    ]
    segments = [
        el("i", class_=f"seg {name}", style=style(left=100 * begin / whole, width=100 * (until - begin) / whole))
        for name, begin, until in phases
        if until > begin
    ]
    took = [
        f"{word} {seconds(value)}"
        for word, value in (("waited", node.waited_s), ("prefill", node.prefill_s), ("decode", node.decode_s))
        if value is not None
    ]
    title = f"item {program.item}, {node.name}{branch}: " + (", ".join(took) or node.state)
    return el(
        "a",
        el("span", el("small", str(program.item)), f" {node.name}{branch}", class_="who"),
        el("span", *segments, class_="track"),
        class_="row",
        href=f"#n{node.number}",
        title=title,
        aria_label=title,
    )
