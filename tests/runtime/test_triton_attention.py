"""How the Triton attention cuts a step, with the kernels' PyTorch twins in their place, so that any machine runs it.

The twins check the plan as they go: each partial result once, each in some row, every row covered.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from radicel import LocalRuntime
from radicel.kernels.reference import ragged_attention
from radicel.runtime.attention import make_attention
from radicel.runtime.attention.radix_plan import RadixTuning
from radicel.runtime.attention.triton_attention import SHORT, TritonAttention
from radicel.runtime.batch import Segment, StepBatch

from . import tiny

CPU = torch.device("cpu")
KV_HEADS, DIM, CONTEXT, NUM_SLOTS, ROWS = 2, 8, 96, 900, 16
FINE = RadixTuning(units=16, least_piece=16, row_cost=1, least_saved=1)


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


def _attention(share: int) -> TritonAttention:
    return TritonAttention(KV_HEADS * share, KV_HEADS, DIM, CPU, torch.float32, tuning=FINE)


@given(
    steps=st.lists(
        st.lists(
            st.integers(1, CONTEXT).flatmap(lambda n: st.tuples(st.integers(1, min(n, 3 * SHORT)), st.just(n))),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    ),
    share=st.sampled_from([1, 2, 5]),
    layer=st.sampled_from([{}, {"window": 7}, {"window": 40, "softcap": 3.0}, {"scale": 1.5}]),
)
@example([[(1, 1)], [(7, 7), (1, 96), (1, 1), (1, 1), (6, 6), (7, 7), (15, 15)], [(1, 1)]], 1, {})  # a row begins anew
@settings(max_examples=60, deadline=None)
def test_equals_the_reference_step_after_step(
    steps: list[list[tuple[int, int]]], share: int, layer: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(0)
    attention = _attention(share)
    for lens in steps:
        batch = _step(lens, torch.randperm(ROWS, generator=generator)[: len(lens)].tolist())
        cache = torch.randn((2, NUM_SLOTS, KV_HEADS, DIM), generator=generator, dtype=torch.float64)
        table = torch.randint(0, NUM_SLOTS - 1, (ROWS, CONTEXT), generator=generator, dtype=torch.int32)
        cache[:, NUM_SLOTS - 1] = torch.nan
        for row, kv_len in zip(batch.rows, batch.kv_lens):
            table[row, kv_len:] = NUM_SLOTS - 1
        q = torch.randn((batch.num_tokens, KV_HEADS * share, DIM), generator=generator, dtype=torch.float64)
        found = attention.attend(cache[0], cache[1], q, attention.prepare(batch, table), **layer)
        starts = torch.from_numpy(np.concatenate(([0], np.cumsum(batch.q_lens))))
        rows, kv_lens = torch.from_numpy(batch.rows), torch.from_numpy(batch.kv_lens)
        options = {"scale": DIM**-0.5, **layer}
        wanted = ragged_attention(q, cache[0], cache[1], table, rows, starts, kv_lens, **options)
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


def test_long_rows_become_tiles_and_short_ones_plans_by_size() -> None:
    attention = _attention(2)
    table = torch.zeros((ROWS, 2000), dtype=torch.int32)
    meta = attention.prepare(_step([(1, 9), (700, 900), (3, 50), (1, 80), (9, 9), (4, 40)], [4, 1, 2, 3, 0, 5]), table)
    assert [(plan.queries, plan.parts["tokens"].tolist()) for plan in meta.plans] == [
        (1, [[0, 4], [704, 3]]),
        (4, [[701, 2], [702, 2], [703, 2], [714, 5], [715, 5], [716, 5], [717, 5]]),
    ]
    assert meta.ragged is not None
    per_tile = attention._per_tile
    tiles = meta.ragged.tiles.tolist()
    assert {tile[0] for tile in tiles} == {1, 4}
    assert [first for seq, first in tiles if seq == 1] == list(range(0, 700, per_tile))[::-1]
    assert meta.ragged.starts.tolist() == [0, 1, 701, 704, 705, 714, 718]


def test_a_fixed_plan_shows_what_was_prepared_last() -> None:
    attention = _attention(1)
    table = torch.arange(ROWS * CONTEXT, dtype=torch.int32).view(ROWS, CONTEXT) % NUM_SLOTS
    fixed = attention.fixed_meta(table, 4)
    cache = torch.randn((2, NUM_SLOTS, KV_HEADS, DIM))
    for lens, rows in ([(1, 9), (1, 60)], [3, 1]), ([(1, 10), (1, 61), (1, 5)], [3, 1, 2]), ([(1, 6)], [2]):
        batch = _step(lens, rows)
        q = torch.randn(4, KV_HEADS, DIM)
        mine = attention.attend(cache[0], cache[1], q[: len(lens)], attention.prepare(batch, table))
        assert torch.equal(attention.attend(cache[0], cache[1], q, fixed)[: len(lens)], mine)


def test_the_form_of_a_plan_is_said_where_it_makes_a_difference() -> None:
    attention = _attention(2)
    table = torch.arange(ROWS, dtype=torch.int32)[:, None] * 0 + torch.arange(CONTEXT, dtype=torch.int32)
    chains = ((Segment(1, 0, 40, 0),),) * 10
    for rows, form in ((9, "runs"), (8, "any")):  # eight take one launch
        batch = replace(_step([(1, 44)] * rows, list(range(rows))), chains=chains[:rows])
        (plan,) = attention.prepare(batch, table).plans
        assert plan.form == form
        assert form in attention.forms(rows, 1)
    assert attention.forms(64, 1) == ("any", "alone", "runs")
    assert attention.forms(8, 1) == ("any", "alone")
    assert attention.forms(64, 0) == ("any",)


@pytest.mark.parametrize(("length", "taken"), [(60, True), (30, False)])
def test_runs_of_long_rows_are_told_where_they_are_most_of_what_is_seen(length: int, taken: bool) -> None:
    attention = _attention(2)
    table = torch.randperm(NUM_SLOTS - 1, generator=torch.Generator().manual_seed(1))[:CONTEXT].int().repeat(ROWS, 1)
    table[:, 2:length] = torch.arange(length - 2)
    chains = ((Segment(1, 0, 2), Segment(2, 2, length - 2, 0)),) * 2
    batch = replace(_step([(1, 44), (9, 64)], [0, 1]), chains=chains)
    ragged = attention.prepare(batch, table).ragged
    assert ragged is not None
    assert ragged.long
    assert (ragged.runs is not None) == taken
    if ragged.runs is not None:
        assert ragged.runs.tolist() == [[0, 0, 0], [2, length, 0]]


def test_found_by_name() -> None:
    sizes: dict[str, Any] = {"num_heads": 4, "kv_heads": 2, "head_dim": 8, "device": CPU}
    assert isinstance(make_attention("triton", **sizes), TritonAttention)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _shares_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radicel.runtime.attention.triton_attention.RadixTuning", lambda: FINE)
    # The twins check what is said of runs of slots against the page table.
    monkeypatch.setattr("radicel.runtime.attention.triton_attention.item_run", lambda *given: 8)
    monkeypatch.setattr("radicel.runtime.attention.triton_attention.LONG", 20)


@pytest.mark.parametrize(
    "settings_of",
    [{}, {"prefill_chunk": 7}, {"kv_tokens": 500}, {"prefix_cache": False}, {"forced_runs": False}],
    ids=str,
)
def test_the_same_ids_as_the_torch_path(folder: Path, settings_of: dict[str, Any]) -> None:
    prompts = ["The sea is " * 12 + end for end in ("a", "b", "the cat", "of the", "")] + ["The sea is " * 6, "x"]
    texts = {}
    for attention in ("torch", "triton"):
        options = {"kv_tokens": 4000, **settings_of}
        with LocalRuntime(folder, device="cpu", attention=attention, check_invariants=True, **options) as runtime:
            texts[attention] = [
                [result.token_ids for result in results]
                for results in runtime.generate(prompts, n=2, temperature=0.8, seed=3, max_tokens=20, ignore_eos=True)
            ]
            runtime.check()
    assert texts["torch"] == texts["triton"]
    assert min(len(ids) for results in texts["torch"] for ids in results) > 15


def test_rows_of_one_prompt_are_read_once(folder: Path) -> None:
    from radicel.runtime.attention import triton_attention

    wide = []
    update = triton_attention.RadixPlanner.update

    def watched(planner: Any, *given: Any) -> None:
        update(planner, *given)
        sizes = planner.parts["sizes"].tolist()
        wide.append(planner.parts["wide"][: sizes[0], 3].max(initial=0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_attention.RadixPlanner, "update", watched)
        with LocalRuntime(folder, device="cpu", attention="triton", kv_tokens=4000) as runtime:
            runtime.generate("The sea is " * 12, n=3, temperature=0.8, seed=1, max_tokens=8, ignore_eos=True)
    assert max(wide) == 3
