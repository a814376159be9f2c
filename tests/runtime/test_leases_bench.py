"""The benchmark of leases, smaller: what is computed again stays near what a clairvoyant cache needs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "bench" / "leases.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("radicel_bench_leases", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def assert_within(rows: list[Any]) -> None:
    for row in rows:
        assert row.leases <= row.bound, row
        assert row.leases <= row.lru, row
        if row.share == 1.0:
            assert (row.leases, row.lru, row.fcfs, row.reference) == (0, 0, 0, 0)


@pytest.mark.parametrize(("shape", "scale"), [("few-shot batch", 0.2), ("multi-document questions", 0.2)])
def test_small_shapes(bench, shape, scale):
    rows = list(bench.measure(shape, scale, shares=(1.0, 0.25)))
    assert_within(rows)
    assert rows[1].leases < rows[1].lru


def test_a_small_tree_of_thought(bench):
    rows = list(bench.measure("tree of thought, 4 deep, 4 wide", 0.75, shares=(1.0, 0.25)))
    assert_within(rows)
    assert rows[1].leases < rows[1].lru / 2 < rows[1].fcfs


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["few-shot batch", "tree of thought, 4 deep, 4 wide", "multi-document questions"])
def test_the_table(bench, shape):
    assert_within(list(bench.measure(shape)))


def test_the_reference_is_the_least_possible_on_a_small_case(bench):
    """Three prompts a, b, a of 3 tokens on 4 slots: a keeps one token beside b, so two are computed again."""
    prompts = {"x": [1, 2, 3], "y": [4, 5, 6], "z": [1, 2, 3]}
    outputs = {"x": [7], "y": [8], "z": [9]}
    assert bench.clairvoyant("xyz", prompts, outputs, 4) == 3 + 3 + 2
    assert bench.clairvoyant("xyz", prompts, outputs, 6) == 3 + 3 + 0
    with pytest.raises(ValueError, match="does not fit"):
        bench.clairvoyant("xyz", prompts, outputs, 2)
