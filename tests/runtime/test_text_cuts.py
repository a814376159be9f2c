"""Texts cut into pieces have the ids of the whole, on every style of tokenizer that may be cut."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from chat_tokenizers import CORPUS, STYLES, make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from radicel.runtime import run_encoder, text_cuts
from radicel.runtime.shared_starts import SharedStarts
from radicel.runtime.text_cuts import may_cut, pieces
from radicel.runtime.tokenizer import Tokenizer
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "llama3": rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def splitting(name: str) -> Any:
    """A byte-level BPE in the style of newer models, whose words a pattern of its own makes."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def wordless() -> Any:
    """A BPE over whole texts (Llama 2), with all letters in its vocabulary."""
    spec = json.loads(make("llama_legacy").hf.backend_tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    for char in (*map(chr, range(ord("A"), ord("z") + 1)), "▁"):
        vocab.setdefault(char, len(vocab) + 100)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(spec)))


TOKENIZERS = {
    **{name: Tokenizer(splitting(name)) for name in PATTERNS},
    "wordless": Tokenizer(wordless()),
    "byte_level": make("byte_level"),
}
PARTS = [
    "dog",
    "the",
    "Hello",
    "a",
    " ",
    "  ",
    "\n",
    " \n",
    "\r\n",
    "'s",
    "'",
    "12",
    "3",
    ".",
    "—",
    "é",
    "e\u0301",
    "客",
    "😀",
    "\t",
    "The",
]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parts=st.lists(st.sampled_from([*PARTS, " ", " "]), max_size=60), at_start=st.booleans())
def test_cut_or_whole_the_ids_are_the_same(name: str, parts: list[str], at_start: bool) -> None:
    tokenizer = TOKENIZERS[name]
    runs: Any = tokenizer._runs
    assert runs._cuts
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_cuts, "_LEAST", 1)
        patch.setattr(runs, "_cache", run_encoder.RunCache())
        cut = tokenizer.encode_run(text, at_start=at_start)
        patch.setattr(runs, "_cuts", False)
        patch.setattr(runs, "_cache", run_encoder.RunCache())
        assert cut == tokenizer.encode_run(text, at_start=at_start)


@given(st.text("ab .\n", max_size=1500), st.text("ab .\n", max_size=600))
def test_pieces_are_the_text_and_depend_on_what_stands_before(text: str, more: str) -> None:
    cut = list(pieces(text))
    assert "".join(cut) == text
    assert all(len(piece) > 256 for piece in cut[:-1])
    assert all(piece[0] == " " and piece[1:2].isalpha() for piece in cut[1:])
    assert list(pieces(text + more))[: len(cut) - 1] == cut[:-1]


def spec_of(style: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(make(style).hf.backend_tokenizer.to_str())
    return spec


def test_which_styles_are_cut() -> None:
    assert {style: make(style)._runs._cuts for style in STYLES} == {
        "byte_level": True,
        "llama_legacy": False,  # its small vocabulary lacks letters
        "llama_first": False,
        "unigram": False,
    }


def split(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def changed(path: str, value: Any) -> dict[str, Any]:
    spec = spec_of("byte_level")
    at: Any = spec
    *keys, last = path.split(".")
    for key in keys:
        at = at[int(key) if key.isdigit() else key]
    at[last] = value
    return spec


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.type", "Unigram"),
        ("model.dropout", 0.1),
        ("model.end_of_word_suffix", "</w>"),
        ("model.continuing_subword_prefix", "##"),
        ("normalizer", {"type": "Lowercase"}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "a b"}, "content": "c"}),
        ("pre_tokenizer.add_prefix_space", True),
        ("pre_tokenizer", {"type": "WhitespaceSplit"}),
        ("pre_tokenizer", split(r"\p{L}+ \p{L}+")),
        ("pre_tokenizer", split(r" ?\p{L}+", "MergedWithNext")),
        ("pre_tokenizer", split(r"\s+")),
        ("pre_tokenizer", {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}),
        ("added_tokens.0.content", "a token"),
        ("added_tokens.0.single_word", True),
        ("pre_tokenizer.use_regex", False),  # the vocabulary below then decides
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_not_cut(path: str, value: Any) -> None:
    assert may_cut(spec_of("byte_level"))
    spec = changed(path, value)
    if path.endswith("use_regex"):
        assert may_cut(spec)
        spec["model"]["vocab"]["gĠt"] = 10_000
    assert not may_cut(spec)


def test_a_wordless_tokenizer_is_cut_only_where_no_token_crosses() -> None:
    spec = json.loads(wordless().backend_tokenizer.to_str())
    spec["normalizer"]["normalizers"] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    assert may_cut(spec)
    for change in ({"ignore_merges": True}, {"vocab": {**spec["model"]["vocab"], "e▁": 9999}}, {"vocab": {"a": 1}}):
        assert not may_cut({**spec, "model": {**spec["model"], **change}})


@pytest.mark.model
def test_the_embedded_model_s_tokenizer_is_cut(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    runs: Any = tokenizer._runs
    assert runs._cuts
    text = "".join(a + b for a, b in product(PARTS, PARTS)) * 3
    cut = tokenizer.encode_run(text)
    assert len(list(pieces(text + " and the dog" * 100))) > 2
    assert cut == tokenizer.hf(text, add_special_tokens=False)["input_ids"]


def test_a_prefix_that_texts_share_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make()
    encoder: Any = tokenizer._runs
    lengths: list[int] = []
    encode = encoder._encode_piece
    monkeypatch.setattr(encoder, "_encode_piece", lambda text, first: lengths.append(len(text)) or encode(text, first))
    prefix = "The quick brown fox jumps over the lazy dog " * 100
    for i in range(10):
        tokenizer.encode_run(prefix + f"Question {i}?")
    assert sum(lengths) < len(prefix) + 10 * 400


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.sampled_from(PARTS), max_size=12)), max_size=20))
def test_what_texts_begin_with_alike_is_taken_over_with_its_ids(endings: list[tuple[int, list[str]]]) -> None:
    tokenizer = make()
    runs: Any = tokenizer._runs
    common = "The quick brown fox jumps over the lazy dog. " * 40
    for kept, parts in endings:
        text = common[: 45 * kept] + "".join(parts) + common[: 45 * len(parts)]
        shared = tokenizer.encode_run(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "_starts", {kind: SharedStarts() for kind in ("prefixed", "bare")})
            assert shared == tokenizer.encode_run(text)


def test_a_beginning_that_was_there_a_moment_ago_is_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make()
    encoder: Any = tokenizer._runs
    first, second = ("The quick brown fox jumps over the lazy dog " * 100, "A lazy dog and the brown fox " * 100)
    looked_up: list[str] = []
    cached = encoder._cached
    monkeypatch.setattr(encoder, "_cached", lambda text, kind: looked_up.append(text) or cached(text, kind))
    for i in range(10):
        for prefix in (first, second):
            looked_up.clear()
            tokenizer.encode_run(prefix + f"Question {i}?")
    assert len(looked_up) <= 2
