"""Radix decode attention: the plan and the kernel together against plain ragged attention, step after step."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from radicel.kernels import KERNELS, reference
from radicel.kernels.radix_items import RadixLayout
from radicel.runtime.attention.radix_plan import RadixPlanner, RadixTuning
from radicel.runtime.batch import Chain, Segment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
TOLERANCES = [(torch.float32, 1e-5), (torch.float16, 2e-3)] + [(torch.bfloat16, 2e-2)] * ON_GPU
CONTEXT, ROWS = 260, 8

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


class Tree:
    """Rows that stand on nodes of a tree, and their page table; slot 0 and unused slots hold NaN."""

    def __init__(self, nodes: dict[int, int], seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.free = self.rng.sample(range(1, 4000), 3999)
        self.nodes = {node: [self.free.pop() for _ in range(length)] for node, length in nodes.items()}
        self.table = torch.zeros((ROWS, CONTEXT), dtype=torch.int32)
        self.rows: dict[int, tuple[Chain, int]] = {}
        self.sent = np.zeros(1 << 16, np.int32)  # what the device has: a copy of what was said to have changed

    def enter(self, row: int, path: list[int], own: int) -> None:
        slots: list[int] = []
        chain = []
        for node in path:
            chain.append(Segment(node, len(slots), len(self.nodes[node])))
            slots += self.nodes[node]
        slots += [self.free.pop() for _ in range(own)]
        self.table[row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
        self.table[row, len(slots) :] = 0
        self.rows[row] = (tuple(chain), len(slots))

    def grow(self, count: int = 1) -> None:
        for row, (chain, length) in self.rows.items():
            for i in range(count):
                self.table[row, length + i] = self.free.pop()
            self.rows[row] = (chain, length + count)

    def leave(self, row: int) -> None:
        del self.rows[row]

    def step(self, planner: RadixPlanner, nums: list[int]) -> dict[str, Any]:
        """Plans a step with these many new tokens of each row; arguments of the attentions."""
        rows = np.array(list(self.rows), np.int32)
        lens = np.array([length for _, length in self.rows.values()], np.int32)
        starts = np.concatenate(([0], np.cumsum(nums))).astype(np.int32)
        planner.update(rows, starts[:-1], np.array(nums, np.int32), lens, [chain for chain, _ in self.rows.values()])
        size = planner.layout.size if planner.changed else planner.layout.step_size
        self.sent[:size] = planner.buffer[:size]
        return {
            "table": self.table.to(DEVICE),
            "rows": torch.from_numpy(rows).to(DEVICE),
            "starts": torch.from_numpy(starts).to(DEVICE),
            "lens": torch.from_numpy(lens).to(DEVICE),
            "plan": {
                name: torch.from_numpy(self.sent[first:end].reshape(planner.layout.shapes[name])).to(DEVICE)
                for name, (first, end) in planner.layout.places().items()
            },
        }


def planner_for(members: int = 4, tuning: RadixTuning | None = None, **sizes: int) -> RadixPlanner:
    sizes = {"wide": 32, "narrow": 64, "merges": 12, **sizes}
    layout = RadixLayout(tokens=8 * ROWS, rows=ROWS, members=members, **sizes)
    small = RadixTuning(units=24, least_piece=32, row_cost=4, least_saved=16)
    return RadixPlanner(layout, kv_heads=2, tuning=tuning or small)


def compare(
    tree: Tree,
    planner: RadixPlanner,
    nums: list[int],
    *,
    attention: Any = reference.radix_attention,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-12,
    heads: int = 4,
    dim: int = 8,
    window: int = 0,
    softcap: float = 0.0,
) -> None:
    step = tree.step(planner, nums)
    generator = torch.Generator().manual_seed(len(nums))
    caches = torch.randn((2, 4000, 2, dim), generator=generator, dtype=torch.float64).to(dtype)
    used = torch.zeros(4000, dtype=torch.bool)
    for row, (_, length) in tree.rows.items():
        used[tree.table[row, :length].long()] = True
    caches[:, ~used] = torch.nan
    caches = caches.to(DEVICE)
    q = torch.randn((sum(nums), heads, dim), generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)
    common = (q, caches[0], caches[1], step["table"])
    wanted = reference.ragged_attention(*common, step["rows"], step["starts"], step["lens"], 0.3, window, softcap)
    out = torch.full_like(q, torch.nan)
    attention(*common, step["plan"], 0.3, window, softcap, max(nums), out, planner.form)
    torch.testing.assert_close(out.double(), wanted.double(), atol=tolerance, rtol=tolerance)


def forest() -> Tree:
    """Two families and two rows alone: 1 ─ 2 ─ 4, 1 ─ 3; 5 ─ 6 (which have the same rows)."""
    tree = Tree({1: 100, 2: 50, 3: 30, 4: 20, 5: 40, 6: 40})
    for row, path, own in [(5, [1, 2], 10), (2, [1, 3], 1), (0, [1, 2, 4], 10), (1, [1, 2], 5), (6, [5, 6], 3),
                           (4, [5, 6], 60), (3, [], 10), (7, [], 150)]:  # fmt: skip
        tree.enter(row, path, own)
    return tree


@pytest.mark.parametrize("nums", [[1] * 8, [2] * 8, [1, 2, 1, 4, 3, 1, 1, 2]], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (60, 4.0)])
def test_the_twin_equals_plain_attention(nums: list[int], window: int, softcap: float) -> None:
    tree = forest()
    tree.grow(2)
    compare(tree, planner_for(), nums, window=window, softcap=softcap)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("nums", [[1] * 8, [1, 2, 1, 4, 3, 1, 1, 2]], ids=["one", "several"])
@pytest.mark.parametrize(("heads", "dim", "window", "softcap"), [(4, 40, 0, 0.0), (6, 16, 60, 4.0), (2, 24, 0, 0.0)])
def test_the_kernel(
    dtype: torch.dtype, tolerance: float, nums: list[int], heads: int, dim: int, window: int, softcap: float
) -> None:
    tree = forest()
    tree.grow(3)
    compare(
        tree, planner_for(), nums, attention=KERNELS["radix_attention"].triton(), dtype=dtype, tolerance=tolerance,
        heads=heads, dim=dim, window=window, softcap=softcap,
    )  # fmt: skip


@pytest.mark.parametrize("attention", [reference.radix_attention, KERNELS["radix_attention"].triton()])
@pytest.mark.parametrize("num", [1, 4])
def test_rows_alone_take_one_launch_until_something_is_shared(attention: Any, num: int) -> None:
    """With 3 tokens both kinds of items have one launch in any case, with 12 each has its own."""
    tree = Tree({1: 100})
    planner = planner_for(tuning=RadixTuning(units=2, least_piece=1000, row_cost=4, least_saved=16))
    sizes: Any = {"attention": attention, "dtype": torch.float32, "tolerance": 1e-5}
    for row in (3, 0, 5):
        tree.enter(row, [], 20 + row)
    tree.grow(num)
    compare(tree, planner, [num] * 3, **sizes)
    assert planner.form == "alone"
    for row in (6, 7):
        tree.enter(row, [1], 9)
    compare(tree, planner, [num] * 5, **sizes)
    assert planner.form == "any"
    for row in (6, 7):
        tree.leave(row)
    tree.grow()
    compare(tree, planner, [num] * 3, **sizes)
    assert planner.form == "alone"


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 5, 8, 12, 16])
def test_the_kernel_of_every_layout(dim: int, group: int) -> None:
    from radicel.kernels.radix_attention import item_rows

    for dtype, tolerance in TOLERANCES:
        for queries in (1, 4):
            tree = forest()
            tree.grow(4)
            planner = planner_for(item_rows(group, dim, dtype, queries))
            compare(
                tree, planner, [queries] * 8, attention=KERNELS["radix_attention"].triton(), dtype=dtype,
                tolerance=tolerance, heads=2 * group, dim=dim,
            )  # fmt: skip


def test_shared_nodes_are_wide_items_and_the_rest_narrow_ones() -> None:
    tree, planner = forest(), planner_for(tuning=RadixTuning(units=2, least_piece=1000, row_cost=4, least_saved=16))
    tree.step(planner, [1] * 8)
    sizes = planner.parts["sizes"].tolist()
    wide = {(tuple(item[1:3]), tuple(planner.parts["members"][i, : item[3]].tolist()))
            for i, item in enumerate(planner.parts["wide"][: sizes[0]].tolist())}  # fmt: skip
    assert wide == {((0, 100), (5, 2, 0, 1)), ((100, 150), (5, 0, 1)), ((0, 80), (6, 4))}
    narrow = {item[0]: item[1] for item in planner.parts["narrow"][: sizes[1]].tolist()}
    assert narrow == {5: 150, 2: 100, 0: 150, 1: 150, 6: 80, 4: 80, 3: 0, 7: 0}


def test_a_step_in_which_rows_only_grow_changes_no_item() -> None:
    tree, planner = forest(), planner_for()
    tree.step(planner, [1] * 8)
    assert planner.changed
    front = planner.layout.step_size
    before = planner.buffer.copy()
    tree.grow()
    tree.step(planner, [1] * 8)
    assert not planner.changed
    assert (planner.buffer[front:] == before[front:]).all()
    assert (planner.parts["lens"] != before[planner.layout.places()["lens"][0] :][:ROWS]).all()


@pytest.mark.parametrize("seed", range(12))
def test_any_run_of_steps(seed: int) -> None:
    """Rows enter, leave, are reused, grow, and the plan stays right; little room makes it plan anew."""
    rng = random.Random(seed)
    room = {"wide": rng.choice([3, 6, 32]), "narrow": rng.choice([10, 16, 64]), "merges": rng.choice([4, 12])}
    planner = planner_for(rng.choice([1, 2, 4, 8]), **room)
    paths = [[], [1], [1, 2], [1, 2, 4], [1, 3], [5], [5, 6]]
    tree = Tree({node: rng.randint(1, 40) for node in range(1, 7)}, seed)
    for _ in range(25):
        for row in list(tree.rows):
            if rng.random() < 0.15 or tree.rows[row][1] > CONTEXT - 10:
                tree.leave(row)
        for row in set(range(ROWS)) - set(tree.rows):
            if rng.random() < 0.4 or not tree.rows:
                tree.enter(row, rng.choice(paths), rng.choice([1, 2, 30]))
        order = list(tree.rows.items())
        if rng.random() < 0.3:
            rng.shuffle(order)
        tree.rows = dict(order)
        compare(tree, planner, [1] * len(tree.rows))
        tree.grow(rng.choice([1, 1, 1, 3]))
        if len(tree.free) < 400:
            break


def test_sharing_that_spares_too_little_is_left() -> None:
    tree = forest()
    planner = planner_for(tuning=RadixTuning(units=24, least_piece=32, row_cost=4, least_saved=100_000))
    compare(tree, planner, [1] * 8)
    assert planner.parts["sizes"][0] == 0
    flat = planner_for(tuning=RadixTuning(units=24, least_piece=32, sharing=False))
    compare(tree, flat, [1] * 8)
    assert flat.parts["sizes"][0] == 0


def test_a_split_node_moves_its_rows_together() -> None:
    tree, planner = Tree({1: 90, 7: 30}), planner_for()
    for row in range(3):
        tree.enter(row, [1], 4)
    compare(tree, planner, [1] * 3)
    upper = Segment(7, 0, 30)
    for row, (_, length) in tree.rows.items():
        tree.rows[row] = ((upper, Segment(1, 30, 60)), length)
    compare(tree, planner, [1] * 3)
    assert planner.parts["wide"][: planner.parts["sizes"][0], 2].max() == 90
