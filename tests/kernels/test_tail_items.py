"""What rows have for themselves and the merge in one launch: any mix of tails, groups of heads, and rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from radicel.kernels import reference
from radicel.kernels.launch import Blocks, RadixBlocks
from radicel.kernels.radix_attention import radix_launch
from radicel.kernels.radix_items import RadixLayout
from radicel.runtime.attention.radix_plan import RadixPlanner, RadixTuning
from radicel.runtime.batch import Chain, Segment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHARED, KV_HEADS, DIM = 96, 2, 16
TILE = Blocks(16, 16, 4, 2)
BLOCKS = RadixBlocks(TILE, TILE, TILE, 1, 1, 0, run=Blocks(16, 16, 4, 2, run=32, run_stages=2), tail=TILE)

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def _planned(
    chains: list[Chain], lens: list[int], tokens: int, **tuning: int
) -> tuple[RadixPlanner, dict[str, torch.Tensor]]:
    """The plan of a step with one query of each row, and its parts for launches of `tokens` tokens."""
    count = len(lens)
    layout = RadixLayout(tokens=tokens, rows=count, wide=32, members=4, narrow=96, merges=24)
    tuned = RadixTuning(**{"units": 64, "wide_units": 6, "least_piece": 16, "row_cost": 4, "least_saved": 16, **tuning})
    planner = RadixPlanner(layout, kv_heads=KV_HEADS, tuning=tuned, run=32)
    numbers = np.arange(count, dtype=np.int32)
    planner.update(numbers, numbers, np.ones(count, np.int32), np.array(lens, np.int32), chains)
    parts = {
        name: torch.from_numpy(planner.buffer[first:end].reshape(layout.shapes[name])).to(DEVICE)
        for name, (first, end) in layout.places().items()
    }
    return planner, parts


@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_tails_of_any_length_beside_rows_that_share_nothing(group: int, softcap: float) -> None:
    """Tails of one token and of several items; the page table does not show what is shared."""
    own = [1, 16, 17, 170, 5, 33, 2]
    alone = [40, 9]
    count = len(own) + len(alone)
    lens = [SHARED + more for more in own] + alone
    table = torch.zeros((count, max(lens)), dtype=torch.int32)
    slots = torch.arange(200, 200 + sum(own) + sum(alone), dtype=torch.int32).flip(0)
    for row, more in enumerate([*own, *alone]):
        before = SHARED if row < len(own) else 0
        table[row, :before] = torch.arange(40, 40 + before)
        table[row, before : before + more], slots = slots[:more], slots[more:]
    chains: list[Chain] = [(Segment(1, 0, SHARED, 40),)] * len(own) + [()] * len(alone)
    planner, plan = _planned(chains, lens, tokens=count + 3)
    assert planner.form == "runs"
    assert max(len(row.narrow) for row in planner._rows.values()) > 1, "no tail has several items"

    generator = torch.Generator().manual_seed(5)
    keys, values = (torch.randn((600, KV_HEADS, DIM), generator=generator) for _ in range(2))
    unused = torch.ones(600, dtype=torch.bool)
    for row, length in enumerate(lens):
        unused[table[row, :length].long()] = False
    keys[unused], values[unused] = torch.nan, torch.nan
    q = torch.randn((count + 3, KV_HEADS * group, DIM), generator=generator).to(DEVICE)
    q[count:] = torch.nan  # of nobody
    struck = table.clone()
    struck[: len(own), :SHARED] = 0
    inputs = (q, keys.to(DEVICE), values.to(DEVICE))
    out = torch.full_like(q, 7.0)
    radix_launch(*inputs, struck.to(DEVICE), plan, 0.3, 0, softcap, 1, out, BLOCKS, "runs")
    starts = torch.arange(count + 1, dtype=torch.int32, device=DEVICE)
    rows = torch.arange(count, device=DEVICE)
    ends = torch.tensor(lens, device=DEVICE)
    wanted = reference.ragged_attention(q[:count], *inputs[1:], table.to(DEVICE), rows, starts, ends, 0.3, 0, softcap)
    torch.testing.assert_close(out[:count], wanted, atol=1e-5, rtol=1e-5)
    assert bool((out[count:] == 7.0).all()), "what is nobody's was written"


def test_a_row_with_far_more_than_the_others_is_split_among_programs() -> None:
    chains: list[Chain] = [(Segment(1, 0, SHARED, 40),)] * 8
    for own, settings, form in [
        ([20] * 8, {"long_tail": 1}, "runs"),
        ([900] * 8, {"long_tail": 1}, "runs"),  # each program has as much to read
        ([20] * 7 + [900], {"long_tail": 1}, "any"),
        ([20] * 7 + [900], {"long_tail": 2000}, "runs"),  # not long for a program
    ]:
        planner, _ = _planned(chains, [SHARED + more for more in own], tokens=8, **{"units": 16, **settings})
        assert planner.form == form, (own, settings)


def test_the_form_changes_when_one_row_grows_beyond_the_others() -> None:
    chains: list[Chain] = [(Segment(1, 0, SHARED, 40),)] * 8
    planner, _ = _planned(chains, [SHARED + 20] * 8, tokens=8, units=16, long_tail=100)
    assert planner.form == "runs"
    numbers, lens = np.arange(8, dtype=np.int32), np.full(8, SHARED + 20, np.int32)
    for more in range(20, 400, 4):
        lens[0] = SHARED + more
        planner.update(numbers, numbers, np.ones(8, np.int32), lens, chains)
    assert planner.form == "any"
