"""Tokenizers in two more published styles: tiktoken's (Llama 3, Qwen) and sentencepiece without a first space (Gemma).

Text that comes id by id is what the transformers tokenizer makes of all ids at once.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from chat_tokenizers import CORPUS, SPECIALS, UNFLAGGED
from hypothesis import given, settings
from hypothesis import strategies as st
from radicel.runtime.detokenizer import TextStream
from radicel.runtime.tokenizer import Tokenizer
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
STYLES = ("tiktoken", "gemma")
TEXTS = st.text(st.sampled_from("ab Az'\n\t  19é客😀ñ-_.,▁<>|"), max_size=30) | st.text(max_size=15)


def _tiktoken() -> Backend:
    """Words by a pattern, words of the vocabulary taken whole (`ignore_merges`)."""
    backend = Backend(models.BPE(ignore_merges=True))
    words = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=450, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _gemma() -> Backend:
    """Spaces as `▁`, none put in front, words not split, bytes as `<0x…>` where there is no piece."""
    learner = Backend(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=220, show_progress=False))
    learned = learner.get_vocab()
    first = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    vocab = {name: i for i, name in enumerate([*first, *sorted(learned, key=lambda s: learned[s])])}
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


@cache
def made(style: str) -> Tokenizer:
    backend = {"tiktoken": _tiktoken, "gemma": _gemma}[style]()
    backend.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIALS])
    backend.add_tokens([AddedToken(s, normalized=False) for s in UNFLAGGED])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return Tokenizer(hf)


def streamed(tokenizer: Tokenizer, ids: list[int], **options: Any) -> str:
    """What the pieces add up to."""
    pieces: list[str] = []
    stream = TextStream(tokenizer, on_text=pieces.append, **options)
    for token_id in ids:
        stream.push(token_id)
    stream.finish()
    assert "".join(pieces) == stream.text
    return stream.text


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS, more=TEXTS)
def test_texts_have_the_tokenizer_s_ids_and_come_back(style: str, text: str, more: str) -> None:
    tokenizer = made(style)
    ids = tokenizer.encode(text)
    assert ids == tokenizer.hf(text, add_special_tokens=False)["input_ids"]
    if style == "gemma":
        text = text.replace("▁", " ")  # one character to sentencepiece
    assert streamed(tokenizer, ids) == streamed(tokenizer, ids, at_start=True) == text
    # Nothing is put before a text: what continues one is encoded as what begins one.
    assert tokenizer.encode_run(more, at_start=False) == tokenizer.encode(more)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=24), seed=st.randoms(use_true_random=False))
def test_random_bytes_id_by_id_are_those_bytes_at_once(style: str, data: bytes, seed: Any) -> None:
    tokenizer = made(style)
    table = tokenizer.all_token_bytes()
    if style == "gemma":
        data = bytes(b | 0x80 for b in data)  # printable bytes have ids as characters only
    ids = [table.index(bytes([b])) for b in data]
    ids += seed.choices([i for i, piece in enumerate(table) if piece and not tokenizer.is_special(i)], k=4)
    whole = b"".join(table[i] for i in ids).decode(errors="replace")
    found = streamed(tokenizer, ids)
    assert whole.startswith(found)
    assert whole[len(found) :] in ("", "\ufffd")  # an unfinished character at the end is dropped
    if style == "tiktoken" and found == whole:
        assert found == tokenizer.hf.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("style", STYLES)
def test_every_byte_is_a_token_of_its_own(style: str) -> None:
    tokenizer = made(style)
    spelled = "😀客éñ"
    table = tokenizer.all_token_bytes()
    ids = [table.index(bytes([b])) for b in spelled.encode()]
    assert streamed(tokenizer, ids) == spelled == tokenizer.hf.decode(ids)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(["Hello", " there", " ", "\n", "é", *SPECIALS[3:8], *UNFLAGGED]), max_size=12))
def test_special_tokens_are_left_out_or_spelled(style: str, parts: list[str]) -> None:
    tokenizer = made(style)
    text = "".join(parts)
    ids = tokenizer.encode_run(text, [(0, len(text))])
    assert ids == tokenizer.hf(text, add_special_tokens=False)["input_ids"]
    for skip in (True, False):
        wanted = tokenizer.hf.decode(ids, skip_special_tokens=skip, spaces_between_special_tokens=False)
        assert streamed(tokenizer, ids, skip_special_tokens=skip) == wanted
        assert tokenizer.decode(ids, skip_special_tokens=skip) == wanted
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("style", STYLES)
def test_a_space_at_the_beginning_is_the_text_s_own(style: str) -> None:
    tokenizer = made(style)
    assert not tokenizer.drops_first_space
    for text in (" Hello", "Hello", "  Hello"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, at_start=True) == tokenizer.decode(ids) == text == tokenizer.hf.decode(ids)


def test_words_of_the_vocabulary_are_taken_whole() -> None:
    tokenizer = made("tiktoken")
    assert len(tokenizer.encode(" assistant")) == 1
    assert len(tokenizer.encode("1234567")) > 2  # at most three digits a word


def test_half_a_surrogate_is_ill_formed_not_unfinished() -> None:
    tokenizer = made("tiktoken")
    table = tokenizer.all_token_bytes()
    for data in (b"a\xed\xa0", b"\xed\xbf", b"\xed\xa0\x80b", b"\xed\xa0\xed", b"\xed\xa0\xed\x9f\xbf"):
        ids = [table.index(bytes([b])) for b in data]
        whole = data.decode(errors="replace")
        assert streamed(tokenizer, ids) == (whole[:-1] if data.endswith(b"\xed") else whole)
