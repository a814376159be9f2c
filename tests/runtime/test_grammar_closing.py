"""Budgets: whatever a model likes to write, the text ends whole within its tokens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from radicel.accepts import _byte_compiler
from radicel.constraint import Constraint
from radicel.runtime.grammar import GrammarCompiler, mask_words
from radicel.runtime.grammar.closing import ClosingMatcher
from radicel.runtime.grammar.outline import Outline
from radicel.runtime.grammar.reach import Reach
from radicel.schema.constraint_rules import constraint_rules

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "age": {"type": "integer", "minimum": 100},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/t",
    "$defs": {
        "t": {
            "type": "object",
            "properties": {"v": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
            "required": ["v", "next"],
        }
    },
}
CASES: list[tuple[Constraint, str]] = [
    (Constraint.of(PERSON), '{"name": "", "tags": [], "age": 200}'),
    (Constraint.of(TREE), '{"v": 0, "next": null}'),
    (Constraint.of(PERSON, any_order=True), '{"name": "", "tags": [], "age": 200}'),
    (Constraint.of({"type": "string", "format": "date"}), '"0001-01-01"'),
    (Constraint.of({}), "0"),
    (Constraint.of({"type": "string", "minLength": 5}), '"aaaaa"'),
    (Constraint.of({"contains": {"const": "here"}, "type": "array"}), '["here"]'),
    (Constraint.regex("[a-z]{3,}(-[0-9]{4})+"), "aaa-0000"),
    (Constraint.grammar('root ::= "(" root ")" | "x" | "[" root ", " root "]"'), "x"),
    (Constraint.of(PERSON).thinking(), '</think>{"name": "", "tags": [], "age": 200}'),
]


@pytest.mark.parametrize(("made", "least"), CASES, ids=lambda value: str(value)[:30])
def test_the_outline_knows_the_shortest_text(made: Constraint, least: str) -> None:
    outline = Outline(*constraint_rules(made))
    assert outline.completion(outline.start) == least
    assert outline.walk(outline.start, least).may_end


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("made", "least"), CASES, ids=lambda value: str(value)[:30])
def test_a_random_model_ends_whole_within_its_budget(made: Constraint, least: str, seed: int) -> None:
    draw = random.Random(seed)
    for budget in (len(least) + 4, len(least) + 20, 150):
        text, whole = written(made, budget, draw)
        assert whole, (budget, text)
        made.parse(text)


def written(made: Constraint, budget: int, draw: random.Random) -> tuple[str, bool]:
    compiler = _byte_compiler()
    matcher = ClosingMatcher(
        compiler.compile(made).matcher(), lambda _: (True, reach_of(made, compiler)), compiler.vocabulary
    )
    row = compiler.vocabulary.empty_mask()
    out = bytearray()
    while len(out) < budget and not matcher.is_terminated():
        matcher.fill_mask_within(row, budget - len(out))
        ids = [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:257])]
        going_on = [i for i in ids if i != 256]
        if not going_on:
            break
        byte = draw.choice(going_on)
        assert matcher.accept(byte)
        out.append(byte)
    return out.decode("utf-8", "replace"), matcher.is_complete()


def reach_of(made: Constraint, compiler: GrammarCompiler) -> Reach:
    return Reach(Outline(*constraint_rules(made)), compiler.vocabulary)


def test_far_from_the_end_the_masks_are_the_engines() -> None:
    compiler = _byte_compiler()
    inner = compiler.compile(Constraint.of(PERSON)).matcher()
    matcher: Any = compiler.compile(Constraint.of(PERSON)).matcher()
    one, other = compiler.vocabulary.empty_mask(), compiler.vocabulary.empty_mask()
    for byte in b'{"name": "some':
        inner.fill_mask(one)
        matcher.fill_mask_within(other, 5000)
        assert (one == other).all()
        assert inner.accept(byte)
        assert matcher.accept(byte)


def test_taking_back_and_forking() -> None:
    compiler = _byte_compiler()
    matcher: Any = compiler.compile(Constraint.of(PERSON)).matcher()
    row = compiler.vocabulary.empty_mask()
    for byte in b'{"name": "abc"':
        assert matcher.accept(byte)
    matcher.fill_mask_within(row, 40)
    fork = matcher.fork()
    matcher.rollback(4)
    matcher.fill_mask_within(row, 40)
    assert row[ord("z") >> 5] >> (ord("z") & 31) & 1
    fork.fill_mask_within(row, 40)
    assert not row[ord("z") >> 5] >> (ord("z") & 31) & 1


def test_a_left_recursive_grammar_has_no_outline_and_runs_all_the_same() -> None:
    made = Constraint.from_gen(grammar='root ::= root "a" | "a"', on_budget="close")
    assert made is not None
    matcher = _byte_compiler().compile(made).matcher()
    assert matcher.accept(ord("a"))
    assert matcher.is_complete()


@pytest.mark.parametrize("text", ["Åsa", "客单价", "a😀b", "ｧﾌﾎ"])
def test_characters_of_several_tokens_stay_allowed_while_they_fit(text: str) -> None:
    compiler = GrammarCompiler([bytes([i]) for i in range(256)], vocab_size=257, end_ids=frozenset({256}))
    matcher = compiler.compile(Constraint.of(dict[str, str])).matcher()
    data = ('{"a": "' + text + '"}').encode()
    for position, byte in enumerate(data):
        row = np.zeros(mask_words(257), np.int32)
        matcher.fill_mask_within(row, len(data) - position + 12)
        assert row[byte >> 5] >> (byte & 31) & 1, data[:position]
        assert matcher.accept(byte)
