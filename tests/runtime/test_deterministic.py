"""`deterministic=True`: the same bits whatever the batch, the cache and the chunks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from radicel.runtime import LocalRuntime

PREFIX = "The harbour lies in the north of the town, and in winter the boats lie there for months. "
PROMPTS = [
    "The",
    PREFIX + "In spring",
    PREFIX + "In the end they",
    PREFIX * 3 + "Then",
    "Colours: red, green, blue. Numbers: one, two, three. Nothing is",
    PREFIX + "In the end nobody went there in the rain",
]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "seed": 3, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.2, "seed": 5, "min_p": 0.02, "frequency_penalty": 0.5, "presence_penalty": 0.1},
    {"temperature": 1.0, "seed": -9, "top_p": 0.8, "repetition_penalty": 1.3, "logit_bias": {40: 2.0}},
    {"temperature": 0, "regex": "[a-z]{6,9}"},
]
POOL: dict[str, Any] = {"kv_tokens": 3000, "context_length": 400}
COMMON: dict[str, Any] = {"ignore_eos": True, "max_tokens": 10, "top_logprobs": 3, "logprobs": True}


def _requests() -> list[tuple[str, dict[str, Any]]]:
    return [(prompt, {**COMMON, **SAMPLINGS[(i + j) % 6]}) for i, prompt in enumerate(PROMPTS) for j in range(2)]


def _answer(generation: Any) -> tuple[Any, ...]:
    meta = generation.meta
    return (tuple(meta.token_ids), tuple(meta.logprobs), [list(top.items()) for top in meta.top_logprobs])


def _alone(folder: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Every request by itself, nothing cached, every prompt computed whole."""
    found = []
    with LocalRuntime(folder, deterministic=True, prefix_cache=False, **POOL, **options) as rt:
        for prompt, sampling in _requests():
            found.append(_answer(rt.generate(prompt, **sampling)))
    return found


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tiny.make_tiny_model(tmp_path_factory.mktemp("deterministic"), request.param)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_batch_cache_and_chunk_gives_the_same_bits(folder: Path, dtype: str) -> None:
    wanted = _alone(folder, dtype=dtype)
    assert len({str(answer) for answer in wanted}) > 8
    rng = random.Random(1)
    for chunk, running in ((8192, 256), (7, 3), (33, 5)):
        with LocalRuntime(
            folder, dtype=dtype, deterministic=True, prefill_chunk=chunk, max_running=running, **POOL
        ) as rt:
            for _ in range(2):
                order = rng.sample(range(len(wanted)), len(wanted))
                for i, answer in zip(order, _together(rt, [_requests()[i] for i in order])):
                    assert answer == wanted[i], (chunk, running, i)


def _together(rt: LocalRuntime, requests: list[tuple[str, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """All requests at once, each with its own sampling."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(requests)) as pool:
        return [_answer(g) for g in pool.map(lambda request: rt.generate(request[0], **request[1]), requests)]
