"""Slot accounting."""

from __future__ import annotations

import random

import numpy as np
import pytest
from radicel.runtime.batch import TRASH_SLOT
from radicel.runtime.kv_pool import SlotPool, Slots


def test_every_slot_but_the_trash_slot_is_handed_out_once():
    pool = SlotPool(10)
    taken = pool.take(9)
    assert sorted(taken.tolist()) == list(range(1, 10))
    assert TRASH_SLOT not in taken
    assert pool.num_free == 0
    pool.give_back(taken)
    assert pool.num_free == pool.capacity == 9
    pool.check()


def test_what_came_back_last_goes_out_first():
    pool = SlotPool(10)
    first = pool.take(3)
    pool.take(2)
    pool.give_back(first)
    assert pool.take(3).tolist() == first.tolist()


def test_taking_more_than_is_free_is_an_error_with_the_numbers():
    pool = SlotPool(4)
    pool.take(2)
    with pytest.raises(ValueError, match="2 slots asked for, 1 of 3 are free"):
        pool.take(2)
    assert pool.num_free == 1


@pytest.mark.parametrize("wrong", [[1, 2], [TRASH_SLOT], [5]])
def test_giving_back_what_is_not_in_use_is_an_error(wrong):
    pool = SlotPool(6)
    held = pool.take(1)
    assert held.tolist() == [1]
    with pytest.raises(ValueError, match="not in use"):
        pool.give_back(np.array(wrong, dtype=np.int32))
    pool.check()
    assert pool.num_free == 4


def test_a_pool_needs_a_slot():
    with pytest.raises(ValueError, match="num_slots=1"):
        SlotPool(1)


def _follow(slots: Slots) -> bool:
    return bool((np.diff(slots) == 1).all())


def test_prompts_get_slots_in_order_after_rows_decoded_side_by_side() -> None:
    """Sixty-four rows take a slot each, step after step; then all that is cached is dropped."""
    pool = SlotPool(20_000)
    prompts = [pool.take(100) for _ in range(64)]
    assert all(map(_follow, prompts))
    steps = [pool.take(64) for _ in range(90)]
    rows = list(np.stack(steps).T.copy())
    assert not any(map(_follow, rows))
    for prompt, row in zip(prompts, rows):
        pool.give_back(np.concatenate((prompt, row)))
    pool.tidy()
    pool.check()
    chunks = [pool.take(4000) for _ in range(4)]
    assert _follow(np.concatenate(chunks)), "the chunks of a prompt continue one another"


def test_a_full_pool_finds_runs_in_what_comes_back() -> None:
    """Nobody tidies: prompts are evicted bit by bit, as others come."""
    pool = SlotPool(10_000)
    held = [pool.take(500) for _ in range(19)]
    rng = random.Random(4)
    for _ in range(200):
        gone = held.pop(rng.randrange(len(held)))
        for part in np.array_split(gone, 7)[::-1]:  # off its end
            pool.give_back(part)
        held.append(pool.take(500))
        pool.check()
    assert sum(map(_follow, held)) >= 15


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_taking_and_giving_back(seed: int) -> None:
    rng, pool, held = random.Random(seed), SlotPool(3000), []
    for _ in range(300):
        count = rng.choice([1, 2, 63, 64, 65, 300, 1000])
        if count <= pool.num_free and rng.random() < 0.6:
            held.append(pool.take(count))
            assert len(np.unique(held[-1])) == count
        elif held:
            whole = held.pop(rng.randrange(len(held)))
            cut = rng.randrange(len(whole) + 1)
            pool.give_back(rng.choice([whole, whole[::-1]])[:cut].copy())
            left = np.setdiff1d(whole, pool.free_slots())
            held += [left] if len(left) else []
        if rng.random() < 0.1:
            pool.tidy()
        pool.check()
        assert pool.num_free + sum(map(len, held)) == pool.capacity
        everywhere = np.concatenate([pool.free_slots(), *held])
        assert sorted(everywhere.tolist()) == list(range(1, 3000))
