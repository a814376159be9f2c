"""What a live engine's steps wait for while others' constraints compile, and where budgets end: next to nothing.

A tiny model with the embedded model's tokenizer, so that steps are many and masks are those of 49,152 tokens. Times are
processor time of the engine's thread, whatever else the machine does, without the model's own computing and without
turns of Python's collector that happen to fall to this thread (what they take is `lang/heap.py`'s to bound).
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hard_schema import hard_schema
from radicel import Constraint
from radicel.runtime import LocalRuntime
from radicel.schema import apart

STALL_S = 0.005
ROUNDS = 3


def tight(number: int) -> list[tuple[dict[str, Any], int]]:
    """Constraints of as many kinds, and about what their shortest texts take; other ones for every number."""
    record = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40 + number},
            "kind": {"enum": [f"kind {i}" for i in range(30 + number)]},
            "size": {"type": "number", "minimum": 0, "maximum": 1000},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "kind", "size", "tags"],
    }
    lists = {"type": "array", "items": {"type": "integer"}}
    times = {"type": "array", "minItems": 2, "items": {"type": "string", "format": "date-time"}}
    return [
        (record, 40),
        ({"type": "object", "additionalProperties": lists, "maxProperties": 50 + number}, 12),
        (times | {"maxItems": 60 + number}, 60),
        ({"type": "string", "pattern": "^[a-z0-9-]+@[a-z]+[.](com|org)$", "maxLength": 60 + number}, 16),
        (hard_schema(40 + number) | {"required": ["key0", "key1"]}, 40),
    ]


@pytest.fixture(scope="module")
def runtime(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuntime]:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("wide")
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in model_dir.glob("*token*"):
        shutil.copy(file, folder)
    with LocalRuntime(folder, device="cpu", kv_tokens=24_000) as made:
        # Once for a runtime: the engine's copy of the vocabulary, the process for long work.
        made.generate("a", max_tokens=20, schema=hard_schema(80))
        yield made


class Steps:
    """The steps of a runtime's engine while they are watched."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self._engine: Any = runtime._engine
        self.own_s: list[float] = []
        self.ends: list[float] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        engine, runner = self._engine, self._engine.runner
        step, forward, sample = engine._step, runner.forward, runner.sample
        other_s = 0.0

        def models(call: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any) -> Any:
                nonlocal other_s
                began = time.thread_time()
                try:
                    return call(*args)
                finally:
                    other_s += time.thread_time() - began

            return timed

        collecting = 0.0

        def collected(phase: str, _: object) -> None:
            nonlocal collecting, other_s
            if threading.current_thread() is engine._thread:
                if phase == "start":
                    collecting = time.thread_time()
                else:
                    other_s += time.thread_time() - collecting

        def timed() -> bool:
            nonlocal other_s
            other_s = 0.0
            began = time.thread_time()
            worked: bool = step()
            self.own_s.append(time.thread_time() - began - other_s)
            self.ends.append(time.perf_counter())
            return worked

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(engine, "_step", timed)
            patched.setattr(runner, "forward", models(forward))
            patched.setattr(runner, "sample", models(sample))
            gc.callbacks.append(collected)
            try:
                yield
            finally:
                gc.callbacks.remove(collected)

    def between(self, begin: float, end: float) -> list[float]:
        """Of the steps that ended then, the processor time."""
        return [own for own, at in zip(self.own_s, self.ends) if begin < at < end]

    def gaps(self, begin: float, end: float) -> list[float]:
        """How long after the one before each of these steps ended, by the clock."""
        return [at - last for last, at in pairwise(self.ends) if begin < last and at < end]


@contextlib.contextmanager
def decoding(runtime: LocalRuntime) -> Iterator[Steps]:
    """Around what is done while a free text is written."""
    steps = Steps(runtime)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            runtime.generate("Once", max_tokens=400, ignore_eos=True)

    writer = threading.Thread(target=write)
    with steps.watched():
        writer.start()
        try:
            time.sleep(0.5)
            yield steps
            time.sleep(0.1)
        finally:
            done.set()
            writer.join(60)


def test_no_step_is_held_up_while_a_large_schema_compiles(runtime: LocalRuntime) -> None:
    schema = hard_schema(397)
    with decoding(runtime) as steps:
        before = len(apart._pool._idle)
        begin = time.perf_counter()
        runtime.generate("a", max_tokens=60, schema=schema)
        end = time.perf_counter()
    usual, meanwhile = steps.between(0, begin), steps.between(begin, end)
    assert before > 0  # processes in which the long part is done
    assert end - begin > 0.1
    assert len(meanwhile) > 60 + 20  # those of the free text while nothing else could be decoded
    assert max(meanwhile) - statistics.median(usual) < STALL_S


def test_while_a_large_schema_compiles_steps_come_nearly_as_often(runtime: LocalRuntime) -> None:
    """By the clock, which other programs move too: three turns of four."""
    made: list[float] = []
    with decoding(runtime) as steps:
        begin = time.perf_counter()
        constraint = Constraint.json_schema(hard_schema(396))
        runtime._grammars.submit(constraint).result(timeout=120)
        made += [begin, time.perf_counter()]
    idle = steps.gaps(0, made[0])
    busy = steps.gaps(*made)
    assert len(busy) > 20
    assert sorted(busy)[int(0.75 * len(busy))] < STALL_S + 2 * sorted(idle)[int(0.9 * len(idle))]


def test_no_step_is_held_up_where_budgets_end(runtime: LocalRuntime) -> None:
    """Texts that are within a few tokens of their end all the time, each constraint seen for the first time.

    What a machine of many does besides makes now and then a step longer, seldom twice the same; a cause does each time.
    """
    longest: dict[tuple[int, int], list[float]] = {}
    with decoding(runtime) as steps:
        begun = time.perf_counter()
        for number in range(ROUNDS):
            for kind, (schema, least) in enumerate(tight(number)):
                for more in (0, 7, 25):
                    begin = time.perf_counter()
                    found = runtime.generate("a", max_tokens=least + more, schema=schema, temperature=1.0, seed=more)
                    assert found.value is not None
                    longest.setdefault((kind, more), []).append(max(steps.between(begin, time.perf_counter())))
    usual = statistics.median(steps.between(0, begun))
    held_up = {case: found for case, found in longest.items() if min(found) - usual >= STALL_S}
    assert not held_up
