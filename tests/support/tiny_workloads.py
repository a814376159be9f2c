"""A workload file in the small: the names that the GPU driver expects, sizes for a tiny model on a CPU."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"marks": {"type": "array", "minItems": 30, "items": {"enum": ["x", "yy"]}}},
    "required": ["marks"],
    "additionalProperties": False,
}
emit: Callable[[Any], Any] = print


def timed(engine: Any, name: str, rep: int, count: int, new: int, **keywords: Any) -> None:
    rng = random.Random(rep)
    prompts = [[rng.randrange(4, 260) for _ in range(24)] for _ in range(count)]
    engine.flush()
    began = time.perf_counter()
    results = engine.gen(prompts, new, **keywords)
    wall = time.perf_counter() - began
    tokens = sum(len(ids) for ids, _ in results)
    line = {"workload": name, "rep": rep, "output_tokens": tokens, "wall_s": wall, "tok_s": tokens / wall}
    emit({**line, "ms_per_step": wall * 1e3 / new, "ms_per_token": wall * 1e3 / new, "ttft_ms": wall * 1e3})


def workload(name: str, count: int) -> Callable[[Any, int], None]:
    def run(engine: Any, reps: int) -> None:
        for rep in range(reps):
            timed(engine, name, rep, count, 6)
        emit({"workload": name, "rep": "median"})

    return run


def constrained(engine: Any, reps: int) -> None:
    timed(engine, "W5plain", 0, 4, 12)
    if engine.has_schema:
        timed(engine, "W5json", 0, 4, 12, schema=SCHEMA)


WL = {name: workload(name, 1 if name == "W2" else 4) for name in ("W1", "W2", "W3", "W4", "W6")} | {"W5": constrained}
