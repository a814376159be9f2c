"""Times of a step's parts, on a clock of whole seconds instead of a device's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from radicel.runtime.batch import StepTimes
from radicel.runtime.step_clock import StepClock


@dataclass
class Tick:
    """The n-th event; a second lies between two."""

    at: int
    waited: bool = False

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end_event: Tick, /) -> float:
        return (end_event.at - self.at) * 1e3


def ticking() -> StepClock:
    numbers = itertools.count()
    return StepClock(lambda: Tick(next(numbers)))


def one_step(clock: StepClock, samplings: int = 1) -> list[StepTimes]:
    clock.forward_begins()
    clock.forward_ends()
    found = []
    for _ in range(samplings):
        clock.sampling_begins()
        found.append(clock.step_ends().read())
    return found


def test_each_part_lies_between_its_marks() -> None:
    assert one_step(ticking()) == [StepTimes(before=1, forward=1, between=1, sampling=1)]


def test_a_step_counts_from_the_end_of_the_one_before() -> None:
    clock = ticking()
    one_step(clock)
    clock._mark()  # a second in which nothing is launched
    assert one_step(clock) == [StepTimes(before=2, forward=1, between=1, sampling=1)]


def test_a_pass_that_is_sampled_again_has_the_same_parts() -> None:
    """A rehearsal samples each pass with and without masks."""
    clock = ticking()
    once, again = one_step(clock, samplings=2)
    assert once == StepTimes(before=1, forward=1, between=1, sampling=1)
    assert again == StepTimes(before=1, forward=1, between=3, sampling=1)
    assert one_step(clock) == [once]


def test_reading_waits_for_the_end_of_the_step() -> None:
    clock = ticking()
    clock.forward_begins()
    clock.forward_ends()
    clock.sampling_begins()
    marks = clock.step_ends()
    marks.read()
    assert [mark.waited for mark in marks if isinstance(mark, Tick)] == [False, False, False, False, True]
