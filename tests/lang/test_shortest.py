"""How long a constraint's shortest text is, and which strings no text of it has."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from radicel import Constraint
from radicel.schema.shortest import few_texts, fewest_tokens, never_contains, shortest_bytes


class Part(BaseModel):
    score: int = Field(ge=10, le=5000)
    tags: list[str] = Field(min_length=2)
    kind: Literal["aa", "b"]
    next: Part | None = None
    code: str = Field(pattern="^ab+c", min_length=6)


SHORTEST = [
    (Constraint.of(Part), '{"score": 10, "tags": ["", ""], "kind": "b", "code": "abcccc"}'),
    (Constraint.of(int), "0"),
    (Constraint.of({"type": "integer", "minimum": 100}), "100"),
    (Constraint.of({"type": "integer", "maximum": -10}), "-10"),
    (Constraint.of(bool), "true"),
    (Constraint.of(str | None), '""'),
    (Constraint.of({"type": "string", "minLength": 3}), '"aaa"'),
    (Constraint.of(dict[str, int]), "{}"),
    (Constraint.of(tuple[int, str]), '[0, ""]'),
    (Constraint.of({"type": "object", "required": ["a", "b"]}), '{"a": 0, "b": 0}'),
    (Constraint.of({"enum": ["é", "abc"]}), '"é"'),
    (Constraint.regex("(ab|c){3}"), "ccc"),
    (Constraint.regex("[é-ü]{3}"), "ééé"),
    (Constraint.grammar('root ::= "(" root ")" | "xyz"'), "xyz"),
    (Constraint.choices(["abc", "de"]), "de"),
    (Constraint.dtype(float), "0"),
    (Constraint.dtype(bool), "True"),
    (Constraint.dtype(str), '""'),
]


@pytest.mark.parametrize("case", range(len(SHORTEST)))
def test_shortest_text(case):
    constraint, text = SHORTEST[case]
    assert shortest_bytes(constraint) == len(text.encode())


def test_flexible_white_space_needs_none():
    assert shortest_bytes(Constraint.of(tuple[int, str], whitespace="flexible")) == len('[0,""]')


CONTAINS: list[tuple[Constraint, str, bool]] = [
    (Constraint.of(Part), "\n", True),
    (Constraint.of(Part), ', "nope":', True),
    (Constraint.of(Part), '{"x', True),
    (Constraint.of(Part), '"', False),
    (Constraint.of(Part), ', "kind"', False),
    (Constraint.of(Part), "Observation:", False),
    (Constraint.of(Part), "\\n", False),
    (Constraint.of(list[int]), "\n", True),
    (Constraint.of(list[int], whitespace="flexible"), "\n", False),
    (Constraint.regex("[0-9]+"), ".", True),
    (Constraint.regex(r"[0-9]+\."), ".", False),
    (Constraint.regex("(ab)+"), "bb", True),
    (Constraint.regex("(ab)+"), "bab", False),
    (Constraint.regex("(aab|b)+"), "aaab", True),
    (Constraint.choices(["yes", "no"]), "so", True),
    (Constraint.choices(["yes", "no"]), "es", False),
    (Constraint.grammar('root ::= "(" root ")" | "x"'), "((", False),
    (Constraint.grammar('root ::= "(" root ")" | "x"'), ")(", True),
    (Constraint.of(int), "", False),
]


@pytest.mark.parametrize("case", range(len(CONTAINS)))
def test_what_no_text_has_inside(case):
    constraint, stop, never = CONTAINS[case]
    assert never_contains(constraint, stop) is never


def test_fewest_tokens():
    vocabulary = {b"a", b"b", b"ab", b"c", b"yes", b"n", b"o"}
    assert fewest_tokens(Constraint.choices(["yesyes", "noo"]), vocabulary) == 2
    assert fewest_tokens(Constraint.regex("(ab){2,3}"), vocabulary) == 2
    assert fewest_tokens(Constraint.regex("(ab){7,}"), vocabulary) == 5  # 14 bytes, at most 3 in a token
    assert fewest_tokens(Constraint.choices(["zz"]), vocabulary) == 1  # not spelled by these tokens: the bound


def test_few_texts():
    assert few_texts(Constraint.regex("a(b|c)?")) == ("a", "ab", "ac")
    assert few_texts(Constraint.regex("a+")) is None
    assert few_texts(Constraint.regex(".{2}")) is None
    assert few_texts(Constraint.of(int)) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.data())
def test_no_text_of_a_schema_is_shorter_and_none_has_what_never_comes(value, data):
    """A schema made of a value: the value is a text of it."""
    text = json.dumps(value, ensure_ascii=False)
    constraint = Constraint.of(_schema(value))
    assert shortest_bytes(constraint) <= len(text.encode())
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 6))]
    assert not never_contains(constraint, stop)


def _schema(value):
    if isinstance(value, dict):
        return {"type": "object", "properties": {k: _schema(v) for k, v in value.items()}, "required": list(value)}
    if isinstance(value, list):
        return {"type": "array", "prefixItems": [_schema(v) for v in value], "minItems": len(value)}
    kinds = {bool: "boolean", int: "integer", str: "string", type(None): "null"}
    return {"type": kinds[type(value)]}
