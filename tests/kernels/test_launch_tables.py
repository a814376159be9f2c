"""The tables of measured launches: what they must keep to whatever is measured, and how wide items fill a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from radicel.kernels.launch import MOST_ROWS, RADIX, RAGGED, WIDEST_HELD, linear_blocks, padded
from radicel.kernels.radix_items import RadixLayout
from radicel.kernels.ragged_attention import tile_queries
from radicel.runtime.attention.radix_plan import RadixPlanner, RadixTuning
from radicel.runtime.batch import Segment


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("count", "width"), [(6144, 4096), (4096, 14336), (128256, 4096), (896, 896), (1, 16), (9, 9000)]
)
@pytest.mark.parametrize("gated", [False, True])
def test_linear_blocks_fit_every_shape(dtype: torch.dtype, count: int, width: int, gated: bool) -> None:
    weight = torch.empty((2 * count if gated else count, width), dtype=dtype, device="meta")
    for rows in range(1, MOST_ROWS + 1):
        blocks = linear_blocks(rows, weight, gated)
        if blocks is None:  # the library
            assert rows > 1
            continue
        assert blocks.n >= 1
        if blocks.programs:  # whole rows of the weight in registers
            assert rows == 1
            assert width * dtype.itemsize <= 2 * WIDEST_HELD
        else:
            assert blocks.k >= 64
        if blocks.stages:  # tensor cores take 16 columns at least
            assert blocks.n >= 16


def test_prefill_tiles_hold_the_same_queries_however_many_there_are() -> None:
    for (size, dim), blocks in RAGGED.items():
        assert blocks.many.m == blocks.few.m == blocks.long.m
        dtype = {2: torch.float16, 4: torch.float32}[size]
        assert tile_queries(1, dim, dtype) == blocks.many.m
        assert padded(dim, 64) == dim
    assert RAGGED.keys() == RADIX.keys()


@pytest.mark.parametrize(
    ("rows", "families", "prefix", "pieces"),
    [(64, 1, 32768, 8), (256, 8, 2048, 2), (32, 1, 300, 2), (256, 8, 130, 1)],
)
def test_wide_items_fill_the_device_and_no_more(rows: int, families: int, prefix: int, pieces: int) -> None:
    """Eight key heads on 132 processors: as many pieces as there is room for at once, none shorter than is worth it."""
    layout = RadixLayout(tokens=rows, rows=rows, wide=256, members=32, narrow=2048, merges=64)
    planner = RadixPlanner(layout, kv_heads=8, tuning=RadixTuning(units=264, wide_units=132, least_piece=128))
    numbers, ones = np.arange(rows, dtype=np.int32), np.ones(rows, np.int32)
    chains = [(Segment(1 + row * families // rows, 0, prefix),) for row in range(rows)]
    planner.update(numbers, numbers, ones, np.full(rows, prefix + 50, np.int32), chains)
    groups = families * -(-rows // families // 32)
    assert planner.parts["sizes"][0] == groups * pieces
    items = planner.parts["wide"][: groups * pieces]
    assert groups * pieces * 8 <= 132
    assert int((items[:, 2] - items[:, 1]).sum()) == groups * prefix
