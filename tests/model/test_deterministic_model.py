"""`deterministic=True` on the embedded model: the same bits alone and together, in one chunk and in many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from radicel import LocalRuntime

pytestmark = [pytest.mark.model, pytest.mark.slow]

PREFIX = "The harbour lies in the north of the town, and in winter the boats lie there for months. "
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("The", {"temperature": 0}),
    (PREFIX + "In spring", {"temperature": 0.9, "top_p": 0.9, "seed": 4}),
    (PREFIX * 6 + "Then", {"temperature": 0}),
    (PREFIX + "In the end they", {"temperature": 1.1, "top_k": 40, "seed": 9}),
]


def _answer(runtime: LocalRuntime, request: tuple[str, dict[str, Any]]) -> Any:
    prompt, sampling = request
    asked = {"max_tokens": 8, "ignore_eos": True, "logprobs": True, "top_logprobs": 2, "logprob_start_len": 0}
    meta = runtime.generate(prompt, **asked, **sampling).meta
    return list(meta.token_ids), list(meta.logprobs), list(meta.prompt_logprobs), meta.top_logprobs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_alone_and_together(model_dir: Path, dtype: str) -> None:
    options: dict[str, Any] = {"dtype": dtype, "deterministic": True, "kv_tokens": 2000, "context_length": 400}
    with LocalRuntime(model_dir, prefix_cache=False, **options) as runtime:
        wanted = [_answer(runtime, request) for request in REQUESTS]
    with LocalRuntime(model_dir, prefill_chunk=50, **options) as runtime, ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            assert list(pool.map(lambda request: _answer(runtime, request), REQUESTS)) == wanted
