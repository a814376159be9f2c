"""`deterministic=True` with replayed steps: the bits are those of steps that are launched kernel by kernel.

Without a GPU nothing is captured: the replay calls the step again on the same fixed inputs, which is what a graph does.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from radicel import Constraint, SamplingParams
from radicel.runtime import LocalRuntime
from radicel.runtime.attention.deterministic_attention import FEW, FIXED_ROWS, FIXED_TOKENS
from radicel.runtime.cuda_graph import ANY, ANY_SIZES, MOST_QUERIES, StepGraphs
from radicel.runtime.deterministic import FixedRows, make_fixed
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models import load_model
from radicel.runtime.rehearsal import step_of_nobody

SCRIPT = Path(__file__).parents[2] / "examples" / "bench" / "models" / "tiny_families.py"
IDS = torch.randint(0, 288, (90,), generator=torch.Generator().manual_seed(5)).tolist()


def _replaying(runner: ModelRunner, most: int, capture: Callable[[Any], Any] | None = None) -> StepGraphs:
    """Graphs as a GPU has them; their tiles are made as for the kernel, though its twin computes."""
    attention: Any = runner._attention
    attention._per_tile = 4

    def run_once(call: Any) -> Any:
        call()  # as a capture does
        return call

    runner._graphs = StepGraphs(
        runner._model, runner._kv, attention, ids=runner._ids, most=most, capture=capture or run_once
    )
    return runner._graphs


def _family(name: str, folder: Path) -> Path:
    runpy.run_path(str(SCRIPT))["make_checkpoint"](name, folder / name)
    return folder / name


def _runner(path: Path, dtype: str) -> ModelRunner:
    model = load_model(path, device="cpu", dtype=dtype)
    return ModelRunner(model, kv_slots=600, num_rows=8, context_length=128, deterministic=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama-3.1", "qwen3", "gemma-2"])
def test_replayed_steps_give_the_bits_of_the_others(name: str, dtype: str, driver: ModuleType, tmp_path: Path) -> None:
    """Chunks of all lengths and decode steps, padded to the next graph; large steps between them, and small ones."""
    path = _family(name, tmp_path)
    whole = driver.Driver(_runner(path, dtype)).logits([(0, IDS)])
    runner = _runner(path, dtype)
    graphs = _replaying(runner, most=8)
    drive = driver.Driver(runner, seed=1)
    parts = [
        drive.logits([(1, IDS[:33]), (2, IDS[::-1][:20])], logits="last")[:1],
        drive.logits([(2, IDS[5:8]), (1, IDS[33:34]), (3, IDS[40:60])], logits="last")[1:2],
        drive.logits([(1, IDS[34:36]), (3, IDS[:1])])[:2],
        drive.logits([(1, IDS[36:44])]),
        drive.logits([(3, IDS[1:2]), (1, IDS[44:45]), (2, IDS[1:2]), (4, IDS[1:2]), (5, IDS[1:2])])[1:2],
        *(drive.logits([(3, [7]), (1, [token]), (2, [9])])[1:2] for token in IDS[45:48]),
        drive.logits([(1, IDS[48:80]), (4, [11])], logits="last")[:1],
        *(drive.logits([(1, [token])]) for token in IDS[80:83]),
        drive.logits([(1, IDS[83:87]), (5, IDS[:2])])[:4],
    ]
    assert torch.equal(torch.cat(parts), whole[[32, *range(33, 48), *range(79, 87)]])
    assert {key.queries for key in graphs._graphs} == {1, 2, 4, 8, ANY}


def _answers(runtime: LocalRuntime) -> list[Any]:
    """Of requests that run together, some of which begin alike."""
    runtime.flush_cache()
    asked = {"max_tokens": 9, "ignore_eos": True, "logprobs": True, "top_logprobs": 3}
    requests: list[tuple[list[int], dict[str, Any], Constraint | None]] = [
        (IDS[:3], {"temperature": 0}, None),
        (IDS[:70], {"temperature": 1.0, "seed": 3}, None),
        (IDS[:9], {"temperature": 0, "max_tokens": 14}, Constraint.regex("(ab|cd)then(x|y)end")),
        (IDS[20:61], {"temperature": 0.8, "seed": 5, "frequency_penalty": 0.4}, None),
        ([*IDS[:71], 5], {"temperature": 0}, None),
    ]
    handles = [
        runtime.submit_input(ids, SamplingParams.of(**{**asked, **sampling}), constraint)
        for ids, sampling, constraint in requests
    ]
    found = [handle.result()[0] for handle in handles]
    return [(g.token_ids, g.meta.logprobs, [list(top.items()) for top in g.meta.top_logprobs]) for g in found]


def test_a_runtime_that_replays_gives_the_bits_of_one_that_does_not(tiny_llama: Path) -> None:
    options: dict[str, Any] = {"kv_tokens": 900, "context_length": 200, "deterministic": True, "max_running": 8}
    with LocalRuntime(tiny_llama, device="cpu", **options) as plain:
        wanted = _answers(plain)
    with LocalRuntime(tiny_llama, device="cpu", check_invariants=True, prefill_chunk=37, **options) as runtime:
        graphs = _replaying(runtime._runner, most=24)
        for _ in range(2):
            assert _answers(runtime) == wanted
        assert {key.queries for key in graphs._graphs} >= {1, ANY}
        runtime.check()


def test_what_is_captured_is_captured_row_by_row(tiny_llama: Path) -> None:
    """In a step and in warming up: a graph holds what was launched while it was captured."""
    active: list[bool] = []

    class Noted(FixedRows):
        def __enter__(self) -> Any:
            active.append(True)
            return super().__enter__()

        def __exit__(self, *args: Any) -> None:
            active.pop()
            super().__exit__(*args)

    captured: list[bool] = []

    def capture(call: Any) -> Any:
        captured.append(bool(active))
        return call

    options: dict[str, Any] = {"kv_tokens": 700, "context_length": 64, "max_running": 2}
    with LocalRuntime(tiny_llama, device="cpu", deterministic=True, **options) as runtime:
        runner = runtime._runner
        runner._exactly = lambda: Noted(runner.device)
        graphs = _replaying(runner, 2, capture)
        runtime.generate(IDS[:5], temperature=0, max_tokens=3)
        stepped = len(captured)
        runtime.warm_up()
        assert stepped >= 1
        assert len(captured) == len(graphs._graphs) > stepped
        assert all(captured)


def test_which_steps_are_replayed(tiny_llama: Path) -> None:
    runner = _runner(tiny_llama, "float32")
    attention: Any = runner._attention
    assert attention.forms(4, 1) == ()
    assert not attention.takes_fixed(step_of_nobody(2, 1), 1), "the twin asks for lengths, which no graph can"
    graphs = _replaying(runner, most=256)
    assert (MOST_QUERIES, ANY_SIZES[-1]) == (FEW, FIXED_TOKENS)
    for rows, queries, taken in [
        (256, 1, True), (257, 1, False), (32, 8, True), (FIXED_ROWS, 9, True), (FIXED_ROWS + 1, 9, False),
        (1, FIXED_TOKENS, True), (1, FIXED_TOKENS + 1, False),
    ]:  # fmt: skip
        assert graphs.takes(step_of_nobody(rows, queries)) is taken, (rows, queries)


def test_experts_that_are_asked_for_one_by_one_are_not_captured(tmp_path: Path, tiny_llama: Path) -> None:
    assert not make_fixed(load_model(_family("mixtral", tmp_path), device="cpu", dtype="float32"))
    assert make_fixed(load_model(tiny_llama, device="cpu", dtype="float32"))
