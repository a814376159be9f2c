"""JSON schemas brought to normal form: each keyword is enforced exactly, rewritten, or refused by name.

Rows: a schema, texts that must be accepted, texts that must be rejected. `None` for the texts: the schema is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.testing import accepts

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
OBJECT = {"type": "object"}
OBJECT_A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

ENFORCED: list[tuple[Any, list[str], list[str]]] = [
    # anyOf beside other keywords
    (
        {**OBJECT_A, "additionalProperties": False, "anyOf": [{"required": ["a"]}]},
        ['{"a": 1}'],
        ['{"zzz": true}', '"any"', "{}"],
    ),
    # allOf of two, one by reference
    (
        {
            "$defs": {"Base": {"properties": {"x": {"type": "integer", "minimum": 10}}, "required": ["x"]}},
            "type": "object",
            "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"y": {"type": "string"}}, "required": ["y"]}],
        },
        ['{"x": 12, "y": "k"}'],
        ['{"x": 1, "y": "k"}', '{"y": "k"}', "5"],
    ),
    ({"type": "object"}, ["{}", '{"a": [1]}'], ["[]"]),
    ({"type": "object", "required": ["a"]}, ['{"a": 1}', '{"a": 1, "b": 2}'], ["{}", '{"b": 1}']),
    # numbers
    ({"type": "integer", "minimum": 2}, ["2", "31"], ["1", "2.5", "02"]),
    ({"type": "integer", "minimum": -5}, ["-5", "0"], ["-6"]),
    ({"type": "number", "minimum": 1, "maximum": 5}, ["1", "4.9", "5"], ["5.7", "0.9"]),
    ({"exclusiveMinimum": 0, "type": "number"}, ["0.1", "3"], ["0", "0.0", "-1"]),
    ({"type": "integer", "multipleOf": 6, "allOf": [{"multipleOf": 4}]}, ["12", "0", "-24"], ["6", "4", "13"]),
    ({"$schema": DRAFT_4, "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3", "2"]),
    ({"type": "integer", "maximum": 2**63 - 1}, [str(2**63 - 1)], [str(2**63)]),
    # oneOf
    ({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}, ["3"], ["7"]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["1.5", "[]"]),
    # optional and required in any order of the schema
    (
        {"properties": {"r": {}, "o": {}}, "required": ["r"], "type": "object", "additionalProperties": False},
        ['{"r": 1}', '{"r": 1, "o": 2}'],
        ["{}", '{"o": 2}'],
    ),
    (
        {"properties": {"o": {}, "r": {}}, "required": ["r"], "type": "object", "additionalProperties": False},
        ['{"r": 2}', '{"o": 1, "r": 2}'],
        ['{"o": 1}'],
    ),
    # odd names and values
    (
        {"properties": {"a (b).*": {"type": "integer"}}, "type": "object", "additionalProperties": False},
        ['{"a (b).*": 1}'],
        ['{"a bb": 1}'],
    ),
    ({"enum": ['a"b', "c\\d", "e\nf"]}, ['"a\\"b"', '"c\\\\d"', '"e\\nf"'], ['"ab"', '"c"']),
    ({"enum": ["在线"]}, ['"在线"'], ['"在"', '"离线"']),
    ({"enum": [1, "1", None, True, [1], {"k": 2}]}, ["1", '"1"', "null", "[1]", '{"k": 2}'], ["2", "false", "[2]"]),
    ({"const": {"k": [1, 2.5]}}, ['{"k": [1, 2.5]}'], ['{"k": [1]}', "{}"]),
    # references
    (
        {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "type": "object"},
        ['{"a": 1, "b": 2}'],
        ['{"b": "x"}'],
    ),
    (
        {"properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, **OBJECT},
        ['{"v": 1, "next": {"v": 2, "next": null}}'],
        ['{"v": 1, "next": {"v": "x"}}', '{"next": {"next": {"next": 1}}}'],
    ),
    ({"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string"}}}, ['"ab"'], ['"abc"', "1"]),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"s": {"type": "string"}},
            "properties": {"p": {"$ref": "#/definitions/s", "maxLength": 1}},
        },
        ['{"p": "abc"}'],
        ['{"p": 1}'],
    ),
    ({"$anchor": "here", "properties": {"n": {"$ref": "#here"}}, "type": "object"}, ['{"n": {"n": {}}}'], ['{"n": 1}']),
    # strings: pattern is a search, and holds beside lengths and formats
    ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"']),
    ({"type": "string", "pattern": "^a+$"}, ['"aa"'], ['"ab"', '""']),
    ({"type": "string", "pattern": "^a", "maxLength": 2}, ['"ab"'], ['"abc"', '"b"']),
    ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ['"ba"'], ['"a"', '"b"']),
    ({"type": "string", "minLength": 2, "maxLength": 2}, ['"\\n\\t"', '"é😀"'], ['"é"', '"abc"']),
    ({"type": "string", "pattern": '^[^"]*$'}, ['"a\\\\b"', '"\\n"'], ['"a\\"b"']),
    ({"type": "string", "pattern": "^[^\\\\]*$"}, ['"a\\"b"'], ['"a\\\\b"']),
    ({"type": "string"}, ['"\\u0000"', '"\x7f"'], ['"\n"', '"\\ud800"', '"a']),
    # negation, conditions, dependencies
    ({"not": {"type": "string"}}, ["1", "[]"], ['"a"']),
    ({"type": "string", "not": {"enum": ["a", "bc"]}}, ['"b"', '""', '"bcd"'], ['"a"', '"bc"']),
    ({"type": "integer", "not": {"enum": [0, 5]}}, ["1", "-1", "50"], ["0", "5"]),
    ({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    (
        {
            "properties": {"k": {"enum": ["a", "b"]}, "v": {}},
            "required": ["k", "v"],
            "if": {"properties": {"k": {"const": "a"}}},
            "then": {"properties": {"v": {"type": "integer"}}},
            "else": {"properties": {"v": {"type": "string"}}},
            "type": "object",
        },
        ['{"k": "a", "v": 1}', '{"k": "b", "v": "s"}'],
        ['{"k": "a", "v": "s"}', '{"k": "b", "v": 1}'],
    ),
    (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b": 1}', '{"a": 1, "b": 1}'],
        ['{"a": 1}'],
    ),
    # arrays
    ({"prefixItems": [{"type": "integer"}], "items": False, "type": "array"}, ["[]", "[1]"], ["[1, 2]", '["a"]']),
    ({"items": [{"type": "integer"}], "additionalItems": {"type": "null"}}, ["[1, null]"], ["[1, 2]"]),
    ({"type": "array", "items": {"minimum": 1}, "minItems": 1, "maxItems": 2}, ["[1]", "[1, 2]"], ["[]", "[1, 2, 3]"]),
    ({"type": "array", "contains": {"const": 1}, "maxItems": 2}, ["[1]", "[2, 1]"], ["[]", "[2]", "[2, 3]"]),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, ["[]", '["b", "a"]'], ['["a", "a"]']),
    # open keys never repeat a declared one, however it is spelled
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        ['{"a": 1, "b": "x"}', '{"b": "x"}'],
        ['{"a": "x"}', '{"a": 1, "a": "x"}', '{"\\u0061": "x"}', '{"b": 1, "\\u0061": "x"}'],
    ),
    (
        {"type": "object", "properties": {'q"': {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        ['{"q\\"": 1, "r": "x"}'],
        ['{"q\\"": "x"}', '{"r": 1}'],
    ),
    (
        {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}},
        ['{"n_a": 1, "z": "x"}'],
        ['{"n_a": "x"}', '{"\\u006e_a": "x"}'],
    ),
    (
        {"properties": {"ab": {"minimum": 5}}, "patternProperties": {"^a": {"type": "integer"}}, "type": "object"},
        ['{"ab": 6}'],
        ['{"ab": 4}', '{"ab": "x"}'],
    ),
    ({"type": "string", "pattern": "^(?!x)[a-z]$"}, ['"a"'], ['"x"', '"ab"']),
    ({"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z]).{3,}$"}, ['"ab1"', '"1-z"'], ['"abc"', '"123"', '"a1"']),
    ({"type": "string", "not": {"pattern": "^a"}}, ['"b"', '""', '"ba"'], ['"a"', '"ab"']),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ["1", "2.5", '"a"'], ["2", "7"]),
    ({"type": "number", "not": {"type": "integer"}}, ["1.5", "-0.25", "123456789012.125"],
     ["1", "1.0", "0.00", "9000000000000000052000.55"]),
    ({"type": "integer", "minimum": 9007199254740993}, ["9007199254740993"], ["9007199254740992"]),
    ({"type": "number", "exclusiveMaximum": 0.1}, ["0.09", "0.0999", "-7"], ["0.1", "0.10", "0.2"]),
    ({"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}}},
     ['{"a": 1}', '{"ab": 3}', '{"xb": "s"}', '{"x": null}'], ['{"ab": 1}', '{"a": 1.5}', '{"xb": 2}', '{"ab": "s"}']),
    ({"type": "object", "propertyNames": {"pattern": "a", "maxLength": 3}}, ['{"ba": 1}'], ['{"baba": 1}', '{"b": 1}']),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"ab": 1}'], ['{"A": 1}', '{"": 1}']),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, ['{"a": 1}', "{}"], ['{"c": 1}']),
    ({"properties": {"a": False}, "type": "object"}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    ({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    (
        {**OBJECT, "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False, "maxProperties": 2},
        ["{}", '{"a": 1, "c": 2}', '{"b": 1}'],
        ['{"a": 1, "b": 2, "c": 3}'],
    ),
    (
        {
            "allOf": [{"properties": {"a": {}}}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
            "type": "object",
        },
        ['{"b": 1, "a": 1}', "{}"],
        ['{"c": 1}'],
    ),
    # what is no keyword in a draft is ignored there
    ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 3}, ["4"], []),
    ({"type": "string", "format": "no-such-format"}, ['"x"'], ["1"]),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2024-02-30"', '"2024-13-01"']),
    ({"type": "string", "format": "ipv6"}, ['"::1"', '"1:2:3:4:5:6:7:8"'], ['"1::2::3"', '"12345::"']),
    ({"type": "string", "format": "email"}, ['"a.b@example.com"'], ['"a..b@example.com"', '"a@"']),
    ({"type": "string", "format": "hostname"}, ['"a-b.example"', '"a--b.com"'], ['"-a.com"', '"xn--x"', '"a_b"']),
    (True, ["1", '{"a": [null, {"b": 1.5e3}]}'], ["tru", "{,}"]),
]  # fmt: skip

REFUSED: list[tuple[Any, str]] = [
    ({"type": "string", "pattern": "((?!ab).)*"}, "pattern"),
    ({"type": "string", "pattern": r"^(a)\1$"}, "pattern"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "string", "contentMediaType": "application/json"}, "contentMediaType"),
    ({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(8)]} for i in range(8)]}, "anyOf"),
]


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED, ids=lambda v: str(v)[:60])
def test_keywords_are_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    made = Constraint.json_schema(schema)
    assert [text for text in good if not accepts(made, text)] == []
    assert [text for text in bad if accepts(made, text)] == []


@pytest.mark.parametrize(("schema", "keyword"), REFUSED, ids=lambda v: str(v)[:60])
def test_what_no_mask_enforces_is_refused_by_name(schema: Any, keyword: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        accepts(schema, "1")
    assert caught.value.keyword == keyword


def test_remote_documents_are_given_and_never_fetched() -> None:
    documents = {"https://example.com/int.json": {"type": "integer"}}
    made = Constraint.json_schema({"items": {"$ref": "https://example.com/int.json"}, "type": "array"}, documents)
    assert accepts(made, "[1]")
    assert not accepts(made, '["a"]')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 10**9},
        {"type": "array", "items": {"type": "string", "maxLength": 1000}, "maxItems": 10**6},
        {"enum": [f"value {i}" for i in range(3000)]},
        {"type": "string", "pattern": "[ab]*a[ab]{13}"},
        {"type": "string", "pattern": "(a*)*b"},
    ],
    ids=lambda v: str(v)[:40],
)
@pytest.mark.timeout(20)
def test_large_bounds_take_no_long_time(schema: Any) -> None:
    accepts(schema, '"b"')


def test_many_optional_keys_and_many_choices() -> None:
    keys = {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(2000)}}
    assert accepts(keys, '{"k5": 1, "zz": 2}')
    assert not accepts(keys, '{"k5": "x"}')
    many = [f"value {i}" for i in range(20_000)]
    assert accepts(choices=many, text="value 7")
    assert accepts(choices=many, text="value 19999")
    assert not accepts(choices=many, text="value 20000")


@pytest.mark.timeout(60)
def test_deep_nesting_is_an_error_and_nothing_else() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(10_000):
        schema = {"items": schema, "type": "array"}
    with pytest.raises(ConstraintError, match="deep|recursion"):
        Constraint.of(schema)
    assert accepts(int, "1")


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"$ref": "#"}, "/$ref"),
        ({"allOf": [{"$ref": "#"}], "type": "string"}, "/allOf/0/$ref"),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, "/anyOf/0/$ref"),
        ({"oneOf": [{"type": "null"}, {"$ref": "#"}]}, "/oneOf/1/$ref"),
        ({"if": {"$ref": "#"}, "then": {"type": "string"}}, "/if/$ref"),
        ({"not": {"$ref": "#"}}, None),
        (
            {
                "properties": {"x": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "#/$defs/a/$ref",
        ),
        ({"$dynamicAnchor": "n", "$dynamicRef": "#n"}, "#n/$dynamicRef"),
    ],
    ids=str,
)
def test_a_reference_to_itself_in_the_same_place_is_refused(schema: dict[str, Any], pointer: str | None) -> None:
    with pytest.raises(ConstraintError, match="refers to itself in the same place") as caught:
        Constraint.json_schema(schema)
    assert caught.value.keyword in ("$ref", "$dynamicRef")
    assert pointer is None or caught.value.pointer == pointer


def test_a_reference_to_itself_further_down_is_recursion() -> None:
    assert accepts({"properties": {"a": {"$ref": "#"}}, "type": "object"}, '{"a": {"a": {}}}')
    assert not accepts({"properties": {"a": {"$ref": "#"}}, "type": "object"}, '{"a": {"a": 1}}')
    twice = {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}}
    assert accepts(twice, '"x"')
