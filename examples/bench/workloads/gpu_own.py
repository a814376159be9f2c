"""The workloads that the workload file leaves to us: W7, W8, and the idle share in steady decode.

In: a `Radicel` engine and sizes. Out: lines like those of the workload file.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpu_profile import Recording, idle_share
from radicel import State, function, gen

__all__ = ["FULL", "OWN", "TINY", "Sizes"]

Line = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How large our workloads are; the defaults are those of the table.

    Attributes:
        cached, tries: prompt tokens of W7, how often it is tried.
        programs, few_shot, branches, new: of W8: calls, tokens of their prefix, branches, tokens of each `gen`.
        batch, steps, settle: of the idle share: sequences, steps that are watched, steps before.
        low, high: token ids to draw from.
    """

    cached: int = 2000
    tries: int = 30
    programs: int = 512
    few_shot: int = 1500
    branches: int = 3
    new: int = 32
    batch: int = 256
    steps: int = 128
    settle: int = 32
    low: int = 300
    high: int = 127_000


FULL = Sizes()
TINY = Sizes(cached=100, tries=3, programs=4, few_shot=120, new=4, batch=4, steps=8, settle=4, low=4, high=260)


def cached_first_token(engine: Any, sizes: Sizes, reps: int) -> Iterator[Line]:
    """W7: batch 1, a wholly cached prompt; from submit to the first token in hand."""
    rng = random.Random(77)
    prompt = _ids(rng, sizes.cached, sizes)
    engine.gen([prompt], 2)
    walls = []
    for _ in range(sizes.tries):
        began = time.perf_counter()
        ((_, cached),) = engine.gen([prompt], 1)
        walls.append((time.perf_counter() - began) * 1e3)
        if cached < len(prompt) - 1:
            raise RuntimeError(f"only {cached} of {len(prompt)} prompt tokens came from the cache")
    yield {
        "workload": "W7",
        "rep": 0,
        "first_token_ms": round(statistics.median(walls), 3),
        "worst_ms": round(max(walls), 3),
        "tries": sizes.tries,
    }


def programs_against_hand(engine: Any, sizes: Sizes, reps: int) -> Iterator[Line]:
    """W8: programs through `run_batch`, and what they ask for given to the engine by hand, in turn."""
    runtime = engine.runtime
    shots = _few_shot(runtime.tokenizer, sizes.few_shot)
    questions = [f"Question {i}: how do {i} and {i * 7 % 97} compare?\n" for i in range(sizes.programs)]
    chat = _program(shots, sizes)
    keep = {"max_tokens": sizes.new, "temperature": 0, "ignore_eos": True, "token_healing": False}
    whole = runtime.tokenizer.encode

    def by_hand() -> int:
        texts = [shots + question for question in questions]
        first = [whole(text + _aspect(i), add_special_tokens=False) for text in texts for i in range(sizes.branches)]
        began = time.perf_counter()
        notes = [result.text for result in runtime.generate(first, **keep)]
        groups = [notes[i : i + sizes.branches] for i in range(0, len(notes), sizes.branches)]
        last = [text + _summary(group) for text, group in zip(texts, groups)]
        answers = runtime.generate(last, **keep)
        walls.append(time.perf_counter() - began)
        return len(answers)

    def by_program() -> int:
        calls = [{"question": question} for question in questions]
        began = time.perf_counter()
        states = chat.run_batch(calls, backend=runtime, on_error="raise")
        walls.append(time.perf_counter() - began)
        return len(states)

    walls: list[float] = []
    calls: tuple[Callable[[], int], ...] = (by_hand, by_program)
    for rep in range(-1, reps):  # the first is a warm-up
        walls.clear()
        for call in calls:
            engine.flush()
            done = call()
            if done != sizes.programs:
                raise RuntimeError(f"{done} of {sizes.programs} programs came back")
        hand, program = walls
        if rep >= 0:
            yield {
                "workload": "W8",
                "rep": rep,
                "by_hand_s": round(hand, 4),
                "run_batch_s": round(program, 4),
                "ratio": round(hand / program, 4),
            }


def steady_decode(engine: Any, sizes: Sizes, reps: int) -> Iterator[Line]:
    """The idle share: 1 − time with a kernel on the GPU ÷ wall, while a full batch decodes, by profiler."""
    runtime = engine.runtime
    rng = random.Random(78)
    watched, total = sizes.steps, sizes.settle + 2 * sizes.steps
    warm = Recording()
    warm.begin()  # the profiler's own start takes long once
    engine.gen([_ids(rng, 8, sizes)], 4)
    warm.end()
    for rep in range(reps):
        engine.flush()
        prompts = [_ids(rng, 64, sizes) for _ in range(sizes.batch)]
        outputs: list[Any] = []
        failures: list[BaseException] = []

        def decode(prompts: list[list[int]] = prompts, outputs: Any = outputs, failures: Any = failures) -> None:
            try:
                outputs.extend(engine.gen(prompts, total))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=decode)
        generated = runtime.stats().generated_tokens
        thread.start()
        _until(runtime, thread, generated + sizes.batch * sizes.settle)
        before = runtime.stats()
        began = time.perf_counter()
        seen = Recording()
        seen.begin()
        _until(runtime, thread, before.generated_tokens + sizes.batch * watched)
        seen.end()
        wall, after = time.perf_counter() - began, runtime.stats()
        thread.join()
        if failures:
            raise failures[0]
        line: Line = {"workload": "idle", "rep": rep, "kernels": len(seen.kernels), "wall_s": round(wall, 4)}
        steps = after.steps - before.steps
        if steps > 0:
            line |= {"steps": steps, "stats_idle_percent": round(100 * _idle_between(before, after), 3)}
        if len(seen.kernels) > 1:
            first, last = seen.kernels[0].start, seen.kernels[-1].end
            # The profiler's start and stop hold the engine up: what lies near them is left out.
            margin = (last - first) // 10
            share = idle_share(seen.kernels, first + margin, last - margin)
            line["idle_percent"] = round(100 * share, 3)
        yield line


OWN: dict[str, Callable[[Any, Sizes, int], Iterator[Line]]] = {
    "W7": cached_first_token,
    "W8": programs_against_hand,
    "idle": steady_decode,
}


def _idle_between(before: Any, after: Any) -> float:
    """The runtime's own idle share between two snapshots of it, whose shares are since the start."""
    busy = after.step_s * after.steps - before.step_s * before.steps
    idle = after.gpu_idle_share * after.step_s * after.steps - before.gpu_idle_share * before.step_s * before.steps
    return idle / busy if busy > 0 else 0.0


def _until(runtime: Any, thread: threading.Thread, tokens: int) -> None:
    """Waits until so many tokens were generated since the start, or the thread is through."""
    while thread.is_alive() and runtime.stats().generated_tokens < tokens:
        time.sleep(0.002)


def _ids(rng: random.Random, count: int, sizes: Sizes) -> list[int]:
    return [rng.randrange(sizes.low, sizes.high) for _ in range(count)]


def _few_shot(tokenizer: Any, tokens: int) -> str:
    """Worked examples, as many as make so many tokens."""
    rng = random.Random(79)
    text = ""
    while len(tokenizer.encode(text, add_special_tokens=False)) < tokens:
        pairs = [(rng.randrange(1000), rng.randrange(1000)) for _ in range(8)]
        text += "".join(
            f"Question: how do {a} and {b} compare?\nAnswer: the larger is {max(a, b)}.\n" for a, b in pairs
        )
    return text


def _aspect(index: int) -> str:
    return f"Note {index}:"


def _summary(notes: list[str]) -> str:
    return "Notes: " + " | ".join(notes) + "\nAnswer:"


def _program(shots: str, sizes: Sizes) -> Any:
    @function
    def compare(s: State, question: str) -> None:
        s += shots + question
        with s.fork(sizes.branches) as branches:
            for i, branch in enumerate(branches):
                branch += _aspect(i) + _gen("note", sizes)
        s += _summary(s["note"])
        s += _gen("answer", sizes)

    return compare


def _gen(name: str, sizes: Sizes) -> Any:
    return gen(name, max_tokens=sizes.new, temperature=0, ignore_eos=True, token_healing=False)
