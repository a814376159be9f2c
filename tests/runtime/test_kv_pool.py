"""Slot accounting."""

from __future__ import annotations

import numpy as np
import pytest
from radicel.runtime.batch import TRASH_SLOT
from radicel.runtime.kv_pool import SlotPool


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
