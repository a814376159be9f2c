"""A graph as people read it: bounded, folded, plain where there is no terminal; and as the docs show it."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from radicel import assistant, function, gen, select, system, user
from radicel.graph import RequestGraph
from rich.console import Console


@function
def review(s: Any, essay: str, aspects: int) -> None:
    s += system("Review.") + user(essay)
    with s.fork(aspects) as branches:
        for i, branch in enumerate(branches):
            branch += user(f"aspect {i}") + assistant(gen("note", max_tokens=10))
    s += user(" ".join(s["note"])) + assistant(select("verdict", ["good", "bad", "neither"]))


def plan(calls: int, aspects: int = 3) -> RequestGraph:
    graph = review.plan([{"essay": f"{'abcdefghij'[i % 10]}{i}", "aspects": aspects} for i in range(calls)])
    assert isinstance(graph, RequestGraph)
    return graph


def lines(graph: RequestGraph) -> list[str]:
    return str(graph).splitlines()


def test_the_totals_stand_first() -> None:
    graph = plan(2)
    assert lines(graph)[:4] == [
        "8 requests of 2 calls",
        f"prompt bytes: {graph.total_tokens:,} in all, {graph.unique_tokens:,} unique, {graph.shared_tokens:,} shared "
        f"({graph.shared_tokens / graph.total_tokens:.1%})",
        "generated tokens: at most 60",
        "critical path: 2 model calls",
    ]


def test_one_of_something_is_singular() -> None:
    @function
    def program(s: Any) -> None:
        s += "a" + gen("x")

    text = str(program.plan())
    assert "1 request of 1 call\n" in text
    assert "critical path: 1 model call\n" in text
    assert "1 byte 'a' → gen x" in text
    assert "and 1 request without max_tokens" in text


def test_values_have_a_row_each_with_what_they_cost() -> None:
    graph = plan(4)
    rows = [line.split() for line in lines(graph) if re.match(r"(gen|select) ", line)]
    notes = [r for r in graph.requests if r.name == "note"]
    verdicts = [r for r in graph.requests if r.name == "verdict"]
    costs = [
        [f"{sum(r.prompt_tokens for r in of):,}", f"{sum(r.new_tokens for r in of):,}"] for of in (notes, verdicts)
    ]
    assert [row[:2] for row in rows] == [["gen", "note"], ["select", "verdict"]]
    assert [row[4:] for row in rows] == [["1", "12", *costs[0], "120"], ["2", "4", *costs[1], "0"]]
    assert sum(r.new_tokens for r in graph.requests) == graph.unique_tokens


def test_the_tree_shows_texts_values_and_who_shares_them() -> None:
    text = str(plan(1))
    assert "→ gen note ≤ 10" in text
    assert "→ select verdict of 3" in text
    assert "‹note›" in text
    assert "'0<|im_end|>\\n<|im_start|>assistant\\n' → gen note" in text
    assert "shared by 4 requests" in text


@pytest.mark.parametrize(("calls", "aspects"), [(40, 3), (400, 3), (2, 60), (60, 1)])
def test_the_size_is_bounded(calls: int, aspects: int) -> None:
    graph = plan(calls, aspects)
    found = lines(graph)
    assert len(found) < 75
    assert max(map(len, found)) <= 110
    assert "like it" in str(graph)
    small = Console(file=io.StringIO(), width=200)
    small.print(graph.explain(max_lines=5))
    assert len(small.file.getvalue().splitlines()) < 25  # type: ignore[attr-defined]


def test_branches_of_one_shape_are_counted() -> None:
    graph = plan(1, 9)
    (folded,) = [line for line in lines(graph) if "like it" in line]
    assert folded.endswith(f"… and 8 like it: {8 * len('0<|im_end|>') + 8 * len('_<|im_start|>assistant_')} bytes")


def test_many_values_are_cut_short() -> None:
    @function
    def program(s: Any) -> None:
        for i in range(30):
            s += "a" + gen(f"v{i}", max_tokens=2)

    text = str(program.plan())
    assert "… 18 values more" in text
    assert "generated tokens: at most 60\n" in text
    assert re.search(r"… 18 values more +13-30 +18 ", text)


def test_an_empty_plan_is_readable() -> None:
    assert lines(review.plan([]))[0] == "0 requests of 0 calls"


def test_brackets_in_texts_are_no_markup() -> None:
    @function
    def program(s: Any) -> None:
        s += "[bold]not bold[/bold]" + gen("x", max_tokens=1)

    assert "'[bold]not bold[/bold]'" in str(program.plan())


def test_a_short_form_for_the_prompt_of_an_interpreter() -> None:
    assert repr(plan(1)).startswith("<RequestGraph: 4 requests of 1 call")


def test_explain_has_colours_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=120)
    console.print(plan(2).explain())
    assert "\x1b[" in console.file.getvalue()  # type: ignore[attr-defined]
