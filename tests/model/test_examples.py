"""The programs of `examples/programs` without a model: what they ask, what they make of answers, what they print."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from example_programs import DATA, load
from radicel import MockBackend
from rich.console import Console

common = load("common")
few_shot_maths = load("few_shot_maths")
tree_of_thought = load("tree_of_thought")
essay_judge = load("essay_judge")
multi_document_qa = load("multi_document_qa")


def paper() -> Console:
    """A console whose text can be read back."""
    return Console(file=io.StringIO(), width=100, color_system=None)


# --- what they share -------------------------------------------------------------------------------------------------


def test_rows_of_lines_of_a_list_and_of_examples(tmp_path: Path) -> None:
    lines, plain, examples = tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "c.json"
    lines.write_text('{"a": "\\u2028 x\u2028y"}\n\n"text"\n', encoding="utf-8")
    plain.write_text("[1, 2]")
    examples.write_text('{"canary": "…", "examples": [{"input": "x"}]}', encoding="utf-8")
    assert common.read_rows(lines) == [{"a": "\u2028 x\u2028y"}, "text"]
    assert common.read_rows(plain) == [1, 2]
    assert common.read_rows(examples) == [{"input": "x"}]


@pytest.mark.parametrize(
    ("text", "said"), [("", "has no rows"), ('{"a": 1}\n{"a": \n', "rows.jsonl, line 2: Expecting value")]
)
def test_a_file_that_is_wrong_is_a_message(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        common.options("About.", "gsm8k.jsonl", ["--data", str(file)])
    assert said in capsys.readouterr().err


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    said = common.options("About.", "gsm8k.jsonl", ["--rows", "2", "--width", "5"], width=3, most_steps=4)
    assert len(said.rows) == 2
    assert said.model is None
    assert (said.args.width, said.args.most_steps) == (5, 4)
    for wrong in (["--rows", "0"], ["--data", "nowhere.jsonl"], ["--width", "x"]):
        with pytest.raises(SystemExit, match="2"):
            common.options("About.", "gsm8k.jsonl", wrong, width=3)
    assert "0 is not a positive number" in capsys.readouterr().err


def test_the_plan_is_printed_before_and_failures_after() -> None:
    console = paper()
    mock = MockBackend({"reasoning": [" so", RuntimeError("no [power]")], "answer": " 7\n"})
    states = common.run(few_shot_maths.solve, [{"question": "a?"}, {"question": "b?"}], mock, console)
    assert [state.error() is None for state in states] == [True, False]
    text = console.file.getvalue()
    assert "4 requests of 2 calls" in text
    assert "critical path: 2 model calls" in text
    assert text.index("plan") < text.index("cost") < text.index("row 1: RuntimeError: no [power]")
    assert "prompt tokens:" not in text  # a mock counts nothing


def test_the_cost_is_that_of_this_batch_only() -> None:
    class Counting(MockBackend):
        """A mock that has counted as much before, too."""

        calls = 0

        def stats(self) -> Any:
            from radicel.runtime.stats import RuntimeStats

            self.calls += 1
            return RuntimeStats(
                prompt_tokens=1000 * self.calls,
                computed_tokens=300 * self.calls,
                cached_tokens=700 * self.calls,
                generated_tokens=20 * self.calls,
                forced_tokens=5 * self.calls,
            )

    console = paper()
    common.run(few_shot_maths.solve, [{"question": "a?"}], Counting({"reasoning": " r", "answer": " 1\n"}), console)
    assert "1,000 prompt tokens: 300 computed, 700 from the cache; 20 generated, 5 of them" in console.file.getvalue()


def test_answers_are_counted_and_their_text_is_text() -> None:
    console = paper()
    assert common.show_answers([("[red]q[/red]", "No", "no"), ("r", 3, 3), ("s", 3, None), ("t", "", "")], console) == 2
    assert "[red]q[/red]" in console.file.getvalue()
    assert "2 of 3 right" in console.file.getvalue()


# --- few_shot_maths --------------------------------------------------------------------------------------------------


def test_maths_asks_after_worked_examples_and_reads_a_number() -> None:
    mock = MockBackend({"reasoning": " 2 + 2 = 4.\n#### 4\n\nQuestion: more", "answer": " 4\n"})
    state = few_shot_maths.solve.run(question="What is 2 + 2?", backend=mock)
    first, second = mock.requests
    assert first.prompt.startswith("Question: A baker fills 6 trays")
    assert first.prompt.count("\n####") == len(few_shot_maths.WORKED) == 4
    assert first.prompt.endswith("\n\nQuestion: What is 2 + 2?\nAnswer:")
    assert second.prompt == first.prompt + " 2 + 2 = 4.\n####"
    assert few_shot_maths.answer(state) == 4


def test_maths_plan_shares_the_worked_examples() -> None:
    rows = common.read_rows(DATA / "gsm8k.jsonl")
    graph = few_shot_maths.solve.plan([{"question": row["question"]} for row in rows])
    assert len(graph.requests) == 2 * len(rows)
    assert graph.critical_path == 2
    assert graph.unique_tokens < graph.total_tokens / 4


@pytest.mark.parametrize(("text", "number"), [("x\n#### 18", 18), ("#### 2,125", 2125), ("a #### b\n#### -10", -10)])
def test_maths_expected(text: str, number: int) -> None:
    assert few_shot_maths.expected({"answer": text}) == number


def test_worked_examples_say_what_they_compute() -> None:
    for _, reasoning, answer in few_shot_maths.WORKED:
        assert str(answer) in reasoning.rsplit("= ", 1)[1]


# --- tree_of_thought -------------------------------------------------------------------------------------------------


def test_thoughts_the_model_believes_in_go_on() -> None:
    """Thoughts are numbered as they are asked for; the higher number of two is believed more."""
    thoughts: list[str] = []

    def reply(request: Any) -> Any:
        if request.kind == "select":
            number = int(request.messages[2]["content"].rsplit("thought ", 1)[1])
            return {"yes": float(number), "no": 0.0}
        if request.name == "answer":
            return " 42\n"
        thoughts.append(request.prompt)
        return f" thought {len(thoughts)}\n"

    mock = MockBackend(reply)
    state = tree_of_thought.think.run(question="Why?", depth=3, width=3, keep=2, backend=mock)
    assert few_shot_maths.answer(state) == 42
    # 3 thoughts; then 2 kept × 3; of thoughts 4 to 9 the last two go on.
    assert sum(request.name == "verdict" for request in mock.requests) == 3 + 6 + 6
    assert len(thoughts) == 3 + 6 + 6
    assert thoughts[0].endswith("assistant\nStep 1:")
    assert {prompt.rsplit("Step 1:", 1)[1] for prompt in thoughts[3:9]} == {
        " thought 3\nStep 2:",
        " thought 2\nStep 2:",
    }
    (last,) = (r for r in mock.requests if r.name == "answer")
    best = state["steps"]
    assert best[-1] == " thought 15"
    assert last.messages[2]["content"] == "".join(f"Step {i}:{t}\n" for i, t in enumerate(best, 1)) + "So the answer is"
    assert "verdict" not in last.prompt


def test_thoughts_plan_opens_where_values_are_compared() -> None:
    graph = tree_of_thought.think.plan({"question": "Why?", "depth": 3, "width": 3, "keep": 2})
    assert [request.name for request in graph.requests] == ["step_0", "verdict"] * 3
    ((_, end),) = graph.opens
    assert end.variable == "verdict"


# --- essay_judge -----------------------------------------------------------------------------------------------------


def test_judge_branches_share_the_essay_and_the_summary_reads_every_remark() -> None:
    remarks = iter(["r-clarity", "r-evidence", "r-structure"])
    scores = iter("352")

    def reply(request: Any) -> str:
        return {"remark": lambda: next(remarks), "score": lambda: next(scores)}.get(
            request.name, lambda: {"summary": "Well done.", "grade": "B"}[request.name]
        )()

    mock = MockBackend(reply)
    state = essay_judge.judge.run(essay="An essay.", backend=mock)
    assert state["remark"] == ["r-clarity", "r-evidence", "r-structure"]
    assert sorted(state["score"]) == ["2", "3", "5"]
    assert (state["summary"], state["grade"]) == ("Well done.", "B")
    first = mock.requests[0]
    assert all(request.messages[:2] == first.messages[:2] for request in mock.requests)
    assert first.messages[1] == {"role": "user", "content": "Here is an essay.\n\nAn essay."}
    (summary,) = (request for request in mock.requests if request.name == "summary")
    assert "clarity: r-clarity\nevidence: r-evidence\nstructure: r-structure\n" in summary.messages[2]["content"]
    assert [request.choices for request in mock.requests if request.name == "grade"] == [("A", "B", "C", "D")]


def test_judge_is_planned_to_its_end() -> None:
    graph = essay_judge.judge.plan([{"essay": essay} for essay in common.read_rows(DATA / "articles.jsonl")])
    assert len(graph.requests) == 4 * 8
    assert graph.critical_path == 3  # remarks, then their scores and the summary, then the grade
    assert graph.opens == []


# --- multi_document_qa -----------------------------------------------------------------------------------------------

ROW = {
    "Question: Which river?": [
        {"thought": "t", "action": "Search[A]", "observation": "Could not find [A]. Similar: ['B']."},
        {"thought": "t", "action": "Search[B]", "observation": "B lies on the C.\n"},
        {"thought": "t", "action": "Lookup[C]", "observation": "(Result 1 / 1) nothing"},
        {"thought": "t", "action": "Search[C]", "observation": "C is a river."},
        {"thought": "t", "action": "Search[B]", "observation": "B lies on the C.\n"},
        {"thought": "t", "action": "Finish[the C [river]]", "observation": "Episode finished, reward = 1\n"},
    ]
}


def test_documents_are_what_searches_found() -> None:
    assert multi_document_qa.question_of(ROW) == "Which river?"
    assert multi_document_qa.documents_of(ROW) == ["B lies on the C.", "C is a river."]
    assert multi_document_qa.expected(ROW) == "the C [river]"


def test_a_reader_per_document_and_an_answer_from_all_notes() -> None:
    notes = iter(["B is on C", "a river"])
    mock = MockBackend(lambda request: next(notes) if request.name == "note" else " C\n")
    documents = multi_document_qa.documents_of(ROW)
    state = multi_document_qa.answer_question.run(question="Which river?", documents=documents, backend=mock)
    assert multi_document_qa.answer(state) == "C"
    shared = "Document 1: B lies on the C.\n\nDocument 2: C is a river.\n\nQuestion: Which river?"
    assert {request.messages[1]["content"] for request in mock.requests} == {shared}
    assert [request.messages[2]["content"][:20] for request in mock.requests[:2]] == [
        "What does document 1",
        "What does document 2",
    ]
    assert mock.requests[2].messages[2]["content"].startswith("Notes: B is on C a river\n")
    assert mock.requests[2].messages[3]["content"] == "Answer:"


# --- the data --------------------------------------------------------------------------------------------------------


def test_our_rows_can_be_answered() -> None:
    """Arithmetic in `<<…>>` is right and leads to the answer; documents hold the answers to be found in them."""
    for row in common.read_rows(DATA / "gsm8k.jsonl"):
        sums = [part.split(">>")[0].split("=") for part in row["answer"].split("<<")[1:]]
        assert all(eval(left) == float(right) for left, right in sums), row
        assert float(sums[-1][1]) == few_shot_maths.expected(row)
    for row in common.read_rows(DATA / "hotpotqa.jsonl"):
        documents = multi_document_qa.documents_of(row)
        assert len(documents) == 2
        answer = multi_document_qa.expected(row)
        assert answer == "no" or any(
            answer in document for document in [*documents, multi_document_qa.question_of(row)]
        )


def test_public_files_have_the_format_that_the_programs_read(data_dir: Path) -> None:
    maths = common.read_rows(data_dir / "gsm8k_test.jsonl")
    assert len(maths) == 1319
    assert all(isinstance(few_shot_maths.expected(row), int) for row in maths)
    essays = common.read_rows(data_dir / "articles.jsonl")
    assert len(essays) == 25
    assert all(isinstance(essay, str) for essay in essays)
    questions = common.read_rows(data_dir / "hotpotqa_100.jsonl")
    assert len(questions) == 100
    documents = [multi_document_qa.documents_of(row) for row in questions]
    assert sum(map(bool, documents)) > 80
    assert sum(multi_document_qa.expected(row) != "" for row in questions) == 71


def test_a_plan_of_a_whole_public_file(data_dir: Path) -> None:
    rows = common.read_rows(data_dir / "articles.jsonl")
    graph = essay_judge.judge.plan([{"essay": essay} for essay in rows])
    assert len(graph.requests) == 25 * 8
    known = sum(len(json.dumps(essay)) for essay in rows)
    assert graph.unique_tokens < 2 * known < graph.total_tokens  # each essay once, not eight times
