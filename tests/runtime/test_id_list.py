"""Prompts as arrays of ids: read once, also where many begin with the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from radicel.errors import InvalidValueError
from radicel.runtime.id_reader import IdReader
from radicel.runtime.inputs import read_prompts
from radicel.runtime.token_buffer import IdList, TokenBuffer

LONG = [(7 * i) % 50_000 for i in range(3000)]


def readers() -> tuple[IdReader, IdReader]:
    """One that has read nothing, and one that has read a long prompt."""
    second = IdReader()
    second.read(LONG)
    return IdReader(), second


@given(common=st.integers(0, 3000), own=st.lists(st.integers(0, 2**31 - 1), max_size=5), before=st.integers(0, 3000))
def test_what_is_read_after_another_prompt_is_its_own_ids(common: int, own: list[int], before: int) -> None:
    reader = IdReader()
    reader.read(LONG[: 3000 - before])
    ids = LONG[:common] + own
    found = reader.read(ids)
    assert list(found) == ids
    assert found.array.tolist() == ids
    assert found.array.dtype == np.int32


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000), st.integers(0, 99)), max_size=20))
def test_prompts_of_several_families_are_read_as_when_each_comes_alone(made: list[tuple[int, int, int]]) -> None:
    reader = IdReader()
    for family, length, end in made:
        ids = [family, *LONG[:length], end]
        assert reader.read(ids).array.tolist() == ids


def test_ids_too_large_for_a_model_are_kept_as_they_are() -> None:
    for reader in readers():
        found = reader.read([*LONG, 1 << 40, 1 << 80, -3])
        assert found.array.tolist() == [*LONG, 1 << 40, 1 << 62, -1]
        assert list(found) == [*LONG, 1 << 40, 1 << 80, -3]
        assert (found[-2], found[-3:]) == (1 << 80, [1 << 40, 1 << 80, -3])


@pytest.mark.parametrize("place", [5, 1023, 1024, 2999])
@pytest.mark.parametrize(
    "like", [lambda i: float(i), lambda i: str(i), lambda i: None, lambda i: float("nan"), complex]
)
def test_what_is_no_integer_is_refused_also_where_it_equals_one(place: int, like: Any) -> None:
    for reader in readers():
        ids: list[Any] = list(LONG)
        ids[place] = like(ids[place])
        with pytest.raises(TypeError):
            reader.read(ids)


@pytest.mark.parametrize("place", [0, 5, 1023, 1500, 2999])
def test_a_bool_is_refused_also_where_it_equals_an_id(place: int) -> None:
    ids: list[int] = list(LONG)
    ids[place] = 1
    for reader in readers():
        reader.read(ids)
        with pytest.raises(TypeError):
            reader.read([*ids[:place], True, *ids[place + 1 :]])
    with pytest.raises(TypeError):
        IdReader().read([True, 1 << 40])


def test_prompts_that_begin_alike_are_read_as_when_they_come_alone() -> None:
    prompts = [LONG + [5, 6], LONG + [7], LONG[:2000], [1, 2, 3], LONG]
    found, many = read_prompts(prompts)
    assert many
    assert [list(ids) for ids in found] == prompts
    for wrong in (LONG[:2999] + [True], LONG[:2999] + [-1], [True] + LONG):
        with pytest.raises(InvalidValueError, match=r"prompt\[1\]"):
            read_prompts([LONG, wrong])


def test_numpy_integers_and_other_sequences_are_ids() -> None:
    for reader in readers():
        assert reader.read([np.int64(5), 3]).array.tolist() == [5, 3]
        assert reader.read([np.int64(i) for i in LONG]).array.tolist() == LONG
        assert reader.read(tuple(LONG)).array.tolist() == LONG
        assert reader.read(range(2000)).array.tolist() == list(range(2000))


class Index:
    """An integer to whoever asks for one; it has no order and no sum."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("place", [0, 5, 1023, 1500, 2999])
def test_what_is_used_as_an_integer_is_one_wherever_it_stands(place: int) -> None:
    for reader in readers():
        ids: list[Any] = [*LONG[:place], Index(7), *LONG[place + 1 :]]
        assert reader.read(ids).array.tolist() == [*LONG[:place], 7, *LONG[place + 1 :]]


def test_ids_at_a_glance() -> None:
    """What agrees is not converted; a prompt that begins otherwise is not even compared."""
    reader = IdReader()
    reader.read(LONG)
    (known,) = reader._known
    assert known.common([LONG[0] + 1, *LONG[1:]]) == 0
    assert "_marked" not in vars(known)
    assert known.common(list(LONG)) == known.common([*LONG[:2048], 9, 9]) == 2048
    assert known.common([*LONG[:2047], 9, 9]) == 1024
    assert known.common([*LONG, 4]) == 2048
    assert known.common([float(i) for i in LONG]) == 0


def test_what_was_read_does_not_change_with_the_caller_s_list() -> None:
    mine = LONG + [4]
    found, _ = read_prompts([mine, mine])
    mine[0], mine[-1] = 9, 8
    mine.append(7)
    assert [list(ids) for ids in found] == [LONG + [4]] * 2
    with pytest.raises(ValueError, match="read-only"):
        found[1].array[0] = 3  # type: ignore[union-attr]


def test_a_sequence_has_the_array_of_its_prompt_until_a_token_comes() -> None:
    ids = IdList.of(LONG)
    buffer = TokenBuffer(ids)
    assert np.shares_memory(buffer.view(0, 3000), ids.array)
    view = buffer.view(0, 3000)
    buffer.extend([])
    assert np.shares_memory(buffer.view(0, 3000), ids.array), "nothing came"
    buffer.append(5)
    buffer.extend(list(range(5000)))
    assert buffer.view(0, len(buffer)).tolist() == [*LONG, 5, *range(5000)]
    assert view.tolist() == LONG
    mine = np.array([1, 2], np.int32)
    buffer = TokenBuffer(mine)  # type: ignore[arg-type]
    mine[0] = 7
    assert buffer[0] == 1
