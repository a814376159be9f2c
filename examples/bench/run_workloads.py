"""Runs a file of workloads (W1 to W6, token-id prompts) on a random-weight model and prints a JSON line per repeat.

    python examples/bench/run_workloads.py WORKLOADS.py --model FOLDER --wl W2,W3 [--reps 3] [--opt attention='"torch"']

In: a workload file with `WL`, `args` and `main`, a model folder (config and tokenizer; weights are random). Every
option of `LocalRuntime` can be given with `--opt`, so an ablation is the same command with `--opt cuda_graphs=false`.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import radicel
from radicel.runtime import LocalRuntime


class Adapter:
    """What a workload asks of an engine."""

    name = "radicel"
    has_schema = True
    has_cache = True

    def __init__(self, options: Any) -> None:
        self.version = getattr(radicel, "__version__", "0.1.0")
        settings = {"memory_fraction": options.mem, "load_format": "dummy", **options.opts}
        self.runtime = LocalRuntime(options.model, **settings)

    def gen(
        self, prompts: list[list[int]], max_new: int, schema: dict[str, Any] | None = None
    ) -> list[tuple[list[int], int]]:
        """For each prompt its output ids and how many prompt tokens came from the cache."""
        asked: dict[str, Any] = {"json_schema": schema} if schema is not None else {"ignore_eos": True}
        results = self.runtime.generate(prompts, temperature=0, max_tokens=max_new, **asked)
        return [(list(r.token_ids), r.meta.cached_tokens) for r in results]

    def flush(self) -> None:
        """Empties the prefix cache."""
        self.runtime.flush_cache()


def load(path: Path) -> ModuleType:
    """The workload file as a module."""
    spec = importlib.util.spec_from_file_location("workloads", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    workloads = load(Path(sys.argv.pop(1)))
    options = workloads.args()
    began = time.perf_counter()
    adapter = Adapter(options)
    workloads.main(adapter, options, time.perf_counter() - began)
    stats = adapter.runtime.stats()
    print(f"# {stats}", file=sys.stderr)
    adapter.runtime.close()


if __name__ == "__main__":
    main()
