"""A run on the embedded model, recorded and replayed: the same values, without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from radicel import assistant, function, gen, select, user
from radicel.testing import record, replay

pytestmark = pytest.mark.model


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    size: Literal["small", "large"]


@function
def describe(s: Any, country: str) -> Any:
    s += "A country: " + gen("raw", n=2, max_tokens=4, temperature=0.8, logprobs=True)
    s += user(f"A town in {country}?") + assistant(gen("town", schema=Town, max_tokens=40))
    with s.fork(3) as branches:
        for branch in branches:
            branch += user("Say a word.") + assistant(gen("word", max_tokens=4, temperature=1.0))
    s += user("Is it warm?") + assistant(select("warm", ["yes", "no"]))
    return s["town"].size


def test_a_recorded_run_is_replayed(runtime: Any, tmp_path: Path) -> None:
    items = [{"country": name} for name in ("Italy", "Norway", "Italy")]
    with record(tmp_path / "run.jsonl", runtime) as recorder:
        before = describe.run_batch(items, backend=recorder, on_error="raise")
    assert recorder.stats().generated_tokens > 0
    with replay(tmp_path / "run.jsonl"):
        after = describe.run_batch(items, on_error="raise")
    for old, new in zip(before, after):
        for name in ("raw", "town", "word", "warm"):
            assert new[name] == old[name]
            assert new.meta(name) == old.meta(name)
        assert new.ret_value == old.ret_value
        assert isinstance(new["town"], Town)


def test_saved_items_are_restored(runtime: Any, tmp_path: Path) -> None:
    items = [{"country": name} for name in ("Italy", "Norway")]
    before = describe.run_batch(items[:1], backend=runtime, save=tmp_path / "done.jsonl", on_error="raise")
    generated = runtime.stats().generated_tokens
    again = describe.run_batch(items[:1], backend=runtime, save=tmp_path / "done.jsonl")
    assert runtime.stats().generated_tokens == generated
    assert again[0].text() == before[0].text()
    assert again[0]["town"] == before[0]["town"]
    assert again[0].meta("raw") == before[0].meta("raw")
    assert describe.run_batch(items, backend=runtime, save=tmp_path / "done.jsonl")[1]["town"]
