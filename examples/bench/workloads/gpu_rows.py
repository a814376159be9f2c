"""The rows of the GPU table: what each is measured in, its floor, what others reach, what is asked of us.

In: what the parts of a run recorded. Out: numbers by row, and the markdown page.

Floors and peers' figures are of one NVIDIA H200 with Llama-3.1-8B's shape in bf16: SGLang 0.5.17, vLLM 0.26.0,
mini-sglang 20fcd7f and transformers 5.17, each in its own process with the same workload file.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PARTS", "ROWS", "Row", "markdown", "values"]

PARTS = {
    "ours": "everything on",
    "flat": "no radix attention",
    "eager": "no CUDA graphs",
    "serial": "no overlap",
    "uncached": "no prefix cache",
    "transformers": "transformers, continuous batching",
}
"""What a run consists of. Each part is a process of its own, so that one that dies takes no other with it."""


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        key: its name in the numbers.
        workload: which workload gives it.
        what: what the workload does, and the unit.
        floor: what the hardware would allow.
        peers: engine → its figure.
        reach: what is asked of us; None where it depends on another row.
        lower: whether less is better.
    """

    key: str
    workload: str
    what: str
    floor: float | None
    peers: Mapping[str, float]
    reach: float | None
    lower: bool = True

    def best(self) -> tuple[str, float] | None:
        """The best peer's name and figure."""
        choose = min if self.lower else max
        return choose(self.peers.items(), key=lambda item: item[1]) if self.peers else None

    def ahead(self, value: float, other: float) -> float:
        """How many times better a value is than another."""
        return other / value if self.lower else value / other


ROWS = (
    Row(
        "W1", "W1", "256 × (512 in, 256 out), nothing shared, output tok/s", 11_400,
        {"SGLang": 9_826, "vLLM": 9_767, "mini-sglang": 9_977, "transformers": 7_585}, 10_300, lower=False,
    ),
    Row(
        "W2", "W2", "batch 1, 512 in, 256 out, ms per token", 3.55,
        {"SGLang": 4.82, "vLLM": 4.97, "mini-sglang": 4.97, "transformers": 7.13}, 4.2,
    ),
    Row(
        "W2 first", "W2", "batch 1, first token of 512 new ones, ms", 11,
        {"SGLang": 16.2, "vLLM": 17.1, "mini-sglang": 12.6, "transformers": 55.9}, 12.6,
    ),
    Row(
        "W3", "W3", "8 groups × 32 over a 2,048-token prefix, 64 own, 64 out, s", 1.4,
        {"SGLang": 2.61, "vLLM": 2.42, "mini-sglang": 2.18, "transformers": 6.59}, 1.6,
    ),
    Row(
        "W4", "W4", "32 conversations × 4 turns (256 in, 64 out), s", 2.0,
        {"SGLang": 2.32, "vLLM": 2.41, "mini-sglang": 2.29}, 2.15,
    ),
    Row(
        "W5", "W5", "64 × (256 in, 256 out), ms per step", 6.2,
        {"SGLang": 7.83, "vLLM": 7.75, "mini-sglang": 7.75, "transformers": 11.7}, 7.2,
    ),
    Row(
        "W5 schema", "W5", "the same under a JSON schema, ms per step", None,
        {"SGLang (xgrammar)": 73.1, "vLLM (xgrammar)": 83.5, "vLLM (llguidance)": 17.4}, None,
    ),
    Row(
        "W6", "W6", "64 branches over a cached 32,768-token document, 64 own, 128 out, ms per step", 8.5,
        {"SGLang": 47.8, "vLLM": 55.5}, 10,
    ),
    Row("W7", "W7", "batch 1, 2,000-token prompt wholly cached: submit to first token, ms", 4, {}, 6),
    Row("W8", "W8", "512 programs through `run_batch`, speed against the same requests by hand", 1.0, {}, 0.97, False),
    Row("idle", "idle", "GPU idle share in steady decode, batch 256, %", 0, {}, 3),
)  # fmt: skip

SCHEMA_SHARE = 1.03
"""A constrained step may take this many times an unconstrained one."""

FIELDS = {
    "W1": ("W1", "tok_s"),
    "W2": ("W2", "ms_per_token"),
    "W2 first": ("W2", "ttft_ms"),
    "W3": ("W3", "wall_s"),
    "W4": ("W4", "wall_s"),
    "W5": ("W5plain", "ms_per_step"),
    "W5 schema": ("W5json", "ms_per_step"),
    "W6": ("W6", "ms_per_step"),
    "W7": ("W7", "first_token_ms"),
    "W8": ("W8", "ratio"),
    "idle": ("idle", "idle_percent"),
}
"""Row → (workload as its lines name it, the field)."""


def values(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Row → the median over its repeats."""
    kept = [line for line in lines if line.get("rep") != "median"]
    found = {}
    for key, (workload, name) in FIELDS.items():
        seen = [float(line[name]) for line in kept if line.get("workload") == workload and name in line]
        if seen:
            found[key] = statistics.median(seen)
    return found


def markdown(run: Mapping[str, Any]) -> str:
    """The page of a run: targets, ablations, kernels, and what did not run."""
    parts = {name: part for name, part in run["parts"].items() if part.get("lines") or part.get("missing")}
    numbers = {name: values(part.get("lines", ())) for name, part in parts.items()}
    page = [
        "# Workloads on the GPU",
        "",
        f"Made by `examples/bench/gpu.py` from its JSON, {run['date']}; {run['device']}. Medians of the repeats, "
        "greedy, caches flushed between repeats, loads and captures excluded. The peers' figures are of such a card "
        "with the same workload file, each engine in its own process.",
        "",
        *_targets(numbers.get("ours", {}), numbers.get("transformers", {})),
        "",
        *_ablations(numbers),
        *_kernels(parts.get("ours", {}).get("profile", {})),
        *_absent(parts),
        "```text",
        *(f"{name:<14} {version}" for name, version in run["versions"].items()),
        "```",
        "",
    ]
    return "\n".join(page)


def target(row: Row, ours: Mapping[str, float]) -> float | None:
    """What is asked of us in this row."""
    if row.key == "W5 schema":
        return ours["W5"] * SCHEMA_SHARE if "W5" in ours else None
    return row.reach


def verdict(row: Row, value: float, reach: float | None) -> str:
    """Whether a value reaches what is asked, or by how much it misses."""
    if reach is None:
        return "–"
    if value <= reach if row.lower else value >= reach:
        return "yes"
    missed = value / reach - 1 if row.lower else 1 - value / reach
    return f"missed by {missed:.1%}"


def _targets(ours: Mapping[str, float], here: Mapping[str, float]) -> list[str]:
    lines = [
        "| workload | floor | best peer | transformers here | Radicel | times the best peer | to reach | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        value, best, reach = ours.get(row.key), row.best(), target(row, ours)
        lines.append(
            f"| **{row.workload}** {row.what} | {_number(row.floor)} "
            f"| {'–' if best is None else f'{_number(best[1])} ({best[0]})'} | {_number(here.get(row.key))} "
            f"| {'not run' if value is None else f'**{_number(value)}**'} "
            f"| {'–' if value is None or best is None else f'{row.ahead(value, best[1]):.2f}'} "
            f"| {_number(reach)} | {'–' if value is None else verdict(row, value, reach)} |"
        )
    return lines


def _ablations(numbers: Mapping[str, Mapping[str, float]]) -> list[str]:
    less = [name for name in PARTS if name in numbers and name not in ("ours", "transformers")]
    rows = [row for row in ROWS if any(row.key in numbers[name] for name in less)]
    if not rows:
        return []
    lines = [
        "What each part of the runtime is worth: the same workloads with one thing off.",
        "",
        f"| workload | {PARTS['ours']} | {' | '.join(PARTS[name] for name in less)} |",
        "|---" * (len(less) + 2) + "|",
    ]
    for row in rows:
        cells = [_number(numbers.get(name, {}).get(row.key)) for name in ("ours", *less)]
        lines.append(f"| **{row.key}** {row.what} | {' | '.join(cells)} |")
    return [*lines, ""]


def _kernels(profile: Mapping[str, Any]) -> list[str]:
    """Where the time goes: kernel groups by workload, the longest kernels of each."""
    if not profile:
        return []
    groups = sorted({name for one in profile.values() for name in one["groups"]})
    lines = [
        "Where the GPU's time goes, by `torch.profiler`: share of kernel time by group in a workload's longest call, "
        "and the share of that call in which no kernel ran (the profiler's own cost included).",
        "",
        f"| workload | {' | '.join(groups)} | idle | call, ms |",
        "|---" * (len(groups) + 3) + "|",
    ]
    for name, one in profile.items():
        shares = [f"{one['groups'].get(group, 0.0):.1%}" for group in groups]
        lines.append(f"| {name} | {' | '.join(shares)} | {one['idle']:.1%} | {one['wall_ms']:.0f} |")
    lines += ["", "```text"]
    for name, one in profile.items():
        lines.append(f"{name}: {one['kernels']} kernels")
        lines += [f"  {k['ms']:9.2f} ms  {k['count']:7d} ×  {k['name']}" for k in one["longest"]]
    return [*lines, "```", ""]


def _absent(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for name, part in parts.items():
        if part.get("missing"):
            lines.append(f"- {PARTS[name]}: not measured: {part['missing']}")
        lines += [f"- {PARTS[name]}, {workload}: {why}" for workload, why in part.get("failed", {}).items()]
        lines += [f"- {PARTS[name]}: {note}" for note in part.get("notes", ())]
    return ["What to know about this run:", "", *lines, ""] if lines else []


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
