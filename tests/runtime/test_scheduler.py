"""What runs when: sharing, leaders, budget, order, ageing, preemption, limits. On the pseudo-model, step by step."""

from __future__ import annotations

import random

import pytest
from radicel.errors import ContextLengthError, InvalidValueError
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.request import Sequence, SequenceState

from .fake_runner import END, FakeRunner, reference, sequence

NO_END = {"end_ids": frozenset()}


def make(runner: FakeRunner | None = None, **config) -> Engine:
    return Engine(runner or FakeRunner(), EngineConfig(check_invariants=True, **config))


def drain(engine: Engine, limit: int = 5_000) -> int:
    """Steps until nothing is left; how many."""
    for done in range(limit):
        if not engine.step():
            return done
    raise AssertionError("the engine does not come to an end")


def run_all(engine: Engine, sequences: list[Sequence]) -> None:
    engine.submit(sequences)
    drain(engine)


def assert_right(sequences: list[Sequence], limit: int = 2048) -> None:
    for seq in sequences:
        assert seq.listener.error is None, seq.listener.error
        assert seq.listener.result.output_ids == reference(seq.prompt_ids, seq.sampling, limit=limit).output_ids


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(END) for _ in range(count)]


# -- sharing ---------------------------------------------------------------------------------------------------------


def test_a_fork_of_32_holds_its_prefix_once():
    rng = random.Random(1)
    prefix = tokens(rng, 1000)
    engine = make()
    branches = [sequence([*prefix, i], 20, sampling=NO_END) for i in range(32)]
    engine.submit(branches)
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.kv_used) == (32, 1000 + 32)
    assert stats.computed_tokens == 1000 + 32, "the leader computed the prefix, in one step with its siblings"
    for _ in range(9):
        engine.step()
    assert engine.stats().kv_used == 1000 + 32 + 32 * 9
    drain(engine)
    assert_right(branches)
    stats = engine.stats()
    assert (stats.kv_used, stats.kv_cached) == (0, 1000 + 32 + 32 * 19)
    assert stats.cached_tokens == 31 * 1000


@pytest.mark.parametrize("policy", ["prefix", "fcfs"])
@pytest.mark.parametrize("chunk", [1, 7, 50, 8192])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_computed_is_the_number_of_distinct_tokens(policy, chunk, seed):
    rng = random.Random(seed)
    prompts: list[list[int]] = [[1]]
    for _ in range(40):
        base = rng.choice(prompts)
        prompts.append([*base[: rng.randint(1, len(base))], *tokens(rng, rng.randint(1, 25))])
    prompts = [[*prompt, END] for prompt in prompts]  # END is in no prompt: none is a prefix of another
    distinct = {tuple(prompt[:n]) for prompt in prompts for n in range(1, len(prompt) + 1)}
    unique = list({tuple(prompt): prompt for prompt in prompts}.values())
    engine = make(prefill_chunk=chunk, policy=policy)
    seqs = [sequence(prompt, 3, priority=rng.choice([0, 0, 1]), sampling=NO_END) for prompt in unique]
    for seq in seqs:
        engine.submit([seq])
        for _ in range(rng.choice([0, 0, 1, 4])):
            engine.step()
    drain(engine)
    assert_right(seqs)
    stats = engine.stats()
    assert stats.computed_tokens == len(distinct)
    assert stats.prompt_tokens == sum(map(len, unique)) == stats.cached_tokens + stats.computed_tokens
    assert stats.preemptions == 0


def test_a_partial_prefill_takes_over_what_a_finished_sequence_leaves():
    """The tokens that another sequence *generated* enter the tree while a prefill that needs them is under way."""
    engine = make(FakeRunner(num_rows=4), prefill_chunk=4)
    first = sequence([1, 2, 3], 20, sampling=NO_END)
    engine.submit([first])
    for _ in range(18):
        engine.step()
    written = reference([1, 2, 3], first.sampling).output_ids
    second = sequence([1, 2, 3, *written, 4, 5, 6], 5, sampling=NO_END)
    engine.submit([second])
    drain(engine)
    assert_right([first, second])
    # [4, 5, 6] and the last generated token, which was never fed, and what second prefilled before first ended
    assert engine.stats().computed_tokens < 3 + 4 + 12
    assert second.listener.result.cached_tokens == 3 + 20 + 3 - (engine.stats().computed_tokens - 3)


def test_a_more_important_sibling_leads_and_the_other_follows():
    rng = random.Random(3)
    shared = tokens(rng, 40)
    engine = make(prefill_chunk=10)
    low = sequence([*shared, 1], 4, sampling=NO_END)
    engine.submit([low])
    engine.step()
    high = sequence([*shared, 2], 4, sampling=NO_END, priority=5)
    engine.submit([high])
    drain(engine)
    assert_right([low, high])
    assert engine.stats().computed_tokens == 40 + 2
    assert high.first_token_at < low.first_token_at
    assert high.listener.result.cached_tokens == 10
    assert low.listener.result.cached_tokens == 30


def test_namespaces_share_nothing():
    engine = make()
    seqs = [sequence([1, 2, 3, 4], 1, namespace=name) for name in ("", "a", "b", "a")]
    for seq in seqs:
        run_all(engine, [seq])
    assert [seq.listener.result.cached_tokens for seq in seqs] == [0, 0, 0, 3]


def test_the_next_turn_finds_everything_that_the_model_was_fed():
    engine = make()
    first = sequence([1, 2, 3], 10, sampling=NO_END)
    run_all(engine, [first])
    said = first.listener.result.output_ids
    second = sequence([1, 2, 3, *said, 7], 1, sampling=NO_END)
    run_all(engine, [second])
    assert second.listener.result.cached_tokens == 3 + 10 - 1, "the last token of a `length` end was never fed"
    stop_at = said.index(said[4])
    ended = sequence([1, 2, 3], 10, sampling={"end_ids": frozenset({said[4]})})
    run_all(engine, [ended])
    assert ended.listener.result.output_ids == said[:stop_at]
    engine.flush_cache()
    fresh = sequence([1, 2, 3], 10, sampling={"end_ids": frozenset({said[4]})})
    run_all(engine, [fresh])
    third = sequence([1, 2, 3, *said[:stop_at], 7], 1)
    run_all(engine, [third])
    assert third.listener.result.cached_tokens == 3 + stop_at, "all visible tokens after an end token"


def test_a_wholly_cached_prompt_costs_one_query():
    engine = make()
    prompt = list(range(1, 21))
    seqs = [sequence(prompt, 5, sampling=NO_END) for _ in range(3)]
    run_all(engine, seqs)
    assert_right(seqs)
    assert [seq.listener.result.cached_tokens for seq in seqs] == [0, 19, 19]
    assert engine.stats().computed_tokens == 22
    queries = [batch for batch in engine.runner.steps if (batch.slots == 0).any()]
    assert len(queries) == 1, "the siblings of one step read what their leader writes in it"


def test_page_table_entries_wait_for_a_step_that_writes_them():
    engine = make()
    prompt = list(range(1, 21))
    run_all(engine, [sequence(prompt, 0)])
    engine.submit([sequence(prompt, 0)])
    engine._receive()
    plan = engine.scheduler.schedule()
    assert (plan.works, len(plan.done), plan.updates) == ([], 1, [])
    assert [update.slots.tolist() for update in engine.scheduler.placement.updates] == [list(range(1, 21))]


def test_without_the_prefix_cache_nothing_is_shared_and_the_tokens_are_the_same():
    prompts = [[*range(1, 20), i] for i in range(6)]
    outputs = []
    for prefix_cache in (True, False):
        engine = make(prefix_cache=prefix_cache, prefill_chunk=16)
        seqs = [sequence(prompt, 6, sampling=NO_END) for prompt in prompts]
        run_all(engine, seqs)
        outputs.append([seq.listener.result.output_ids for seq in seqs])
        stats = engine.stats()
        assert stats.cached_tokens == (5 * 19 if prefix_cache else 0)
        assert (stats.kv_cached == 0) is not prefix_cache
    assert outputs[0] == outputs[1]
    assert stats.kv_free == 4095


# -- budget ----------------------------------------------------------------------------------------------------------


def test_decoding_goes_on_beside_a_chunked_prefill():
    engine = make(prefill_chunk=10)
    decoding = [sequence([i], 40, sampling=NO_END) for i in range(3)]
    engine.submit(decoding)
    engine.step()
    long = sequence(tokens(random.Random(5), 55), 4, sampling=NO_END)
    engine.submit([long])
    before = len(engine.runner.steps)
    for _ in range(6):
        engine.step()
    shapes = [sorted(batch.q_lens.tolist()) for batch in engine.runner.steps[before:]]
    assert shapes == [[1, 1, 1, 10]] * 5 + [[1, 1, 1, 5]]
    drain(engine)
    assert_right([*decoding, long])


def test_a_step_has_at_most_its_budget_beside_one_token_a_row():
    rng = random.Random(8)
    engine = make(prefill_chunk=16)
    seqs = [sequence(tokens(rng, rng.randint(1, 60)), rng.randint(1, 30)) for _ in range(40)]
    run_all(engine, seqs)
    for batch in engine.runner.steps:
        assert batch.num_tokens - batch.num_seqs <= 16
        assert batch.num_tokens <= 16 + engine.runner.num_rows
    assert_right(seqs)


def shapes_of(lengths: list[int], **config) -> list[list[int]]:
    """The tokens of each row, step by step, of prompts with so many tokens, each of which one token follows."""
    engine = make(**config)
    seqs = [sequence(tokens(random.Random(n), count), 1, sampling=NO_END) for n, count in enumerate(lengths)]
    run_all(engine, seqs)
    assert_right(seqs)
    return [batch.q_lens.tolist() for batch in engine.runner.steps]


@pytest.mark.parametrize(
    ("chunk", "prompts", "steps"),
    [
        (64, [33, 33], [[33, 33]]),  # the last 2 of the second
        (64, [33, 34], [[33, 31], [3]]),  # 3 are more than 1 in 32, and no part of them is added
        (64, [66], [[66]]),
        (64, [131], [[64], [64], [3]]),
        (64, [130], [[64], [66]]),
        (64, [64, 2], [[64], [2]]),  # a full step takes nothing more
        (64, [63, 2, 2], [[63, 2], [2]]),  # what is beyond is that once
        (31, [16, 16], [[16, 15], [1]]),  # a small step is exact
    ],
)
def test_the_end_of_a_prompt_may_take_a_32nd_more(chunk, prompts, steps):
    assert shapes_of(prompts, prefill_chunk=chunk, policy="fcfs") == steps


def test_what_is_more_comes_beside_the_rows_that_decode():
    engine = make(prefill_chunk=64)
    decoding = [sequence([i], 40, sampling=NO_END) for i in range(3)]
    engine.submit(decoding)
    engine.step()
    engine.submit([sequence(tokens(random.Random(5), 66), 4, sampling=NO_END)])
    engine.step()
    assert sorted(engine.runner.steps[-1].q_lens.tolist()) == [1, 1, 1, 66]


def test_what_is_more_needs_slots_too():
    """Rows that decode have taken some of the slots that the last 66 tokens, 2 more than a step has, would need."""
    engine = make(FakeRunner(num_slots=137), prefill_chunk=64, decode_headroom=0)
    decoding = [sequence([i], 40, sampling=NO_END) for i in range(3)]
    engine.submit(decoding)
    engine.step()
    long = sequence(tokens(random.Random(5), 130), 1, sampling=NO_END)
    engine.submit([long])
    engine.step()
    engine.step()
    assert [sorted(batch.q_lens.tolist()) for batch in engine.runner.steps[-2:]] == [[1, 1, 1, 64], [1, 1, 1, 63]]
    drain(engine)
    assert_right([*decoding, long])


def test_a_prompt_whose_grammar_is_not_ready_takes_no_more_than_its_budget():
    class Waits:
        is_ready = False

    engine = make(prefill_chunk=64)
    engine.submit([sequence(tokens(random.Random(5), 67), 4, matcher=Waits())])
    engine.step()
    assert engine.runner.steps[-1].q_lens.tolist() == [64]


@pytest.mark.parametrize(("rows", "max_running", "most"), [(3, 256, 3), (64, 5, 5)])
def test_rows_and_max_running_limit_what_runs(rows, max_running, most):
    engine = make(FakeRunner(num_rows=rows), max_running=max_running)
    seqs = [sequence([i], 10, sampling=NO_END) for i in range(12)]
    run_all(engine, seqs)
    assert max(batch.num_seqs for batch in engine.runner.steps) == most
    assert_right(seqs)


# -- order -----------------------------------------------------------------------------------------------------------


def finish_order(engine: Engine, seqs: list[Sequence]) -> list[int]:
    """Indices of `seqs` in the order of their admission."""
    drain(engine)
    return sorted(range(len(seqs)), key=lambda i: seqs[i].first_step_at)


def test_higher_priorities_go_first():
    engine = make(FakeRunner(num_rows=1))
    seqs = [sequence([i], 2, priority=p) for i, p in enumerate([0, 2, 1, 2, -1])]
    engine.submit(seqs)
    assert finish_order(engine, seqs) == [1, 3, 2, 0, 4]


@pytest.mark.parametrize(("policy", "order"), [("prefix", [2, 4, 3, 0, 1]), ("fcfs", [0, 1, 2, 3, 4])])
def test_the_longest_cached_prefix_goes_first(policy, order):
    engine = make(FakeRunner(num_rows=1), policy=policy)
    run_all(engine, [sequence([1, 2, 3, 4, 5, 6], 1)])
    prompts = [[9, 9], [8, 8], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9], [1, 2, 3, 4, 5, 6, 8]]
    seqs = [sequence(prompt, 1) for prompt in prompts]
    engine.submit(seqs)
    assert finish_order(engine, seqs) == order


@pytest.mark.parametrize("priority", [0, 3])
def test_nobody_starves(priority):
    """A steady stream of better sequences passes the poor one `max_overtakes` times, and no more."""
    engine = make(FakeRunner(num_rows=1), max_overtakes=5)
    run_all(engine, [sequence([1, 2, 3, 4], 1)])
    poor = sequence([9, 9, 9], 1)
    stream = [sequence([1, 2, 3, 4, i], 1, priority=priority) for i in range(30)]
    engine.submit([stream[0], stream[1], poor])
    for seq in stream[2:]:
        engine.submit([seq])
        engine.step()
    drain(engine)
    passed = sum(seq.first_step_at < poor.first_step_at for seq in stream)
    assert passed == 5 + 2, "two came before it, five passed it"


def test_a_prefill_under_way_is_not_passed_for_ever():
    engine = make(prefill_chunk=8, max_overtakes=4)
    low = sequence(tokens(random.Random(2), 100), 1)
    engine.submit([low])
    for i in range(400):
        engine.submit([sequence([1, i % END, *tokens(random.Random(i), 20)], 1, priority=1)])
        engine.step()
        if low.state is SequenceState.FINISHED:
            break
    assert low.state is SequenceState.FINISHED
    assert i > 12, "the others did pass"


def test_work_for_waiting_sequences_is_bounded():
    engine = make(FakeRunner(num_rows=2), match_window=16)
    engine.submit([sequence([1, 2, 3, i % END, i // END % END], 20, sampling=NO_END) for i in range(3000)])
    peeks = []
    peek = engine.scheduler.waiting._peek
    engine.scheduler.waiting._peek = lambda seq: peeks.append(seq) or peek(seq)
    for _ in range(30):
        engine.step()
    assert 16 <= len(peeks) <= 4 * 16, "looked at when a row is free, a window at a time"
    assert engine.stats().waiting == 3000 - 4


# -- preemption and limits -------------------------------------------------------------------------------------------


def test_preemption_takes_the_least_important_and_changes_no_output():
    engine = make(FakeRunner(num_slots=61), decode_headroom=0)
    seqs = [sequence([i, i + 1], 40, sampling=NO_END, priority=p) for i, p in enumerate([0, 1, 0, 1])]
    preempted: list[int] = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda seq, plan: (preempted.append(seqs.index(seq)), original(seq, plan))
    run_all(engine, seqs)
    assert_right(seqs, limit=60)
    assert preempted[:2] == [2, 0], "lowest priority, latest arrival first"
    assert engine.stats().preemptions == len(preempted)
    assert engine.stats().prompt_tokens == 8


def test_nobody_is_admitted_in_a_step_that_preempts():
    engine = make(FakeRunner(num_slots=41), decode_headroom=0)
    engine.submit([sequence([i], 30, sampling=NO_END) for i in range(4)])
    while engine.step():
        before, running = engine.stats().preemptions, engine.stats().running
        if not engine.step():
            break
        after = engine.stats()
        if after.preemptions > before:
            assert after.running < running
    assert engine.stats().preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("forced_runs", [True, False])
def test_a_preempted_sequence_goes_on_with_its_seed(temperature, forced_runs):
    engine = make(FakeRunner(num_slots=51), decode_headroom=0, forced_runs=forced_runs)
    seqs = [
        sequence([i], 35, sampling={**NO_END, "temperature": temperature, "seed": 99 + i, "logprobs": True})
        for i in range(5)
    ]
    run_all(engine, seqs)
    assert engine.stats().preemptions > 0
    assert_right(seqs, limit=50)
    for seq in seqs:
        want = reference(seq.prompt_ids, seq.sampling, limit=50)
        assert seq.listener.result.logprobs == pytest.approx(want.logprobs)


def test_headroom_avoids_preemption():
    preemptions = []
    for headroom in (0, 40):
        engine = make(FakeRunner(num_slots=101), decode_headroom=headroom)
        run_all(engine, [sequence([i], 30, sampling=NO_END) for i in range(10)])
        preemptions.append(engine.stats().preemptions)
    assert preemptions[0] > 0
    assert preemptions[1] == 0


@pytest.mark.parametrize(
    ("slots", "context", "length", "max_tokens", "named"),
    [
        (33, 2048, 33, 0, "KV pool of 32"),
        (33, 2048, 32, 1, "KV pool of 32"),
        (4096, 20, 20, 5, "context of 20"),
        (4096, 20, 21, 0, "context of 20"),
    ],
)
def test_what_can_never_fit_fails_at_once_and_blocks_nobody(slots, context, length, max_tokens, named):
    engine = make(FakeRunner(num_slots=slots, context_length=context))
    with pytest.raises(ContextLengthError, match=f"{length} tokens.*{named}"):
        engine.submit([sequence([1], 1), sequence([2] * length, max_tokens)])
    assert engine.stats().waiting == 0, "all or none"
    fits = sequence([1, 2, 3], 4)
    run_all(engine, [fits])
    assert_right([fits])


@pytest.mark.parametrize(("slots", "context"), [(33, 2048), (4096, 32)])
def test_generation_ends_with_the_pool_or_the_context(slots, context):
    engine = make(FakeRunner(num_slots=slots, context_length=context))
    long = sequence([1] * 10, 500, sampling=NO_END)
    others = [sequence([i], 60, sampling=NO_END) for i in range(4)]
    run_all(engine, [long, *others])
    assert_right([long, *others], limit=32)
    assert len(long.listener.result.output_ids) == 22
    assert long.listener.result.finish_reason == "length"


@pytest.mark.parametrize(("prompt", "named"), [([], "no tokens"), ([1, 40], "token id 40"), ([-1], "token id -1")])
def test_a_prompt_that_the_model_cannot_read_is_refused(prompt, named):
    with pytest.raises(InvalidValueError, match=named):
        make().submit([sequence(prompt, 1)])


@pytest.mark.parametrize(("field", "value"), [("prefill_chunk", 0), ("policy", "lifo"), ("max_running", True)])
def test_a_config_is_checked(field, value):
    with pytest.raises(InvalidValueError, match=f"{field}={value!r}"):
        EngineConfig(**{field: value})


def test_a_big_sequence_is_not_passed_by_small_ones_for_ever():
    engine = make(FakeRunner(num_slots=65), decode_headroom=4, policy="fcfs")
    engine.submit([sequence([i], 30, sampling=NO_END) for i in range(2)])
    engine.step()
    big = sequence([9] * 55, 5, sampling=NO_END)
    engine.submit([big])
    small = [sequence([20 + i % 10, i % END], 3, sampling=NO_END) for i in range(50)]
    engine.submit(small)
    drain(engine)
    assert_right([big, *small], limit=64)
    assert all(big.first_step_at <= seq.first_step_at for seq in small)
