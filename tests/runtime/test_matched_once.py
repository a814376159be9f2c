"""A prompt is compared with the tree once in a step that admits it, and what is remembered of that stays true."""

from __future__ import annotations

import random

import numpy as np
import pytest
from radicel.runtime import radix_cache
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.radix_cache import RadixCache
from radicel.runtime.request import Sequence

from .fake_runner import END, FakeRunner, reference, sequence

NO_END = {"end_ids": frozenset()}
NS = ("user", "")


def engine_of(**config) -> Engine:
    return Engine(FakeRunner(), EngineConfig(check_invariants=True, **config))


def run_all(engine: Engine, sequences: list[Sequence]) -> None:
    engine.submit(sequences)
    while engine.step():
        pass


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens agreed, each time an edge was entered."""
    lengths: list[int] = []
    step = radix_cache._step

    def counted(*args):
        found = step(*args)
        lengths.append(0 if found is None else found[1])
        return found

    monkeypatch.setattr(radix_cache, "_step", counted)
    return lengths


def test_siblings_are_compared_with_the_tree_once(compared: list[int]) -> None:
    rng = random.Random(5)
    prefix = [rng.randrange(END) for _ in range(500)]
    engine = engine_of(prefill_chunk=100)
    run_all(engine, [sequence([*prefix, 1], 1)])
    branches = [sequence([*prefix, 2, i], 3, sampling=NO_END) for i in range(10)]
    engine.submit(branches)
    compared.clear()
    engine.step()
    assert all(branch.tree_len >= 500 for branch in branches)
    # and the edge that the first of them splits, which the second does not know of when it is looked at
    assert 10 * 500 <= sum(compared) <= 10 * 500 + 2 * 101 + 3 * 10
    while engine.step():
        pass
    for branch in branches:
        assert branch.listener.result.output_ids == reference(branch.prompt_ids, branch.sampling).output_ids


def test_what_was_evicted_since_is_not_taken_for_cached() -> None:
    engine = engine_of()
    run_all(engine, [sequence([1, 2, 3, 4, 5], 1)])
    placement, seq = engine.scheduler.placement, sequence([1, 2, 3, 4, 6], 1)
    assert placement.peek(seq)[0] == 4
    placement.flush()
    placement.attach(seq)
    assert (seq.tree_len, len(placement.tree.path_tokens(seq.node))) == (0, 0)
    placement.detach(seq)


def test_a_shorter_prefill_than_was_looked_at_starts_from_the_root() -> None:
    """What a grammar forced is part of a prefill only so far (`forced_runs`)."""
    engine = engine_of(forced_runs=False)
    run_all(engine, [sequence([1, 2, 3, 4, 5, 6], 1)])
    placement, seq = engine.scheduler.placement, sequence([1, 2], 8)
    seq.append_run([3, 4, 5])
    assert placement.peek(seq)[0] == 5
    placement.attach(seq)
    assert (seq.prefill_end, seq.tree_len) == (3, 3)
    placement.detach(seq)


@pytest.mark.parametrize("seed", range(5))
def test_where_tokens_lead_they_lead_after_what_is_added_and_split(seed: int) -> None:
    rng = random.Random(seed)

    def run() -> np.ndarray:
        return np.array([rng.randrange(3) for _ in range(rng.randint(1, 12))], np.int32)

    tree = RadixCache()
    for _ in range(200):
        tokens = run()
        way = tree.way(NS, tokens)
        assert tree.peek(NS, tokens) == (way.length, -1 if way.node is None else way.node.serial)
        grown = tree.grown
        for _ in range(rng.randint(0, 3)):
            other = run()
            tree.insert(tree.root(NS), other, np.arange(len(other), dtype=np.int32))
        most = rng.randint(0, len(tokens))
        start, end = way.start(most)
        assert end <= min(way.length, most)
        if start is not None:
            assert tree.path_tokens(start).tolist() == tokens[:end].tolist()
            node, more = tree.follow(start, tokens[end:])
            whole = tree.match(tree.root(NS), tokens)
            assert (node, end + more) == (whole.node, len(whole.slots))
            assert tree.grown > grown or end + more == way.length
    tree.evict(3)
    assert tree.cuts


def test_a_match_says_the_slots_below_where_it_started() -> None:
    tree = RadixCache()
    tokens = np.arange(9, dtype=np.int32)
    for end in (3, 6, 9):
        tree.insert(tree.root(NS), tokens[:end], tokens[:end] + 10)
    node = tree.match(tree.root(NS), tokens[:3]).node
    assert tree.match(node, tokens[3:]).slots.tolist() == list(range(13, 19))
    assert tree.match(node, tokens[3:6]).slots.tolist() == [13, 14, 15]
    assert tree.match(node, tokens[:1]).slots.tolist() == []
    assert tree.match(tree.root(NS), tokens).slots.tolist() == list(range(10, 19))
