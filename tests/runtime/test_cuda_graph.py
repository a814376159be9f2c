"""Replayed decode steps: which are taken, how they are padded, and that padding changes nothing.

Without a GPU nothing is captured: the replay calls the step again on the same fixed inputs, which is what a graph does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from radicel import SamplingParams
from radicel.constraint import Constraint
from radicel.runtime import LocalRuntime
from radicel.runtime.attention.triton_attention import FIXED_ROWS, FIXED_TOKENS, SOON_READ
from radicel.runtime.cuda_graph import ANY, ANY_SIZES, StepGraphs, graph_sizes
from radicel.runtime.rehearsal import step_of_nobody

PROMPTS = ["All is well", "The sea", "A recipe for soup: take", "x", "Once upon a time there was", "Wie geht es?"]


def test_sizes_are_single_up_to_eight_and_end_at_the_most() -> None:
    assert graph_sizes(256)[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32]
    assert graph_sizes(256)[-1] == 256
    assert graph_sizes(5) == [1, 2, 3, 4, 5]
    assert graph_sizes(1) == [1]
    assert all(b - a <= 32 for a, b in zip(graph_sizes(512), graph_sizes(512)[1:]))


@pytest.fixture
def made(tiny_llama: Path) -> Any:
    options: dict[str, Any] = {"kv_tokens": 2_000, "max_running": 6, "context_length": 1_024}
    with LocalRuntime(tiny_llama, device="cpu", attention="triton", check_invariants=True, **options) as runtime:
        yield runtime


def _replaying(runtime: LocalRuntime, capture: Any, most: int = 6) -> StepGraphs:
    runner = runtime._runner
    runner._graphs = StepGraphs(
        runner._model, runner._kv, runner._attention, ids=runner._ids, most=most, capture=capture
    )
    return runner._graphs


def _texts(runtime: LocalRuntime) -> list[tuple[int, ...]]:
    """The prompts together; rows leave one by one, so every number of rows comes up in the middle of texts."""
    runtime.flush_cache()
    handles = [
        runtime.submit_input(
            list(runtime.tokenizer(text).input_ids), SamplingParams.of(temperature=0, max_tokens=n, ignore_eos=True)
        )
        for text, n in zip(PROMPTS, (2, 4, 6, 8, 10, 12))
    ]
    return [handle.result()[0].token_ids for handle in handles]


def test_replays_give_the_same_texts(made: LocalRuntime) -> None:
    plain = _texts(made)
    captured: list[int] = []

    def capture(call: Any) -> Any:
        captured.append(1)
        call()  # as a capture does: it must not harm what is in the cache
        return call

    graphs = _replaying(made, capture)
    assert _texts(made) == plain
    assert len(captured) == len(graphs._graphs) >= 4
    made.check()


def test_forced_runs_are_replayed_in_one_graph_with_decode_rows(made: LocalRuntime) -> None:
    def texts() -> list[tuple[int, ...]]:
        made.flush_cache()
        greedy = SamplingParams.of(temperature=0, max_tokens=14, ignore_eos=True)
        forced = Constraint.regex("(ab|cd)then(x|y)end")
        handles = [
            made.submit_input(list(made.tokenizer(text).input_ids), greedy, constraint)
            for text, constraint in zip(PROMPTS[:4], (None, forced, forced, None))
        ]
        return [handle.result()[0].token_ids for handle in handles]

    plain = texts()
    graphs = _replaying(made, lambda call: call, most=24)
    assert texts() == plain
    several = {key.queries for key in graphs._graphs if key.queries > 1}
    assert several, "no step with several tokens of a row was replayed"
    assert several <= {2, 4, 8}
    made.check()


def test_the_end_of_a_prompt_is_replayed_with_decode_rows_and_alone(made: LocalRuntime) -> None:
    """Prompts of all lengths come while others decode; after a short one, a long one takes the same graph."""
    lengths = [130, 9, 40, 64, 65, 17, 30, 12]

    def texts() -> list[tuple[int, ...]]:
        made.flush_cache()
        made.generate(PROMPTS[0], temperature=0, max_tokens=2)
        handles = [
            made.submit_input(
                [(7 * i + n) % 200 + 20 for i in range(n)], SamplingParams.of(temperature=0, max_tokens=5 + n % 4)
            )
            for n in lengths
        ]
        return [handle.result()[0].token_ids for handle in handles]

    plain = texts()
    graphs = _replaying(made, lambda call: call)
    assert texts() == plain
    assert len([key for key in graphs._graphs if key.queries == ANY]) >= 2
    made.check()


def test_which_long_steps_are_replayed(made: LocalRuntime) -> None:
    graphs = _replaying(made, lambda call: call)
    attention = made._runner._attention
    assert ANY_SIZES[-1] == FIXED_TOKENS
    for rows, queries, taken in [(1, 9, True), (1, FIXED_TOKENS, True), (1, FIXED_TOKENS + 1, False)]:
        assert graphs.takes(step_of_nobody(rows, queries)) is taken, (rows, queries)
    assert not attention.takes_fixed(step_of_nobody(FIXED_ROWS + 1, 9), ANY)
    short = replace(step_of_nobody(1, 1), kv_lens=np.array([SOON_READ + 1], np.int32))
    assert not attention.takes_fixed(short, ANY), "a long context of a decode row wants the items of a plan"
    assert attention.takes_fixed(short, 1)


def test_warming_up_captures_every_size_and_changes_nothing(made: LocalRuntime) -> None:
    plain = _texts(made)
    captured: list[int] = []

    def capture(call: Any) -> Any:
        captured.append(1)
        call()
        return call

    graphs = _replaying(made, capture, most=12)
    made.warm_up()
    kinds = {(key.queries, key.form) for key in graphs._graphs}
    assert kinds == {(queries, form) for queries in (1, 2, 4, 8) for form in ("any", "alone")} | {(ANY, "any")}
    sizes = lambda kind: [key.size for key in graphs._graphs if (key.queries, key.form) == kind]
    assert {queries: sizes((queries, "any")) for queries in (1, 2, 4, 8, ANY)} == {
        1: [*range(1, 9), 12],
        2: [*range(2, 9), 12],
        4: [*range(4, 9), 12],
        8: [8, 12],
        ANY: list(ANY_SIZES),
    }
    before = len(captured)
    assert _texts(made) == plain
    assert len(captured) == before, "a step needed a graph that warming up had left out"
    made.check()


def test_graphs_stop_at_their_share_of_memory(made: LocalRuntime) -> None:
    plain = _texts(made)
    graphs = _replaying(made, lambda call: call)
    graphs.held_bytes = graphs._most_bytes
    assert _texts(made) == plain
    assert not graphs._graphs


def test_where_nothing_can_be_captured_steps_run_without(made: LocalRuntime, caplog: pytest.LogCaptureFixture) -> None:
    plain = made.generate(PROMPTS[0], temperature=0, max_tokens=6, ignore_eos=True).token_ids

    def fails(call: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("no memory for a graph")

    _replaying(made, fails)
    made.flush_cache()
    assert made.generate(PROMPTS[0], temperature=0, max_tokens=6, ignore_eos=True).token_ids == plain
    assert "no memory for a graph" in caplog.text
