"""What `deterministic=True` costs: the embedded model with and without it, on this machine.

    python examples/bench/deterministic.py                     the table, as Markdown
    python examples/bench/deterministic.py --markdown FILE     the same, written to a file
    python examples/bench/deterministic.py --model PATH        another model

Both runtimes do the same work in turns, and the best of several times of each is taken, so that what else the machine
does weighs little on the ratio. Nothing is cached from one turn to the next.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from radicel.runtime import LocalRuntime

TURNS = 4
PROMPT = 512
SHARES: dict[str, tuple[int, int]] = {
    f"a prompt of {PROMPT} tokens": (1, 0),
    "1 sequence, 32 tokens": (1, 32),
    "8 sequences, 32 tokens each": (8, 32),
}
"""What is measured → sequences, tokens that each generates (0: the prompt alone)."""


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes once."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def work_of(rt: LocalRuntime, sequences: int, tokens: int) -> Callable[[], Any]:
    """One turn."""
    size = 16 if tokens else PROMPT
    prompts = [[(7 * i + 31 * k) % 900 + 100 for i in range(size)] for k in range(sequences)]

    def run() -> None:
        rt.flush_cache()
        rt.generate(prompts, temperature=0, max_tokens=tokens or 1, ignore_eos=True)

    return run


def rows(model: str | None = None, turns: int = TURNS) -> list[tuple[str, float, float]]:
    """(what, seconds, seconds with `deterministic=True`) for each share."""
    options: dict[str, Any] = {"kv_tokens": 4096, "context_length": 1024}
    with LocalRuntime(model, **options) as plain, LocalRuntime(model, deterministic=True, **options) as fixed:
        found = []
        for what, shape in SHARES.items():
            works = [work_of(rt, *shape) for rt in (plain, fixed)]
            times = [[seconds(work) for work in works] for _ in range(turns + 1)][1:]
            found.append((what, min(t[0] for t in times), min(t[1] for t in times)))
        return found


def table(measured: list[tuple[str, float, float]], model: str) -> str:
    """The page."""
    lines = [
        "# What determinism costs",
        "",
        "Made by `python examples/bench/deterministic.py --markdown docs/benchmarks/deterministic.md`, which says what",
        f"is measured. Model: {model}; CPU, {torch.get_num_threads()} threads of {os.cpu_count()}, torch "
        f"{torch.__version__}; each time is the best of {TURNS}.",
        "",
        "| work | seconds | with `deterministic=True` | ratio |",
        "|---|---|---|---|",
        *(f"| {what} | {plain:.2f} | {fixed:.2f} | {fixed / plain:.1f} |" for what, plain, fixed in measured),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    page = table(rows(options.model), options.model or "SmolLM2-135M-Instruct, float32")
    if options.markdown:
        options.markdown.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
