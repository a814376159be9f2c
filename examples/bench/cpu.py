"""The embedded model on a CPU against transformers (and llama.cpp where it is installed), as ratios of one run.

    python examples/bench/cpu.py [--reps 5] [--threads 2] [--only decode,prefix] [--gguf FILE] [--out PATH]

In: the embedded model, or `--model FOLDER`. Out: a table on the screen, JSON and a page beside it. The engines take
turns within every repeat, so that whatever else the machine does falls on all; only ratios are meant to be read. What
`--only` leaves out stays in the file as it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "workloads"))

from cpu_parts import MEASURES, Bench

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "cpu"


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a folder; without it the embedded model")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(MEASURES), help=f"some of {', '.join(MEASURES)}")
    parser.add_argument("--gguf", type=Path, help="the same model as GGUF, for llama.cpp (package xllamacpp)")
    parser.add_argument("--out", type=Path, default=PAGE, help="where to write, without suffix")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench = Bench(options.model, threads=options.threads, reps=options.reps, gguf=options.gguf)
    file = options.out.with_suffix(".json")
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": [], "versions": {}}
    rows: list[dict[str, Any]] = []
    for name in options.only.split(","):
        began = time.perf_counter()
        for row in MEASURES[name](bench):
            rows.append({"measure": name, **row})
            print(json.dumps(row), flush=True)
        print(f"# {name}: {time.perf_counter() - began:.0f} s", flush=True)
        kept = [row for row in before["rows"] if row["measure"] not in {found["measure"] for found in rows}]
        run = {
            "date": time.strftime("%Y-%m-%d"),
            "threads": options.threads,
            "rows": sorted(kept + rows, key=lambda row: list(MEASURES).index(row["measure"])),
            "versions": {**before["versions"], **bench.versions()},
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(markdown(run), encoding="utf-8")
    print(markdown(run))


def markdown(run: dict[str, Any]) -> str:
    """The page of a run."""
    lines = [
        "# The embedded model on a CPU",
        "",
        f"Made by `examples/bench/cpu.py` from its JSON, {run['date']}, {run['threads']} threads. The engines "
        "take turns in one run, since other work shared the machine: read the ratios, medians over the repeats "
        "(least and most in brackets). CPU time is that of all threads: what waiting for a core does not change.",
        "",
        "| what | measured | by CPU time | to reach | reached |",
        "|---|---|---|---|---|",
    ]
    for row in run["rows"]:
        value = row.get("value")
        if value is None:
            lines.append(f"| {row['what']} | not measured: {row['why']} | – | {row.get('goal', '–')} | – |")
            continue
        reached = "–" if "reached" not in row else "yes" if row["reached"] else "no"
        spread = f" ({row['low']:.3g} to {row['high']:.3g})" if "low" in row else ""
        cpu = f"{row['cpu']:.3g} {row['unit']}" if "cpu" in row else "–"
        found = f"**{value:.3g}**{spread} {row['unit']}"
        lines.append(f"| {row['what']} | {found} | {cpu} | {row.get('goal', '–')} | {reached} |")
    lines += ["", "```text", *(f"{name:<14} {version}" for name, version in run["versions"].items()), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
