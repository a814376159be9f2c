"""What a plan says is computed, the runtime computes: one call after another, on a pool that holds everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from radicel import Program, function, gen
from radicel.runtime import LocalRuntime

from .shared_prefix_bodies import chat, choose, forks, raw


@pytest.fixture(scope="module")
def runtime(tiny_llama: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=20_000, check_invariants=True) as made:
        yield made


@pytest.mark.parametrize("body", [raw, chat, forks, choose])
def test_computed_tokens_are_the_plan_s_unique_tokens(runtime: LocalRuntime, body: Any) -> None:
    program: Program = function(body)
    calls = [{"i": i} for i in range(4)]
    graph = program.plan(calls, backend=runtime)
    runtime.flush_cache()
    before = runtime.stats()
    for call in calls:
        program.run(**call, temperature=0, ignore_eos=True, backend=runtime)
    after = runtime.stats()
    computed = after.computed_tokens - before.computed_tokens
    tree = graph.tree
    scored = sum(tree.ends[end] - tree.ends[request.prompt] for request in graph.requests for end in request.ends)
    sequences = sum(max(1, len(request.ends)) for request in graph.requests)
    assert graph.unlimited == 0
    # At most the last token of a sequence is seen again (of a prompt that is wholly cached, of a value that goes on),
    # and the tokens that choices share, because each choice needs their logits.
    assert graph.unique_tokens <= computed <= graph.unique_tokens + sequences + scored
    assert after.generated_tokens - before.generated_tokens == graph.max_generated_tokens


def test_a_plan_says_what_the_cache_takes(runtime: LocalRuntime) -> None:
    graph = function(chat).plan([{"i": 0}], backend=runtime)
    per_token = 2 * 3 * 2 * 8 * 4  # keys and values, layers, heads, width, float32
    assert runtime.kv_bytes_per_token == per_token
    assert graph.kv_bytes == (graph.unique_tokens + 8) * per_token
    assert f"KV cache: {graph.kv_tokens:,} tokens" in str(graph)


def test_a_value_without_a_limit_may_fill_the_context(runtime: LocalRuntime) -> None:
    graph = function(lambda s: s.__iadd__("the end" + gen("a"))).plan(backend=runtime)
    (request,) = graph.requests
    assert request.max_tokens == runtime.context_length - request.prompt_tokens
