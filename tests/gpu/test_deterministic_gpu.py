"""`deterministic=True` on a GPU: the same bits whatever the batch, the cache and the chunks, and near transformers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from radicel import LocalRuntime
from radicel.runtime.cuda_graph import ANY

pytestmark = [pytest.mark.gpu, pytest.mark.model]

PREFIX = "The harbour lies in the north of the town, and in winter the boats lie there for months. "
PROMPTS = ["The", PREFIX + "In spring", PREFIX * 40 + "Then", PREFIX + "In the end they", "Numbers: one, two,"]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9, "seed": 4, "frequency_penalty": 0.3},
    {"temperature": 1.1, "top_k": 40, "seed": 9},
    {"temperature": 0.8, "seed": 2, "regex": "[a-z ,]*", "on_budget": "close"},
]
REQUESTS = [(prompt, sampling) for prompt in PROMPTS for sampling in SAMPLINGS]


def _answer(runtime: LocalRuntime, request: tuple[str, dict[str, Any]], of_prompt: bool = True) -> Any:
    prompt, sampling = request
    asked = {"max_tokens": 24, "ignore_eos": True, "logprobs": True, "top_logprobs": 4}
    meta = runtime.generate(prompt, **asked, **sampling, **({"logprob_start_len": 0} if of_prompt else {})).meta
    tops = [list(top.items()) for top in meta.top_logprobs]
    return list(meta.token_ids), list(meta.logprobs), list(meta.prompt_logprobs or ()), tops


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_any_batch_cache_and_chunk_gives_the_same_bits(model_dir: Path, dtype: str) -> None:
    with LocalRuntime(model_dir, dtype=dtype, deterministic=True, prefix_cache=False, kv_tokens=20_000) as runtime:
        wanted = [_answer(runtime, request) for request in REQUESTS]
    for chunk, running in ((8192, 256), (100, 4)):
        with LocalRuntime(
            model_dir, dtype=dtype, deterministic=True, prefill_chunk=chunk, max_running=running, kv_tokens=20_000
        ) as runtime:
            for order in (REQUESTS, REQUESTS[::-1]):
                with ThreadPoolExecutor(len(order)) as pool:
                    found = list(pool.map(lambda request: _answer(runtime, request), order))
                assert found == [wanted[REQUESTS.index(request)] for request in order], (chunk, running)


@pytest.mark.parametrize("warm", [False, True])
def test_replayed_graphs_give_the_bits_of_single_launches(model_dir: Path, warm: bool) -> None:
    """Decode rows and ends of prompts, whose graphs are captured when they are needed, or ahead of all.

    Prompts whose every position has its log probability wanted would not be replayed.
    """
    options: dict[str, Any] = {"dtype": "bfloat16", "deterministic": True, "kv_tokens": 20_000, "max_running": 24}
    with LocalRuntime(model_dir, cuda_graphs=False, **options) as runtime:
        assert runtime._runner._graphs is None
        wanted = [_answer(runtime, request, of_prompt=False) for request in REQUESTS]
    with LocalRuntime(model_dir, prefill_chunk=100, **options) as runtime:
        if warm:
            runtime.warm_up()
        graphs = runtime._runner._graphs
        assert graphs is not None
        before = len(graphs._graphs)
        assert (before > 20) is warm
        for _ in range(2):
            with ThreadPoolExecutor(len(REQUESTS)) as pool:
                found = list(pool.map(lambda request: _answer(runtime, request, of_prompt=False), REQUESTS))
            assert found == wanted
        assert not graphs._broken
        assert {key.queries for key in graphs._graphs} >= {1, ANY}
        assert not warm or len(graphs._graphs) == before, "a step needed a graph that warming up had left out"


def test_greedy_texts_are_those_of_the_fast_path(model_dir: Path) -> None:
    with LocalRuntime(model_dir, dtype="float32", kv_tokens=20_000) as runtime:
        fast = [_answer(runtime, (prompt, SAMPLINGS[0]))[0] for prompt in PROMPTS]
    with LocalRuntime(model_dir, dtype="float32", deterministic=True, kv_tokens=20_000) as runtime:
        assert [_answer(runtime, (prompt, SAMPLINGS[0]))[0] for prompt in PROMPTS] == fast
