"""The further programs of `examples/programs` without a model: prompts, parsing, tools, and the public files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from example_programs import DATA, PROGRAMS, load
from radicel import Constraint, MockBackend
from radicel.errors import ConstraintError

common = load("common")
generative_agents = load("generative_agents")
json_decoding = load("json_decoding")
map_reduce = load("map_reduce")
multi_chain_reasoning = load("multi_chain_reasoning")
multiple_choice = load("multiple_choice")
react = load("react")
tip_suggestion = load("tip_suggestion")
tool_calls = load("tool_calls")
two_turn_chat = load("two_turn_chat")


def test_every_program_is_in_the_table_and_says_how_to_run_it(repo_root: Path) -> None:
    page = (repo_root / "docs" / "examples.md").read_text(encoding="utf-8")
    names = {path.name for path in PROGRAMS.glob("*.py")} - {"common.py"}
    assert set(re.findall(r"^\| `(\w+\.py)` ", page, re.MULTILINE)) == names
    for name in names:
        about = load(name.removesuffix(".py")).__doc__
        assert about is not None
        assert f"python examples/programs/{name} [--data " in about


CALLS = {
    "essay_judge": ("judge", {"essay": "e"}),
    "few_shot_maths": ("solve", {"question": "q"}),
    "generative_agents": ("ask", {"question": "generate_pronunciatio", "arguments": {"action": "a"}}),
    "json_decoding": ("describe", {"document": "d"}),
    "map_reduce": ("answer_from_pages", {"question": "q", "pages": ["a", "b", "c"], "fan_in": 2}),
    "multi_chain_reasoning": ("reason", {"question": "q", "chains": 2}),
    "multi_document_qa": ("answer_question", {"question": "q", "documents": ["a", "b"]}),
    "multiple_choice": ("choose", {"question": "q", "choices": ["a", "b"]}),
    "react": ("answer_question", {"question": "q", "tools": {"Search": str}, "steps": 2}),
    "tip_suggestion": ("suggest", {"topic": "t", "number": 2}),
    "tool_calls": (
        "call_tools",
        {"request": "r", "tools": [{"name": "f", "parameters": {"type": "dict", "properties": {}}}], "most_calls": 2},
    ),
    "tree_of_thought": ("think", {"question": "q", "depth": 2, "width": 2, "keep": 1}),
    "two_turn_chat": ("chat", {"turns": ["a", "b"], "tokens": 8}),
}


def test_the_table_says_which_programs_are_planned_to_their_end(repo_root: Path) -> None:
    page = (repo_root / "docs" / "examples.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(\w+)\.py` .*\| (to its end|in part) \|$", page, re.MULTILINE))
    planned = {}
    for name, (program, arguments) in CALLS.items():
        graph = getattr(load(name), program).plan(arguments)
        assert graph.requests
        planned[name] = "in part" if graph.opens else "to its end"
    assert said == planned


# --- multiple_choice -------------------------------------------------------------------------------------------------


def test_choices_are_the_options_or_the_targets_of_the_task() -> None:
    listed = {"input": "Which (one)?\nOptions:\n(A) this (B) not\n(C) that", "target": "(C)"}
    bare = [{"input": "not True is", "target": "False"}, {"input": "True is", "target": "True"}]
    assert multiple_choice.choices_of(listed, [listed]) == ["(A)", "(C)"]
    assert multiple_choice.choices_of(bare[0], bare) == ["False", "True"]


def test_a_choice_follows_the_reasoning() -> None:
    mock = MockBackend({"reasoning": "Because.\nmore", "answer": "(B)"})
    state = multiple_choice.choose.run(question="Which?", choices=["(A)", "(B)"], backend=mock)
    assert state["answer"] == "(B)"
    assert mock.requests[0].messages[1]["content"] == "Which?\n\nThe answer is one of: (A), (B)"
    assert mock.requests[1].choices == ("(A)", "(B)")
    assert mock.requests[1].messages[-1]["content"] == "Because.\nThe answer is "


@pytest.mark.parametrize("name", ["boolean_expressions", "hyperbaton", "penguins_in_a_table", "snarks"])
def test_public_questions_have_their_target_among_the_choices(name: str, data_dir: Path) -> None:
    rows = common.read_rows(data_dir / f"bbh_{name}.json")
    assert len(rows) >= 146
    assert all(row["target"] in multiple_choice.choices_of(row, rows) for row in rows)


# --- two_turn_chat, tip_suggestion, multi_chain_reasoning ------------------------------------------------------------


def test_the_second_turn_continues_the_first() -> None:
    mock = MockBackend({"answer_1": "one", "answer_2": "two"})
    state = two_turn_chat.chat.run(turns=["first?", "second?"], tokens=9, backend=mock)
    assert [message["content"] for message in state.messages()[1:]] == ["first?", "one", "second?", "two"]
    assert [request.sampling.max_tokens for request in mock.requests] == [9, 9]
    assert two_turn_chat.cached(state, 2) == f"0 of {len(mock.requests[1].prompt.encode())}"


def test_public_chats_have_turns(data_dir: Path) -> None:
    rows = common.read_rows(data_dir / "mtbench_question.jsonl")
    graph = two_turn_chat.chat.plan([{"turns": row["turns"], "tokens": 8} for row in rows])
    assert (len(graph.requests), graph.critical_path) == (160, 2)


def test_tips_are_expanded_in_branches_that_see_all_of_them() -> None:
    mock = MockBackend(
        {"tip_1": " Feed it.", "tip_2": " Warm it\n", "expanded": ["long 1", "long 2"], "summary": "So."}
    )
    state = tip_suggestion.suggest.run(topic="dough", number=2, backend=mock)
    assert state["expanded"] == ["long 1", "long 2"]
    branches = [request for request in mock.requests if request.name == "expanded"]
    assert {request.messages[2]["content"] for request in branches} == {"1. Feed it\n2. Warm it\n"}
    assert [request.messages[3]["content"] for request in branches] == [
        "Expand this tip into two sentences: Feed it",
        "Expand this tip into two sentences: Warm it",
    ]
    assert mock.requests[-1].messages[3]["content"].endswith("long 1\nlong 2")


def test_public_topics_are_planned(data_dir: Path) -> None:
    rows = common.read_rows(data_dir / "topic.jsonl")
    graph = tip_suggestion.suggest.plan([{"topic": row["topic"], "number": row["number"]} for row in rows])
    assert len(graph.requests) == sum(2 * row["number"] + 1 for row in rows)


def test_chains_differ_by_their_seed_vote_and_are_merged() -> None:
    votes = iter([" 3\n", " 4\n", " 4\n"])
    mock = MockBackend(
        lambda request: {"chain": lambda: f"chain {request.sampling.seed}", "vote": lambda: next(votes)}.get(
            request.name, lambda: " 4\n"
        )()
    )
    state = multi_chain_reasoning.reason.run(question="2 + 2?", chains=3, backend=mock)
    assert state["chain"] == ["chain 0", "chain 1", "chain 2"]
    assert multi_chain_reasoning.voted(state) == 4
    assert {request.sampling.temperature for request in mock.requests if request.name == "chain"} == {0.7}
    merge = mock.requests[-1].messages[2]["content"]
    assert "Solution 1: chain 0\n\nSolution 2: chain 1\n\nSolution 3: chain 2\n\n" in merge


# --- json_decoding ---------------------------------------------------------------------------------------------------

CITY = {"name": "Karsk", "country": "Velland", "population": 1200000, "climate": "continental", "landmarks": ["Opera"]}


def test_the_same_text_is_right_by_regex_and_by_schema() -> None:
    mock = MockBackend({"by_regex": json.dumps(CITY), "by_schema": json.dumps(CITY)})
    state = json_decoding.describe.run(document="Karsk is …", backend=mock)
    assert json.loads(state["by_regex"]) == CITY
    assert state["by_schema"] == json_decoding.City(**CITY)
    assert json_decoding.facts(CITY) == ["Karsk", "Velland", 1200000, "continental", "Opera"]


@pytest.mark.parametrize(
    "change", [{"climate": "nice"}, {"population": -1}, {"landmarks": ["a", "b", "c", "d"]}, {"name": "x" * 41}]
)
@pytest.mark.parametrize("kind", ["by_regex", "by_schema"])
def test_the_same_texts_are_wrong_by_regex_and_by_schema(kind: str, change: dict[str, Any]) -> None:
    good, bad = json.dumps(CITY), json.dumps({**CITY, **change})
    mock = MockBackend({"by_regex": good, "by_schema": good, kind: bad})
    with pytest.raises(ConstraintError):
        json_decoding.describe.run(document="Karsk is …", backend=mock)


# --- generative_agents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("{kitchen,  bedroom, bathroom}", ["kitchen", "bedroom", "bathroom"]),
        ("Hobbs Cafe", ["Hobbs Cafe"]),
        ("a, b, a", ["a", "b"]),
    ],
)
def test_places(text: str, places: list[str]) -> None:
    assert generative_agents.listed(text) == places


def test_every_question_is_asked_by_its_name() -> None:
    replies = {
        "I rate it ": "7",
        "(Amara Diallo,": " paint, door",
        "": "🔧🚲",
        "For kneading dough, Amara Diallo goes to: ": None,
    }

    def reply(request: Any) -> str:
        last = request.messages[-1]
        found = replies[last["content"] if last["role"] == "assistant" else ""]
        return request.choices[1] if found is None else found

    rows = common.read_rows(DATA / "agent_calls.jsonl")
    assert {name for row in rows for name in row} == set(generative_agents.QUESTIONS)
    states = generative_agents.ask.run_batch(
        [generative_agents.call_of(row) for row in rows], backend=MockBackend(reply)
    )
    assert [state["answer"] for state in states] == ["7", "7", " paint, door", "🔧🚲", "Bakery", "oven room"]


# --- tool_calls ------------------------------------------------------------------------------------------------------


def test_the_files_types_become_json_schema() -> None:
    parameters = {
        "type": "dict",
        "properties": {
            "at": {"type": "tuple", "items": {"type": "float", "description": "x"}, "default": [0, 0]},
            "how": {"type": "string", "enum": ["a", "b"], "format": "made-up"},
            "data": {"type": "any"},
            "inner": {"type": "dict", "properties": {"n": {"type": "integer"}}, "required": ["n", "gone"]},
        },
        "required": ["at"],
    }
    schema = tool_calls.schema_of(parameters)
    assert schema == {
        "type": "object",
        "properties": {
            "at": {"type": "array", "items": {"type": "number"}},
            "how": {"type": "string", "enum": ["a", "b"]},
            "data": {},
            "inner": {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "required": ["n"],
                "additionalProperties": False,
            },
        },
        "required": ["at"],
        "additionalProperties": False,
    }
    jsonschema.Draft202012Validator.check_schema(schema)


TRUTH = [{"f": {"x": [1], "unit": ["m", "metre", ""]}}, {"g": {"o": [{"k": ["v"], "l": [""]}], "list": [[1, 2]]}}]


@pytest.mark.parametrize(
    ("calls", "right"),
    [
        ([("f", {"x": 1}), ("g", {"o": {"k": "V "}, "list": [1, 2]})], True),
        ([("g", {"o": {"k": "v"}, "list": [1.0, 2]}), ("f", {"x": 1, "unit": "Metre"})], True),
        ([("f", {"x": 1})], False),
        ([("f", {"x": 1}), ("f", {"x": 1})], False),
        ([("f", {"x": True}), ("g", {"o": {"k": "v"}, "list": [1, 2]})], False),
        ([("f", {"x": 1, "y": 2}), ("g", {"o": {"k": "v"}, "list": [1, 2]})], False),
        ([("f", {"x": 1}), ("g", {"o": {"k": "w"}, "list": [1, 2]})], False),
        ([("f", {"x": 1}), ("g", {"o": {"k": "v"}, "list": [2, 1]})], False),
        ([("f", {"x": 1}), ("g", {"o": {"k": "v"}, "list": [1]})], False),
    ],
)
def test_calls_are_compared_with_what_is_allowed(calls: list[Any], right: bool) -> None:
    assert tool_calls.matches([{"name": name, "arguments": given} for name, given in calls], TRUTH) is right


def first_allowed(truth: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Right calls made of the first allowed value of each argument; optional ones are left out."""

    def arguments(allowed: dict[str, Any]) -> dict[str, Any]:
        return {name: plain(values[0]) for name, values in allowed.items() if "" not in values}

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        return arguments(value) if isinstance(value, dict) else value

    return [{"name": name, "arguments": arguments(allowed)} for call in truth for name, allowed in call.items()]


def test_our_requests_run_and_their_truths_fit() -> None:
    truths = tool_calls.answers_beside(DATA / "bfcl.jsonl")
    for row in common.read_rows(DATA / "bfcl.jsonl"):
        calls = first_allowed(truths[row["id"]])
        mock = MockBackend({"calls": json.dumps(calls)})
        state = tool_calls.call_tools.run(**tool_calls.call_of(row, 4), backend=mock)
        assert tool_calls.matches(state["calls"], truths[row["id"]])
        assert row["function"][0]["name"] in mock.requests[0].messages[0]["content"]
        wrong = MockBackend({"calls": json.dumps([{**calls[0], "name": "rm"}])})
        with pytest.raises(ConstraintError):
            tool_calls.call_tools.run(**tool_calls.call_of(row, 4), backend=wrong)


@pytest.mark.parametrize(
    ("name", "fit"),
    [("BFCL_v4_simple_python", 398), ("BFCL_v4_parallel", 199)],
)
def test_public_functions_become_schemas_that_their_right_calls_fit(name: str, fit: int, data_dir: Path) -> None:
    """All but three: their truths leave out an argument that the function's description requires."""
    rows = common.read_rows(data_dir / f"{name}.jsonl")
    truths = tool_calls.answers_beside(data_dir / f"{name}.jsonl")
    fitting = 0
    for row in rows:
        schema = tool_calls.calls_schema(row["function"], 8)
        Constraint.json_schema(schema)
        calls = first_allowed(truths[row["id"]])
        assert tool_calls.matches(calls, truths[row["id"]]), row["id"]
        fitting += jsonschema.Draft202012Validator(schema).is_valid(calls)
    assert fitting == fit


# --- react -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1874 - 1811", "63"),
        ("2 * (3 + 4) // 5", "2"),
        ("1,250 / 4", "312.5"),
        ("-7 % 4", "1"),
        ("1 / 0", "This cannot be computed (division by zero)."),
        ("__import__('os')", "This cannot be computed (only numbers and + - * / // % are known)."),
        ("2 ** 99999999", "This cannot be computed (only numbers and + - * / // % are known)."),
        ("'a' * 9", "This cannot be computed (only numbers and + - * / // % are known)."),
    ],
)
def test_the_calculator(text: str, said: str) -> None:
    assert react.calculate(text) == said


@pytest.mark.parametrize("text", ["", "1 +", "(" * 5000, "x = 1"])
def test_the_calculator_on_what_is_no_sum(text: str) -> None:
    assert react.calculate(text).startswith("This cannot be computed")


def test_the_search_prefers_rare_words() -> None:
    search = react.Search(
        ["the town of Senn", "the town of Fell", "the town of Wick, and the Senn"], most_characters=16
    )
    assert search("the town FELL") == "the town of Fell"
    assert search("Wick") == "the town of Wick"
    assert search("nowhere") == "Nothing was found."
    assert react.Search([])("x") == "Nothing was found."


def test_tools_are_run_and_their_results_seen() -> None:
    mock = MockBackend(
        {
            "thought": [" look", " compute", " done"],
            "tool": ["Search", "Calculate", "Finish"],
            "input": ["Senn]", "6 * 7]", "42]"],
        }
    )
    tools = {"Search": react.Search(["The Senn is 6 by 7."]), "Calculate": react.calculate}
    state = react.answer_question.run(question="How big?", tools=tools, steps=5, backend=mock)
    assert state["answer"] == "42"
    assert state["used"] == ["Search[Senn]", "Calculate[6 * 7]", "Finish[42]"]
    assert state.text().endswith(
        "Question: How big?\nThought 1: look\nAction 1: Search[Senn]\nObservation 1: The Senn is 6 by 7.\n"
        "Thought 2: compute\nAction 2: Calculate[6 * 7]\nObservation 2: 42\nThought 3: done\nAction 3: Finish[42]\n"
    )


def test_the_last_step_can_only_finish() -> None:
    mock = MockBackend(lambda request: request.choices[0] if request.kind == "select" else " x]")
    tools = {"Search": react.Search([]), "Calculate": react.calculate}
    state = react.answer_question.run(question="?", tools=tools, steps=2, backend=mock)
    assert state["used"] == ["Search[ x]", "Finish[ x]"]
    assert [request.choices for request in mock.requests if request.choices] == [
        ("Search", "Calculate", "Finish"),
        ("Finish",),
    ]


# --- map_reduce ------------------------------------------------------------------------------------------------------


def test_notes_are_merged_in_groups_and_a_page_is_cited() -> None:
    mock = MockBackend(
        lambda request: {
            "note": lambda: "n" + re.findall(r"page-(\d)", request.prompt)[0],
            "useful": lambda: "yes" if "page-2" in request.prompt else "no",
            "merged": lambda: "+".join(re.findall(r"Page \d: (n\d)", request.prompt)),
            "answer": lambda: "so",
            "cited": lambda: "5",
        }[request.name]()
    )
    pages = [f"page-{number}" for number in range(1, 6)]
    state = map_reduce.answer_from_pages.run(question="why?", pages=pages, fan_in=2, backend=mock)
    assert state["note"] == ["n1", "n2", "n3", "n4", "n5"]
    assert map_reduce.useful(state) == "2"
    assert (state["answer"], state["cited"]) == ("so", "5")
    (final,) = (request for request in mock.requests if request.name == "answer")
    merges = [request.prompt for request in mock.requests if request.name == "merged"]
    assert len(merges) == 3 + 2  # five notes, then three, then two
    assert final.messages[1]["content"].startswith("Notes on the text:\n")
    assert all("page-1" not in prompt for prompt in merges)  # what is merged are notes; pages stay in their branches
    assert mock.requests[-1].choices == ("1", "2", "3", "4", "5")
    assert mock.requests[-1].messages[-1]["content"] == "so (page "
