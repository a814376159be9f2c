"""Prompts as arrays of ids: read once, also where many begin with the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from radicel.errors import InvalidValueError
from radicel.runtime.inputs import read_prompts
from radicel.runtime.token_buffer import IdList

LONG = [(7 * i) % 50_000 for i in range(3000)]


@given(common=st.integers(0, 3000), own=st.lists(st.integers(0, 2**31 - 1), max_size=5), shorter=st.integers(0, 3000))
def test_an_array_made_after_another_list_is_that_of_its_own_ids(common: int, own: list[int], shorter: int) -> None:
    like = IdList(LONG[: 3000 - shorter])
    ids = LONG[:common] + own
    found = IdList(ids, like)
    assert found == ids
    assert found.array.tolist() == ids
    assert found.array.dtype == np.int32


def test_ids_too_large_for_a_model_are_kept_as_large_ones_and_negative_ones_as_negative() -> None:
    for like in (None, IdList(LONG)):
        found = IdList([*LONG, 1 << 40, 1 << 80, -3], like)
        assert found.array.tolist() == [*LONG, 1 << 40, 1 << 62, -1]


@pytest.mark.parametrize("wrong", [35.0, "7", None, float("nan")])
def test_what_is_no_integer_is_refused_also_where_it_equals_one(wrong: Any) -> None:
    for like in (None, IdList(LONG)):
        ids: list[Any] = list(LONG)
        place = 5
        ids[place] = wrong
        with pytest.raises(TypeError):
            IdList(ids, like)


def test_prompts_that_begin_alike_are_read_as_when_they_come_alone() -> None:
    prompts = [LONG + [5, 6], LONG + [7], LONG[:2000], [1, 2, 3], LONG]
    found, many = read_prompts(prompts)
    assert many
    assert [list(ids) for ids in found] == prompts
    for wrong in (LONG[:2999] + [True], LONG[:2999] + [-1], [True] + LONG):
        with pytest.raises(InvalidValueError, match=r"prompt\[1\]"):
            read_prompts([LONG, wrong])


def test_numpy_integers_are_ids() -> None:
    assert IdList([np.int64(5), 3], IdList(LONG)).array.tolist() == [5, 3]
    assert IdList([np.int64(i) for i in LONG], IdList(LONG)).array.tolist() == LONG
