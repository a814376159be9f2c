"""Slots that follow one another: found on the radix path, fetched in whole blocks, and the same result either way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from radicel.kernels import reference
from radicel.kernels.launch import Blocks, RadixBlocks
from radicel.kernels.radix_attention import radix_launch
from radicel.kernels.radix_items import RadixLayout
from radicel.kernels.ragged_attention import query_tiles, ragged_launch
from radicel.runtime.attention.radix_plan import RadixPlanner, RadixTuning
from radicel.runtime.attention.slot_runs import NO_RUN, SlotRun, longest_run, runs_of
from radicel.runtime.batch import Segment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, KV_HEADS, HEADS = 16, 2, 4

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def test_nodes_that_continue_one_another_are_one_run() -> None:
    chain = (Segment(1, 0, 10, 50), Segment(2, 10, 5, 60), Segment(3, 15, 5, -1), Segment(4, 20, 30, 7))
    assert runs_of(chain) == [SlotRun(0, 15, 50), SlotRun(20, 50, 7)]
    assert runs_of((Segment(1, 0, 10, 50), Segment(2, 10, 5, 61))) == [SlotRun(0, 10, 50), SlotRun(10, 15, 61)]
    assert runs_of(()) == []


def test_the_longest_part_of_a_run_within_bounds() -> None:
    runs = [SlotRun(0, 15, 50), SlotRun(20, 50, 7)]
    assert longest_run(runs, 0, 100) == SlotRun(20, 50, 7)
    assert longest_run(runs, 4, 28) == SlotRun(4, 15, 54)
    assert longest_run(runs, 25, 28) == SlotRun(25, 28, 12)
    assert longest_run(runs, 15, 20) == NO_RUN
    assert longest_run([], 0, 9) == NO_RUN


def _caches(slots: int, used: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Keys and values; what nobody should read is NaN."""
    generator = torch.Generator().manual_seed(3)
    caches = [torch.randn((slots, KV_HEADS, DIM), generator=generator).to(dtype) for _ in range(2)]
    unused = torch.ones(slots, dtype=torch.bool)
    unused[used.long()] = False
    for cache in caches:
        cache[unused] = torch.nan
    return [cache.to(DEVICE) for cache in caches]


def _whole_blocks(run: SlotRun, first: int, end: int, size: int) -> slice:
    """The positions that are fetched in blocks."""
    at = first + max(0, -(-(run.first - first) // size)) * size
    return slice(at, at + max(0, min(run.end, end) - at) // size * size)


RUNS = [
    SlotRun(0, 200, 10),
    SlotRun(0, 32, 10),
    SlotRun(0, 31, 10),  # no whole block
    SlotRun(37, 170, 10),
    SlotRun(64, 230, 10),
    NO_RUN,
]


@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_prefill_reads_runs_in_blocks(run: SlotRun, ahead: bool, softcap: float) -> None:
    """What the blocks cover is struck out of the page table that the kernel gets: it must not look there."""
    q_lens, kv_lens = [3, 21], [150, 233]
    table = torch.zeros((2, 240), dtype=torch.int32)
    table[0, :150] = torch.randperm(150) + 500
    table[1, :233] = torch.randperm(233) + 700
    table[1, run.first : run.end] = torch.arange(run.slot, run.slot + run.end - run.first)
    used = torch.cat((table[0, :150], table[1, :233]))
    dtype = torch.float32
    keys, values = _caches(1000, used, dtype)
    q = torch.randn((sum(q_lens), HEADS, DIM), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    starts = torch.tensor([0, 3, 24], dtype=torch.int32, device=DEVICE)
    lens = torch.tensor(kv_lens, dtype=torch.int32, device=DEVICE)
    rows = torch.arange(2, dtype=torch.int32, device=DEVICE)
    wanted = reference.ragged_attention(q, keys, values, table.to(DEVICE), rows, starts, lens, 0.3, 0, softcap)
    struck = table.clone()
    blocks = Blocks(32, 16, 4, 2, ahead=ahead, run=32)
    struck[1, _whole_blocks(run, 0, kv_lens[1] - q_lens[1] + 1, 32)] = 0
    runs = torch.tensor([NO_RUN, run], dtype=torch.int32, device=DEVICE)
    tiles = query_tiles(q_lens, 16).to(DEVICE)
    found = ragged_launch(
        q, keys, values, struck.to(DEVICE), rows, starts, lens, 0.3, 0, softcap, tiles, None, blocks, runs
    )
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("broken", [False, True], ids=["one run", "a break in it"])
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("run", [32, 0], ids=["blocks", "off"])
def test_shared_items_read_runs_in_blocks(broken: bool, queries: int, run: int) -> None:
    """Ten rows over a node of 300 slots in order, or over two such nodes that do not continue one another."""
    shared, own, count = 300, 7, 10
    table = torch.zeros((count, shared + own), dtype=torch.int32)
    at = torch.arange(40, 40 + shared, dtype=torch.int32)
    if broken:
        at[70:] += 33
    table[:, :shared] = at
    table[:, shared:] = torch.arange(600, 600 + count * own, dtype=torch.int32).view(count, own)
    chain = (Segment(1, 0, 70, int(at[0])), Segment(2, 70, shared - 70, int(at[70])))
    layout = RadixLayout(tokens=count * queries, rows=count, wide=32, members=4, narrow=64, merges=12)
    planner = RadixPlanner(
        layout, kv_heads=KV_HEADS, tuning=RadixTuning(wide_units=6, least_piece=32, row_cost=4, least_saved=16)
    )
    rows = np.arange(count, dtype=np.int32)
    lens = np.full(count, shared + own, np.int32)
    planner.update(rows, rows * queries, np.full(count, queries, np.int32), lens, [chain] * count)
    plan = {
        name: torch.from_numpy(planner.buffer[first:end].reshape(layout.shapes[name])).to(DEVICE)
        for name, (first, end) in layout.places().items()
    }
    items = planner.parts["wide"][: planner.parts["sizes"][0]]
    assert len(items) >= 3
    assert (items[:, 5] > items[:, 4]).all()
    struck = table.clone()
    for _, start, end, _, *found, _ in items.tolist():
        part = SlotRun(*found)
        assert start <= part.first < part.end <= end
        assert (table[0, part.first : part.end] == torch.arange(part.slot, part.slot + part.end - part.first)).all()
        if run:
            struck[:, _whole_blocks(part, start, end, run)] = 0
    assert run == 0 or int((struck == 0).sum()) >= 2 * count * run
    keys, values = _caches(700, table.flatten(), torch.float32)
    q = torch.randn((count * queries, HEADS, DIM), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    starts = torch.arange(count + 1, dtype=torch.int32, device=DEVICE) * queries
    wanted = reference.ragged_attention(
        q, keys, values, table.to(DEVICE), torch.from_numpy(rows), starts, torch.from_numpy(lens), 0.3
    )
    tile = Blocks(16, 16, 4, 2)
    blocks = RadixBlocks(replace(tile, run=run), tile, tile, 1, 1, 0)
    arguments: Any = (q, keys, values, struck.to(DEVICE), plan, 0.3, 0, 0.0, queries, None, blocks)
    torch.testing.assert_close(radix_launch(*arguments), wanted, atol=1e-5, rtol=1e-5)
