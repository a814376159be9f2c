"""Why tokens are computed: what was dropped from the cache is known, and every sequence counts reasons."""

from __future__ import annotations

import random

import numpy as np
import pytest
from radicel.runtime.dropped import DroppedStretches
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.kv_pool import SlotPool
from radicel.runtime.radix_cache import RadixCache
from radicel.runtime.request import Sequence

from .fake_runner import END, FakeRunner, sequence

NS = ("user", "")
NO_END = {"end_ids": frozenset()}


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


# -- the stretches ---------------------------------------------------------------------------------------------------


def test_a_stretch_is_found_behind_its_prefix_only():
    dropped = DroppedStretches(100)
    dropped.add(NS, ids(1, 2, 3, 4, 5), 2, None)
    assert len(dropped) == 3
    assert dropped.take(NS, ids(1, 2, 3, 4, 9), 1) == 1, "it begins at 2"
    assert dropped.take(NS, ids(1, 7, 3, 4, 9), 2) == 2, "another prefix"
    assert dropped.take(("user", "b"), ids(1, 2, 3, 4), 2) == 2, "another namespace"
    assert dropped.take(NS, ids(1, 2, 3, 4, 9), 2) == 4
    assert dropped.take(NS, ids(1, 2, 3, 4, 9), 2) == 2, "computed again, so no longer dropped"
    assert len(dropped) == 1
    assert dropped.take(NS, ids(1, 2, 3, 4, 5), 4) == 5, "what lay behind it still is"


def test_stretches_that_were_dropped_one_after_the_other_are_one():
    dropped = DroppedStretches(100)
    key = None
    for end in range(10, 0, -1):
        key = dropped.add(NS, ids(*range(end)), end - 1, key)
    assert dropped.take(NS, ids(*range(12)), 0) == 10
    assert len(dropped) == 0


def test_the_oldest_are_forgotten_first():
    dropped = DroppedStretches(6)
    for first in range(4):
        dropped.add(NS, ids(first, 7, 7), 1, None)
    assert len(dropped) == 6
    assert [dropped.take(NS, ids(first, 7, 7), 1) for first in range(4)] == [1, 3, 3, 3]


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_agree_with_a_set_of_prefixes(seed):
    rng, pool, dropped = random.Random(seed), SlotPool(60), DroppedStretches(10_000)
    tree = RadixCache(dropped=dropped)
    ever: set[tuple[int, ...]] = set()
    known = 0
    for _ in range(600):
        run = tuple(rng.randrange(3) for _ in range(rng.randint(1, 12)))
        node, slots = tree.match(tree.root(NS), ids(*run))
        cached = len(slots)
        want = max([n for n in range(cached, len(run) + 1) if run[:n] in ever], default=cached)
        tree.lock(node)
        assert dropped.take(NS, ids(*run), cached) == want
        known += want > cached
        missing = len(run) - cached - pool.num_free
        if missing > 0:
            pool.give_back(tree.evict(missing))
        if pool.num_free >= len(run) - cached and cached < len(run):
            tree.extend(node, ids(*run[cached:]), pool.take(len(run) - cached))
            ever |= {run[:n] for n in range(1, len(run) + 1)}
        tree.unlock(node)
        if rng.random() < 0.2:
            pool.give_back(tree.evict(rng.randint(1, 30)))
        tree.check({})
    assert known > 30


# -- what sequences count --------------------------------------------------------------------------------------------


def run_all(engine: Engine, *sequences: Sequence) -> list[dict[str, int]]:
    """Runs them together; each one's reasons, which must account for its whole prompt."""
    engine.submit(sequences)
    while engine.step():
        pass
    for seq in sequences:
        assert seq.listener.error is None, seq.listener.error
        result = seq.listener.result
        reasons = {reason: count for reason, count in result.computed.items() if reason != "again"}
        assert result.cached_tokens + sum(reasons.values()) == len(seq.prompt_ids), result
        assert all(count > 0 for count in result.computed.values()), result
    return [seq.listener.result.computed for seq in sequences]


def engine_of(runner: FakeRunner | None = None, **config) -> Engine:
    return Engine(runner or FakeRunner(), EngineConfig(check_invariants=True, **config))


def test_new_cached_and_logits():
    engine = engine_of()
    prompt = list(range(1, 21))
    assert run_all(engine, sequence(prompt, 3), sequence([*prompt, 30], 3)) == [{"new": 20}, {"new": 1}]
    assert run_all(engine, sequence(prompt, 3)) == [{"logits": 1}]
    assert run_all(engine, sequence([*prompt[:10], 30, 31], 3)) == [{"new": 2}]


def test_prompt_logprobs_of_cached_tokens_are_computed_for_their_logits():
    engine = engine_of()
    prompt = list(range(1, 21))
    run_all(engine, sequence(prompt, 1))
    assert run_all(engine, sequence(prompt, 1, logprob_start=5)) == [{"logits": 16}]


def test_after_a_flush_the_same_prompt_was_evicted_and_what_is_new_in_it_is_new():
    engine = engine_of()
    prompt = list(range(1, 21))
    run_all(engine, sequence(prompt, 3))
    engine.flush_cache()
    assert run_all(engine, sequence([*prompt[:15], 30, 31], 3)) == [{"evicted": 15, "new": 2}]
    assert run_all(engine, sequence(prompt, 3)) == [{"evicted": 5}], "the rest of what was dropped is still known"


@pytest.mark.parametrize("chunk", [3, 8192])
def test_a_small_pool_drops_and_says_so(chunk):
    engine = engine_of(FakeRunner(num_slots=65), prefill_chunk=chunk)
    one, two = list(range(1, 38)), list(range(38, 1, -1))
    assert run_all(engine, sequence(one, 2, sampling=NO_END)) == [{"new": 37}]
    assert run_all(engine, sequence(two, 2, sampling=NO_END)) == [{"new": 37}]
    (again,) = run_all(engine, sequence(one, 2, sampling=NO_END))
    assert again.keys() == {"evicted"}
    assert 0 < again["evicted"] < 37
    (fresh,) = run_all(engine, sequence([*one[:20], *two[:8]], 2, sampling=NO_END))
    assert fresh == {"new": 8}


def test_what_a_sequence_wrote_and_lost_was_evicted_too():
    engine = engine_of()
    first = sequence([1, 2, 3], 10, sampling=NO_END)
    run_all(engine, first)
    said = first.listener.result.output_ids
    engine.flush_cache()
    assert run_all(engine, sequence([1, 2, 3, *said, 7], 1)) == [{"evicted": 3 + 10 - 1, "new": 2}]


def test_a_preempted_sequence_counts_what_it_computes_again_apart():
    rng = random.Random(5)
    engine = engine_of(FakeRunner(num_slots=121), leases=False, decode_headroom=0)
    prompts = [[rng.randrange(END) for _ in range(20)] for _ in range(4)]
    reasons = run_all(engine, *(sequence(prompt, 40, sampling=NO_END) for prompt in prompts))
    assert engine.stats().preemptions > 0
    assert [one["new"] for one in reasons] == [20, 20, 20, 20]
    again = sum(one.get("again", 0) for one in reasons)
    assert again > 0
    assert sum(sum(one.values()) for one in reasons) == engine.stats().computed_tokens


def test_without_a_prefix_cache():
    engine = engine_of(prefix_cache=False)
    prompt = list(range(1, 21))
    assert run_all(engine, sequence(prompt, 2), sequence(prompt, 2)) == [{"uncached": 20}, {"uncached": 20}]


@pytest.mark.parametrize("seed", range(6))
def test_reasons_add_up_under_pressure(seed):
    rng = random.Random(seed)
    engine = engine_of(FakeRunner(num_slots=101), prefill_chunk=rng.choice([4, 16, 8192]))
    bases = [[rng.randrange(END) for _ in range(rng.randint(10, 40))] for _ in range(6)]
    total = 0
    for _ in range(12):
        seqs = [
            sequence([*rng.choice(bases), rng.randrange(END)], rng.randint(1, 12), sampling=NO_END)
            for _ in range(rng.randint(1, 4))
        ]
        total += sum(sum(one.values()) for one in run_all(engine, *seqs))
    assert total == engine.stats().computed_tokens
