"""Forced text: what leaves no choice is spelled as the tokenizer spells it, and only as far as that is certain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from radicel.constraint import Constraint
from radicel.runtime.grammar import GrammarCompiler, Mask, Matcher, mask_words
from radicel.runtime.grammar.forced import forced_ids
from radicel.runtime.grammar.vocabulary import Vocabulary

WORDS = [b'{"', b"name", b'":', b' "', b' ["', b"tr", b"true", b"ru", b"nam", b"es"]
TOKENS = [*(bytes([byte]) for byte in range(256)), *WORDS]
END = len(TOKENS)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ok": {"const": True}},
    "required": ["name", "ok"],
}


def compiler_of(engine: str | None = None) -> GrammarCompiler:
    return GrammarCompiler([*TOKENS, b""], vocab_size=END + 1, end_ids={END}, engine=engine)


def spelled(ids: list[int]) -> list[bytes]:
    return [TOKENS[i] for i in ids]


def start(constraint: Constraint, text: str = "", engine: str | None = None) -> Matcher:
    matcher = compiler_of(engine).compile(constraint).matcher()
    assert all(matcher.accept(byte) for byte in text.encode())
    return matcher


def test_structure_is_forced_and_the_tail_held_back() -> None:
    matcher = start(Constraint.of(SCHEMA, strict=True))
    forced = matcher.forced_tokens()
    # The quote that opens the string stays open: a longer token could begin there with the space.
    assert spelled(forced) == [b'{"', b"name", b'":', b' "']
    assert matcher.forced_tokens() == forced  # no change of state
    for token_id in forced:
        assert matcher.accept(token_id)
    assert matcher.forced_tokens() == []


def test_what_is_held_back_is_not_split() -> None:
    matcher = start(Constraint.of(SCHEMA, strict=True), '{"name":')
    # " " is forced and then a quote; the token that has both is the only one that begins with all of it.
    assert spelled(matcher.forced_tokens()) == [b' "']
    held = start(Constraint.choices(["xname", "xnams"]), "x")
    row = compiler_of().vocabulary.empty_mask()
    held.fill_mask(row)
    assert row[ord("n") >> 5] >> (ord("n") & 31) & 1
    assert held.forced_tokens() == []
    held.fill_mask(row)
    kept = [i for i in range(END) if row[i >> 5] >> (i & 31) & 1]
    assert [TOKENS[i] for i in kept] == [b"name", b"nam"]


def test_nothing_is_forced_where_there_is_a_choice_or_an_end() -> None:
    assert start(Constraint.choices(["ab", "b"])).forced_tokens() == []
    assert start(Constraint.regex("a*")).forced_tokens() == []
    assert start(Constraint.regex("ab"), "ab").forced_tokens() == []
    assert start(Constraint.choices(["yes", "yes no"]), "yes").forced_tokens() == []


def test_the_rest_of_a_value_is_forced() -> None:
    matcher = start(Constraint.of(SCHEMA, strict=True), '{"name": "x')
    assert matcher.accept(ord('"'))
    assert spelled(matcher.forced_tokens()) == [b",", b' "', b"o", b"k", b'":', b" ", b"true", b"}"]


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_a_token_that_could_grow_is_held_back(engine: str) -> None:
    # After "nam" either "e" (then "name" would be the token) or "s".
    matcher = start(Constraint.choices(["xname", "xnams"]), engine=engine)
    assert spelled(matcher.forced_tokens()) == [b"x"]
    certain = start(Constraint.choices(["xnam1", "xnam2"]), engine=engine)
    assert spelled(certain.forced_tokens()) == [b"x", b"nam"]


def test_half_a_character_is_never_forced() -> None:
    # "é" and "è" share their first byte.
    assert start(Constraint.choices(["aé", "aè"])).forced_tokens() == [ord("a")]


def test_every_forced_token_is_in_the_mask() -> None:
    matcher = start(Constraint.of(SCHEMA, strict=True))
    row = compiler_of().vocabulary.empty_mask()
    for token_id in matcher.forced_tokens():
        matcher.fill_mask(row)
        assert row[token_id >> 5] >> (token_id & 31) & 1
        assert matcher.accept(token_id)


def test_the_context_decides_the_spelling() -> None:
    class Merging(Vocabulary):
        """Spells "b" after "a" as one token, as a tokenizer with a merge across the border would."""

        def encode(self, text: str) -> list[int]:
            ids = super().encode(text)
            return ids if "ab" not in text else [*super().encode(text.split("ab")[0]), 256]

    class Anything:
        """A grammar that allows every text."""

        def allows(self, ids: Sequence[int]) -> bool:
            return True

        def mask_after(self, ids: Sequence[int]) -> Mask:
            return np.full(mask_words(258), -1, np.int32)

    tokens = [*(bytes([byte]) for byte in range(256)), b"ab"]
    vocabulary = Merging(tokens, vocab_size=258, end_ids={257})
    # The accepted "a" stays as sampled; what is forced after it is then encoded on its own.
    assert forced_ids(b"b", [ord("a")], vocabulary, Anything()) == [ord("b")]


@pytest.mark.model
def test_forced_ids_are_what_the_tokenizer_gives(model_dir: Any) -> None:
    from radicel.accepts import _compiler
    from transformers import AutoTokenizer

    hf = AutoTokenizer.from_pretrained(model_dir)
    compiler = _compiler(hf)
    vocabulary = compiler.vocabulary
    value = {"full_name": "Zoë O'Brien", "email": None, "tags": ["urgent"], "ok": True}
    schema = {
        "type": "object",
        "properties": {
            "full_name": {"type": "string"},
            "email": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"enum": ["urgent", "later"]}},
            "ok": {"type": "boolean"},
        },
        "required": ["full_name", "email", "tags", "ok"],
    }
    text = json.dumps(value, ensure_ascii=False)
    matcher = compiler.compile(Constraint.of(schema, strict=True)).matcher()
    ids: list[int] = []
    forced = 0
    while not matcher.is_terminated():
        done = b"".join(vocabulary.text_bytes[i] for i in ids)
        more = matcher.forced_tokens()
        forced += len(more)
        more = more or vocabulary.encode(text.encode()[len(done) :].decode())[:1]
        assert all(matcher.accept(token_id) for token_id in more)
        ids += more
    assert ids == vocabulary.encode(text) == hf(text, add_special_tokens=False)["input_ids"]
    assert forced >= 0.4 * len(ids)
