"""`validate="after"` without a program: what fails its check is generated again, and `meta.retries` says how often."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from radicel import Constraint, errors
from radicel.runtime import LocalRuntime

ONLY_NOUGHT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 3, "multipleOf": 1_000_000_007}
NEVER: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 3, "multipleOf": 1_000_000_007}


@pytest.fixture(scope="module")
def runtime(tiny_llama: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=600, context_length=512, check_invariants=True) as made:
        yield made


def test_no_mask_enforces_it() -> None:
    with pytest.raises(errors.ConstraintError, match="multipleOf|multiples"):
        Constraint.of(ONLY_NOUGHT)


def test_samples_that_fail_are_generated_again(runtime: LocalRuntime) -> None:
    found = [
        runtime.generate("x", seed=seed, max_tokens=4, schema=ONLY_NOUGHT, validate="after") for seed in range(40, 60)
        if _passes(runtime, seed)
    ]  # fmt: skip
    assert {one.value for one in found} == {0}
    assert {one.meta.retries for one in found} >= {0, 1}
    assert max(one.meta.retries for one in found) <= 3


def _passes(runtime: LocalRuntime, seed: int) -> bool:
    try:
        runtime.generate("x", seed=seed, max_tokens=4, schema=ONLY_NOUGHT, validate="after")
    except errors.OutputValidationError:
        return False
    return True


def test_only_the_samples_that_failed_are_tried_again(runtime: LocalRuntime) -> None:
    found = runtime.generate(["x"], n=8, seed=1, max_tokens=4, schema=ONLY_NOUGHT, validate="after")[0]
    assert [sample.value for sample in found if sample.error is None] == [0] * sum(s.error is None for s in found)
    assert len({sample.meta.retries for sample in found}) > 1


def test_after_three_more_tries_it_is_an_error(runtime: LocalRuntime) -> None:
    with pytest.raises(errors.OutputValidationError):
        runtime.generate("x", max_tokens=4, schema=NEVER, validate="after")
    (item,) = runtime.generate(["x"], max_tokens=4, schema=NEVER, validate="after")
    assert isinstance(item.error, errors.OutputValidationError)
    assert item.meta.retries == 3
    with pytest.raises(errors.OutputValidationError):
        asyncio.run(runtime.agenerate("x", max_tokens=4, schema=NEVER, validate="after"))


def test_a_stream_comes_when_its_text_was_checked(runtime: LocalRuntime) -> None:
    seed = next(seed for seed in range(40, 80) if _passes(runtime, seed))
    assert list(runtime.generate("x", seed=seed, max_tokens=4, schema=ONLY_NOUGHT, validate="after", stream=True)) == [
        "0"
    ]
    shown: list[str] = []
    with pytest.raises(errors.OutputValidationError):
        shown += runtime.generate("x", max_tokens=4, schema=NEVER, validate="after", stream=True)
    runtime.check()
