"""The GPU benchmark on a CPU: the driver end to end with a tiny model, its table, its reading of a profile."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "examples" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the driver."""
    monkeypatch.syspath_prepend(str(BENCH / "workloads"))

    def load(name: str) -> Any:
        if name != "gpu":
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location("radicel_bench_gpu", BENCH / "gpu.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def drive(folder: Path, model: Path, *arguments: str) -> dict[str, Any]:
    """Runs the driver; what it wrote."""
    out = folder / "run"
    workloads = ROOT / "tests" / "support" / "tiny_workloads.py"
    command = [sys.executable, str(BENCH / "gpu.py"), "--workloads", str(workloads), "--model", str(model), "--tiny"]
    done = subprocess.run([*command, "--out", str(out), *arguments], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "run.md").read_text(encoding="utf-8") in done.stdout
    run: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return run


def test_ours_end_to_end(tiny_llama, tmp_path):
    run = drive(tmp_path, tiny_llama, "--only", "ours", "--reps", "2", "--profile")
    ours = run["parts"]["ours"]
    assert ours["failed"] == {}
    assert ours["notes"] == []
    lines = ours["lines"]
    assert {line["workload"] for line in lines} == {
        "W1", "W2", "W3", "W4", "W5plain", "W5json", "W6", "W7", "W8", "idle"
    }  # fmt: skip
    assert [line["rep"] for line in lines if line["workload"] == "W1"] == [0, 1, "median"]
    made = [line["output_tokens"] for line in lines if "output_tokens" in line]
    assert sum(made) >= 0.8 * (4 * 2 * 24 + 2 * 6 + 2 * 48)  # ends may come early under the schema
    assert set(ours["profile"]) == {"W1", "W2", "W3", "W4", "W5", "W5 schema", "W6", "W7"}


@pytest.mark.slow
def test_every_part_end_to_end(tiny_llama, tmp_path):
    run = drive(tmp_path, tiny_llama, "--reps", "1")
    parts = run["parts"]
    assert list(parts) == ["ours", "flat", "eager", "serial", "uncached", "transformers"]
    assert "GPU" in parts["flat"]["missing"]
    for name in ("ours", "eager", "serial", "uncached", "transformers"):
        assert parts[name]["failed"] == {}, name
    assert {line["workload"] for line in parts["transformers"]["lines"]} == {"W1", "W2", "W3", "W5plain"}
    assert {line["workload"] for line in parts["serial"]["lines"]} >= {"W1", "W5json", "idle"}


def test_a_deadline_is_named_not_overrun(tiny_llama, tmp_path):
    run = drive(tmp_path, tiny_llama, "--only", "W2", "--limit", "5")
    assert {part["missing"] for part in run["parts"].values()} == {"no time was left"}


def test_names_that_are_neither(bench, monkeypatch):
    gpu = bench("gpu")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "W2,ablations,W9"])
    with pytest.raises(SystemExit, match="W9"):
        gpu.selection(gpu.arguments())
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "W2,W3,ablations"])
    assert gpu.selection(gpu.arguments()) == {"flat": ["W3"], "eager": ["W2"], "serial": ["W2"], "uncached": ["W3"]}


def test_two_runs_make_one_page(bench):
    gpu = bench("gpu")
    base = {"date": "2026-01-01", "device": "a card", "versions": {"torch": "2"}}

    def part(*lines: dict[str, Any], failed: dict[str, str] | None = None) -> dict[str, Any]:
        return {"lines": list(lines), "failed": failed or {}, "notes": [], "profile": {}}

    first = {**base, "parts": {"ours": part({"workload": "W3", "rep": 0, "wall_s": 1.5}, failed={"W4": "crashed"})}}
    second = {
        **base,
        "parts": {
            "ours": part({"workload": "W4", "rep": 0, "wall_s": 2.5}),
            "flat": part({"workload": "W3", "rep": 0, "wall_s": 3.0}),
            "transformers": {"missing": "it is not installed"},
        },
    }
    page = gpu.markdown(gpu.merged([first, second]))
    assert "| **W3** 8 groups × 32 over a 2,048-token prefix, 64 own, 64 out, s | 1.4 | 2.18 (mini-sglang) | – " in page
    assert "| **1.5** | 1.45 | 1.6 | yes |" in page
    assert "| **2.5** | 0.92 | 2.15 | missed by 16.3% |" in page
    assert "| **W3** 8 groups × 32 over a 2,048-token prefix, 64 own, 64 out, s | 1.5 | 3 |" in page
    assert "crashed" not in page
    assert "not measured: it is not installed" in page


def test_the_schema_row_follows_the_plain_one(bench):
    rows = bench("gpu_rows")
    (row,) = (row for row in rows.ROWS if row.key == "W5 schema")
    reach = rows.target(row, {"W5": 10.0})
    assert reach == pytest.approx(10.3)
    assert rows.verdict(row, 10.2, reach) == "yes"
    assert rows.verdict(row, 20.6, reach) == "missed by 100.0%"
    (first,) = (row for row in rows.ROWS if row.key == "W1")
    assert first.best() == ("mini-sglang", 9_977)
    assert rows.verdict(first, 10_300, first.reach) == "yes"
    assert rows.verdict(first, 9_270, first.reach) == "missed by 10.0%"


def test_medians_leave_the_median_lines_out(bench):
    rows = bench("gpu_rows")
    lines = [{"workload": "W3", "rep": r, "wall_s": wall} for r, wall in enumerate((3.0, 1.0, 2.0))]
    assert rows.values([*lines, {"workload": "W3", "rep": "median", "wall_s": 9.0}]) == {"W3": 2.0}


def test_idle_counts_overlapping_kernels_once(bench):
    profile = bench("gpu_profile")
    kernels = [profile.Kernel(name, start, end) for name, start, end in (("a", 0, 40), ("b", 20, 50), ("c", 60, 100))]
    assert profile.idle_share(kernels, 0, 100) == pytest.approx(0.1)
    assert profile.idle_share(kernels, 45, 65) == pytest.approx(0.5)
    table = profile.table(profile.Recording(wall_s=200e-9, kernels=tuple(kernels)))
    assert table["idle"] == pytest.approx(0.55)
    assert table["longest"][0] == {"name": "a", "ms": pytest.approx(40e-6), "count": 1}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", "linear layers"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>", "linear layers"),
        ("_radix_attention_kernel", "attention"),
        ("_ragged_attention_kernel", "attention"),
        ("_sample_tokens_kernel", "sampling"),
        ("_rotary_store_kernel", "norm, rotary, activation"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::index_elementwise_kernel", "other"),
    ],
)
def test_kernel_groups(bench, name, group):
    assert bench("gpu_profile").group_of(name) == group
