"""The page table: entries sent, those of a step's own tokens, rows that are copied from others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from radicel.errors import InvalidValueError
from radicel.runtime import kv_cache
from radicel.runtime.batch import TRASH_SLOT, RowUpdate, StepBatch
from radicel.runtime.kv_cache import KVCache
from radicel.runtime.models import model_config

CPU = torch.device("cpu")


def _row(*slots: int) -> np.ndarray:
    return np.array(slots, dtype=np.int32)


def test_page_table_updates(tiny_llama: Path) -> None:
    cache = KVCache(
        model_config(tiny_llama), num_slots=50, num_rows=3, context_length=6, device=CPU, dtype=torch.float32
    )
    assert [tuple(keys.shape) for keys in cache.keys] == [(50, 2, 8)] * 3
    assert all((tensor == 0).all() for tensor in (*cache.keys, *cache.values, cache.page_table))
    cache.update([RowUpdate(1, 2, _row(7, 8)), RowUpdate(2, 0, _row(49)), RowUpdate(0, 0, _row())])
    cache.update([RowUpdate(1, 3, _row(9, 10, 11))])
    assert cache.page_table.tolist() == [[0] * 6, [0, 0, 7, 9, 10, 11], [49, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("least", [1, 6, 1 << 14])
@pytest.mark.parametrize("long", [1, 4096])
def test_rows_that_are_like_others_are_written_as_if_their_slots_were_sent(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, least: int, long: int
) -> None:
    monkeypatch.setattr(kv_cache, "LEAST_COPIED", least)
    monkeypatch.setattr(kv_cache, "LONG_UPDATE", long)
    shape = {"num_slots": 50, "num_rows": 8, "context_length": 9, "device": CPU, "dtype": torch.float32}
    hinted, plain = (KVCache(model_config(tiny_llama), **shape) for _ in range(2))  # type: ignore[arg-type]
    steps = [
        [RowUpdate(3, 0, _row(1, 2, 3, 4)), RowUpdate(1, 0, _row(1, 2, 3, 4), 3), RowUpdate(1, 4, _row(9))],
        [RowUpdate(5, 0, _row(1, 2, 3, 4), 3), RowUpdate(6, 0, _row(1, 2, 3, 4), 3), RowUpdate(3, 4, _row(7, 8))],
        [RowUpdate(0, 0, _row(1, 2, 3, 4, 7), 3), RowUpdate(2, 0, _row(1, 2, 3), 5), RowUpdate(2, 3, _row(11))],
        [RowUpdate(7, 1, _row(2, 3), 2)],
        [RowUpdate(4, 0, _row(*range(20, 29)))],
        [RowUpdate(1, 0, _row(*range(20, 29)), 4)],
    ]
    for step in steps:
        hinted.update(step)
        plain.update([update._replace(like=-1) for update in step])
        assert torch.equal(hinted.page_table, plain.page_table)


@pytest.mark.parametrize("long", [1, 4096])
@pytest.mark.parametrize("others", [(), (RowUpdate(2, 0, np.arange(20, 24, dtype=np.int32)),)])
def test_the_tokens_of_a_step_are_in_the_table_where_they_get_slots_of_their_own(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, long: int, others: tuple[RowUpdate, ...]
) -> None:
    monkeypatch.setattr(kv_cache, "LONG_UPDATE", long)
    shape = {"num_slots": 50, "num_rows": 4, "context_length": 9, "device": CPU, "dtype": torch.float32}
    said, plain = (KVCache(model_config(tiny_llama), **shape) for _ in range(2))  # type: ignore[arg-type]
    step = StepBatch(
        token_ids=np.zeros(6, np.int64),
        positions=np.array([3, 4, 0, 4, 5, 6]),
        slots=np.array([7, 8, 9, TRASH_SLOT, TRASH_SLOT, 11]),
        rows=np.array([3, 0, 2], np.int32),
        q_lens=np.array([2, 1, 3], np.int32),
        kv_lens=np.array([5, 1, 7], np.int32),
        logit_rows=np.array([5]),
        updates=others,
    )
    said.update(step.updates, step)
    own = [RowUpdate(3, 3, _row(7, 8)), RowUpdate(0, 0, _row(9)), RowUpdate(2, 6, _row(11))]
    plain.update([*others, *own])
    assert torch.equal(said.page_table, plain.page_table)


def test_a_row_that_is_like_none_is_refused(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "LEAST_COPIED", 1)
    cache = KVCache(
        model_config(tiny_llama), num_slots=50, num_rows=3, context_length=6, device=CPU, dtype=torch.float32
    )
    with pytest.raises(InvalidValueError, match="row 1 is to be like row 3; there are 3"):
        cache.update([RowUpdate(0, 0, _row(1)), RowUpdate(1, 0, _row(1), 3)])
    with pytest.raises(InvalidValueError, match="positions 5 to 7"):
        cache.update([RowUpdate(0, 5, _row(1, 2), 1)])
    assert not cache.page_table.any()
