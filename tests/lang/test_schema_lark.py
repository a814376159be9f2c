"""Tokens as llguidance's expressions: what is excluded stands outside, where that is the same language."""

from __future__ import annotations

import pytest
from radicel.constraint import Constraint
from radicel.schema.lark import expression
from radicel.schema.patterns import one_of, other_names
from radicel.schema.quoted import json_string
from radicel.schema.regex_ast import Node, both, char, repeat, seq
from radicel.testing import accepts

A, B, C = map(char, "abc")
NOT_C = both(repeat(B, 0, None), other_names(["c", "bb"]))


@pytest.mark.parametrize(
    ("node", "written"),
    [
        (seq(A, NOT_C, C), "/ab*c/ & (~(/a(?:bb|c)c/))"),
        (seq(one_of(["ax", "by"]), NOT_C, A), "/(?:ax|by)b*a/ & (~(/(?:ax|by)(?:bb|c)a/))"),
        # Of several lengths: "aa" without one of the names could be cut at the other place.
        (seq(repeat(A, 1, 2), NOT_C, C), "/a{1,2}/ (/b*/ & (~(/bb|c/))) /c/"),
        (seq(NOT_C, NOT_C), "(/b*/ & (~(/bb|c/))) (/b*/ & (~(/bb|c/)))"),
    ],
)  # fmt: skip
def test_an_exclusion_stands_outside(node: Node, written: str) -> None:
    assert expression(node) == written


def test_an_open_key_is_one_free_string_without_some_names() -> None:
    text = expression(json_string(other_names(["id"])))
    assert text.startswith(r"/\x{22}(?:")
    assert text.endswith(r"& (~(/\x{22}id\x{22}/))")


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"id": 1}', True),
        ('{"id": "x"}', False),
        ('{"i": "x"}', True),
        ('{"idd": "x"}', True),
        ('{"id": 1, "i": "x"}', True),
        ('{"id": 1, "id": "x"}', False),
        ('{"i": "x", "id": 1}', False),
        ('{"x": "x", "i\\"d": "x"}', True),
    ],
)
def test_open_keys_never_repeat_declared_ones(text: str, allowed: bool) -> None:
    made = Constraint.of({"properties": {"id": {"type": "integer"}}, "additionalProperties": {"type": "string"}})
    assert accepts(made, text) is allowed
