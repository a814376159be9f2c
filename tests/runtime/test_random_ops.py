"""Thousands of random operations on engine, scheduler, tree and pool; every invariant after each, every output right.

Submit (fresh, forked, resubmitted with its output, scored, constrained, sampled, of a graph, with true and untrue
hints of what comes), cancel, fail, finish, flush, deadline, withdraw, close a graph, under a pool so small that
eviction and preemption are everyday. What comes out is compared with an evaluation that knows no cache; what the tree
holds is compared with what the pseudo-model wrote to those slots.
"""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from radicel.backend import Keep
from radicel.errors import DeadlineError
from radicel.runtime.batch import TRASH_SLOT
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.leases import Graph
from radicel.runtime.request import Sequence, SequenceState

from .fake_runner import (
    END,
    VOCAB,
    FakeMatcher,
    FakeRunner,
    end_logprob,
    log_softmax,
    reference,
    reference_logits,
    sequence,
)

ENDS = frozenset({END})


class Sabotage(Exception):
    pass


def sabotage(token_id: int) -> None:
    raise Sabotage("callback")


class BadSink:
    """Raises at its n-th token."""

    def __init__(self, after: int) -> None:
        self.left = after

    def push(self, token_id: int) -> bool:
        self.left -= 1
        if self.left <= 0:
            raise Sabotage("sink")
        return False

    def finish(self) -> None:
        pass


def random_grammar(rng: random.Random) -> FakeMatcher:
    """Chains of forced tokens between free choices, with loops and several ends."""
    states = rng.randint(2, 12)
    rules: dict[int, dict[int, int]] = {}
    for state in range(states - 1):
        choices = 1 if rng.random() < 0.6 else rng.randint(2, 5)
        rules[state] = {token: min(state + 1, states - 1) for token in rng.sample(range(END), choices)}
        if rng.random() < 0.15 and choices > 1:
            rules[state][rng.choice(list(rules[state]))] = rng.randint(0, state)
    final = {states - 1} | {state for state in rules if rng.random() < 0.1}
    made = FakeMatcher(rules, final, ENDS)
    made.waits = rng.choice([0, 0, 1, 5, 40])
    return made


class World:
    """One engine, what was asked of it, and what is expected."""

    def __init__(self, seed: int, **config: object) -> None:
        self.rng = random.Random(seed)
        slots = self.rng.choice([48, 80, 200, 1000])
        self.runner = FakeRunner(
            num_slots=slots,
            num_rows=self.rng.choice([3, 8, 20]),
            context_length=128,
            asynchronous=self.rng.random() < 0.7,
        )
        self.config = EngineConfig(
            prefill_chunk=self.rng.choice([1, 5, 16, 64]),
            policy=self.rng.choice(["prefix", "fcfs"]),
            decode_headroom=self.rng.choice([0, 2, 16]),
            max_overtakes=self.rng.choice([1, 4, 100]),
            match_window=self.rng.choice([1, 4, 64]),
            prefix_cache=self.rng.random() < 0.85,
            forced_runs=self.rng.random() < 0.8,
            leases=self.rng.random() < 0.8,
            overlap=self.rng.random() < 0.9,
            check_invariants=True,
            **config,  # type: ignore[arg-type]
        )
        self.engine = Engine(self.runner, self.config)
        if self.runner.asynchronous and self.config.overlap and self.rng.random() < 0.8:
            self.engine._stepper._lookahead.pays = lambda rows, constrained: True  # else the clock decides
        self.limit = min(128, slots - 1)
        self.live: list[Sequence] = []
        self.matchers: dict[int, FakeMatcher] = {}
        self.texts: list[list[int]] = [[1]]
        self.graphs = [Graph(), Graph()]
        self.verified = 0
        self.preemptions = 0

    def prompt(self) -> list[int]:
        base = self.rng.choice(self.texts)
        kept = base[: self.rng.randint(0, len(base))] if self.rng.random() < 0.5 else base
        fresh = [self.rng.randrange(END) for _ in range(self.rng.choice([0, 0, 1, 3, 20]))]
        prompt = [*kept, *fresh][: self.limit - 2] or [self.rng.randrange(END)]
        self.texts.append(prompt)
        del self.texts[:-30]
        return prompt

    def submit(self) -> None:
        rng = self.rng
        prompt = self.prompt()
        count = rng.choice([1, 1, 1, 4])
        for sample in range(count):
            matcher = random_grammar(rng) if rng.random() < 0.3 else None
            sampling = {
                "temperature": rng.choice([0.0, 0.0, 1.0]),
                "seed": rng.randrange(1 << 40),
                "sample_index": sample,
                "logprobs": rng.random() < 0.3,
                "top_logprobs": rng.choice([0, 0, 0, 2]),
                "min_tokens": rng.choice([0, 0, 3]) if matcher is None else 0,
                "frequency_penalty": rng.choice([0.0, 0.0, 0.7]),
                "repetition_penalty": rng.choice([1.0, 1.0, 1.3]),
                "logit_bias": rng.choice([{}, {}, {3: 2.5, 5: -100.0}]),
                "stop_token_ids": frozenset(rng.choice([(), (), (7, 8)])) if matcher is None else frozenset(),
                "end_ids": ENDS if matcher or rng.random() < 0.9 else frozenset(),
            }
            self.add(
                sequence(
                    prompt,
                    rng.choice([0, 1, 2, 10, 40, 500]),
                    sampling=sampling,
                    matcher=matcher,
                    logprob_start=rng.choice([None, None, None, 0, len(prompt) // 2, len(prompt) - 1]),
                    score_end_ids=frozenset({END, 3}) if rng.random() < 0.2 else None,
                    priority=rng.choice([0, 0, 0, 1, -1]),
                    namespace=rng.choice(["", "", "other"]),
                    sink=BadSink(rng.randint(1, 10)) if rng.random() < 0.05 else None,
                    **self.hints(len(prompt)),
                )
            )

    def hints(self, length: int) -> dict[str, object]:
        """A place in a graph, and what later places are said to need; half of them never come, or need other things."""
        rng = self.rng
        if rng.random() < 0.5:
            return {}
        lengths = (None, 1, length // 2, length, length + 5)
        keeps = [Keep(rng.choice(lengths), tuple(rng.sample(range(60), 2))) for _ in range(rng.randrange(3))]
        run, awaited = rng.choice([None, "one", "another"]), rng.random() < 0.5
        place = rng.randrange(60)
        return {"graph": rng.choice(self.graphs), "place": place, "keeps": tuple(keeps), "run": run, "awaited": awaited}

    def add(self, seq: Sequence) -> None:
        if seq.matcher is not None:
            self.matchers[seq.id] = seq.matcher.fork()  # type: ignore[assignment]
        self.engine.submit([seq])
        self.live.append(seq)

    def operate(self) -> None:
        roll = self.rng.random()
        if roll < 0.25 and len(self.live) < 40:
            self.submit()
        elif roll < 0.30 and self.live:
            self.engine.cancel(self.rng.choice(self.live))
        elif roll < 0.32:
            self.engine.flush_cache()
        elif roll < 0.34 and self.live:
            self.rng.choice(self.live).on_token = sabotage
        elif roll < 0.345:
            self.engine.withdraw(self.rng.choice(self.graphs), [self.rng.randrange(60)])
        elif roll < 0.35:
            self.engine.close_graph(self.graphs.pop(0))  # its sequences go on
            self.graphs.append(Graph())
        elif roll < 0.36:
            seq = sequence(self.prompt(), 50, deadline=time.monotonic())
            self.add(seq)
        else:
            self.engine.step()  # checks itself
            self.check()
            return
        self.engine.check()
        self.check()

    def check(self) -> None:
        """All but what `Engine.check` looks at."""
        self.check_device()
        over = [seq for seq in self.live if seq.state is SequenceState.FINISHED]
        self.live = [seq for seq in self.live if seq.state is not SequenceState.FINISHED]
        for seq in over:
            self.verify(seq)
        stats = self.engine.stats()
        assert stats.kv_used + stats.kv_cached + stats.kv_free == self.runner.num_slots - 1
        assert stats.running + stats.waiting == len(self.live)

    def check_device(self) -> None:
        """The page table shows what the tree says, and each cached slot holds the token it stands for."""
        scheduler = self.engine.scheduler
        pending = {update.row for update in scheduler.placement.updates}
        for seq in scheduler.running:
            if seq.row not in pending:
                shown = self.runner.table[seq.row, : seq.kv_len]
                assert np.array_equal(shown, scheduler.placement.row_slots(seq))
                known = min(seq.kv_len, len(seq))
                assert np.array_equal(self.runner.tokens[shown[:known]], seq.tokens.view(0, known))
        for node in scheduler.placement.tree.nodes():
            assert np.array_equal(self.runner.tokens[node.slots], node.tokens)
            assert TRASH_SLOT not in node.slots

    def verify(self, seq: Sequence) -> None:
        told = seq.listener
        assert told.calls == 1
        if told.error is not None:
            assert isinstance(told.error, (Sabotage, DeadlineError)), told.error
            return
        result = told.result
        want = reference(seq.prompt_ids, seq.sampling, limit=self.limit, matcher=self.matchers.get(seq.id))
        if result.finish_reason == "cancelled":
            assert result.output_ids == want.output_ids[: len(result.output_ids)]
            return
        self.verified += 1
        self.texts.append([*seq.prompt_ids, *want.output_ids])
        assert result.output_ids == want.output_ids
        assert (result.finish_reason, result.end_id) == (want.reason, want.end_id)
        assert result.forced_tokens == want.forced
        assert 0 <= result.cached_tokens <= len(seq.prompt_ids)
        if seq.sampling.wants_logprobs:
            assert result.logprobs == pytest.approx(want.logprobs)
            assert [len(top) for top in result.top_logprobs] == (
                [seq.sampling.top_logprobs] * len(want.output_ids) if seq.sampling.top_logprobs else []
            )
        else:
            assert result.logprobs == []
        if seq.logprob_start is not None:
            ids = seq.prompt_ids
            expected = [
                float(log_softmax(reference_logits(ids[:i]))[ids[i]]) if i else None
                for i in range(seq.logprob_start, len(ids))
            ]
            assert result.prompt_logprobs == pytest.approx(expected)
        if seq.score_end_ids is not None:
            expected_end = end_logprob(reference_logits(seq.prompt_ids), seq.score_end_ids)
            assert result.end_logprob == pytest.approx(expected_end)

    def finish(self) -> None:
        for _ in range(20_000):
            if not self.live:
                break
            self.engine.step()
            self.check()
        assert not self.live, "sequences starve"
        for graph in self.graphs:
            self.engine.close_graph(graph)
        self.engine.step()
        self.check()
        assert len(self.engine.scheduler.leases) == 0, "a lease outlives its graph"
        self.engine.flush_cache()
        stats = self.engine.stats()
        assert (stats.kv_used, stats.kv_cached, stats.kv_free) == (0, 0, self.runner.num_slots - 1)
        assert stats.hit_rate == (stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0)
        self.preemptions = stats.preemptions


def run_world(seed: int, operations: int) -> World:
    world = World(seed)
    for _ in range(operations):
        world.operate()
    world.finish()
    return world


def test_random_operations_keep_every_invariant():
    worlds = [run_world(seed, 150) for seed in range(16)]
    assert sum(world.verified for world in worlds) > 200
    assert sum(world.preemptions for world in worlds) > 8, "the pool was never tight"


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # on a slow machine beside another test
@pytest.mark.parametrize("block", range(8))
def test_random_operations_for_long(block):
    for seed in range(1000 + 8 * block, 1008 + 8 * block):
        run_world(seed, 700)
    assert VOCAB == END + 1
