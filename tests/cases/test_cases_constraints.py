"""Cases of regexes, grammars and JSON schemas, as whole texts through the masks (`test_case_table.py` lists them)."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from radicel import Constraint, SamplingParams, errors
from radicel.runtime import LocalRuntime
from radicel.runtime.grammar import GrammarCompiler
from radicel.testing import accepts


def check(good: list[str], bad: list[str], **constraint: Any) -> None:
    made = Constraint.from_gen(**constraint)
    assert [text for text in good if not accepts(made, text)] == []
    assert [text for text in bad if accepts(made, text)] == []


def check_regex(pattern: str, texts: list[str]) -> None:
    """The masks agree with `re.fullmatch`."""
    wanted = {text: re.fullmatch(pattern, text) is not None for text in texts}
    assert {text: accepts(text=text, regex=pattern) for text in texts} == wanted
    assert any(wanted.values())


def check_schema(schema: Any, values: list[Any]) -> None:
    """The masks agree with the independent validator, in the spelling that generated JSON has."""
    oracle = jsonschema.Draft202012Validator(schema)
    written = {json.dumps(value, ensure_ascii=False): oracle.is_valid(value) for value in values}
    assert {text: accepts(text=text, json_schema=schema) for text in written} == written
    assert any(written.values())


# --- GR -------------------------------------------------------------------------------------------------------------


def test_b38_empty_alternatives() -> None:
    octet = r"(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)"
    check_regex(rf"({octet}\.){{3}}{octet}", ["8.8.8.8", "255.255.255.255", "256.1.1.1", "1.1.1", "01.1.1.1"])


def test_b39_every_split_into_tokens_is_legal() -> None:
    pattern = r"/\*(\*+[^*/]|[^*])*\*+/"
    texts = ["/* */", "/**/", "/* * */", "/* */ */", "/*/", "/** x **/"]
    check_regex(pattern, texts)
    pieces = {text[i:j] for text in texts for i, j in itertools.combinations(range(len(text) + 1), 2)}
    tokens = [*(bytes([byte]) for byte in range(256)), *sorted(p.encode() for p in pieces if len(p) > 1)]
    compiler = GrammarCompiler(tokens, vocab_size=len(tokens) + 1, end_ids={len(tokens)})
    number = {token: i for i, token in reversed(list(enumerate(tokens)))}
    for text in texts:
        for ids in splits(text.encode(), number):
            matcher = compiler.compile(Constraint.regex(pattern)).matcher()
            row = compiler.vocabulary.empty_mask()
            legal = True
            for token_id in ids:
                matcher.fill_mask(row)
                legal = legal and bool(row[token_id >> 5] >> (token_id & 31) & 1) and matcher.accept(token_id)
            assert (legal and matcher.is_complete()) == (re.fullmatch(pattern, text) is not None)


def splits(data: bytes, number: dict[bytes, int]) -> Iterator[list[int]]:
    if not data:
        yield []
    for size in range(1, len(data) + 1):
        if data[:size] in number:
            yield from ([number[data[:size]], *rest] for rest in splits(data[size:], number))


def test_b40_characters_of_several_tokens() -> None:
    compiler = GrammarCompiler([bytes([byte]) for byte in range(256)], vocab_size=257, end_ids={256})
    matcher = compiler.compile(Constraint.regex("[😀-🙏]+")).matcher()
    row = compiler.vocabulary.empty_mask()
    for count, byte in enumerate("😀🙏".encode()):
        matcher.fill_mask(row)
        may_end = bool(row[256 >> 5] >> (256 & 31) & 1)
        assert may_end == (count == 4)
        assert row[byte >> 5] >> (byte & 31) & 1
        assert matcher.accept(byte)
    assert matcher.is_complete()


def test_b41_classes_are_of_characters() -> None:
    check_regex("[à-ÿ]", ["é", "e", "à", "ÿ", "Ã©"])
    check_regex("[é]", ["é", "e", "\u0301"])


def test_b44_forced_runs_are_spelled_by_the_tokenizer_and_change_nothing(tiny_path: Path) -> None:
    keys = ["the_first_key_of_all", "another", "the_last"]
    schema = {"type": "object", "properties": {k: {"type": "integer", "maximum": 9, "minimum": 0} for k in keys}}
    closed = {**schema, "required": keys, "additionalProperties": False}
    found = {}
    for forced_runs in (True, False):
        with LocalRuntime(tiny_path, device="cpu", kv_tokens=600, forced_runs=forced_runs) as rt:
            before = rt.stats().steps
            made = rt.generate("x", schema=closed, temperature=0, max_tokens=200)
            found[forced_runs] = made, rt.stats().steps - before
            text = made.text
            canonical = rt.tokenizer(text, add_special_tokens=False)["input_ids"]
            assert list(made.meta.token_ids) == canonical
    (runs, few), (steps, many) = found[True], found[False]
    assert runs.meta.token_ids == steps.meta.token_ids
    assert runs.meta.forced_tokens == steps.meta.forced_tokens > len(runs.meta.token_ids) // 2
    assert many - few >= runs.meta.forced_tokens - 2 * len(keys)


def test_b45_groups_classes_and_repeats() -> None:
    check_regex(r"([a-z_]+:\s(?:[^,\n]+,)*[^,\n]*)", ["a: x,y", "a:\tx", "a_b: ", "a:x", "A: x"])


def test_b46_look_around_is_exact_or_refused() -> None:
    check_regex("(?!x)[a-z]", ["a", "x", "y", "ab"])
    check_regex("a(?!b).", ["ac", "ab", "a"])
    check_regex("(?<!a)b", ["b", "ab"])
    check([], ['"x"'], json_schema={"type": "string", "pattern": "^(?!x)[a-z]$"})
    with pytest.raises(errors.ConstraintError) as caught:
        Constraint.regex("((?=.*a).b)*c")
    assert caught.value.keyword


# --- JS -------------------------------------------------------------------------------------------------------------

BASE = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 10}}, "required": ["x"]}


def test_b47_what_stands_beside_any_of_counts() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
        "anyOf": [{"required": ["a"]}],
    }
    check_schema(schema, [{"a": 1}, {"zzz": True}, "any", {}, {"a": "1"}])


def test_b48_both_of_all_of_hold() -> None:
    other = {"type": "object", "properties": {"y": {"type": "string"}}, "required": ["y"]}
    schema = {"$defs": {"Base": BASE}, "allOf": [{"$ref": "#/$defs/Base"}, other]}
    check_schema(schema, [{"x": 12, "y": "k"}, {"x": 1, "y": "k"}, {"y": "k"}, {"x": 12}, 5])


def test_b50_an_object() -> None:
    check_schema({"type": "object"}, [{}, {"a": [1]}, [], "x"])


def test_b51_ranges() -> None:
    check_schema({"type": "integer", "minimum": 2}, [1, 2, 10, 0, -2])
    check_schema({"type": "integer", "minimum": -5}, [-5, -6, 0, 7])
    check_schema({"type": "number", "minimum": 1, "maximum": 5}, [1, 5, 5.7, 0.9, 2.5])
    check_schema({"type": "number", "exclusiveMinimum": 0}, [0, 0.0, 0.1, 1000, -0.1])


def test_b52_one_of_excludes() -> None:
    check_schema({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}, [3, 7, 4, 5])


def test_b54_required_and_optional_keys() -> None:
    one, two = {"r": {"type": "integer"}}, {"o": {"type": "integer"}}
    closed = {"type": "object", "required": ["r"], "additionalProperties": False}
    check_schema({**closed, "properties": {**one, **two}}, [{"r": 1}, {"r": 1, "o": 2}, {"o": 2}, {}])
    check_schema({**closed, "properties": {**two, **one}}, [{"r": 2}, {"o": 1, "r": 2}, {"o": 1}])


def test_b55_names_and_values_are_no_patterns() -> None:
    key = "a (b).*"
    values = ['a"b', "c\\d", "e\nf"]
    schema = {
        "type": "object",
        "properties": {key: {"enum": values}},
        "required": [key],
        "additionalProperties": False,
    }
    check_schema(schema, [*({key: value} for value in values), {"a b": 'a"b'}, {key: "cd"}, {"a (b)xx": "c\\d"}])


def test_b56_enums_in_utf8() -> None:
    check_schema({"enum": ["在线", "离线"]}, ["在线", "离线", "在", "线"])


def test_b57_references_at_any_depth() -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "type": "object"}
    check_schema(schema, [{"b": 1}, {"b": "1"}, {"a": 1, "b": 2}])
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    check_schema({**tree, "additionalProperties": False}, [{"kids": [{"kids": []}]}, {"kids": [{"x": 1}]}, {}])
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}}}
    list_ = {"$defs": {"n": {"anyOf": [{"type": "null"}, {**node, "required": ["v", "next"]}]}}, "$ref": "#/$defs/n"}
    value: Any = None
    for depth in range(6):
        check_schema(list_, [value, {"v": "x", "next": value}, {"v": depth}])
        value = {"v": depth, "next": value}


def test_b59_a_pattern_is_a_search() -> None:
    check_schema({"type": "string", "pattern": "b"}, ["abc", "b", "ac"])
    check_schema({"type": "string", "pattern": "^a+$"}, ["aa", "aab", "ba"])


TEXTS = {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 200}}
LARGE: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": {"type": "string", "maxLength": 100_000}}, '"' + "ab a" * 60),
    ({"json_schema": {"properties": {f"l{i}": TEXTS for i in range(6)}, "type": "object"}}, '{"l0": ["' + "ab a" * 60),
    ({"regex": "[ab]*a[ab]{13}"}, "ab" * 100),
]


@pytest.mark.model
@pytest.mark.parametrize(("large", "text"), LARGE, ids=["maxLength", "six arrays", "states"])
def test_b61_large_bounds_cost_little(embedded: LocalRuntime, large: dict[str, Any], text: str) -> None:
    """Time of this thread, since other tests may run beside it; the median mask over a long text."""
    began = time.thread_time()
    made = Constraint.from_gen(**large)
    assert made is not None
    matcher = embedded._grammars.compile(made).matcher()
    assert time.thread_time() - began < 1
    row = embedded._grammars.vocabulary.empty_mask()
    spent = []
    for token_id in embedded.tokenizer(text, add_special_tokens=False)["input_ids"]:
        began = time.thread_time()
        matcher.fill_mask(row)
        spent.append(time.thread_time() - began)
        if not matcher.accept(token_id):
            break
    assert len(spent) > 20
    assert statistics.median(spent) < 1e-3


# B62, B63 and the group GRT run on a runtime: `test_cases_runtime.py`.


@pytest.mark.parametrize("budget", [8, 12, 40])
def test_b63_a_value_ends_within_its_budget_or_says_so(rt: LocalRuntime, budget: int) -> None:
    schema = {
        "type": "object",
        "properties": {"s": {"type": "string"}},
        "required": ["s"],
        "additionalProperties": False,
    }
    for seed in range(4):
        told = SamplingParams(max_tokens=budget, seed=seed)
        if budget < len('{"s": ""}'):
            with pytest.raises(errors.ConstraintError, match=r"at least 9 tokens; give it max_tokens=9"):
                rt.generate("x", told, schema=schema)
            continue
        assert set(rt.generate("x", told, schema=schema).value) == {"s"}
        with pytest.raises(errors.IncompleteOutputError):
            rt.generate("x", told, schema={**schema, "required": ["s"]}, on_budget="truncate", logit_bias={34: -100.0})


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # on a slow machine beside another test
def test_b72_ten_thousand_schemas_stay_within_the_bound() -> None:
    compiler = GrammarCompiler(
        [bytes([byte]) for byte in range(256)], vocab_size=257, end_ids={256}, cache_entries=64, cache_bytes=1 << 24
    )
    for i in range(10_000):
        compiler.compile(Constraint.of({"type": "object", "properties": {f"p{i}": {"type": "integer"}}}))
        assert compiler.cached <= 64


# --- B --------------------------------------------------------------------------------------------------------------


def test_table_b_accepts_no_invalid_text() -> None:
    """`B-U1` to `B-U8`: accepted by another engine, in the table's order."""
    check_schema({"type": "object", "required": ["a"]}, [{}, {"a": 1}])
    closed = {"properties": {"a": {"type": "integer"}}, "type": "object", "additionalProperties": False}
    check_schema({**closed, "anyOf": [{"required": ["a"]}]}, [{"zzz": True}, "any", {"a": 1}])
    check_schema(
        {"allOf": [BASE, {"type": "object", "required": ["y"]}]}, [{"x": 1, "y": "k"}, {"y": "k"}, 5, {"x": 10, "y": 1}]
    )
    check([], ['"x"', '"xa"'], json_schema={"type": "string", "pattern": "^(?!x)[a-z]$"})
    check_schema({"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 2}, ["abc", "ab", ""])
    check_schema({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}}, [[1, 1], [1, 2], [2], []])
    check_schema({"not": {"type": "string"}}, ["a", 1, None, [], {}])
    conditional = {
        "if": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
        "then": {"properties": {"v": {"type": "integer"}}},
    }
    check_schema(
        {"type": "object", **conditional}, [{"k": "a", "v": "s"}, {"k": "a", "v": 1}, {"k": "b", "v": "s"}, {}]
    )


def test_table_b_reaches_every_valid_value() -> None:
    """`B-R1` to `B-R12`: rejected by another engine. A spelling may be narrowed; the value must be reachable."""
    check_schema({"type": "object", "required": ["a"]}, [{"a": 1}])
    check(
        ['"\\n\\t"', '"éé"', '"é客"'],
        ['"\\n"', '"ééé"'],
        json_schema={"type": "string", "minLength": 2, "maxLength": 2},
    )
    check_schema({"type": "string", "pattern": "b"}, ["abc"])
    check(['"在线"'], ['"在"'], json_schema={"enum": ["在线"]})
    check(["1", "100", "0", "-7"], ["1.5", '"1"'], json_schema={"type": "integer"})
    check(["1000", "0.1"], ["0", "-1"], json_schema={"type": "number", "exclusiveMinimum": 0})
    check_schema({"properties": {"b": {"type": "string"}}, "type": "object"}, [{"b": "bar", "z": 1}, {"b": 1}])
    check_schema(
        {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}}, [{"n_a": 1}, {"n_a": "1"}, {"x": "1"}]
    )
    check_schema({"type": "object", "properties": {"a": False}}, [{}, {"a": 1}, {"b": 1}])
    flexible = Constraint.of({"type": "object", "properties": {"a": {"type": "integer"}}}, whitespace="flexible")
    assert accepts(flexible, '{\n  "a": 1\n}')
    check(['"😀"', '"\x7f"'], ['"\ud83d"'], json_schema={"type": "string"})
    check(["1", '"x"', "null", "[]", "{}"], ["", "x"], json_schema=True)
    check_schema({"type": "string", "format": "of-no-one"}, ["anything"])
    check_schema({"type": "object", "propertyNames": {"pattern": "^a"}}, [{"ab": 1}, {"b": 1}, {}])


def test_table_b_what_others_have_right() -> None:
    check_schema({"type": "array", "minItems": 1, "maxItems": 2}, [[], [1], [1, 2], [1, 2, 3]])
    check_schema({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, [[1], ["x"], [1, 2], []])
    check_schema({"enum": [1, "a\n", None, [True], {"k": "\\"}]}, [1, "a\n", None, [True], {"k": "\\"}, 2, [False]])
    check_schema(
        {"type": "object", "minProperties": 1, "maxProperties": 2},
        [{}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}],
    )
    check_schema({"type": "object", "additionalProperties": {"type": "integer"}}, [{"a": 1}, {"a": "1"}])
    check_schema({"type": ["integer", "null"]}, [1, None, "x", 1.5])
    for name, good, bad in (
        ("date", "2024-02-29", "2023-02-29"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("email", "a@b.example", "a.example"),
    ):
        check([json.dumps(good)], [json.dumps(bad)], json_schema={"type": "string", "format": name})


# --- C --------------------------------------------------------------------------------------------------------------

REGEXES: dict[str, tuple[str, list[str]]] = {
    "C-S1": (r"\Aabc\Z", ["abc", "AabcZ", "xabc"]),
    "C-S2": (r"a^b|c", ["c", "ab", "a^b"]),
    "C-S3": (r"a.b", ["axb", "a\nb", "a😀b", "a\rb"]),
    "C-S4": (r"\d\w", ["1a", "٣é", "aa", "1 "]),
    "C-S5": (r"\N{BULLET}", ["•", "N"]),
    "C-S6": (r"\s", [" ", "\u3000", "\u2003", "a"]),
    "C-X1": (r"\bab\b", ["ab", "b"]),
    "C-X2": (r"(?i)stra[sß]e", ["STRASE", "straße", "strae"]),
    "C-X3": (r"(?s)a.b", ["a\nb", "ab"]),
    "C-X4": (r"(?x) a b  # two letters", ["ab", "a b"]),
    "C-X5": (r"(?P<n>a|b)c", ["ac", "bc", "cc"]),
    "C-X7": (r"(?=a)\w(?<=a)|x(?<!y)", ["a", "x", "b"]),
    "C-X8": (r"[]a]", ["]", "a", "[]a]"]),
    "C-X10": (r"a{,3}", ["", "a", "aaa", "aaaa", "a{,3}"]),
    "C-R1": (r"(a|)(b|)", ["", "a", "b", "ab", "ba"]),
    "C-R2": (r"/\*([^*]|\*+[^*/])*\*+/", ["/* a */", "/**/", "/*/"]),
    "C-R3": (r"[a-z]{0,2500}", ["", "a" * 2500, "a" * 2501]),
    "C-R4": (r"((a*)*b*)*c", ["c", "aabbac", "d"]),
    "C-R5": (r"a+?b*?", ["a", "aab", "b"]),
    "C-R6": (r"[α-ω😀-🙏]+", ["αω", "😀🙏", "a"]),
    "C-R7": (r"\x41\u00e9\U0001F600", ["Aé😀", "A"]),
    "C-R8": (r"在线|离线|忙", ["在线", "忙", "在"]),
    "C-R9": (r"[ab]*a[ab]{13}", ["a" + "b" * 13, "bba" + "ab" * 6 + "a", "b" * 14]),
}


@pytest.mark.parametrize("case", REGEXES)
def test_table_c_regexes_mean_what_python_means(case: str) -> None:
    check_regex(*REGEXES[case])


@pytest.mark.parametrize(
    ("case", "pattern", "keyword"),
    [
        ("C-X6", r"(ab)\1", "back-reference"),
        ("C-X6", r"(?P<q>['\"]).*(?P=q)", "back-reference"),
        ("C-L1", r"a^b", "regex"),
        ("C-L2", r"\p{L}", "regex"),
    ],
)
def test_table_c_what_cannot_be_is_refused_by_name(case: str, pattern: str, keyword: str) -> None:
    with pytest.raises(errors.ConstraintError) as caught:
        Constraint.regex(pattern)
    assert caught.value.keyword == keyword


@pytest.mark.skipif(sys.version_info < (3, 11), reason="possessive repeats came with Python 3.11")
def test_table_c_possessive_repeats() -> None:
    check_regex("ba++", ["ba", "baaa", "b"])
    with pytest.raises(errors.ConstraintError, match="possessive"):
        Constraint.regex("(ab|a)++b")
