"""Slots that follow one another: found on the radix path, fetched in whole blocks, and the same result either way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from radicel.kernels import reference
from radicel.kernels.launch import Blocks, RadixBlocks
from radicel.kernels.radix_attention import radix_launch
from radicel.kernels.radix_items import RadixLayout
from radicel.kernels.ragged_attention import query_tiles, ragged_launch
from radicel.runtime.attention.radix_plan import RadixPlanner, RadixTuning
from radicel.runtime.attention.slot_runs import NO_RUN, SlotRun, covering_runs, longest_run, runs_of
from radicel.runtime.batch import Chain, Segment

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


def test_runs_that_cover_a_stretch() -> None:
    runs = [SlotRun(0, 15, 50), SlotRun(15, 50, 7), SlotRun(60, 90, 200)]
    assert covering_runs(runs, 4, 40, 11) == [SlotRun(4, 15, 54), SlotRun(15, 40, 7)]
    assert covering_runs(runs, 4, 40, 12) == [], "one is too short"
    assert covering_runs(runs, 20, 90, 1) == [], "there is a gap"
    assert covering_runs(runs, 60, 90, 1) == [SlotRun(60, 90, 200)]
    assert covering_runs(runs, 60, 91, 1) == []
    assert covering_runs([], 0, 1, 1) == []


def _planner(rows: int, queries: int, run: int) -> RadixPlanner:
    layout = RadixLayout(tokens=rows * queries, rows=rows, wide=32, members=4, narrow=64, merges=12)
    tuning = RadixTuning(wide_units=6, least_piece=32, row_cost=4, least_saved=16)
    return RadixPlanner(layout, kv_heads=KV_HEADS, tuning=tuning, run=run)


def _update(planner: RadixPlanner, chain: Chain, num: int, length: int) -> None:
    rows = np.arange(planner.layout.rows, dtype=np.int32)
    full = lambda number: np.full(len(rows), number, np.int32)
    planner.update(rows, rows * num, full(num), full(length), [chain] * len(rows))


def test_the_form_of_a_plan() -> None:
    whole, two = (Segment(1, 0, 300, 40),), (Segment(1, 0, 70, 40), Segment(2, 70, 230, 400))
    for chain, run, num, length, form in [
        (whole, 32, 1, 310, "runs"),
        (two, 32, 2, 310, "runs"),
        (two, 80, 2, 310, "any"),  # a run that is too short
        (whole, 0, 1, 310, "any"),  # nobody asks
        ((Segment(1, 0, 300),), 32, 1, 310, "any"),  # its slots are scattered
        ((Segment(1, 0, 70, 40), Segment(2, 70, 230)), 32, 1, 310, "any"),
        (whole, 32, 1, 300, "any"),  # the query is the last of what is shared
        (whole, 32, 4, 303, "any"),
    ]:
        planner = _planner(10, num, run)
        _update(planner, chain, num, length)
        assert planner.form == form, (chain, run, num, length)
        slots, items = planner.parts["slots"], planner.parts["wide"]
        for (_, start, end, count), slot in zip(items.tolist(), slots.tolist()):
            held = [s for s in chain if s.start <= start and end <= s.start + s.length]
            assert count == 0 or form == "any" or slot == held[0].slot + start - held[0].start
        if form == "runs":
            _update(planner, chain, 1, length + 5)
            assert planner.form == form, "what the rows see whole, they go on to see whole"


@pytest.mark.parametrize("breaks", [(300,), (70, 230), (64, 32, 204)], ids=str)
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_shared_items_are_read_in_blocks(breaks: tuple[int, ...], queries: int, softcap: float) -> None:
    """Ten rows over nodes whose slots are in order; the kernel gets a page table that does not show them."""
    shared, own, count = 300, 7, 10
    chain: list[Segment] = []
    table = torch.zeros((count, shared + own), dtype=torch.int32)
    for node, length in enumerate(breaks):
        at = sum(breaks[:node])
        chain.append(Segment(node, at, length, 40 + at + 33 * node))
        table[:, at : at + length] = torch.arange(length, dtype=torch.int32) + chain[-1].slot
    table[:, shared:] = torch.arange(600, 600 + count * own, dtype=torch.int32).view(count, own)
    planner = _planner(count, queries, 32)
    _update(planner, tuple(chain), queries, shared + own)
    assert planner.form == "runs"
    layout = planner.layout
    plan = {
        name: torch.from_numpy(planner.buffer[first:end].reshape(layout.shapes[name])).to(DEVICE)
        for name, (first, end) in layout.places().items()
    }
    struck = table.clone()
    struck[:, :shared] = 0
    keys, values = _caches(700, table.flatten(), torch.float32)
    q = torch.randn((count * queries, HEADS, DIM), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    rows, starts = torch.arange(count), torch.arange(count + 1, dtype=torch.int32, device=DEVICE) * queries
    lens = torch.full((count,), shared + own)
    wanted = reference.ragged_attention(q, keys, values, table.to(DEVICE), rows, starts, lens, 0.3, 0, softcap)
    tile = Blocks(16, 16, 4, 2)
    blocks = RadixBlocks(tile, tile, tile, 1, 1, 0, run=Blocks(16, 16, 4, 2, run=32, run_stages=2))
    common = (q, keys, values)
    found = radix_launch(*common, struck.to(DEVICE), plan, 0.3, 0, softcap, queries, None, blocks, "runs")
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    for window, form in ((0, "any"), (40, "runs")):  # by the page table
        found = radix_launch(*common, table.to(DEVICE), plan, 0.3, window, softcap, queries, None, blocks, form)
        wanted = reference.ragged_attention(q, keys, values, table.to(DEVICE), rows, starts, lens, 0.3, window, softcap)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
