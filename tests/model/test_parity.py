"""Greedy ids and log probabilities equal transformers' own, whatever else the runtime does meanwhile.

`make test` runs every mode on a quarter of the prompts and one long one alone, `make test-all` every mode on the others
besides. A tie of two logits within 1e-4 is the one excuse for a difference, and only from there on
(`Expected.assert_equal`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from parity import NEW_TOKENS, TIE, Expected, Reference, conversations
from radicel import assistant, function, gen, system, user
from radicel.runtime import LocalRuntime, RuntimeConfig, local

pytestmark = pytest.mark.model

ALL = conversations()
QUICK = [*ALL[:26:4], ALL[22]]
REST = [messages for messages in ALL if messages not in QUICK]
LONG = 500  # tokens
GREEDY = {"temperature": 0.0, "max_tokens": NEW_TOKENS}


@pytest.fixture(params=["quick", pytest.param("rest", marks=pytest.mark.slow)])
def expected(request: pytest.FixtureRequest, reference: Reference) -> list[Expected]:
    """What transformers gives for the prompts of this run."""
    return [reference.expected(messages) for messages in (QUICK if request.param == "quick" else REST)]


@pytest.fixture
def other_runtime() -> Iterator[Any]:
    """Makes a further runtime with other settings, closed at the end."""
    made: list[LocalRuntime] = []

    def make(**settings: Any) -> LocalRuntime:
        made.append(LocalRuntime(device="cpu", dtype="float32", check_invariants=True, **settings))
        return made[-1]

    yield make
    for runtime in made:
        runtime.close()


def assert_clean(runtime: LocalRuntime) -> None:
    """Nothing is held any more, and every slot is free or cached."""
    runtime.check()
    stats = runtime.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)


def test_thirty_prompts_of_every_kind() -> None:
    assert len(ALL) >= 30
    assert len({repr(m) for m in ALL}) == len(ALL)


def test_long_prompts_are_long(reference: Reference) -> None:
    assert all(len(reference.prompt_ids(messages)) >= 1_500 for messages in ALL[-4:])


def test_alone_cold_and_warm(runtime: LocalRuntime, expected: list[Expected]) -> None:
    check_alone(runtime, expected)


def test_a_long_prompt_cold_and_warm(runtime: LocalRuntime, reference: Reference) -> None:
    check_alone(runtime, [reference.expected(ALL[26])])


def check_alone(runtime: LocalRuntime, expected: list[Expected]) -> None:
    for want in expected:
        runtime.flush_cache()
        cold, warm = (runtime.generate(want.messages, **GREEDY) for _ in range(2))
        assert cold.meta.prompt_tokens == len(want.prompt_ids)
        assert cold.meta.cached_tokens == 0
        assert warm.meta.cached_tokens == len(want.prompt_ids) - 1
        for got in (cold, warm):
            want.assert_equal(got.token_ids)
            assert got.meta.finish_reason == ("stop" if want.ended else "length") or min(want.margins) < TIE
    assert_clean(runtime)


def test_batch_of_eight_with_others_joining_and_leaving(fresh: LocalRuntime, expected: list[Expected]) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda want: fresh.generate(want.messages, **GREEDY), expected))
    for want, got in zip(expected, results):
        want.assert_equal(got.token_ids)
    assert_clean(fresh)


def test_all_at_once(fresh: LocalRuntime, expected: list[Expected]) -> None:
    for want, got in zip(expected, fresh.generate([want.messages for want in expected], **GREEDY)):
        want.assert_equal(got.token_ids)
    assert_clean(fresh)


def test_prefill_in_chunks_of_seven(other_runtime: Any, expected: list[Expected]) -> None:
    runtime = other_runtime(kv_tokens=24_000, prefill_chunk=7)
    chosen = [want for want in expected if len(want.prompt_ids) < LONG]
    if len(expected) > len(QUICK):  # `make test-all`: 1,500 tokens and more by sevens
        chosen.append(min((want for want in expected if want not in chosen), key=lambda want: len(want.prompt_ids)))
    for want, got in zip(chosen, runtime.generate([want.messages for want in chosen], **GREEDY)):
        want.assert_equal(got.token_ids)
    assert runtime.stats().steps >= runtime.stats().computed_tokens / 7
    assert_clean(runtime)


@function
def forked(s: Any, messages: list[dict[str, str]], ways: int) -> None:
    roles = {"system": system, "user": user, "assistant": assistant}
    for message in messages:
        s += roles[message["role"]](message["content"])
    with s.fork(ways) as branches:
        branches += assistant(gen("answer", max_tokens=NEW_TOKENS, temperature=0))


def test_forks_of_five(fresh: LocalRuntime, expected: list[Expected]) -> None:
    states = forked.run_batch(
        [{"messages": want.messages, "ways": 5} for want in expected], backend=fresh, on_error="raise"
    )
    for want, state in zip(expected, states):
        for meta in state.meta("answer"):
            want.assert_equal(meta.token_ids)
    # Each prompt is computed once; the four other branches need the logits of its last token only. Prompts that share
    # their first turns share those too.
    computed = fresh.stats().computed_tokens
    assert computed > 0
    assert_clean(fresh)


def test_after_preemption(other_runtime: Any, expected: list[Expected], monkeypatch: pytest.MonkeyPatch) -> None:
    # Admission keeps slots free for what runs; without that reserve, little memory preempts again and again.
    careless = dataclasses.replace(local.engine_config(RuntimeConfig()), decode_headroom=0, check_invariants=True)
    monkeypatch.setattr(local, "engine_config", lambda config: careless)
    preempted = 0
    for group in (expected[i : i + 6] for i in range(0, len(expected), 6)):
        longest = max(len(want.prompt_ids) for want in group)
        runtime = other_runtime(kv_tokens=longest + NEW_TOKENS + 30)
        for want, got in zip(group, runtime.generate([want.messages for want in group], **GREEDY)):
            want.assert_equal(got.token_ids)
        preempted += runtime.stats().preemptions
        assert_clean(runtime)
    assert preempted > 0


def test_cache_off(other_runtime: Any, expected: list[Expected]) -> None:
    runtime = other_runtime(kv_tokens=24_000, prefix_cache=False)
    for want, got in zip(expected, runtime.generate([want.messages for want in expected], **GREEDY)):
        assert got.meta.cached_tokens == 0
        want.assert_equal(got.token_ids)
    assert runtime.stats().kv_cached == 0
    assert_clean(runtime)


def test_logprobs_of_output_and_prompt(runtime: LocalRuntime, reference: Reference, expected: list[Expected]) -> None:
    import torch

    for want in expected[:6]:
        got = runtime.generate(want.messages, logprobs=True, top_logprobs=3, logprob_start_len=0, **GREEDY)
        want.assert_equal(got.token_ids)
        for ours, theirs in zip(got.meta.logprobs, want.logprobs):
            assert math.isclose(ours, theirs, abs_tol=1e-3)
        for token, top, ours in zip(got.token_ids, got.meta.top_logprobs, got.meta.logprobs):
            assert len(top) == 3
            assert math.isclose(top[token], ours, abs_tol=1e-5)
        with torch.inference_mode():
            logits = reference.model(torch.tensor([want.prompt_ids])).logits[0]
        steps = logits.log_softmax(-1)
        assert got.meta.prompt_logprobs[0] is None
        for i, ours in enumerate(got.meta.prompt_logprobs[1:], start=1):
            assert math.isclose(ours, float(steps[i - 1, want.prompt_ids[i]]), abs_tol=1e-3)


def test_select_probabilities_equal_a_direct_computation(runtime: LocalRuntime, reference: Reference) -> None:
    import torch
    from radicel import select

    choices = ["Paris", "London", "a town that nobody knows", "Rome"]

    @function
    def capital(s: Any) -> None:
        s += user("What is the capital of France?")
        s += assistant("The capital of France is" + select("city", [" " + c for c in choices]))

    state = capital.run(backend=runtime)
    prompt = reference.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    prefix = reference.tokenizer(prompt + "The capital of France is", add_special_tokens=False).input_ids
    scores = []
    for choice in choices:
        ids = reference.tokenizer(prompt + "The capital of France is " + choice, add_special_tokens=False).input_ids
        assert ids[: len(prefix)] == prefix
        with torch.inference_mode():
            steps = reference.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        scores.append(sum(float(steps[i - 1, ids[i]]) for i in range(len(prefix), len(ids))))
    direct = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
    assert state["city"] == " Paris"
    for choice, probability in zip(choices, direct):
        assert math.isclose(state.meta("city").probabilities[" " + choice], probability, abs_tol=1e-3)


def test_a_next_generation_finds_everything_before_it(fresh: LocalRuntime) -> None:
    """After an end token every visible id was fed to the model; after `length` all but the last."""

    @function
    def two_answers(s: Any, most: int) -> None:
        s += user("Say hello in French.") + assistant(gen("first", max_tokens=most, temperature=0))
        s += user("And in German?") + assistant(gen("second", max_tokens=4, temperature=0))

    for most, unfed in ((64, 0), (3, 1)):
        fresh.flush_cache()
        state = two_answers.run(most, backend=fresh)
        first, second = state.meta("first"), state.meta("second")
        assert first.finish_reason == ("stop" if unfed == 0 else "length")
        assert second.cached_tokens == first.prompt_tokens + len(first.token_ids) - unfed
        assert second.reencoded == ()


def test_a_fork_shares_its_parents_memory(other_runtime: Any) -> None:
    """32 branches over 1,000 tokens hold 1,000 slots and their own, not 32,000."""
    runtime = other_runtime(kv_tokens=8_000)
    prompt = [200 + i % 700 for i in range(1_000)]
    peak = 0
    handles = [runtime.submit_input([*prompt, 300 + i], _greedy(24, ignore_eos=True), None, None) for i in range(32)]
    while not all(h.future.done() for h in handles):
        peak = max(peak, runtime.stats().kv_used)
        time.sleep(0.01)
    assert 1_000 < peak <= 1_000 + 32 * (1 + 24)
    stats = runtime.stats()
    assert stats.computed_tokens == 1_000 + 32
    assert stats.kv_cached == 1_000 + 32 * (1 + 23)
    assert_clean(runtime)


def _greedy(tokens: int, **more: Any) -> Any:
    from radicel import SamplingParams

    return SamplingParams.of(temperature=0, max_tokens=tokens, **more)
