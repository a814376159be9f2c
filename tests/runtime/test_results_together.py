"""The results of many prompts: whom the caller's thread waits for, and that each has what is its own."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from radicel import Constraint
from radicel.backend import Generation, Handle, Meta
from radicel.runtime import LocalRuntime
from radicel.runtime.direct import _as_they_come


class Waits(Handle[Any]):
    """Notes that somebody waits for it; all there is to wait for comes with the last."""

    def __init__(self, index: int, seen: list[int], all_of_them: list[Waits]) -> None:
        super().__init__(Future())
        self.index, self._seen, self._all = index, seen, all_of_them

    def result(self, timeout: float | None = None) -> Any:
        if not self.future.done():
            self._seen.append(self.index)
            others = self._all if self.index == len(self._all) - 1 else [self]
            for handle in [one for one in others if not one.future.done()]:
                meta = Meta(finish_reason="stop")
                handle.future.set_result([Generation(str(handle.index), (handle.index,), None, meta, None, (9,))])
        return super().result(timeout)


@pytest.mark.parametrize(("constraint", "waited"), [(None, [4]), (Constraint.of(int), [0, 1, 2, 3, 4])])
def test_texts_are_waited_for_once_and_values_are_made_one_by_one(constraint: Any, waited: list[int]) -> None:
    seen: list[int] = []
    handles: list[Any] = []
    handles += [Waits(i, seen, handles) for i in range(5)]
    found = _as_they_come(handles, constraint, alone=False)
    assert seen == waited
    assert [(one.text, one.token_ids, one.replaced) for one in found] == [(str(i), (i,), (9,)) for i in range(5)]
    assert [one.value for one in found] == [str(i) if constraint is None else i for i in range(5)]
    assert all(one.meta.finish_reason == "stop" and one.error is None for one in found)


def test_each_prompt_has_its_own_result_and_error(tiny_llama: Path) -> None:
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=600, context_length=64, check_invariants=True) as runtime:
        alone = [runtime.generate(text, max_tokens=5, temperature=0) for text in "abc"]
        found = runtime.generate(["a", [7] * 80, "b", "c"], max_tokens=5, temperature=0)
    assert "context" in str(found[1].error)
    assert [one.text for one in found if one.error is None] == [one.text for one in alone]
    assert [one.value for one in alone] == [one.text for one in alone]
