"""The PyTorch attention against the ragged reference twin, over every kind of raggedness."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from radicel.errors import InvalidValueError
from radicel.kernels.reference import ragged_attention
from radicel.runtime.attention import attention_names, make_attention, torch_attention
from radicel.runtime.attention.shared_read import SharedGroup
from radicel.runtime.batch import StepBatch

CPU = torch.device("cpu")
KV_HEADS, DIM, CONTEXT, NUM_SLOTS = 2, 8, 96, 400

LENS = {
    "one decode token": [(1, 17)],
    "decode batch of one length": [(1, 9)] * 5,
    "decode batch of many lengths": [(1, n) for n in (1, 2, 60, 9, 90, 33, 33)],
    "first token": [(1, 1)],
    "whole prefill": [(40, 40)],
    "two whole prefills of one length": [(12, 12), (12, 12)],
    "chunk over a cached prefix": [(7, 50)],
    "queries of cached positions": [(3, 3), (2, 80)],
    "forced runs of several lengths": [(4, 20), (4, 21), (2, 9), (3, 50)],
    "prefill beside decode": [(30, 30), (1, 40), (1, 3), (7, 64), (1, 41), (30, 96)],
}

LAYERS = [(1, 0.0, 0.3), (7, 0.0, 1.0), (25, 0.0, 0.3), (500, 0.0, 0.3), (0, 2.0, 1.0), (7, 3.0, 0.3), (25, 1.0, 2.0)]


def _step(lens: list[tuple[int, int]], rows: list[int]) -> StepBatch:
    num_tokens = sum(q for q, _ in lens)
    return StepBatch(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=np.concatenate([np.arange(n - q, n) for q, n in lens]).astype(np.int64),
        slots=np.zeros(num_tokens, np.int64),
        rows=np.asarray(rows, np.int32),
        q_lens=np.asarray([q for q, _ in lens], np.int32),
        kv_lens=np.asarray([n for _, n in lens], np.int32),
        logit_rows=np.arange(num_tokens),
    )


def _compare(
    lens: list[tuple[int, int]],
    share: int,
    dtype: torch.dtype,
    tolerance: float,
    num_rows: int = 16,
    seed: int = 0,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = DIM**-0.5,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch = _step(lens, torch.randperm(num_rows, generator=generator)[: len(lens)].tolist())
    cache = torch.randn((2, NUM_SLOTS, KV_HEADS, DIM), generator=generator).to(dtype)
    table = torch.randint(0, NUM_SLOTS - 1, (num_rows, CONTEXT), generator=generator, dtype=torch.int32)
    q = torch.randn((batch.num_tokens, KV_HEADS * share, DIM), generator=generator).to(dtype)
    # What lies beyond a sequence's end in its row must never be read: there it is NaN.
    cache[:, NUM_SLOTS - 1] = torch.nan
    for row, kv_len in zip(batch.rows, batch.kv_lens):
        table[row, kv_len:] = NUM_SLOTS - 1
    attention = make_attention("torch", num_heads=KV_HEADS * share, kv_heads=KV_HEADS, head_dim=DIM, device=CPU)
    options = {"window": window, "softcap": softcap}
    meta = attention.prepare(batch, table)
    found = attention.attend(cache[0], cache[1], q, meta, scale=scale, **options)
    starts = torch.from_numpy(np.concatenate(([0], np.cumsum(batch.q_lens))))
    rows, kv_lens = torch.from_numpy(batch.rows), torch.from_numpy(batch.kv_lens)
    wanted = ragged_attention(q, cache[0], cache[1], table, rows, starts, kv_lens, scale, **options)
    torch.testing.assert_close(found.double(), wanted.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("share", [1, 3])
@pytest.mark.parametrize("name", LENS)
def test_equals_the_reference(name: str, share: int, dtype: torch.dtype, tolerance: float) -> None:
    _compare(LENS[name], share, dtype, tolerance)


@pytest.mark.parametrize(("window", "softcap", "scale"), LAYERS)
@pytest.mark.parametrize("cells", [1, 300, torch_attention.MASK_CELLS])
@pytest.mark.parametrize("name", LENS)
def test_windows_caps_and_scales(
    name: str, window: int, softcap: float, scale: float, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_attention, "MASK_CELLS", cells)
    _compare(LENS[name], 3, torch.float64, 1e-12, window=window, softcap=softcap, scale=scale)
    _compare(LENS[name], 1, torch.float32, 1e-5, window=window, softcap=softcap, scale=scale)


@given(
    lens=st.lists(
        st.integers(1, CONTEXT).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))), min_size=1, max_size=12
    ),
    share=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 1000),
    window=st.sampled_from([0, 0, 1, 2, 20, 200]),
    softcap=st.sampled_from([0.0, 2.0]),
)
@settings(max_examples=150, deadline=None)
def test_equals_the_reference_on_any_raggedness(
    lens: list[tuple[int, int]], share: int, seed: int, window: int, softcap: float
) -> None:
    _compare(lens, share, torch.float64, 1e-12, seed=seed, window=window, softcap=softcap)


@pytest.mark.parametrize("cells", [1, 100, 1000])
@pytest.mark.parametrize("name", LENS)
def test_small_blocks_give_the_same(name: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "MASK_CELLS", cells)
    monkeypatch.setattr(torch_attention, "GROUP_NUMBERS", 1600)
    _compare(LENS[name], 3, torch.float64, 1e-12)


def test_a_decode_batch_is_one_group_and_a_long_mask_is_cut() -> None:
    attention = torch_attention.TorchAttention(4, 2, 8, CPU)
    table = torch.zeros((64, 20_000), dtype=torch.int32)
    decode = attention.prepare(_step([(1, 900 + i) for i in range(64)], list(range(64))), table)
    assert len(attention.groups(decode)) == 1
    chunk = attention.prepare(_step([(4000, 20_000)], [0]), table)
    masks = [block.mask for block in attention.groups(chunk)[0].blocks]
    assert len(masks) > 1
    assert max(mask.numel() for mask in masks if mask is not None) <= torch_attention.MASK_CELLS


def test_only_what_a_window_shows_is_gathered() -> None:
    attention = torch_attention.TorchAttention(4, 2, 8, CPU)
    table = torch.zeros((4, 20_000), dtype=torch.int32)
    meta = attention.prepare(_step([(1, 9000), (1, 20_000), (50, 15_000)], [0, 1, 2]), table)
    groups = attention.groups(meta, window=100)
    assert sorted((group.size, group.num_kv) for group in groups) == [(1, 149), (2, 100)]
    assert attention.groups(meta, window=100) is groups


def test_found_by_name() -> None:
    assert "torch" in attention_names()
    sizes = {"num_heads": 4, "kv_heads": 2, "head_dim": 8, "device": CPU}
    assert isinstance(make_attention("auto", **sizes), torch_attention.TorchAttention)
    with pytest.raises(InvalidValueError, match=r"attention='flash' is not known; one of: auto, .*torch"):
        make_attention("flash", **sizes)


FAMILIES: dict[str, list[tuple[int, int, int]]] = {
    "decode": [(1, 90, 0), (1, 85, 0), (1, 89, 0)],
    "two prefixes beside two strangers": [(1, 90, 0), (1, 90, 1), (1, 70, 0), (1, 88, 1), (1, 60, 2), (1, 60, 3)],
    "short runs": [(3, 90, 0), (3, 70, 0), (3, 68, 0)],
    "a query of the last shared position": [(1, 65, 0), (1, 66, 0), (1, 64, 0)],
    "all of it shared": [(1, 64, 0), (1, 64, 0)],
    "a chunk and decode": [(20, 90, 0), (1, 90, 0), (1, 70, 0), (20, 96, 0)],
    "too little is shared": [(1, 30, 0), (1, 90, 0)],
}
"""(queries, positions, whose first 64 positions it begins with)."""


@pytest.mark.parametrize("in_a_row", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("share", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_shared_is_read_once(name, share, dtype, tolerance, in_a_row):
    generator = torch.Generator().manual_seed(len(name))
    members = FAMILIES[name]
    batch = _step([(q, n) for q, n, _ in members], list(range(len(members)))[::-1])
    cache = torch.randn((2, NUM_SLOTS, KV_HEADS, DIM), generator=generator).to(dtype)
    cache[:, NUM_SLOTS - 1] = torch.nan
    table = torch.randint(0, NUM_SLOTS - 1, (16, CONTEXT), generator=generator, dtype=torch.int32)
    for row, (_, n, prefix) in zip(batch.rows.tolist(), members):
        alone = torch.randperm(NUM_SLOTS - 1, generator=torch.Generator().manual_seed(prefix))[:64]
        table[row, :64] = torch.arange(64) + 70 * prefix if in_a_row else alone
        table[row, n:] = NUM_SLOTS - 1
    q = torch.randn((batch.num_tokens, KV_HEADS * share, DIM), generator=generator).to(dtype)
    attention = torch_attention.TorchAttention(KV_HEADS * share, KV_HEADS, DIM, CPU)
    meta = attention.prepare(batch, table)
    found = attention.attend(cache[0], cache[1], q, meta)
    starts = torch.from_numpy(np.concatenate(([0], np.cumsum(batch.q_lens))))
    rows, kv_lens = torch.from_numpy(batch.rows), torch.from_numpy(batch.kv_lens)
    wanted = ragged_attention(q, cache[0], cache[1], table, rows, starts, kv_lens, DIM**-0.5)
    torch.testing.assert_close(found.double(), wanted.double(), atol=tolerance, rtol=tolerance)
    shared = [group for group in attention.groups(meta) if isinstance(group, SharedGroup)]
    assert sum(group.size for group in shared) == {
        "decode": 3, "two prefixes beside two strangers": 4, "short runs": 3, "a query of the last shared position": 3,
        "all of it shared": 2, "a chunk and decode": 2, "too little is shared": 0,
    }[name]  # fmt: skip
    assert all(isinstance(group.shared, slice) == in_a_row for group in shared)


def test_scores_over_a_shared_prefix_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = torch_attention.TorchAttention(4, 2, 8, CPU)
    table = torch.zeros((8, 100), dtype=torch.int32)
    table[:, :80] = torch.arange(80)
    step = _step([(1, 90)] * 7, list(range(7)))
    monkeypatch.setattr(torch_attention, "MASK_CELLS", 3 * 4 * 90)
    sizes = [group.size for group in attention.groups(attention.prepare(step, table)) if isinstance(group, SharedGroup)]
    assert sizes == [3, 3]  # the seventh is a group of its own by the other limit
