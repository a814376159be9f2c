"""Ids as a list and an array, prompts encoded ahead, requests that start together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from radicel.errors import EngineDeadError, InvalidValueError
from radicel.prompt import EncodedPrompt, Text
from radicel.runtime.encoded_ahead import EncodedAhead, PromptIds
from radicel.runtime.engine import Engine
from radicel.runtime.inputs import read_prompts
from radicel.runtime.request import Sequence
from radicel.runtime.results import Collector
from radicel.runtime.together import Together
from radicel.runtime.token_buffer import IdList, TokenBuffer

from .fake_runner import FakeRunner, greedy


def test_ids_are_a_list_and_an_array() -> None:
    ids = IdList.of((3, 1, 2**31 - 1))
    assert list(ids) == [3, 1, 2**31 - 1]
    assert (len(ids), ids[-1], ids[1:]) == (3, 2**31 - 1, [1, 2**31 - 1])
    assert ids.array.dtype == np.int32
    assert ids.array.tolist() == list(ids)
    assert np.asarray(ids, np.int64).tolist() == list(ids)
    assert TokenBuffer(ids).view(0, 3).tolist() == list(ids)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([5, -2], r"prompt\[1\]=-2"),
        ([[1], [5, -(10**30)]], r"prompt\[1\]\[1\]=-1000"),
        ([5, True], "give text, token ids"),
        ([5, 1.0], "give text, token ids"),
        ([[5], [5, "a"]], r"prompt\[1\]: give text"),
    ],
)
def test_what_is_no_list_of_ids_is_told(given: Any, says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        read_prompts(given)


def test_a_list_that_was_read_is_not_the_caller_s() -> None:
    mine = [4, 5]
    (ids,), many = read_prompts(mine)
    mine.append(6)
    assert (list(ids), many) == ([4, 5], False)


def test_what_was_encoded_ahead_comes_once_and_the_oldest_goes() -> None:
    ahead = EncodedAhead(most=5)
    prompts = [(Text(name),) for name in "abc"]
    for prompt in prompts:
        ahead.put(prompt, EncodedPrompt((1, 2)))
    assert ahead.num_ids == 4
    assert ahead.pop(prompts[0]) is None
    assert ahead.pop(prompts[1]) == EncodedPrompt((1, 2))
    assert ahead.pop(prompts[1]) is None
    assert ahead.num_ids == 2


class _Words:
    """An encoder: one id a character."""

    def encode(self, prompt: Any) -> EncodedPrompt:
        return EncodedPrompt(tuple(map(ord, "".join(part.text for part in prompt))))


def test_the_ids_of_a_prompt_are_packed_once_for_its_graph_and_its_request() -> None:
    ids = PromptIds(_Words(), vocab_size=1000)  # type: ignore[arg-type]
    prompt = (Text("abc"),)
    encoded = ids.ahead(prompt)
    packed = np.frombuffer(encoded.packed, np.int32)
    taken, _ = ids.of(prompt)
    assert packed.tolist() == list(taken) == [97, 98, 99]
    assert np.shares_memory(packed, taken.array)
    assert EncodedPrompt(()).packed == b""


def test_an_id_that_is_no_c_int_is_named() -> None:
    with pytest.raises(OverflowError, match="no C int"):
        _ = EncodedPrompt((1, 2**40)).packed


def test_whoever_waits_to_start_together_is_told_that_the_engine_died(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(FakeRunner())
    together = Together(engine)
    collectors: list[Collector[Any]] = [Collector(1, lambda results: results) for _ in range(2)]
    for collector in collectors:
        together.launch(collector, [Sequence([1, 2, 3], greedy(4), collector)])

    def dead(sequences: Any) -> None:
        raise EngineDeadError("gone")

    monkeypatch.setattr(engine, "submit", dead)
    together.send()
    for collector in collectors:
        with pytest.raises(EngineDeadError):
            collector.future.result(0)
