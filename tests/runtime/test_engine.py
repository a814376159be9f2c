"""The engine on the pseudo-model: what a sequence asks for, it gets, in any company; and the thread around it."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time

import pytest
from radicel.errors import BackendClosedError, DeadlineError, EngineDeadError, ForkedProcessError
from radicel.runtime.attention.slot_runs import runs_of
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.outcome import GrammarMismatchError
from radicel.runtime.request import FinishReason, Sequence, SequenceState

from .fake_runner import (
    END,
    FakeMatcher,
    FakeRunner,
    Told,
    end_logprob,
    log_softmax,
    reference,
    reference_logits,
    sequence,
)

ENDS = frozenset({END})
NO_END = {"end_ids": frozenset()}
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def make(runner: FakeRunner | None = None, **config) -> Engine:
    return Engine(runner or FakeRunner(), EngineConfig(check_invariants=True, **config))


def drain(engine: Engine, limit: int = 10_000) -> int:
    """Steps until nothing is left; how many."""
    for done in range(limit):
        if not engine.step():
            return done
    raise AssertionError("the engine does not come to an end")


def run_all(engine: Engine, sequences: list[Sequence]) -> None:
    engine.submit(sequences)
    drain(engine)


def run_one(seq: Sequence, engine: Engine | None = None):
    run_all(engine or make(), [seq])
    assert seq.listener.error is None, seq.listener.error
    return seq.listener.result


def fixed_grammar(*ids: int) -> FakeMatcher:
    """Exactly these ids."""
    return FakeMatcher({i: {token: i + 1} for i, token in enumerate(ids)}, {len(ids)}, ENDS)


def mixed_grammar() -> FakeMatcher:
    """5 6 7, a free choice, 8 9, a free choice, then 10 11 12."""
    rules: dict[int, dict[int, int]] = {
        0: {5: 1},
        1: {6: 2},
        2: {7: 3},
        3: {20: 4, 21: 4, 22: 4},
        4: {8: 5},
        5: {9: 6},
        6: {30: 7, 31: 7},
        7: {10: 8},
        8: {11: 9},
        9: {12: 10},
    }
    return FakeMatcher(rules, {10}, ENDS)


# -- right tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 7, 8192])
def test_the_output_is_that_of_an_evaluation_without_cache(chunk):
    engine = make(prefill_chunk=chunk)
    seqs = [sequence(PROMPT[:n], 12) for n in range(1, 11)]
    run_all(engine, seqs)
    for seq in seqs:
        want = reference(seq.prompt_ids, seq.sampling)
        result = seq.listener.result
        assert (result.output_ids, result.finish_reason, result.end_id) == (want.output_ids, want.reason, want.end_id)


def test_greedy_output_does_not_depend_on_cache_or_company():
    """The same prompt cold, warm, chunked, after a flush, and in batches with others joining and leaving."""
    want = reference(PROMPT, sequence(PROMPT, 20).sampling).output_ids
    engine = make(prefill_chunk=7)
    assert run_one(sequence(PROMPT, 20), engine).output_ids == want
    assert run_one(sequence(PROMPT, 20), engine).output_ids == want
    engine.flush_cache()
    assert run_one(sequence(PROMPT, 20), engine).output_ids == want
    watched = []
    for i in range(30):
        seq = sequence(PROMPT if i % 4 == 0 else [i, *PROMPT[: i % 9]], 20 if i % 4 == 0 else i % 7)
        watched += [seq] if i % 4 == 0 else []
        engine.submit([seq])
        engine.step()
    drain(engine)
    assert [seq.listener.result.output_ids for seq in watched] == [want] * 8


def test_a_draw_depends_on_seed_and_sample_alone():
    def draw(seed: int, index: int, company: int) -> list[int]:
        engine = make()
        seq = sequence(PROMPT, 15, sampling={**NO_END, "temperature": 1.0, "seed": seed, "sample_index": index})
        run_all(engine, [*(sequence([i], 9) for i in range(company)), seq])
        return seq.listener.result.output_ids

    assert draw(1, 0, 0) == draw(1, 0, 7)
    assert len({tuple(draw(seed, index, 0)) for seed, index in [(1, 0), (2, 0), (1, 1), (-(2**70), 0)]}) == 4


def test_penalties_and_bias_see_every_output_token():
    penal = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.4, "logit_bias": {3: 4.0}}
    seq = sequence(PROMPT, 40, sampling={**NO_END, **penal})
    plain = sequence(PROMPT, 40, sampling=NO_END)
    run_all(make(), [seq, plain])
    assert seq.listener.result.output_ids == reference(PROMPT, seq.sampling).output_ids
    assert seq.listener.result.output_ids != plain.listener.result.output_ids


def test_end_tokens_and_stop_ids_end_the_text_and_are_not_in_it():
    said = reference(PROMPT, sequence(PROMPT, 12, sampling=NO_END).sampling).output_ids
    ended = run_one(sequence(PROMPT, 12, sampling={"end_ids": frozenset({said[3], END})}))
    stopped = run_one(sequence(PROMPT, 12, sampling={**NO_END, "stop_token_ids": frozenset({said[3]})}))
    for result in (ended, stopped):
        first = said.index(said[3])
        assert (result.output_ids, result.finish_reason, result.end_id) == (said[:first], "stop", said[3])
    assert (ended.matched_stop, stopped.matched_stop) == (None, said[3])


def test_min_tokens_holds_ends_back():
    said = reference(PROMPT, sequence(PROMPT, 12, sampling=NO_END).sampling).output_ids
    sampling = {"end_ids": frozenset({said[0]}), "stop_token_ids": frozenset({said[1]}), "min_tokens": 6}
    seq = sequence(PROMPT, 12, sampling=sampling)
    result = run_one(seq)
    assert len(result.output_ids) >= 6
    assert not {said[0], said[1]} & set(result.output_ids[:6])
    assert result.output_ids == reference(PROMPT, seq.sampling).output_ids


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_max_tokens(max_tokens):
    result = run_one(sequence(PROMPT, max_tokens, sampling=NO_END))
    assert (len(result.output_ids), result.finish_reason) == (max_tokens, "length")


# -- log probabilities -----------------------------------------------------------------------------------------------


def prompt_logprobs(ids: list[int], start: int) -> list[float | None]:
    return [float(log_softmax(reference_logits(ids[:i]))[ids[i]]) if i else None for i in range(start, len(ids))]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("start", [0, 1, 6, 9, 10])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_logprobs(warm, chunk, start, max_tokens):
    engine = make(prefill_chunk=chunk)
    if warm:
        run_all(engine, [sequence(PROMPT, 1)])
    result = run_one(sequence(PROMPT, max_tokens, logprob_start=start, sampling=NO_END), engine)
    assert result.prompt_logprobs == pytest.approx(prompt_logprobs(PROMPT, start))
    assert len(result.output_ids) == max_tokens
    if not warm:
        assert result.cached_tokens == 0
    else:
        queried = 10 - max(start - 1, 0) if start < 10 else 0
        if max_tokens == 0 and start < 10:
            queried -= 1  # nothing is wanted after the last token
        assert result.cached_tokens == 10 - max(queried, 1 if max_tokens else 0)


def test_choices_are_scored_in_one_step_with_their_shared_prompt():
    choices = [[11, 12], [11, 13, 14], [15]]
    engine = make()
    seqs = [
        sequence([*PROMPT, *c], 0, logprob_start=10, score_end_ids=frozenset({END, 38}) if i < 2 else None)
        for i, c in enumerate(choices)
    ]
    run_all(engine, seqs)
    assert engine.stats().steps == 1
    assert engine.stats().kv_cached == 10 + 2 + 2  # after the last token of the third nothing is wanted: it never runs
    for i, seq in enumerate(seqs):
        result = seq.listener.result
        assert result.prompt_logprobs == pytest.approx(prompt_logprobs(seq.prompt_ids, 10))
        want = end_logprob(reference_logits(seq.prompt_ids), ENDS | {38}) if i < 2 else None
        assert result.end_logprob == (pytest.approx(want) if want is not None else None)
    again = sequence([*PROMPT, 11, 12], 0, logprob_start=10, score_end_ids=ENDS)
    result = run_one(again, engine)
    assert result.cached_tokens == 12 - 3, "positions 9 to 11 run for their logits"
    assert result.end_logprob == pytest.approx(end_logprob(reference_logits([*PROMPT, 11, 12]), ENDS))


@pytest.mark.parametrize("forced_runs", [True, False])
@pytest.mark.parametrize("max_tokens", [2, 4, 7, 50])
def test_logprobs_of_output_forced_tokens_included(forced_runs, max_tokens):
    seq = sequence(
        PROMPT, max_tokens, matcher=mixed_grammar(), logprob_start=8, sampling={"logprobs": True, "top_logprobs": 3}
    )
    result = run_one(seq, make(forced_runs=forced_runs))
    want = reference(PROMPT, seq.sampling, matcher=mixed_grammar())
    assert (result.output_ids, result.finish_reason) == (want.output_ids, want.reason)
    assert result.logprobs == pytest.approx(want.logprobs)
    assert result.prompt_logprobs == pytest.approx(prompt_logprobs(PROMPT, 8))
    for i, top in enumerate(result.top_logprobs):
        known = log_softmax(reference_logits([*PROMPT, *result.output_ids[:i]]))
        assert list(top.values()) == pytest.approx(sorted(known, reverse=True)[:3])
    assert len(result.top_logprobs) == len(result.output_ids)


def test_no_logprobs_unless_asked():
    result = run_one(sequence(PROMPT, 4, sampling=NO_END))
    assert (result.logprobs, result.top_logprobs, result.prompt_logprobs, result.end_logprob) == ([], [], None, None)


def test_a_prefill_for_its_own_sake_runs_once_and_then_not_at_all():
    engine = make()
    first, again = sequence(PROMPT, 0), sequence(PROMPT, 0)
    assert run_one(first, engine).cached_tokens == 0
    assert engine.stats().steps == 1
    assert len(engine.runner.steps[0].logit_rows) == 0
    assert run_one(again, engine).cached_tokens == 10
    assert engine.stats().steps == 1


# -- grammars --------------------------------------------------------------------------------------------------------


def test_a_grammar_that_is_over_ends_the_text_without_an_end_token():
    matcher = FakeMatcher({0: {5: 1, 6: 1}, 1: {7: 2, 8: 2}}, {2}, frozenset({2, 5, END}))
    result = run_one(sequence(PROMPT, 50, matcher=matcher, sampling=NO_END))
    assert result.output_ids[0] in (5, 6)
    assert result.output_ids[1] in (7, 8)
    assert (len(result.output_ids), result.finish_reason, result.end_id) == (2, "stop", None)


def test_an_end_token_ends_it_where_the_grammar_allows():
    matcher = FakeMatcher({0: {5: 1}, 1: {6: 1, 5: 1}}, {1}, ENDS)
    seq = sequence(PROMPT, 60, matcher=matcher, sampling={"logit_bias": {END: 6.0}})
    result = run_one(seq)
    assert result.output_ids[0] == 5
    assert (result.finish_reason, result.end_id) == ("stop", END)
    assert (
        result.output_ids == reference(PROMPT, seq.sampling, matcher=FakeMatcher(matcher.rules, {1}, ENDS)).output_ids
    )


def test_min_tokens_in_a_grammar_holds_the_end_back_as_long_as_there_is_a_choice():
    rules = {0: {5: 1}, 1: {6: 2}, 2: {7: 3}, 3: {8: 4}}
    every = set(rules) | {4}
    seq = sequence(
        PROMPT, 60, matcher=FakeMatcher(rules, every, ENDS), sampling={"min_tokens": 3, "logit_bias": {END: 50.0}}
    )
    result = run_one(seq)
    assert (result.output_ids, result.finish_reason) == ([5, 6, 7], "stop")


def test_min_tokens_gives_way_to_a_grammar_that_allows_only_the_end():
    matcher = FakeMatcher({0: {5: 1, 6: 1}}, {1}, ENDS)
    matcher.is_terminated = lambda: matcher.state == -1
    result = run_one(sequence(PROMPT, 60, matcher=matcher, sampling={"min_tokens": 3}))
    assert (len(result.output_ids), result.finish_reason, result.end_id) == (1, "stop", END)


def test_forced_runs_need_no_steps_and_change_nothing():
    results, steps = [], []
    for forced_runs in (True, False):
        engine = make(forced_runs=forced_runs)
        results.append(run_one(sequence(PROMPT, 50, matcher=mixed_grammar(), sampling={"temperature": 0.7}), engine))
        steps.append(engine.stats().steps)
    assert results[0].output_ids == results[1].output_ids
    assert results[0].output_ids[:3] == [5, 6, 7]
    assert [r.forced_tokens for r in results] == [8, 8]
    assert steps == [2, 6], "two choices; without forced runs a step for each token that is fed before the last choice"


def test_a_wholly_forced_text_needs_no_step():
    engine = make()
    result = run_one(sequence(PROMPT, 50, matcher=fixed_grammar(4, 5, 6)), engine)
    assert (result.output_ids, result.finish_reason, result.forced_tokens) == ([4, 5, 6], "stop", 3)
    assert engine.stats().steps == 0


def test_max_tokens_cuts_a_forced_run():
    result = run_one(sequence(PROMPT, 2, matcher=fixed_grammar(4, 5, 6)))
    assert (result.output_ids, result.finish_reason, result.forced_tokens) == ([4, 5], "length", 2)


def test_a_prompt_runs_while_its_grammar_is_made_ready_and_its_last_token_waits_for_that():
    matcher = FakeMatcher({0: {4: 1}, 1: {5: 2}, 2: {6: 3, 7: 3}, 3: {8: 4, 9: 4}}, {4}, ENDS)  # 4 5, then choices
    matcher.waits = 1_000_000
    engine = make()
    seq, other = sequence(PROMPT, 50, matcher=matcher), sequence(PROMPT[::-1], 5, sampling=NO_END)
    engine.submit([seq, other])
    drain(engine)  # nobody else is held up
    assert other.listener.result.output_ids == reference(other.prompt_ids, other.sampling).output_ids
    assert (seq.pos, seq.output_ids, seq.listener.calls) == (len(PROMPT) - 1, [], 0)
    matcher.waits = 0
    drain(engine)
    want = reference(PROMPT, seq.sampling, matcher=FakeMatcher(matcher.rules, {4}, ENDS))
    result = seq.listener.result
    assert result.output_ids == want.output_ids
    assert result.forced_tokens == want.forced == 2
    assert engine.stats().computed_tokens == 2 * len(PROMPT)


def test_a_text_without_a_choice_is_over_once_its_grammar_is_ready():
    matcher = fixed_grammar(4, 5, 6)
    matcher.waits = 1_000_000
    engine, seq = make(), sequence(PROMPT, 50, matcher=matcher)
    engine.submit([seq])
    assert drain(engine) == 1
    matcher.waits = 0
    drain(engine)
    assert seq.listener.result.output_ids == [4, 5, 6]
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_who_is_held_can_be_cancelled():
    matcher = fixed_grammar(4, 5, 6)
    matcher.waits = 1_000_000
    engine, seq = make(), sequence(PROMPT, 50, matcher=matcher)
    engine.submit([seq])
    drain(engine)
    engine.cancel(seq)
    drain(engine)
    assert (seq.listener.result.finish_reason, seq.listener.result.output_ids) == ("cancelled", [])


def test_a_thread_that_waits_for_a_grammar_alone_takes_it_up_when_it_is_ready():
    matcher = fixed_grammar(4, 5, 6)
    matcher.waits = 1_000_000
    engine, seq = make(), sequence(PROMPT, 50, matcher=matcher)
    engine.start()
    try:
        engine.submit([seq])
        time.sleep(0.1)
        assert seq.listener.calls == 0
        assert 1_000_000 - matcher.waits < 1_000  # it does not ask without end
        matcher.waits = 0
        end = time.monotonic() + 20
        while not seq.listener.calls and time.monotonic() < end:
            time.sleep(0.001)
        assert seq.listener.result.output_ids == [4, 5, 6]
    finally:
        engine.close()


class RunMatcher(FakeMatcher):
    """Takes forced runs together, and counts them."""

    runs = 0

    def accept_run(self, ids: list[int]) -> bool:
        self.runs += 1
        return all(map(self.accept, ids))


@pytest.mark.parametrize("more", [{}, {"sink": True}, {"stop": 9}, {"stop": 11}, {"stop_after": 2}, {"told": True}])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 7, 9, 10, 50])
def test_a_forced_run_that_is_taken_at_once_changes_nothing(more, max_tokens):
    found = []
    for kind in (FakeMatcher, RunMatcher):
        matcher = kind(mixed_grammar().rules, {10}, ENDS)
        told: list[int] = []
        sink = Sink(stop_after=more.get("stop_after")) if "sink" in more or "stop_after" in more else None
        sampling = {"temperature": 0.7, "frequency_penalty": 0.5, "logprobs": True}
        if "stop" in more:
            sampling["stop_token_ids"] = frozenset({more["stop"]})
        seq = sequence(
            PROMPT,
            max_tokens,
            matcher=matcher,
            sampling=sampling,
            sink=sink,
            on_token=told.append if "told" in more else None,
        )
        engine = make()
        result = run_one(seq, engine)
        counters = engine.counters.generated_tokens, engine.counters.forced_tokens
        found.append(
            (result.output_ids, result.finish_reason, result.end_id, result.forced_tokens, result.logprobs, told)
            + (sink.ids if sink else None, counters)
        )
        if kind is RunMatcher:
            at_once = max_tokens >= 3 and not more.keys() & {"told", "stop_after"}
            assert (matcher.runs > 0) == at_once
    assert found[0] == found[1]


def test_samples_of_one_prompt_share_what_their_grammar_forces_first():
    engine = make()
    seqs = [
        sequence(PROMPT, 50, matcher=mixed_grammar(), sampling={"temperature": 1.0, "seed": 3, "sample_index": i})
        for i in range(4)
    ]
    engine.submit(seqs)
    engine.step()
    assert engine.stats().kv_used == 10 + 3
    drain(engine)
    for seq in seqs:
        want = reference(PROMPT, seq.sampling, matcher=mixed_grammar())
        assert seq.listener.result.output_ids == want.output_ids


def test_masks_are_filled_between_forward_and_sample():
    runner = FakeRunner()
    matcher = mixed_grammar()
    fill = matcher.fill_mask
    matcher.fill_mask = lambda row: (runner.events.append("mask"), fill(row))
    run_one(sequence(PROMPT, 50, matcher=matcher), make(runner))
    assert runner.events == ["forward", "mask", "sample", "read"] * 2


def test_a_deep_recursion_ends_with_length():
    matcher = FakeMatcher({0: {5: 0, 6: 1}}, {1}, ENDS)
    engine = Engine(FakeRunner(), EngineConfig())
    result = run_one(sequence(PROMPT, 1500, matcher=matcher, sampling={"logit_bias": {5: 100.0}}), engine)
    assert (result.output_ids, result.finish_reason) == ([5] * 1500, "length")


# -- what goes wrong in one sequence ---------------------------------------------------------------------------------


class Boom(Exception):
    pass


class Sink:
    def __init__(self, stop_after: int | None = None, fail_in: str = "") -> None:
        self.ids: list[int] = []
        self.stop_after, self.fail_in, self.finished = stop_after, fail_in, 0
        self.can_stop = stop_after is not None

    def push(self, token_id: int) -> bool:
        if self.fail_in == "push":
            raise Boom("push")
        self.ids.append(token_id)
        return len(self.ids) == self.stop_after

    def finish(self) -> None:
        self.finished += 1
        if self.fail_in == "finish":
            raise Boom("finish")


def broken_matcher(method: str, result: object = Boom) -> FakeMatcher:
    matcher = mixed_grammar()
    calls = []

    def broken(*args):
        calls.append(args)
        if method == "accept" and len(calls) < 4:
            return FakeMatcher.accept(matcher, *args)
        if result is Boom:
            raise Boom(method)
        return result

    setattr(matcher, method, broken)
    return matcher


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"sink": Sink(fail_in="push")}, Boom),
        ({"sink": Sink(fail_in="finish")}, Boom),
        ({"matcher": broken_matcher("fill_mask")}, Boom),
        ({"matcher": broken_matcher("fill_mask", None)}, RuntimeError),
        ({"matcher": broken_matcher("accept")}, Boom),
        ({"matcher": broken_matcher("accept", False)}, GrammarMismatchError),
        ({"matcher": broken_matcher("forced_tokens")}, Boom),
        ({"matcher": broken_matcher("is_terminated")}, Boom),
        ({"on_token": lambda token: 1 / 0}, ZeroDivisionError),
    ],
)
def test_an_error_of_one_sequence_is_its_own(more, error):
    engine = make()
    good = [sequence(PROMPT, 10), sequence([*PROMPT, 1], 10, matcher=mixed_grammar())]
    bad = sequence(PROMPT, 10, **more)
    run_all(engine, [good[0], bad, good[1]])
    assert type(bad.listener.error) is error
    assert bad.listener.calls == 1
    assert good[0].listener.result.output_ids == reference(PROMPT, good[0].sampling).output_ids
    assert good[1].listener.result.finish_reason == "stop"
    assert engine.stats().kv_used == 0


def test_a_listener_that_raises_is_told_of_it_and_hurts_nobody(caplog):
    class Bad(Told):
        def on_finish(self, seq, result):
            raise Boom("finish")

        def on_error(self, seq, error):
            super().on_error(seq, error)
            raise Boom("error")

    engine = make()
    bad, good = sequence(PROMPT, 3, listener=Bad()), sequence(PROMPT, 6)
    run_all(engine, [bad, good])
    assert isinstance(bad.listener.error, Boom)
    assert "listener" in caplog.text
    assert good.listener.result is not None


def test_a_sink_sees_every_token_and_can_stop():
    said = reference(PROMPT, sequence(PROMPT, 12, sampling=NO_END).sampling).output_ids
    sink, heard = Sink(stop_after=5), []
    result = run_one(sequence(PROMPT, 12, sink=sink, on_token=heard.append, sampling=NO_END))
    assert (result.output_ids, result.finish_reason, result.end_id) == (said[:5], "stop", None)
    assert (sink.ids, sink.finished, heard) == (said[:5], 1, said[:5])
    forced = Sink(stop_after=2)
    result = run_one(sequence(PROMPT, 12, sink=forced, matcher=fixed_grammar(4, 5, 6)))
    assert (result.output_ids, result.forced_tokens, forced.ids) == ([4, 5], 2, [4, 5])


# -- cancellation and deadlines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3, 8])
def test_cancelling_takes_effect_within_a_step(after):
    engine = make(prefill_chunk=4)
    sink = Sink()
    seq, other = sequence(PROMPT, 50, sink=sink, sampling=NO_END), sequence([7, 7], 20, sampling=NO_END)
    engine.submit([seq, other])
    for _ in range(after):
        engine.step()
    engine.cancel(seq)
    engine.cancel(seq)
    engine.step()
    assert seq.listener.result.finish_reason is FinishReason.CANCELLED
    assert seq.listener.result.output_ids == reference(PROMPT, seq.sampling).output_ids[: len(sink.ids)]
    assert engine.stats().running <= 1
    engine.cancel(seq)
    drain(engine)
    assert other.listener.result.output_ids == reference([7, 7], other.sampling).output_ids
    assert engine.stats().kv_used == 0


def test_cancelled_before_it_was_submitted():
    engine = make()
    seq = sequence(PROMPT, 50)
    engine.cancel(seq)
    run_all(engine, [seq])
    assert seq.listener.result.finish_reason is FinishReason.CANCELLED
    assert engine.stats().steps == 0


def test_a_client_that_leaves_early_frees_its_row():
    engine = make()
    seq = sequence(PROMPT, 1000, sampling=NO_END)
    engine.submit([seq])
    for _ in range(5):
        engine.step()
    engine.cancel(seq)
    assert engine.step() is False
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_used, stats.kv_cached) == (0, 0, 0, 10 + 4)


def test_deadlines(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    engine = make(FakeRunner(num_rows=1))
    running = sequence(PROMPT, 50, deadline=110.0, sampling=NO_END)
    waiting = sequence([4], 50, deadline=105.0, priority=-1, sampling=NO_END)
    free = sequence([5], 3, priority=-2, sampling=NO_END)
    for seq in (running, waiting, free):
        seq.submitted_at = 100.0
    engine.submit([running, waiting, free])
    engine.step()
    clock[0] = 105.5
    engine.step()
    assert isinstance(waiting.listener.error, DeadlineError)
    assert "timeout of 5 s" in str(waiting.listener.error)
    assert running.state is SequenceState.RUNNING
    clock[0] = 110.0
    engine.step()
    assert isinstance(running.listener.error, DeadlineError)
    drain(engine)
    assert len(free.listener.result.output_ids) == 3


def test_deadlines_of_finished_sequences_are_forgotten():
    engine = make()
    for _ in range(5):
        run_all(engine, [sequence([i], 1, deadline=time.monotonic() + 1e6) for i in range(39)])
    engine.step()
    assert len(engine._deadlines) < 100


# -- the thread ------------------------------------------------------------------------------------------------------


class Waiter(Told):
    """Tells another thread; insists on the engine's."""

    def __init__(self) -> None:
        super().__init__()
        self.done, self.thread = threading.Event(), ""

    def on_finish(self, seq, result):
        super().on_finish(seq, result)
        self.thread = threading.current_thread().name
        self.done.set()

    def on_error(self, seq, error):
        super().on_error(seq, error)
        self.done.set()

    def wait(self):
        assert self.done.wait(20), "nobody told"
        return self.result if self.error is None else self.error


class SlowRunner(FakeRunner):
    """A step that lasts until it is let go."""

    def __post_init__(self):
        super().__post_init__()
        self.entered, self.go = threading.Event(), threading.Event()

    def forward(self, batch):
        self.entered.set()
        assert self.go.wait(20)
        return super().forward(batch)


@pytest.fixture
def started():
    engines = []
    before = set(threading.enumerate())  # other tests of this worker may share a runtime

    def start(runner: FakeRunner | None = None, **config) -> Engine:
        engine = make(runner, **config)
        engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close(20)
    assert not [t for t in threading.enumerate() if t not in before and t.name == "radicel-engine"]


def test_many_threads_share_an_engine(started):
    engine = started(prefill_chunk=16)
    failures = []

    def client(number: int) -> None:
        for i in range(10):
            seq = sequence([number, *PROMPT[:i]], 6, listener=Waiter())
            engine.submit([seq])
            result = seq.listener.wait()
            if result.output_ids != reference(seq.prompt_ids, seq.sampling).output_ids:
                failures.append(seq)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)
    assert stats.prompt_tokens == 8 * sum(1 + i for i in range(10))


def test_whoever_is_told_finds_the_numbers_up_to_date(started):
    engine = started()
    seen = []

    class Reader(Waiter):
        def on_finish(self, seq, result):
            seen.append(engine.stats())
            super().on_finish(seq, result)

    seq = sequence(PROMPT, 5, listener=Reader(), sampling=NO_END)
    engine.submit([seq])
    seq.listener.wait()
    assert seq.listener.thread == "radicel-engine"
    assert (seen[0].running, seen[0].generated_tokens, seen[0].kv_used, seen[0].kv_cached) == (0, 5, 0, 14)


def test_a_listener_may_submit_and_flush(started):
    engine = started()
    second = sequence(PROMPT, 3, listener=Waiter())

    class Chain(Waiter):
        def on_finish(self, seq, result):
            engine.flush_cache()
            engine.submit([second])
            super().on_finish(seq, result)

    engine.submit([sequence(PROMPT, 3, listener=Chain())])
    assert second.listener.wait().cached_tokens == 0


def test_a_prompt_lies_in_slots_in_order_whatever_ran_before():
    """Rows that decode side by side take slots in turns; attention reads a later prompt in whole blocks anyway."""
    runner = FakeRunner()
    engine = make(runner, prefill_chunk=128)
    for start in (1, 11):
        prompts = [[start + n % 10, *[n % 7 + 1] * (70 + n)] for n in range(20)]
        run_all(engine, [sequence(prompt, 30, sampling=NO_END) for prompt in prompts])
    engine.flush_cache()
    long = sequence([token % 38 + 1 for token in range(1000)], 3, sampling=NO_END)
    run_all(engine, [long])
    last = [step.chains[0] for step in runner.steps if step.chains is not None][-1]
    assert [(run.first, run.end) for run in runs_of(last)] == [(0, 1000)]


def test_flushing_drops_what_nobody_holds(started):
    runner = SlowRunner()
    engine = started(runner)
    runner.go.set()
    first = sequence([9, 9, 9], 2, listener=Waiter(), sampling=NO_END)
    engine.submit([first])
    first.listener.wait()
    assert engine.stats().kv_cached == 4
    engine.flush_cache()
    stats = engine.stats()
    assert (stats.kv_cached, stats.kv_free) == (0, 4095)


def test_check_looks_between_steps_and_hurts_nobody(started, monkeypatch):
    engine = started(prefill_chunk=2)
    seq = sequence(PROMPT, 300, listener=Waiter(), sampling=NO_END)
    engine.submit([seq])
    engine.check()
    with monkeypatch.context() as patch:
        patch.setattr(
            engine.scheduler.placement.pool, "check", lambda: (_ for _ in ()).throw(AssertionError("slots lost"))
        )
        engine.config = EngineConfig()
        with pytest.raises(AssertionError, match="slots lost"):
            engine.check()
    assert len(seq.listener.wait().output_ids) == 300


def test_an_idle_engine_sleeps(started):
    engine = started()
    seq = sequence(PROMPT, 2, listener=Waiter())
    engine.submit([seq])
    seq.listener.wait()
    calls = []
    engine._receive = lambda: calls.append(1)
    time.sleep(0.2)
    assert calls == []
    del engine._receive


def test_close_fails_who_still_waits(started):
    runner = SlowRunner()
    engine = started(runner)
    running, waiting = (sequence([i], 500, listener=Waiter(), sampling=NO_END) for i in (1, 2))
    engine.submit([running])
    assert runner.entered.wait(20)
    engine.submit([waiting])
    closer = threading.Thread(target=engine.close, args=(20,))
    closer.start()
    runner.go.set()
    closer.join(20)
    for seq in (running, waiting):
        assert isinstance(seq.listener.wait(), BackendClosedError)
    assert runner.closed
    assert not engine._thread.is_alive()
    assert (engine.stats().running, engine.stats().kv_used) == (0, 0)
    engine.check()
    engine.close()
    for call in (lambda: engine.submit([sequence([1], 1)]), engine.flush_cache):
        with pytest.raises(BackendClosedError):
            call()


def test_close_does_not_wait_for_ever(started, caplog):
    runner = SlowRunner()
    engine = started(runner)
    seq = sequence([1], 1, listener=Waiter(), sampling=NO_END)
    engine.submit([seq])
    assert runner.entered.wait(20)
    engine.close(0.05)
    assert isinstance(seq.listener.wait(), BackendClosedError)
    assert not runner.closed
    assert "did not end" in caplog.text
    runner.go.set()
    engine._thread.join(20)
    assert seq.state is SequenceState.FINISHED
    assert seq.listener.calls == 1, "the step in flight ended it, and its listener had been told"


def test_a_listener_may_close_the_engine(started):
    runner = FakeRunner()
    engine = started(runner)

    class Closer(Waiter):
        def on_finish(self, seq, result):
            engine.close()
            super().on_finish(seq, result)

    seqs = [sequence([1], 2, listener=Closer()), sequence([2], 900, listener=Waiter(), sampling=NO_END)]
    engine.submit(seqs)
    seqs[0].listener.wait()
    assert isinstance(seqs[1].listener.wait(), BackendClosedError)
    engine._thread.join(20)
    assert runner.closed


@pytest.mark.parametrize("fail_at", [0, 3])
def test_a_step_that_raises_is_told_to_everybody(started, fail_at, caplog):
    runner = FakeRunner(num_rows=2, fail_at=fail_at)
    engine = started(runner)
    seqs = [sequence([i], 50, listener=Waiter(), sampling=NO_END) for i in range(5)]
    engine.submit(seqs)
    for seq in seqs:
        error = seq.listener.wait()
        assert isinstance(error, EngineDeadError)
        assert isinstance(error.__cause__, RuntimeError)
        assert "illegal memory access" in str(error)
    assert len({id(seq.listener.error) for seq in seqs}) == 5, "an exception of one's own"
    engine._thread.join(20)
    for call in (lambda: engine.submit([sequence([1], 1)]), engine.flush_cache):
        with pytest.raises(EngineDeadError) as caught:
            call()
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert "the engine stops" in caplog.text
    engine.close(5)
    assert runner.closed


def test_a_step_driven_by_hand_raises_what_it_raised():
    engine = make(FakeRunner(fail_at=1))
    seq = sequence([1], 50, sampling=NO_END)
    engine.submit([seq])
    engine.step()
    with pytest.raises(RuntimeError, match="illegal"):
        engine.step()
    assert isinstance(seq.listener.error, EngineDeadError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_use_in_a_forked_child_is_an_error():
    engine = make()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        try:
            engine.submit([sequence([1], 1)])
        except ForkedProcessError as error:
            answers.put(str(error))
        else:
            answers.put("no error")

    process = context.Process(target=child)
    process.start()
    assert "after forking" in answers.get()
    process.join(20)


def test_two_engines_live_side_by_side(started):
    engines = [started(), started(prefill_chunk=3)]
    seqs = [sequence(PROMPT, 10, listener=Waiter()) for _ in engines]
    for engine, seq in zip(engines, seqs):
        engine.submit([seq])
    outputs = [seq.listener.wait().output_ids for seq in seqs]
    assert outputs[0] == outputs[1] == reference(PROMPT, seqs[0].sampling).output_ids


def test_stats_and_times():
    engine = make()
    seq = sequence(PROMPT, 4, sampling=NO_END)
    engine.submit([seq])
    assert engine.stats().waiting == 1
    drain(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.computed_tokens, stats.generated_tokens, stats.steps) == (10, 10, 4, 4)
    assert stats.hit_rate == 0.0
    assert 0.0 <= stats.gpu_idle_share < 1.0
    assert stats.step_s > 0.0
    run_all(engine, [sequence(PROMPT, 0)])
    assert math.isclose(engine.stats().hit_rate, 0.5)
    result = seq.listener.result
    assert 0.0 <= result.queue_s <= result.first_token_s <= result.total_s
