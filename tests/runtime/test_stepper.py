"""Steps that are launched before the results of the last one are read: in which order, for whom in vain, and when not.

`test_random_ops.py` runs thousands of operations this way; here is what can be said of single steps.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from radicel import SamplingParams, function, gen
from radicel.errors import BackendClosedError
from radicel.runtime import LocalRuntime
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.lookahead import Lookahead
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models import load_model
from radicel.runtime.request import Sequence

from .fake_runner import END, FakeMatcher, FakeRunner, Told, reference, sequence

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
NO_END = {"end_ids": frozenset()}


def make(runner: FakeRunner | None = None, always: bool = True, **config: Any) -> Engine:
    engine = Engine(runner or FakeRunner(asynchronous=True), EngineConfig(check_invariants=True, **config))
    if always:
        engine._stepper._lookahead.pays = lambda rows, constrained: True
    return engine


def run(engine: Engine, *sequences: Sequence) -> None:
    engine.submit(sequences)
    while engine.step():
        pass
    for seq in sequences:
        want = reference(seq.prompt_ids, seq.sampling, matcher=grammar_of(seq))
        assert seq.listener.error is None
        assert seq.listener.result.output_ids == want.output_ids
        assert seq.listener.result.finish_reason == want.reason


GRAMMARS: dict[int, FakeMatcher] = {}


def grammar_of(seq: Sequence) -> FakeMatcher | None:
    return GRAMMARS[seq.id].fork() if seq.id in GRAMMARS else None


def constrained(rules: dict[int, dict[int, int]], final: set[int], **more: Any) -> Sequence:
    seq = sequence(PROMPT, 50, matcher=FakeMatcher(rules, final, frozenset({END})), **more)
    GRAMMARS[seq.id] = FakeMatcher(rules, final, frozenset({END}))
    return seq


def forced_after_choice() -> dict[int, dict[int, int]]:
    """A choice, then 8 9, a choice, then 10 11 12."""
    return {0: {20: 1, 21: 1}, 1: {8: 2}, 2: {9: 3}, 3: {30: 4, 31: 4}, 4: {10: 5}, 5: {11: 6}, 6: {12: 7}}


# -- order -----------------------------------------------------------------------------------------------------------


def test_a_step_is_launched_before_the_last_one_is_read_and_sampled_after():
    runner = FakeRunner(asynchronous=True)
    run(make(runner), sequence(PROMPT, 3, sampling=NO_END))
    assert runner.events == ["forward", "sample", "forward", "read", "sample", "forward", "read", "sample", "read"]


@pytest.mark.parametrize(("asynchronous", "overlap"), [(False, True), (True, False)])
def test_without_overlap_each_step_is_read_at_once(asynchronous, overlap):
    runner = FakeRunner(asynchronous=asynchronous)
    run(make(runner, always=False, overlap=overlap), sequence(PROMPT, 3, sampling=NO_END))
    assert runner.events == ["forward", "sample", "read"] * 3


def test_a_text_that_ends_by_its_length_runs_no_row_in_vain():
    runner = FakeRunner(asynchronous=True)
    run(make(runner), sequence(PROMPT, 5, sampling=NO_END))
    assert [step.num_tokens for step in runner.steps] == [10, 1, 1, 1, 1]


def test_a_text_that_ends_by_its_end_token_runs_one_row_in_vain_and_frees_its_slot():
    ends = next(
        seq
        for first in range(30)
        if (want := reference((seq := sequence([first, *PROMPT], 40)).prompt_ids, seq.sampling)).end_id == END
        and 2 < len(want.output_ids) < 39
    )
    runner = FakeRunner(asynchronous=True)
    engine = make(runner)
    run(engine, ends)
    assert len(runner.steps) == len(ends.output_ids) + 2
    stats = engine.stats()
    assert stats.kv_used == 0
    assert stats.kv_cached == len(ends.prompt_ids) + len(ends.output_ids)  # not the row in vain
    engine.check()


def test_a_new_request_joins_while_a_step_is_in_flight():
    runner = FakeRunner(asynchronous=True)
    engine = make(runner)
    first, second = sequence(PROMPT, 6, sampling=NO_END), sequence(PROMPT[:4], 6, sampling=NO_END)
    engine.submit([first])
    engine.step()
    engine.step()
    run(engine, second)
    assert max(step.num_seqs for step in runner.steps) == 2
    assert first.listener.result.output_ids == reference(PROMPT, first.sampling).output_ids


def test_whoever_has_nothing_to_run_is_told_also_where_nobody_else_has():
    """A cached prefill for its own sake comes while the last step of everybody else is in flight."""
    engine = make()
    run(engine, sequence(PROMPT, 0))
    engine.submit([sequence([11, 12], 1, sampling=NO_END)])
    engine.step()
    cached = sequence(PROMPT, 0)
    engine.submit([cached])
    engine.step()
    assert cached.listener.result is not None


# -- grammars --------------------------------------------------------------------------------------------------------


def test_forced_tokens_that_show_too_late_are_run_in_the_step_after():
    runner = FakeRunner(asynchronous=True)
    seq = constrained(forced_after_choice(), {7})
    run(make(runner), seq)
    assert seq.forced_tokens == 5
    # prompt; choice in vain (8 9 were forced by it); 8 9; choice in vain, 10 11 12 need no step
    assert [step.num_tokens for step in runner.steps] == [10, 1, 2, 1]


def test_log_probabilities_of_forced_tokens_are_waited_for():
    runner = FakeRunner(asynchronous=True)
    seq = constrained(forced_after_choice(), {7}, sampling={"logprobs": True})
    run(make(runner), seq)
    want = reference(PROMPT, seq.sampling, matcher=grammar_of(seq))
    assert seq.listener.result.logprobs == pytest.approx(want.logprobs)


def test_prompt_logprobs_and_end_scores_are_read_before_the_next_step_is_planned():
    runner = FakeRunner(asynchronous=True)
    seq = sequence(PROMPT, 4, sampling=NO_END, logprob_start=0, score_end_ids=frozenset({END, 3}))
    run(make(runner, prefill_chunk=4), seq)
    assert len(seq.listener.result.prompt_logprobs) == len(PROMPT)
    assert runner.events[:4] == ["forward", "sample", "read", "forward"]


def test_a_mask_is_filled_when_the_token_before_is_known():
    """The matcher has accepted every earlier token by then, so a mask is never that of an older state."""
    runner = FakeRunner(asynchronous=True)
    rules = {state: dict.fromkeys(range(state, state + 4), state + 1) for state in range(12)}
    run(make(runner), constrained(rules, {12}))
    assert runner.events[:6] == ["forward", "sample", "forward", "read", "sample", "forward"]


@pytest.mark.parametrize(
    ("device", "cpu", "forced", "pays"),
    [
        (4e-3, 1e-3, 0.0, True),
        (4e-3, 1e-3, 0.1, True),
        (4e-3, 1e-3, 0.5, False),
        (4e-3, 6e-3, 0.5, True),
        (4e-3, 0.0, 0.01, False),
    ],
)
def test_it_pays_while_what_is_hidden_is_more_than_what_waits(device, cpu, forced, pays):
    look = Lookahead(enabled=True)
    for _ in range(200):
        look.ran(device, cpu)
        look.read(100, round(100 * forced))
    assert look.pays(8, 8) is pays
    assert look.pays(8, 0)
    assert not Lookahead(enabled=False).pays(8, 0)


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_cancelled_sequence_may_be_in_flight():
    runner = FakeRunner(asynchronous=True)
    engine = make(runner)
    seq, other = sequence(PROMPT, 20, sampling=NO_END), sequence(PROMPT[:3], 20, sampling=NO_END)
    engine.submit([seq, other])
    for _ in range(4):
        engine.step()
    engine.cancel(seq)
    while engine.step():
        pass
    assert seq.listener.result.finish_reason == "cancelled"
    assert other.listener.result.output_ids == reference(PROMPT[:3], other.sampling).output_ids
    assert engine.stats().kv_used == 0


def test_closing_waits_for_the_step_in_flight():
    class Signals(FakeRunner):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.sampling = threading.Event()

        def sample(self, output: Any, batch: Any) -> Any:
            self.sampling.set()
            return super().sample(output, batch)

    runner = Signals(asynchronous=True)
    engine = make(runner)
    engine.start()
    seq = sequence(PROMPT, 100_000, sampling=NO_END, listener=Told())
    engine.submit([seq])
    assert runner.sampling.wait(10)
    engine.close()
    assert isinstance(seq.listener.error, BackendClosedError)
    assert runner.closed
    assert runner.unread == []


# -- the model -------------------------------------------------------------------------------------------------------


def test_a_step_takes_what_the_last_one_sampled_from_the_device(tiny_llama: Path, driver: ModuleType):
    model: Any = load_model(tiny_llama, device="cpu")
    logits = []
    for named in (False, True):
        runner = ModelRunner(model, kv_slots=200, num_rows=3, context_length=100)
        drive = driver.Driver(runner)
        output = drive.feed([(0, [5, 6, 7]), (1, [9, 8])], logits="last")
        ids = runner.sample(output, driver.sampling(2)).read().token_ids
        parts = [(1, [-2]), (0, [-1])] if named else [(1, ids[1:]), (0, ids[:1])]
        logits.append(drive.logits(parts))
    assert np.array_equal(logits[0], logits[1])


# The kernels do not compute in float64, in which no draw hangs on how a batch's sums are rounded: so they draw nothing.
@pytest.mark.parametrize(("attention", "dtype", "heat"), [("torch", "float64", 1.0), ("triton", "float32", 0.0)])
def test_a_runtime_gives_the_same_with_and_without(tiny_llama: Path, attention: str, dtype: str, heat: float):
    @function
    def pipeline(s: Any, text: str) -> None:
        s += f"About {text}: " + gen("plan", max_tokens=6, seed=7)
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch += f" part {i}" + gen("part", max_tokens=4 + i, temperature=heat, seed=i)
        branches.join()
        s += " so " + gen("end", max_tokens=12, regex="(yes|no), [a-z]{2,4}", seed=8)

    found = []
    for ahead in (False, True):
        with LocalRuntime(
            tiny_llama, device="cpu", dtype=dtype, kv_tokens=1500, attention=attention, check_invariants=True, seed=0
        ) as runtime:
            if ahead:
                runtime._engine._stepper._lookahead = look = Lookahead(enabled=True)
                look.pays = lambda rows, constrained: True  # type: ignore[method-assign]
            states = pipeline.run_batch(
                [{"text": text} for text in ("soup", "tea", "rain")], backend=runtime, temperature=heat
            )
            found.append([(s.text(), s["plan"], s["end"]) for s in states])
            found[-1].append(runtime.generate("All", SamplingParams(temperature=0, max_tokens=9)).token_ids)
    assert found[0] == found[1]


class _Settling:
    """A sink that writes down how many steps were launched when its text was settled."""

    can_stop = False

    def __init__(self, runner: FakeRunner, launched: list[int]) -> None:
        self._runner, self._launched = runner, launched

    def push(self, token_id: int) -> bool:
        return False

    def finish(self) -> None:
        self._launched.append(len(self._runner.steps))


def test_who_waits_runs_before_the_texts_of_those_that_ended_are_settled() -> None:
    runner = FakeRunner(asynchronous=True)
    engine = make(runner, max_running=1)
    settled: list[int] = []
    first = sequence(PROMPT, 3, sink=_Settling(runner, settled), sampling=NO_END)
    second = sequence(PROMPT[:4], 3, sampling=NO_END)
    engine.submit([first, second])
    while not settled:
        engine.step()
    assert settled == [4]  # its three steps, and the first one of who waited for its row
    assert first.listener.result.total_s == first.ended_at - first.submitted_at
    while engine.step():
        pass
    assert len(second.listener.result.output_ids) == 3
