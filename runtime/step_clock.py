"""What a step's parts took, by events on the device's stream.

In: the moments at which the parts of a step are launched. Out: `StepTimes`. Between the events that enclose a part the
device did that part's work and none else; between the parts it had nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch

from .batch import StepTimes

__all__ = ["Mark", "StepClock", "StepMarks", "device_mark"]


class Mark(Protocol):
    """An event behind what was launched before it, as `torch.cuda.Event`."""

    def synchronize(self) -> None:
        """Waits until the device has reached it."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this one to a later one of its kind; the device has reached both."""


class StepMarks(NamedTuple):
    """The events of one step, in the order in which the device reaches them."""

    step_before_ends: Mark
    forward_begins: Mark
    forward_ends: Mark
    sampling_begins: Mark
    step_ends: Mark

    def read(self) -> StepTimes:
        """Waits for the end of the step; what lay between."""
        self.step_ends.synchronize()
        before, forward, between, sampling = (a.elapsed_time(b) / 1e3 for a, b in pairwise(self))
        return StepTimes(before=before, forward=forward, between=between, sampling=sampling)


class StepClock:
    """Marks the parts of one step after the other.

    A forward pass may be sampled more than once: what came before the last sampling is then `between`.

    Args:
        mark: records an event behind what was launched so far.
    """

    def __init__(self, mark: Callable[[], Mark]) -> None:
        self._mark = mark
        end = mark()
        self._marks = StepMarks(end, end, end, end, end)

    def forward_begins(self) -> None:
        """The next launches are a step's."""
        self._marks = self._marks._replace(step_before_ends=self._marks.step_ends, forward_begins=self._mark())

    def forward_ends(self) -> None:
        """The forward pass is launched whole."""
        self._marks = self._marks._replace(forward_ends=self._mark())

    def sampling_begins(self) -> None:
        """What is launched next had to wait for masks."""
        self._marks = self._marks._replace(sampling_begins=self._mark())

    def step_ends(self) -> StepMarks:
        """The results of the sampling are on their way."""
        self._marks = self._marks._replace(step_ends=self._mark())
        return self._marks


def device_mark() -> torch.cuda.Event:
    """An event of the current device's current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
