"""When each value waited and ran, as Chrome trace JSON (the "Trace Event Format"), for Perfetto or chrome://tracing.

In: `Costs`. Out: JSON text. A program is a process; values of it that overlap are on lanes of their own; the phases of
a value (wait, prefill, decode) lie in its slice. Times are microseconds from the first recorded node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .model import Costs, NodeCost

__all__ = ["chrome_trace"]


def chrome_trace(costs: Costs) -> str:
    """The trace."""
    events: list[dict[str, Any]] = []
    by_program: dict[int, list[NodeCost]] = {}
    for node in costs.nodes:
        by_program.setdefault(node.program, []).append(node)
    for program, nodes in by_program.items():
        cost = costs.programs[program]
        events.append(_meta("process_name", program, 0, f"item {cost.item}: {cost.name}"))
        events.append({**_meta("process_sort_index", program, 0, ""), "args": {"sort_index": program}})
        lanes = _lanes(nodes, costs.now_s)
        for lane in sorted(set(lanes)):
            events.append(_meta("thread_name", program, lane, f"lane {lane}"))
        for node, lane in zip(nodes, lanes):
            events += _slices(node, lane, costs.now_s)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _meta(name: str, pid: int, tid: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _lanes(nodes: Sequence[NodeCost], now: float) -> list[int]:
    """For each value the first lane that is free from its recording on."""
    free: list[float] = []
    lanes = [0] * len(nodes)
    for at in sorted(range(len(nodes)), key=lambda at: nodes[at].recorded_s):
        node = nodes[at]
        lane = next((lane for lane, until in enumerate(free) if until <= node.recorded_s), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = now if node.ended_s is None else node.ended_s
        lanes[at] = lane
    return lanes


def _slices(node: NodeCost, lane: int, now: float) -> Iterator[dict[str, Any]]:
    end = now if node.ended_s is None else node.ended_s
    args = {
        "state": node.state,
        "branch": " / ".join(node.branch),
        "line": node.site,
        "prompt": node.prompt_tokens,
        "cached": node.cached_tokens,
        "computed": dict(node.computed),
        "generated": node.generated_tokens,
        "forced": node.forced_tokens,
    }
    yield _slice(f"{node.kind} {node.name}", node.program, lane, node.recorded_s, end, args)
    running = end if node.started_s is None else node.started_s
    sent = running if node.sent_s is None else node.sent_s
    first = end if node.first_token_s is None else node.first_token_s
    phases = [
        ("waits for values", node.recorded_s, min(sent, running)),
        ("waits for its turn", sent, running),
        ("prefill" if node.kind == "gen" else "score", running, first),
        ("decode", first, end),
    ]
    for name, begin, until in phases:
        if until > begin:
            yield _slice(name, node.program, lane, begin, min(until, end), {})


def _slice(name: str, pid: int, tid: int, begin: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    start = round(begin * 1e6)
    return {
        "ph": "X",
        "cat": "radicel",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": max(0, round(end * 1e6) - start),
        "args": args,
    }
