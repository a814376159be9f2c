"""The quick check of metaschemas says what a validator says; what it knows of Unicode is what Python knows."""

from __future__ import annotations

import copy
import json
import pickle
import random
import subprocess
import sys
import unicodedata
from typing import Any

import pytest
from radicel.schema import charsets
from radicel.schema.documents import DRAFTS, _metaschema, admits, root_sub
from radicel.schema.metaschema import _TABLES, obeys_metaschema
from radicel.schema.patterns import one_of

VALUES: list[Any] = [
    None, True, False, 0, -1, 1.0, 1.5, "", "a", "string", "a#b", [], ["a"], ["a", "a"], ["string", "null"], [1, 1.0],
    [1, True], [{}], [True], {}, {"type": "string"}, {"a": ["b"]}, {"a": [1]}, {"a": {"minLength": -1}}, {"a": True},
]  # fmt: skip
KEYWORDS = sorted({keyword for table in _TABLES.values() for keyword in table} | {"unknown"})


def disagreements(schema: Any) -> list[str]:
    return [
        draft.name
        for draft in DRAFTS
        if obeys_metaschema(schema, draft.year) != (next(_metaschema(draft).iter_errors(schema), None) is None)
    ]


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_each_keyword_with_each_kind_of_value(keyword: str) -> None:
    for value in VALUES:
        for schema in ({keyword: value}, {"maximum": 1, "minimum": 1, "items": {keyword: value}}):
            assert disagreements(schema) == [], schema


def test_random_schemas_of_several_keywords() -> None:
    draw = random.Random(7)

    def schema(depth: int) -> Any:
        made: dict[str, Any] = {}
        for keyword in draw.sample(KEYWORDS, draw.randint(0, 4)):
            kind = draw.randint(0, 3) if depth else 0
            made[keyword] = [
                copy.deepcopy(draw.choice(VALUES)),
                schema(depth - 1) if depth else True,
                [schema(depth - 1)] if depth else [],
                {"k": schema(depth - 1)} if depth else {},
            ][kind]
        return made

    for _ in range(150):
        one = schema(3)
        assert disagreements(one) == [], one


@pytest.mark.parametrize("schema", [True, False, None, 1, "x", []])
def test_what_is_no_object(schema: Any) -> None:
    assert disagreements(schema) == []


def test_classes_of_characters_are_those_of_python() -> None:
    tests: dict[str, Any] = {
        "word": lambda c: c.isalnum() or c == "_",
        "digit": str.isdecimal,
        "space": str.isspace,
    }
    sets = {name: charsets.category(name, False) for name in tests}
    names = {short: charsets.general_category(short) for short in ("L", "Lu", "Nd", "Cn", "Co", "Zs")}
    for code in [*range(0x3100), *range(0x1F000, 0x21000), *range(0xDFF00, 0xE0200), *range(0xEFF00, 0xF0100)]:
        char = chr(code)
        for name, test in tests.items():
            assert charsets.contains(sets[name], code) == test(char), (name, hex(code))
        own = unicodedata.category(char)
        for short, chars in names.items():
            assert charsets.contains(chars or (), code) == own.startswith(short), (short, hex(code))


def test_no_class_of_characters_reaches_beyond_the_assigned_planes() -> None:
    beyond = "".join(map(chr, [*range(0x40000, 0xE0000), *range(0xE1000, 0x110000)]))
    assert not any(char.isalnum() or char.isspace() for char in beyond)
    assert {unicodedata.category(char) for char in beyond} == {"Cn", "Co"}


def test_a_node_keeps_its_hash_to_itself() -> None:
    node = one_of(["ab", "ac"])
    hash(node)
    copied = pickle.loads(pickle.dumps(node))
    assert not hasattr(copied, "_hash")
    assert (copied, hash(copied)) == (node, hash(node))


def test_a_plain_schema_admits_what_a_validator_admits() -> None:
    values = [None, True, False, 0, 1, 1.0, 1.5, "", "1", [], [1], [1.0], [True], {}, {"a": 1}, {"a": 1.0}, 10**20]
    draw = random.Random(3)
    names = ["integer", "number", "string", "null", "array", "object", "boolean", ["integer", "string"]]
    for _ in range(400):
        said = {
            "type": draw.choice(names),
            "enum": draw.sample(values, draw.randint(0, 5)),
            "const": draw.choice(values),
        }
        schema = {keyword: value for keyword, value in said.items() if draw.random() < 0.5}
        sub = root_sub(json.dumps(schema), None)
        for value in draw.sample(values, 4):
            assert admits(sub, value) == sub.draft.validator(schema).is_valid(value), (schema, value)


def test_importing_the_package_imports_no_validator() -> None:
    """Importing it takes a second, and most programs have no use for it."""
    code = "import sys, radicel, radicel.constraint; print('jsonschema' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
