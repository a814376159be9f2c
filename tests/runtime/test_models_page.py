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
KINDS = dict.fromkeys(("prefill", "chunks", "decode", "forks"), 0.1)


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
    """What a run had no time for is named on the page; what it measured must agree."""
    cuda = figures.get("cuda")
    if cuda is None:
        pytest.skip("no figures of a GPU yet")
    assert set(cuda["families"]) <= set(figures["cpu"]["families"])
    assert len(cuda["families"]) > 20
    for name, row in cuda["families"].items():
        assert "error" not in row, name
        for kind, ours in row["ours"].items():
            assert ours < 1.5 * row["theirs"][kind] + 0.005, (name, kind)


def test_loading_takes_little_more_than_the_largest_file(figures: Any) -> None:
    for machine in figures.values():
        if loading := machine.get("loading"):
            assert loading["peak"] + loading["pinned"] < 1.3 * loading["largest"]
    assert "loading" in figures["cpu"]


def test_what_has_no_figures_is_named(scripts: Any, figures: Any) -> None:
    page = scripts[0]
    figures = json.loads(json.dumps(figures))
    figures["cuda"] = {
        "machine": "card",
        "versions": {},
        "families": {"llama-2": {"error": "exit code -6: a | b"}, "mixtral": {"ours": KINDS, "theirs": KINDS}},
        "speed": {"Qwen3-8B": {"error": "not done after 400 s"}},
    }
    del figures["cpu"]["loading"]
    text = page.render(figures)
    assert "| `LlamaForCausalLM` | Llama-2-7B | failed: exit code -6: a / b |  |  |  |" in text
    assert "| `Qwen3ForCausalLM` | Qwen3-8B | not measured: no time was left |  |  |  |" in text
    assert "| `MixtralForCausalLM` | Mixtral-8x7B | 0.100 / 0.100 |" in text
    assert "| Qwen3-8B | failed: not done after 400 s |  |  |  |" in text
    assert "| Qwen3-30B-A3B | not measured: no time was left |  |  |  |" in text
    assert "What loading to a GPU takes: not measured: no time was left." in text


def test_a_run_of_some_pieces_leaves_the_others(scripts: Any) -> None:
    import table

    old = {
        "cpu": {"families": {"a": 1}},
        "cuda": {"machine": "x", "families": {"a": 1, "b": 2}, "loading": {"peak": 1}},
    }
    some = {"cuda": {"machine": "y", "only": True, "families": {"b": 3}, "loading": {"peak": 2}}}
    found = table.merged(json.loads(json.dumps(old)), some)
    assert found["cuda"] == {"machine": "y", "families": {"a": 1, "b": 3}, "loading": {"peak": 2}}
    whole = {"cuda": {"machine": "z", "families": {"b": 4}}}
    assert table.merged(json.loads(json.dumps(old)), whole)["cuda"] == {"machine": "z", "families": {"b": 4}}


PIECES = """
import os, sys, time
name = sys.argv[-1]
if name == "slow":
    time.sleep(60)
if name == "dead":
    os.kill(os.getpid(), 9)
if name == "wrong":
    raise ValueError("no such thing")
print("said beside", flush=True)
print('{"name": "%s"}' % name)
"""


def test_a_piece_that_fails_ends_no_other(scripts: Any, tmp_path: Path) -> None:
    import jobs

    (tmp_path / "piece.py").write_text(PIECES)
    found: dict[str, Any] = {}

    def run(names: list[str], limit: float, most: float) -> None:
        found.clear()
        jobs.run_jobs(
            tmp_path / "piece.py", [], names, at_once=3, least=0.5, most=most, clock=jobs.Clock(limit),
            done=lambda name, result, seconds: found.update({name: result}),
        )  # fmt: skip

    run(["one", "dead", "wrong", "two"], 0, 50)
    assert found["one"] == {"name": "one"}
    assert found["two"] == {"name": "two"}
    assert found["dead"] == {"error": "exit code -9: it said nothing"}
    assert found["wrong"] == {"error": "exit code 1: ValueError: no such thing"}
    run(["slow"], 0, 0.5)
    assert found == {"slow": {"error": "not done after 0 s"}}
    run(["slow", "slow", "slow", "one"], 2, 50)
    assert found == {}
