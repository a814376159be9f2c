"""The programs of `examples/programs` on the embedded model: they run to their end, and cost what was planned.

The model is too small to be right, so nothing here asks whether it is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from example_programs import DATA, PROGRAMS, load

pytestmark = pytest.mark.model

common = load("common")
few_shot_maths = load("few_shot_maths")
tree_of_thought = load("tree_of_thought")
essay_judge = load("essay_judge")
multi_document_qa = load("multi_document_qa")


def rows(name: str, count: int) -> list[Any]:
    return common.read_rows(DATA / name)[:count]


@dataclass(frozen=True)
class Cost:
    """What a batch added to the runtime's counts."""

    computed: int
    cached: int
    generated: int


def ran(program: Any, batch: list[dict[str, Any]], runtime: Any) -> tuple[Any, list[Any], Cost]:
    """The plan, the states and the cost of a batch on an empty cache."""
    runtime.flush_cache()
    graph = program.plan(batch, backend=runtime)
    before = runtime.stats()
    states = program.run_batch(batch, backend=runtime, temperature=0, on_error="raise")
    after = runtime.stats()
    assert after.running == after.waiting == after.kv_used == 0
    cost = Cost(
        after.computed_tokens - before.computed_tokens,
        after.cached_tokens - before.cached_tokens,
        after.generated_tokens - before.generated_tokens,
    )
    assert cost.generated > 0
    return graph, states, cost


def most_computed(graph: Any, values_in_text: int = 0) -> int:
    """The plan's tokens, the last token of each sequence, what choices share, and values tokenised again in a text."""
    ends = graph.tree.ends
    scored = sum(ends[end] - ends[request.prompt] for request in graph.requests for end in request.ends)
    sequences = sum(max(1, len(request.ends)) for request in graph.requests)
    return int(graph.unique_tokens + graph.open_tokens + sequences + scored + values_in_text)


def test_few_shot_maths(runtime: Any) -> None:
    batch = [{"question": row["question"]} for row in rows("gsm8k.jsonl", 2)]
    graph, states, cost = ran(few_shot_maths.solve, batch, runtime)
    assert all(isinstance(few_shot_maths.answer(state), int) for state in states)
    assert all(state.text().endswith(state["answer"]) for state in states)
    assert (len(graph.requests), graph.critical_path, graph.opens) == (4, 2, [])
    assert cost.computed <= most_computed(graph)
    assert cost.cached > 2 * cost.computed


def test_tree_of_thought(runtime: Any) -> None:
    (row,) = rows("gsm8k.jsonl", 1)
    batch = [{"question": row["question"], "depth": 2, "width": 2, "keep": 1}]
    graph, (state,), cost = ran(tree_of_thought.think, batch, runtime)
    assert isinstance(few_shot_maths.answer(state), int)
    assert len(state["steps"]) == 2
    assert len(graph.opens) == 1
    assert cost.cached > cost.computed


def test_essay_judge(runtime: Any) -> None:
    batch = [{"essay": essay} for essay in sorted(rows("articles.jsonl", 4), key=len)[:1]]
    graph, (state,), cost = ran(essay_judge.judge, batch, runtime)
    assert len(state["remark"]) == len(state["score"]) == 3
    assert set(state["score"]) <= set(essay_judge.SCORES)
    assert state["grade"] in essay_judge.GRADES
    for meta in [*state.meta("score"), state.meta("grade")]:
        assert sum(meta.probabilities.values()) == pytest.approx(1)
    tokens = runtime.tokenizer(" ".join(state["remark"]), add_special_tokens=False)["input_ids"]
    assert graph.opens == []
    assert cost.computed <= most_computed(graph, len(tokens))


def test_multi_document_qa(runtime: Any) -> None:
    found = rows("hotpotqa.jsonl", 1)
    batch = [
        {"question": multi_document_qa.question_of(row), "documents": multi_document_qa.documents_of(row)}
        for row in found
    ]
    graph, states, cost = ran(multi_document_qa.answer_question, batch, runtime)
    assert all(len(state["note"]) == 2 for state in states)
    assert all(isinstance(multi_document_qa.answer(state), str) for state in states)
    notes = " ".join(note for state in states for note in state["note"])
    assert graph.opens == []
    assert cost.computed <= most_computed(graph, len(runtime.tokenizer(notes, add_special_tokens=False)["input_ids"]))
    assert cost.cached > cost.computed


COMMANDS = [
    "multi_document_qa --rows 1",
    "few_shot_maths --rows 1",
    "essay_judge --rows 1",
    "tree_of_thought --rows 1 --depth 2 --width 2 --keep 1",
    "generative_agents",
    "json_decoding --rows 2",
    "map_reduce --rows 1 --fan-in 2",
    "multi_chain_reasoning --rows 1 --chains 2",
    "multiple_choice",
    "react --rows 2 --steps 3",
    "tip_suggestion --rows 1",
    "tool_calls --rows 2 --most-calls 1",
    "two_turn_chat --rows 1 --tokens 24",
]


def test_the_command(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It loads the model that it is given."""
    check_command([*COMMANDS[0].split(), "--model", str(model_dir)], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS[1:])
def test_commands(
    command: str, runtime: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All others, on one model that is loaded already."""
    monkeypatch.setattr(common, "LocalRuntime", lambda *_, **__: contextlib.nullcontext(runtime))
    check_command(command.split(), capsys)


def check_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every row of it succeeds; the plan comes before, answers and cost after."""
    name, *arguments = words
    load(name).main(arguments)
    text = capsys.readouterr().out
    assert text.index("tokens to compute") < text.index("from the cache") < text.index("answers")
    assert "Error" not in text


def test_every_program_is_run_as_a_command() -> None:
    programs = {path.stem for path in PROGRAMS.glob("*.py")} - {"common"}
    assert {line.split()[0] for line in COMMANDS} == programs
