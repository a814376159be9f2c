"""Constraints: what makes one, what is refused at once and how, and the value of a finished text."""

from __future__ import annotations

import pickle
import re

import pydantic
import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError, IncompleteOutputError, OutputValidationError


class Contact(pydantic.BaseModel):
    name: str
    age: int

    @pydantic.field_validator("age")
    @classmethod
    def _adult(cls, age: int) -> int:
        if age < 18:
            raise ValueError("must be an adult")
        return age


def test_no_argument_is_no_constraint() -> None:
    assert Constraint.from_gen() is None


def test_two_kinds_are_both_named() -> None:
    with pytest.raises(ConstraintError, match="regex and choices"):
        Constraint.from_gen(choices=["a"], regex="[")


def test_a_constraint_passes_through() -> None:
    made = Constraint.regex("a+")
    assert Constraint.from_gen(schema=made) is made
    assert Constraint.of(made) is made


@pytest.mark.parametrize(
    ("arguments", "kind", "form"),
    [
        ({"schema": Contact}, "schema", "json"),
        ({"schema": {"type": "integer"}}, "schema", "json"),
        ({"schema": '{"type": "integer"}'}, "schema", "json"),
        ({"schema": True}, "schema", "json"),
        ({"json_schema": {"type": "integer"}}, "json_schema", "json"),
        ({"regex": "a+"}, "regex", "regex"),
        ({"regex": re.compile("a+", re.I)}, "regex", "regex"),
        ({"grammar": 'root ::= "a"'}, "grammar", "grammar"),
        ({"choices": ["a", "ab"]}, "choices", "choices"),
        ({"dtype": int}, "dtype", "regex"),
        ({"dtype": "float"}, "dtype", "regex"),
        ({"dtype": str}, "dtype", "json"),
    ],
)
def test_kinds(arguments: dict[str, object], kind: str, form: str) -> None:
    made = Constraint.from_gen(**arguments)  # type: ignore[arg-type]
    assert made is not None
    assert (made.kind, made.form) == (kind, form)
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))


def test_key_is_of_the_grammar_not_of_the_value() -> None:
    plain = Constraint.of({"type": "integer"})
    assert plain.key == Constraint.of(int).key == Constraint.json_schema({"type": "integer"}).key
    assert plain.key != Constraint.of({"type": "integer"}, whitespace="flexible").key
    assert Constraint.choices(["a", "b"]).key != Constraint.choices(["a"]).key


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ("{", None, ""),
        ({"type": "objekt"}, "type", "/type"),
        ({"items": "x"}, "items", "/items"),
        ({"enum": []}, "enum", "/enum"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum", "/minimum"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength", "/minLength"),
        ({"type": "string", "pattern": "^abc$", "maxLength": 2}, "pattern", "/pattern"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems", "/minItems"),
        ({"$ref": "#/$defs/nothing"}, "$ref", "/$ref"),
        ({"$ref": "https://elsewhere.example/x.json"}, "$ref", "/$ref"),
        ({"properties": {"a/b": {"pattern": "((?!ab).)*"}}}, "pattern", "/properties/a~1b/pattern"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems", "/uniqueItems"),
        ({"$dynamicRef": "#node"}, "$dynamicRef", "/$dynamicRef"),
        ({"$schema": "https://example.com/own-metaschema"}, "$schema", "/$schema"),
        ({"type": "string", "format": "regex"}, "format", "/format"),
        (False, "false", "/false"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "$ref", ""),
    ],
)
def test_refused_schemas_are_named_with_their_place(schema: object, keyword: str | None, pointer: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraint.of(schema)
    assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Constraint.choices([]), "empty"),
        (lambda: Constraint.choices(["a", "a"]), r"choices\[1\]='a' is repeated"),
        (lambda: Constraint.choices("abc"), "one string"),
        (lambda: Constraint.choices(["\ud800"]), "surrogate"),
        (lambda: Constraint.choices([1]), "not a string"),  # type: ignore[list-item]
        (lambda: Constraint.dtype(list), "int, float, bool or str"),
        (lambda: Constraint.of(3), "no type and no JSON schema"),
        (lambda: Constraint.of({"a": float("nan")}), "cannot be written as JSON"),
        (lambda: Constraint.regex("("), "invalid"),
        (lambda: Constraint.regex(3), "must be a string"),  # type: ignore[arg-type]
        (lambda: Constraint.of(int, whitespace="lots"), "'fixed' or 'flexible'"),
    ],
)
def test_refused_arguments(make: object, text: str) -> None:
    with pytest.raises(ConstraintError, match=text):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("made", "text", "value"),
    [
        (Constraint.of(Contact), '{"name": "Zoë", "age": 41}', Contact(name="Zoë", age=41)),
        (Constraint.of({"type": "array"}), "[1, {}]", [1, {}]),
        (Constraint.json_schema({"type": "array"}), "[1]", "[1]"),
        (Constraint.regex(r"\d+"), "12", "12"),
        (Constraint.grammar('root ::= "a"'), "a", "a"),
        (Constraint.choices(["a", "ab"]), "ab", "ab"),
        (Constraint.dtype(int), "-12", -12),
        (Constraint.dtype(float), "2.5", 2.5),
        (Constraint.dtype(bool), "False", False),
        (Constraint.dtype(str), '"a\\"b"', 'a"b'),
    ],
)
def test_values(made: Constraint, text: str, value: object) -> None:
    parsed = made.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("made", "text", "error"),
    [
        (Constraint.of(Contact), '{"name": "A', IncompleteOutputError),
        (Constraint.of(Contact), "", IncompleteOutputError),
        (Constraint.of(Contact), '{"name": "A", "age": 3}', OutputValidationError),
        (Constraint.of(Contact), '{"name": "A"}', OutputValidationError),
        (Constraint.of(Contact), "sorry", OutputValidationError),
        (Constraint.of({"type": "integer"}), '"a"', OutputValidationError),
        (Constraint.regex("abc"), "ab", IncompleteOutputError),
        (Constraint.regex("abc"), "b", OutputValidationError),
        (Constraint.choices(["abc", "b"]), "ab", IncompleteOutputError),
        (Constraint.choices(["abc", "b"]), "c", OutputValidationError),
        (Constraint.dtype(int), "-", IncompleteOutputError),
        (Constraint.dtype(int), "x", OutputValidationError),
    ],
)
def test_texts_that_are_no_values(made: Constraint, text: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        made.parse(text)
    assert caught.value.text == text  # type: ignore[attr-defined]


def test_a_custom_validator_is_named_as_such() -> None:
    with pytest.raises(OutputValidationError, match=r"Contact refused .* age: .*must be an adult"):
        Constraint.of(Contact).parse('{"name": "A", "age": 3}')
