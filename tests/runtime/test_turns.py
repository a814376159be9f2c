"""Graphs in a pool that has room for all of them: as they came, runs in turns, and the batch is full to the end.

On the pseudo-model, step by step; `test_leases.py` has what happens where the pool is tight.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.leases import Graph
from radicel.runtime.request import Sequence, SequenceState
from radicel.runtime.scheduler import Scheduler

from .fake_runner import END, FakeRunner, reference, sequence

NO_END = {"end_ids": frozenset()}
ROWS, NEW, BRANCHES = 16, 8, 3


def make(slots: int = 8192, rows: int = ROWS, **config: Any) -> Engine:
    return Engine(FakeRunner(num_slots=slots, num_rows=rows), EngineConfig(check_invariants=True, **config))


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(END) for _ in range(count)]


class Batch:
    """Programs of two stages: a prefix of all, a question, three branches, and a last text after all of these.

    Args:
        bodies: so many programs are begun at a time, as `run_batch` does it; None: the requests by hand, all branches
            at once, then all that follows.
    """

    def __init__(self, engine: Engine, programs: int, bodies: int | None) -> None:
        rng = random.Random(programs)
        shots = tokens(rng, 60)
        self.questions = [[*shots, i % END, i // END, *tokens(rng, 6)] for i in range(programs)]
        self.engine = engine
        self.bodies = bodies
        self.run = object()
        self.begun = 0
        self.branches: dict[int, list[Sequence]] = {}
        self.last: list[Sequence] = []

    def steps(self) -> Iterator[None]:
        """Runs the batch."""
        self._send(range(min(self.bodies or len(self.questions), len(self.questions))), [])
        while self.engine.step():
            yield
            over = [i for i, branches in self.branches.items() if all(map(_is_over, branches))]
            if self.bodies is not None:
                self._send(range(self.begun, min(self.begun + len(over), len(self.questions))), over)
            elif len(over) == len(self.questions):
                self._send(range(0), over)

    def _send(self, fresh: range, over: list[int]) -> None:
        """A wave: what follows in the programs that are so far, and the branches of those that begin now."""
        asked = []
        for i in over:
            notes = [token for branch in self.branches.pop(i) for token in branch.output_ids]
            asked.append(([*self.questions[i], *notes], False))
        for i in fresh:
            asked += [([*self.questions[i], branch], True) for branch in range(BRANCHES)]
        graph = None if self.bodies is None else Graph()
        wave = [
            sequence(ids, NEW, sampling=NO_END, graph=graph, place=place, run=self.run, awaited=awaited)
            for place, (ids, awaited) in enumerate(asked)
        ]
        for number, i in enumerate(fresh):
            at = len(over) + number * BRANCHES
            self.branches[i] = wave[at : at + BRANCHES]
        self.last += wave[: len(over)]
        self.begun += len(fresh)
        if wave:
            self.engine.submit(wave)


def _is_over(seq: Sequence) -> bool:
    return seq.state is SequenceState.FINISHED


def run(programs: int, bodies: int | None, slots: int) -> tuple[int, int]:
    """Steps, and prompt tokens computed."""
    engine = make(slots)
    batch = Batch(engine, programs, bodies)
    count = sum(1 for _ in batch.steps())
    assert len(batch.last) == programs
    for seq in batch.last[::7]:
        assert seq.listener.result.output_ids == reference(seq.prompt_ids, seq.sampling).output_ids
    return count, engine.stats().computed_tokens


@pytest.fixture
def as_saves_cache(monkeypatch) -> Any:
    """Calls with the order for tight pools everywhere, which `turns.py` replaces where there is room."""

    def call(*args: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "_has_room", lambda self: False)
            return run(*args)

    return call


@pytest.mark.parametrize("programs", [16, 19, 32, 40])
def test_programs_of_two_stages_take_no_more_steps_than_the_requests_by_hand(programs, as_saves_cache):
    by_hand, _ = run(programs, None, 8192)
    steps, computed = run(programs, ROWS, 8192)
    assert steps <= by_hand + 3
    assert steps <= (BRANCHES + 1) * programs * NEW / ROWS + NEW + 3, "all rows are in use but in the last round"
    before, computed_before = as_saves_cache(programs, ROWS, 8192)
    assert steps <= before
    assert computed == computed_before


def test_without_it_the_last_to_begin_go_on_alone(as_saves_cache):
    assert as_saves_cache(32, ROWS, 8192)[0] >= run(32, ROWS, 8192)[0] + NEW - 2


@pytest.mark.parametrize("slots", [180, 250, 400, 700, 1200])
def test_in_a_tight_pool_no_more_is_computed_than_before(slots, as_saves_cache):
    steps, computed = run(24, ROWS, slots)
    before, computed_before = as_saves_cache(24, ROWS, slots)
    assert computed <= computed_before
    assert steps <= before


def one(graph: Graph, place: int, prompt: list[int], length: int = 1, **more: Any) -> Sequence:
    return sequence(prompt, length, sampling=NO_END, graph=graph, place=place, **more)


def admissions(engine: Engine, seqs: list[Sequence]) -> list[int]:
    """Indices of `seqs` in the order of their admission, one row at a time."""
    while engine.step():
        pass
    return sorted(range(len(seqs)), key=lambda i: seqs[i].first_step_at)


def test_a_run_s_requests_are_admitted_by_wave_what_is_awaited_and_place():
    engine, run = make(rows=1), object()
    graph, later = Graph(), Graph()
    first = [one(graph, place, [place, 1], run=run) for place in (1, 0)]
    second = [one(later, place, [place, 2], run=run, awaited=awaited) for place, awaited in ((0, False), (2, True))]
    second.append(one(later, 1, [3, 2], run=run, awaited=True))
    engine.submit(first)
    engine.step()
    engine.submit(second)
    assert admissions(engine, [*first, *second]) == [1, 0, 4, 3, 2]


def test_a_small_run_does_not_wait_for_a_big_one_that_came_before():
    engine, run = make(rows=1), object()
    big = [[one(graph, i, [n, i], run=run) for i in range(20)] for n, graph in enumerate([Graph(), Graph()])]
    small = [one(Graph(), i, [30, i]) for i in range(3)]
    for seqs in (*big, small):
        engine.submit(seqs)
        engine._receive()
    order = admissions(engine, [*big[0], *big[1], *small])
    assert order[: 2 * len(small) + 1].index(40 + len(small) - 1) <= 2 * len(small), "they take turns"
    assert [i for i in order if i < 40] == list(range(40))


@pytest.mark.parametrize("run", [None, "the same"])
def test_a_higher_priority_goes_first_and_a_lower_one_is_not_passed_for_ever(run):
    engine = make(rows=1, max_overtakes=5)
    low = one(Graph(), 0, [1, 1], priority=-1, run=run)
    many = [one(Graph(), i, [2, i], run=run) for i in range(20)]
    high = one(Graph(), 0, [3, 3], priority=1, run=run)
    engine.submit([low, *many, high])
    order = admissions(engine, [low, *many, high])
    assert order[0] == 21
    assert order.index(0) == 5


def test_waves_of_one_run_do_not_count_as_passed_by_one_another():
    """A run counts as one that waits: else ageing would take the last wave's first request before its turn."""
    engine, run = make(rows=1, max_overtakes=4), object()
    waves = [[one(graph, i, [n, i], run=run) for i in range(15)] for n, graph in enumerate([Graph(), Graph(), Graph()])]
    for wave in waves:
        engine.submit(wave)
        engine.step()
    assert admissions(engine, [seq for wave in waves for seq in wave]) == list(range(45))


def test_room_is_what_all_that_wait_and_run_need_together():
    """Two prompts of 30 with 20 in common and 10 tokens to write: 40 and 20. One that runs may grow by 10."""
    for slots, in_order in ((72, True), (71, False)):
        engine, shared = make(slots=slots, rows=1, decode_headroom=0), list(range(20))
        engine.submit([one(Graph(), 0, [30], 10)])
        engine.step()
        graph = Graph()
        engine.submit([one(graph, i, [*shared, *[i] * 10], 10) for i in range(2)])
        engine._receive()
        assert engine.scheduler._has_room() == in_order
