"""docs/models.md is what its script makes of the measured figures, and these cover everything and agree."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "bench" / "models"


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """The page's modules; they import each other by name."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import formats
        import page
        import tiny_families

        yield page, formats, tiny_families
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def figures() -> Any:
    return json.loads((ROOT / "docs" / "benchmarks" / "models.json").read_text())


def test_the_page_is_made_from_the_figures(scripts: Any, figures: Any) -> None:
    assert scripts[0].render(figures) == (ROOT / "docs" / "models.md").read_text()


def test_everything_is_measured_and_agrees(scripts: Any, figures: Any) -> None:
    _, formats, families = scripts
    cpu = figures["cpu"]
    assert list(cpu["families"]) == list(families.FAMILIES)
    assert list(cpu["formats"]) == list(formats.FORMATS)
    assert list(cpu["gguf"]) == list(formats.GGUF_FAMILIES)
    for rows in (cpu["families"], cpu["formats"], cpu["gguf"]):
        for name, row in rows.items():
            assert max(row["apart"].values()) < 1e-3, name
            assert row["greedy"] == 24, name
            assert row["scale"] > 0.1, name


def test_the_gpu_rows_are_as_near_as_transformers(figures: Any) -> None:
    cuda = figures.get("cuda")
    if cuda is None:
        pytest.skip("no figures of a GPU yet")
    assert set(cuda["families"]) <= set(figures["cpu"]["families"])
    assert len(cuda["families"]) > 20
    for name, row in cuda["families"].items():
        for kind, ours in row["ours"].items():
            assert ours < 1.5 * row["theirs"][kind] + 0.005, (name, kind)


def test_loading_takes_little_more_than_the_largest_file(figures: Any) -> None:
    for machine in figures.values():
        if loading := machine.get("loading"):
            assert loading["peak"] < 1.3 * loading["largest"]
    assert "loading" in figures["cpu"]
