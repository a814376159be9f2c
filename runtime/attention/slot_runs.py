"""Where the slots of a sequence follow one another, so that attention may fetch many keys at once.

In: the radix nodes that a sequence stands on. Out: the longest run of positions within some bounds whose slots do. What
was computed in one chunk got its slots in one piece as long as the pool had such pieces.
"""

from __future__ import annotations

from typing import NamedTuple

from ..batch import Chain

__all__ = ["NO_RUN", "SlotRun", "covering_runs", "longest_run", "runs_of"]


class SlotRun(NamedTuple):
    """Position `first + i` lies in slot `slot + i`, up to position `end`."""

    first: int
    end: int
    slot: int


NO_RUN = SlotRun(0, 0, 0)


def runs_of(chain: Chain) -> list[SlotRun]:
    """The runs of a chain, in order; nodes that continue one another are one."""
    runs: list[SlotRun] = []
    for segment in chain:
        if segment.slot < 0:
            continue
        end = segment.start + segment.length
        if runs and runs[-1].end == segment.start and runs[-1].slot + segment.start - runs[-1].first == segment.slot:
            runs[-1] = runs[-1]._replace(end=end)
        else:
            runs.append(SlotRun(segment.start, end, segment.slot))
    return runs


def longest_run(runs: list[SlotRun], start: int, end: int) -> SlotRun:
    """The longest part of one of these within positions [start, end)."""
    best = NO_RUN
    for run in runs:
        first, stop = max(run.first, start), min(run.end, end)
        if stop - first > best.end - best.first:
            best = SlotRun(first, stop, run.slot + first - run.first)
    return best


def covering_runs(runs: list[SlotRun], start: int, end: int, least: int) -> list[SlotRun]:
    """Parts of these that together are [start, end), each of `least` positions at least; none where there are none."""
    found: list[SlotRun] = []
    at = start
    for run in runs:
        if run.first <= at < run.end and at < end:
            found.append(SlotRun(at, min(run.end, end), run.slot + at - run.first))
            at = found[-1].end
    return found if at == end and all(run.end - run.first >= least for run in found) else []
