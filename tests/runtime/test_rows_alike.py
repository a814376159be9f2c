"""Rows of the page table that show the same prefix: sent once, the others are like that row while it lives."""

from __future__ import annotations

import random

from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.request import Sequence

from .fake_runner import END, FakeRunner, reference, sequence

NO_END = {"end_ids": frozenset()}


def made() -> tuple[Engine, FakeRunner]:
    runner = FakeRunner()
    return Engine(runner, EngineConfig(check_invariants=True)), runner


def run_all(engine: Engine, sequences: list[Sequence]) -> None:
    engine.submit(sequences)
    while engine.step():
        pass


def assert_right(sequences: list[Sequence]) -> None:
    for seq in sequences:
        assert seq.listener.result.output_ids == reference(seq.prompt_ids, seq.sampling).output_ids


def long_updates(runner: FakeRunner, steps: int) -> list[tuple[int, int]]:
    """(row, the row it is like) of what the last steps were told of the long prefix."""
    updates = [update for step in runner.steps[-steps:] for update in step.updates]
    return [(update.row, update.like) for update in updates if len(update.slots) >= 500]


def test_a_cached_prefix_is_sent_to_one_row_and_the_others_are_like_it() -> None:
    rng = random.Random(5)
    engine, runner = made()
    prefix = [rng.randrange(END) for _ in range(500)]
    run_all(engine, [sequence([*prefix, 1], 1)])
    branches = [sequence([*prefix, 2, i], 30, sampling=NO_END) for i in range(6)]  # which share one more token
    engine.submit(branches)
    engine.step()
    first, *others = long_updates(runner, 1)
    assert first[1] == -1
    assert [like for _, like in others] == [first[0]] * 5
    late = sequence([*prefix, 3], 2, sampling=NO_END)
    engine.submit([late])
    engine.step()
    assert [like for _, like in long_updates(runner, 1)] == [first[0]]
    leader = next(branch for branch in branches if branch.row == first[0])
    engine.cancel(leader)
    engine.step()
    engine.submit([again := sequence([*prefix, 4], 2, sampling=NO_END)])
    engine.step()
    assert [like for _, like in long_updates(runner, 1)] == [-1], "the row it was sent to is another's now"
    while engine.step():
        pass
    assert_right([late, again, *(branch for branch in branches if branch is not leader)])


def test_entries_of_a_row_that_was_given_back_are_not_written() -> None:
    engine, _ = made()
    run_all(engine, [sequence([1, 2, 3], 1, sampling=NO_END)])
    run_all(engine, [sequence([1, 2, 3], 0), sequence([1, 2, 3], 0)])  # all there: no step runs
    assert not engine.scheduler.placement.updates
    run_all(engine, [running := sequence([1, 2, 3, 4], 2, sampling=NO_END)])
    assert_right([running])
