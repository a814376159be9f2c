"""`prog.plan`: what the calls of a batch share and cost, against what a run asks for."""

from __future__ import annotations

from typing import Any

import pytest
from chat_tokenizers import CHATML, make
from hypothesis import given, settings
from hypothesis import strategies as st
from radicel import MockBackend, SamplingParams, assistant, function, gen, select, system, user
from radicel.encode import PromptEncoder
from radicel.graph import RequestGraph
from radicel.prompt import EncodedPrompt, Prompt

ESSAY = "The quick brown fox jumps over the lazy dog, and the dog says: Hello there! " * 4


class Counting:
    """The tokenizer of a backend."""

    def __init__(self) -> None:
        self.tokenizer = make("byte_level", CHATML)
        self._encoder = PromptEncoder(self.tokenizer)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        return self._encoder.encode(prompt)


def plan(program: Any, *args: Any, **kwargs: Any) -> RequestGraph:
    graph = program.plan(*args, **kwargs)
    assert isinstance(graph, RequestGraph)
    return graph


@function
def judge(s: Any, essay: str, aspects: list[str]) -> None:
    s += system("You are a careful reviewer.") + user(essay)
    with s.fork(len(aspects)) as branches:
        for branch, aspect in zip(branches, aspects):
            branch += user(f"Judge the {aspect}.") + assistant(gen("note", max_tokens=10))
    s += user("Summarise: " + " ".join(s["note"])) + assistant(gen("verdict", max_tokens=20))


def test_a_fork_shares_its_text_and_a_join_waits_for_it() -> None:
    graph = plan(judge, [{"essay": ESSAY, "aspects": ["style", "facts", "length"]}], backend=Counting())
    assert [r.name for r in graph.requests] == ["note", "note", "note", "verdict"]
    assert [r.wave for r in graph.requests] == [0, 0, 0, 1]
    assert graph.critical_path == 2
    assert graph.requests[3].needs == (0, 1, 2)
    assert graph.max_generated_tokens == 50
    assert graph.leases[0].uses == (0, 1, 2, 3)
    assert 0 <= graph.open_tokens < 10
    assert graph.shared_tokens == graph.total_tokens - graph.unique_tokens > 2 * len(ESSAY.split())


def test_a_batch_shares_across_its_calls() -> None:
    calls = [{"essay": ESSAY, "aspects": ["style", "facts"]}, {"essay": ESSAY, "aspects": ["style"]}]
    both, first = plan(judge, calls, Counting()), plan(judge, calls[:1], Counting())
    assert (both.items, len(both.requests)) == (2, 5)
    assert [r.item for r in both.requests] == [0, 0, 0, 1, 1]
    assert both.unique_tokens < first.unique_tokens + 10
    assert both.total_tokens > first.total_tokens * 1.5


WORD = st.sampled_from(["Hello", " there", " dog", "\n", "12", " Q: ", "é"])
TEXT = st.lists(WORD, min_size=1, max_size=4).map("".join)


@settings(max_examples=30, deadline=None)
@given(calls=st.lists(st.tuples(TEXT, st.integers(1, 3), TEXT), min_size=1, max_size=4), roles=st.booleans())
def test_a_plan_is_what_a_run_asks_for(calls: list[tuple[str, int, str]], roles: bool) -> None:
    """Known bytes, and the most that is generated, are those of the requests that a mock sees."""

    @function
    def program(s: Any, first: str, n: int, last: str) -> None:
        s += user(first) if roles else first
        branches = s.fork(n)
        for i, branch in enumerate(branches):
            branch += assistant("way " + gen("x", max_tokens=3)) if roles else str(i) + gen("x", max_tokens=3)
        branches.join("append")
        s += user(last) + assistant(gen("y", max_tokens=4)) if roles else last + gen("y", max_tokens=4)

    graph = plan(program, calls)
    mock = MockBackend(lambda request: "")
    for call in calls:
        program.run(*call, backend=mock)
    wanted = sorted(len(request.prompt.encode()) for request in mock.requests)
    assert sorted(request.prompt_tokens for request in graph.requests) == wanted
    assert graph.max_generated_tokens == sum(3 * n + 4 for _, n, _ in calls)
    assert graph.unit == "bytes"
    assert "bytes are counted" in str(graph)


@pytest.mark.parametrize(
    ("batch", "items", "texts"),
    [
        ([{"a": "x"}, ("y",)], 2, ["'x'", "'y'"]),
        ({"a": "x"}, 1, ["'x'"]),
        (("x",), 1, ["'x'"]),
        ([], 0, []),
        (({"a": c} for c in "xyz"), 3, ["'x'", "'y'", "'z'"]),
    ],
)
def test_what_a_batch_may_be(batch: Any, items: int, texts: list[str]) -> None:
    @function
    def program(s: Any, a: str) -> None:
        s += a + gen("g", max_tokens=1)

    graph = plan(program, batch)
    assert graph.items == items
    assert len(graph.requests) == items
    assert all(text in str(graph) for text in texts)


def test_arguments_that_are_not_given_are_holes() -> None:
    @function
    def program(s: Any, a: str) -> None:
        s += "Question: " + a + "\nAnswer:" + gen("g", max_tokens=1)

    graph = program.plan()
    assert len(graph.requests) == 1
    assert graph.requests[0].prompt_tokens == len("Question:") + len("Answer:")
    assert "‹value›" in str(graph)


@pytest.mark.parametrize(("item", "error"), [("x", "item 0 is a str"), ({"b": 1}, "b"), (("x", "y"), "arguments")])
def test_a_wrong_item_is_an_error(item: Any, error: str) -> None:
    @function
    def program(s: Any, a: str) -> None:
        s += a

    with pytest.raises(TypeError, match=error):
        program.plan([item])


def test_what_a_body_raises_is_raised() -> None:
    @function
    def program(s: Any) -> None:
        raise ZeroDivisionError("in the body")

    with pytest.raises(ZeroDivisionError, match="in the body"):
        program.plan([{}])


def test_sampling_of_the_plan_and_of_an_item() -> None:
    @function
    def program(s: Any) -> None:
        s += "a" + gen("g")

    batch: list[dict[str, Any]] = [{}, {"max_tokens": 3}]
    assert plan(program, batch).unlimited == 1
    assert plan(program, batch, sampling=SamplingParams(max_tokens=5)).max_generated_tokens == 8
    assert plan(program, batch, sampling={"max_tokens": 5, "n": 2}).max_generated_tokens == 16


def test_where_a_body_looks_inside_a_value_the_plan_says_so() -> None:
    @function
    def program(s: Any) -> None:
        s += "Yes or no? " + select("x", ["yes", "no"])
        if s["x"] == "yes":
            s += gen("why", max_tokens=5)

    graph = plan(program, [{}, {}])
    assert [r.name for r in graph.requests] == ["x", "x"]
    assert [number for number, _ in graph.opens] == [0, 1]
    assert "2 calls not planned to the end" in str(graph)
    assert "test_plan.py" in str(graph)


def test_a_plan_asks_nothing_of_a_backend_but_its_tokenizer() -> None:
    mock = MockBackend()
    plan(judge, [{"essay": "e", "aspects": ["a"]}], backend=mock)
    assert mock.requests == []
    assert mock.prefilled == []


@pytest.mark.slow
def test_ten_thousand_calls_grow_linearly() -> None:
    import time

    @function
    def program(s: Any, i: int) -> None:
        s += ESSAY * 10
        for name in "abcd":
            s += f"Item {i}: " + gen(name, max_tokens=4)

    seconds = []
    for calls in (1_000, 10_000):
        began = time.perf_counter()
        graph = plan(program, [{"i": i} for i in range(calls)], backend=Counting())
        seconds.append(time.perf_counter() - began)
        assert len(graph.requests) == 4 * calls
    assert seconds[1] < 20 * seconds[0]
