"""What a run cost as a person reads it in a terminal: totals, and a table of the values.

In: `Costs`. Out: a rich renderable. Of many values, those of one line are one row, with the
means of their times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..shown import counted
from .model import REASONS, Costs, NodeCost, summed

__all__ = ["renderable", "seconds", "totals"]

_MOST_ROWS = 24
_MOST_FAILURES = 5


def renderable(costs: Costs) -> RenderableType:
    """Totals, table and failures."""
    parts: list[RenderableType] = [Text("\n".join(totals(costs)))]
    if costs.nodes:
        parts += ["", _table(costs)]
    reasons = summed(costs.nodes)
    if reasons:
        parts.append(Text("\n".join(f"  {REASONS.get(reason, reason)}" for reason in reasons), style="dim"))
    failures = [program for program in costs.programs if program.error is not None]
    for program in failures[:_MOST_FAILURES]:
        parts.append(Text(f"item {program.item}, {program.name}: {program.error}", style="red"))
    if len(failures) > _MOST_FAILURES:
        parts.append(Text(f"… and {len(failures) - _MOST_FAILURES:,} more failed", style="red"))
    return Group(*parts)


def totals(costs: Costs) -> Iterator[str]:
    """A few lines that sum everything up."""
    failed = sum(program.error is not None for program in costs.programs)
    count = counted(len(costs.programs), "program")
    yield (
        f"{count}{f', {failed:,} of them failed' if failed else ''}; {counted(len(costs.nodes), 'value')} "
        f"in {seconds(costs.wall_s)}"
    )
    prompt, cached = (sum(getattr(n, of) for n in costs.nodes) for of in ("prompt_tokens", "cached_tokens"))
    reasons = costs.computed()
    computed = sum(reasons.values())
    share = f" ({cached / prompt:.1%})" if prompt else ""
    yield f"prompt {costs.unit or 'tokens'}: {prompt:,} in all, {cached:,} cached{share}, {computed:,} computed"
    if reasons and computed:
        yield "computed: " + ", ".join(f"{count:,} {_WORDS.get(reason, reason)}" for reason, count in reasons.items())
    generated, forced = (sum(getattr(n, of) for n in costs.nodes) for of in ("generated_tokens", "forced_tokens"))
    rate = f", {generated / costs.wall_s:,.1f} per second" if costs.wall_s > 0 else ""
    yield f"generated tokens: {generated:,}{rate}" + (f"; {forced:,} of them forced" if forced else "")


_WORDS = {
    "new": "never shared",
    "boundary": "at a boundary",
    "evicted": "evicted before",
    "logits": "for their logits",
    "again": "again after a preemption",
    "uncached": "without a cache",
    "unknown": "for reasons not known",
}


def _table(costs: Costs) -> Table:
    """A row per value, or per line where there are many."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    reasons = list(summed(costs.nodes))
    many = len(costs.nodes) > _MOST_ROWS
    for column in ("value", *(["runs"] if many else []), "prompt", "cached", "computed", *reasons, "generated"):
        table.add_column(column, justify="left" if column == "value" else "right", no_wrap=True)
    likely = any(node.mean_logprob is not None for node in costs.nodes)
    for column in ("forced", *(["logprob"] if likely else []), "waited", "prefill", "decode"):
        table.add_column(column, justify="right", no_wrap=True)
    groups = _by_line(costs.nodes) if many else [[node] for node in costs.nodes]
    for group in groups[:_MOST_ROWS]:
        table.add_row(*_row(group, reasons, many, likely))
    if len(groups) > _MOST_ROWS:
        table.add_row(f"… and {len(groups) - _MOST_ROWS:,} more", style="dim")
    return table


def _by_line(nodes: Sequence[NodeCost]) -> list[list[NodeCost]]:
    groups: dict[tuple[str, str, str], list[NodeCost]] = {}
    for node in nodes:
        groups.setdefault((node.kind, node.name, node.site), []).append(node)
    return list(groups.values())


def _row(group: Sequence[NodeCost], reasons: Sequence[str], many: bool, likely: bool) -> list[str]:
    first = group[0]
    line = Path(first.site).name.rpartition(":")[2]
    label = f"{first.kind} {first.name}" + (f"  line {line}" if line else "")
    if not many and first.state != "done":
        label += f"  {first.state}"
    sums = [sum(getattr(n, of) for n in group) for of in ("prompt_tokens", "cached_tokens", "computed_tokens")]
    why = summed(group)
    made = [sum(getattr(n, of) for n in group) for of in ("generated_tokens", "forced_tokens")]
    times = [_mean([getattr(n, of) for n in group], seconds) for of in ("waited_s", "prefill_s", "decode_s")]
    mean = [_mean([n.mean_logprob for n in group], "{:.2f}".format)] if likely else []
    counts = [*sums, *(why.get(reason, 0) for reason in reasons), *made]
    return [label, *([f"{len(group):,}"] if many else []), *(f"{n:,}" if n else "·" for n in counts), *mean, *times]


def _mean(values: Sequence[float | None], shown: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return shown(sum(known) / len(known)) if known else "·"


def seconds(value: float) -> str:
    """A duration: "340 µs", "12.3 ms", "4.56 s", "3 min 20 s"."""
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    return f"{int(value) // 60} min {int(value) % 60:02d} s"
