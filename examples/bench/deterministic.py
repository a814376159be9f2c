"""What `deterministic=True` costs: a model with and without it, on this machine.

    python examples/bench/deterministic.py                               measure on the CPU, write the page
    python examples/bench/deterministic.py --device cuda --out FILE      measure on a GPU, into a JSON file
    python examples/bench/deterministic.py --merge FILE                  take these figures into the page
    python examples/bench/deterministic.py --model PATH --dummy          another model, with random weights

Both runtimes do the same work in turns, and the best of several times of each is taken, so that what else the machine
does weighs little on the ratio. Nothing is cached from one turn to the next. Figures are kept in
docs/benchmarks/deterministic.json, by device and model; the page is made from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from radicel.runtime import LocalRuntime

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "deterministic.md"
TURNS = 4
SHARES: dict[str, dict[str, tuple[int, int, int]]] = {
    "cpu": {
        "a prompt of 512 tokens": (1, 512, 0),
        "1 sequence, 32 tokens": (1, 16, 32),
        "8 sequences, 32 tokens each": (8, 16, 32),
    },
    "cuda": {
        "a prompt of 512 tokens": (1, 512, 0),
        "a prompt of 4,000 tokens": (1, 4000, 0),
        "1 sequence, 128 tokens": (1, 16, 128),
        "8 sequences, 128 tokens each": (8, 16, 128),
        "64 sequences, 128 tokens each": (64, 16, 128),
    },
}
"""Device → what is measured → sequences, tokens of their prompts, and tokens that each generates (0: none but one)."""
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {"kv_tokens": 4096, "context_length": 1024},
    "cuda": {"kv_tokens": 16384, "context_length": 8192},
}


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes once."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def work_of(rt: LocalRuntime, sequences: int, size: int, tokens: int) -> Callable[[], Any]:
    """One turn."""
    prompts = [[(7 * i + 31 * k) % 900 + 100 for i in range(size)] for k in range(sequences)]

    def run() -> None:
        rt.flush_cache()
        rt.generate(prompts, temperature=0, max_tokens=tokens or 1, ignore_eos=True)

    return run


def measured(device: str, turns: int = TURNS, **options: Any) -> dict[str, Any]:
    """The machine, and seconds without and with `deterministic=True` of each share."""
    options = {"device": device, **OPTIONS[device], **options}
    rows = {}
    with LocalRuntime(**options) as plain, LocalRuntime(deterministic=True, **options) as fixed:
        dtype = str(plain._runner._model.dtype).removeprefix("torch.")
        for what, shape in SHARES[device].items():
            works = [work_of(rt, *shape) for rt in (plain, fixed)]
            times = [[seconds(work) for work in works] for _ in range(turns + 1)][1:]
            rows[what] = [min(t[0] for t in times), min(t[1] for t in times)]
            print(what, rows[what], flush=True)
    threads = f", {torch.get_num_threads()} threads of {os.cpu_count()}" if device == "cpu" else ""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return {"machine": f"{name}{threads}, {dtype}, torch {torch.__version__}", "rows": rows}


def render(figures: dict[str, dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# What determinism costs",
        "",
        "Made by `python examples/bench/deterministic.py`, which says what is measured; each time is the best of "
        f"{TURNS}.",
    ]
    for name, found in figures.items():
        lines += [
            "",
            f"## {name}",
            "",
            f"{found['machine']}.",
            "",
            "| work | seconds | with `deterministic=True` | ratio |",
            "|---|---|---|---|",
            *(
                f"| {what} | {plain:.{_digits(plain)}f} | {fixed:.{_digits(plain)}f} | {fixed / plain:.1f} |"
                for what, (plain, fixed) in found["rows"].items()
            ),
        ]
    return "\n".join(lines) + "\n"


def _digits(seconds: float) -> int:
    return 2 if seconds >= 1 else 3 if seconds >= 0.1 else 4


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=list(SHARES))
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model", help="a folder; without it the embedded model")
    parser.add_argument("--name", help="the model's name on the page")
    parser.add_argument("--dummy", action="store_true", help="random weights, of a folder that holds none")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, help="add the figures to this JSON file, and write no page")
    parser.add_argument("--merge", type=Path, help="measure nothing, take these figures")
    options = parser.parse_args()
    kept = PAGE.with_suffix(".json")
    if options.merge:
        new = json.loads(options.merge.read_text())
    else:
        name = options.name or (Path(options.model).name if options.model else "SmolLM2-135M-Instruct")
        where = "a GPU" if options.device == "cuda" else "a CPU"
        more = {"load_format": "dummy"} if options.dummy else {}
        found = measured(options.device, options.turns, model=options.model, dtype=options.dtype, **more)
        new = {f"{name} on {where}": found}
    target = options.out or kept
    figures = {**(json.loads(target.read_text()) if target.is_file() else {}), **new}
    target.write_text(json.dumps(figures, indent=1) + "\n")
    if options.out is None:
        PAGE.write_text(render(figures), encoding="utf-8")
        print(PAGE.read_text())


if __name__ == "__main__":
    main()
