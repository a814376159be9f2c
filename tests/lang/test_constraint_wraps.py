"""What stands around a value, tool calls, keys in any order, checks afterwards: the grammar and the value, both."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from radicel import Reply, function, gen
from radicel.backends.mock import MockBackend
from radicel.constraint import Constraint
from radicel.errors import ConstraintError, IncompleteOutputError, OutputValidationError
from radicel.runtime.grammar import GrammarCompiler
from radicel.schema.tool_calls import FORMATS, ToolCall, calls_of, tool_of
from radicel.testing import accepts


class Person(pydantic.BaseModel):
    """Someone."""

    name: str
    age: int = 3


def weather(city: str, days: int = 1) -> str:
    """The weather."""
    return f"{city}:{days}"


def test_keys_in_any_order_each_once_and_the_needed_ones() -> None:
    made = Constraint.of(Person, any_order=True)
    for good in ('{"age": 3, "name": "x"}', '{"name": "x", "age": 4}', '{"name": "x"}'):
        assert accepts(made, good)
    for bad in ('{"age": 3}', '{"age": 3, "age": 4, "name": "x"}', '{"name": "x", "zz": 1}', "{}"):
        assert not accepts(made, bad)
    opened = Constraint.of(
        {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "type": "object"}, any_order=True
    )
    assert accepts(opened, '{"zz": [], "b": null, "y": 1, "a": 2}')
    assert not accepts(opened, '{"zz": [], "b": 1}')


def test_too_many_keys_for_any_order_are_refused_by_name() -> None:
    schema = {"type": "object", "properties": {f"k{i}": {} for i in range(100)}}
    with pytest.raises(ConstraintError, match="any_order"):
        Constraint.of(schema, any_order=True)


def test_reasoning_comes_first() -> None:
    made = Constraint.from_gen(schema=Person, thinking=True)
    assert made is not None
    text = 'so <b>\n</think>\n\n{"name": "x", "age": 3}'
    assert accepts(made, text)
    assert not accepts(made, '{"name": "x", "age": 3}')
    assert not accepts(made, 'a</think>b</think>{"name": "x", "age": 3}')
    assert made.parse(text) == Person(name="x")
    with pytest.raises(IncompleteOutputError):
        made.parse("still thinking")


def test_a_prefix_and_a_list_with_separators() -> None:
    made = Constraint.of(int).listed(", ", least=2, most=3).prefixed("Numbers: ")
    assert accepts(made, "Numbers: 1, 22")
    for bad in ("Numbers: 1", "Numbers: 1, 2, 3, 4", "1, 2", "Numbers: 1,2"):
        assert not accepts(made, bad)
    assert made.parse("Numbers: 1, 22") == [1, 22]
    # The separator may occur inside a value.
    assert Constraint.of(list[int]).listed(", ").parse("[1, 2], [3]") == [[1, 2], [3]]
    rooted = Constraint.grammar('root ::= "a" | "b" root').listed("-")
    assert accepts(rooted, "ba-a-bba")
    assert not accepts(rooted, "ba-")


CALLS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>',
    "llama3": '{"name": "weather", "parameters": {"city": "Rome", "days": 2}}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]',
    "mistral11": '[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 2}',
}
MARKERS = {
    "hermes": [b"<tool_call>"],
    "llama3": [b"<|python_tag|>"],
    "mistral": [b"[TOOL_CALLS]"],
    "mistral11": [b"[TOOL_CALLS]", b"[ARGS]"],
}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_tool_calls_in_the_format_of_the_model(form: str, special: bool) -> None:
    made = Constraint.tools(
        [weather, Person, {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}]
    )
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *MARKERS[form]]
    compiler = GrammarCompiler(
        tokens, vocab_size=len(tokens), end_ids={256}, special_ids={257, 258} if special else set()
    )
    assert allowed(compiler, made, CALLS[form])
    assert not allowed(compiler, made, CALLS[form].replace("city", "town"))
    assert not allowed(compiler, made, CALLS[form].replace("Rome", '"'))
    assert not any(allowed(compiler, made, CALLS[other]) for other in FORMATS if other != form)
    (call,) = made.parse(CALLS[form])
    assert call == ToolCall("weather", {"city": "Rome", "days": 2}, {"city": "Rome", "days": 2})
    assert call.call(weather) == "Rome:2"


def allowed(compiler: GrammarCompiler, made: Constraint, text: str) -> bool:
    """Whether the masks let the text come, each special marker as its token, and any number of times."""
    ids: list[int] = []
    markers = {257 + i: name.decode() for i, name in enumerate(compiler.vocabulary.names[257:])}
    special = {i: name for i, name in markers.items() if i in compiler.vocabulary.markers}
    while text:
        marker = next((i for i, name in special.items() if text.startswith(name)), None)
        ids += list(text[0].encode()) if marker is None else [marker]
        text = text[1:] if marker is None else text.removeprefix(special[marker])
    matcher = compiler.compile(made).matcher()
    row = compiler.vocabulary.empty_mask()
    for token_id in ids:
        matcher.fill_mask_within(row, 400)  # type: ignore[attr-defined]
        forced = matcher.forced_tokens()
        if not row[token_id >> 5] >> (token_id & 31) & 1 or not matcher.accept(token_id):
            return False
        assert not forced or not special or forced[0] == token_id
    return matcher.is_complete()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "Person", "arguments": {"name": "x"}}, {"name": "Person", "arguments": {}}]',
        ),
        ("mistral11", '[TOOL_CALLS]Person[ARGS]{"name": "x"}[TOOL_CALLS]Person[ARGS]{}'),
        ("mistral11", 'Person{"name": "x"}Person{}'),
        (
            "llama3",
            '<|python_tag|>{"name": "Person", "parameters": {"name": "x"}}; {"name": "Person", "parameters": {}}',
        ),
    ],
)
def test_calls_are_read_with_their_markers_or_without(form: str, text: str) -> None:
    tool = {"name": "Person", "parameters": {"properties": {"name": {"type": "string"}}}}
    assert [call.arguments for call in calls_of(text, [tool_of(tool)])] == [{"name": "x"}, {}]
    for wrong in ("Person", "PersonPerson{}", "nobody{}", "Person[ARGS]x"):
        with pytest.raises(OutputValidationError):
            calls_of(wrong, [tool_of(tool)])


def test_several_calls_and_their_values() -> None:
    made = Constraint.tools([weather, Person])
    calls = made.parse(CALLS["hermes"] + '\n<tool_call>\n{"name": "Person", "arguments": {"name": "x"}}\n</tool_call>')
    assert [call.value for call in calls] == [{"city": "Rome", "days": 2}, Person(name="x")]
    assert len(calls_of('[TOOL_CALLS] [{"name": "Person", "arguments": {"name": "x"}}]', [tool_of(Person)])) == 1
    with pytest.raises(OutputValidationError):
        made.parse('{"name": "nobody", "arguments": {}}')


def test_wrong_tools_are_named() -> None:
    with pytest.raises(ConstraintError, match="empty"):
        Constraint.tools([])
    with pytest.raises(ConstraintError, match="'weather'"):
        Constraint.tools([weather, weather])
    with pytest.raises(ConstraintError, match="by name only"):
        Constraint.tools([print_all])


def print_all(*things: str) -> None:
    """Prints."""


UNIQUE: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": True}


@pytest.mark.parametrize(
    "schema",
    [
        UNIQUE,
        {"not": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": UNIQUE}}}},
        {"type": "string", "format": "regex"},
    ],
)
def test_what_no_mask_enforces_may_be_checked_afterwards(schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError):
        Constraint.of(schema)
    made = Constraint.of(schema, validate="after")
    assert made.checked


def test_a_value_that_fails_its_check_is_generated_again() -> None:
    @function
    def letters(s: Any) -> None:
        s += gen("x", 20, schema=UNIQUE, validate="after")

    replies = ['["a", "a"]', '["b", "b"]', '["a", "b"]']
    state = letters.run(backend=MockBackend([Reply(text) for text in replies]))
    assert state["x"] == ["a", "b"]
    assert state.meta("x").retries == 2
    with pytest.raises(OutputValidationError):
        letters.run(backend=MockBackend([Reply('["a", "a"]')] * 9))


def test_options_need_a_constraint() -> None:
    for options in ({"thinking": True}, {"on_budget": "close"}, {"validate": "after"}, {"any_order": True}):
        with pytest.raises(ConstraintError, match="needs a constraint"):
            Constraint.from_gen(**options)  # type: ignore[arg-type]
    with pytest.raises(ConstraintError, match="on_budget"):
        Constraint.from_gen(schema=int, on_budget="error")
