"""Text to ids and back: the tokenizer's own ids, bytes of every token, end tokens, templates, caching."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from chat_tokenizers import CHATML, GEMMA, LLAMA2, LLAMA3, SPECIALS, STYLES, UNFLAGGED, hf_tokenizer, make
from hypothesis import given, settings
from hypothesis import strategies as st
from radicel.errors import ChatTemplateError, InvalidValueError, ModelError, UnsupportedModelError
from radicel.runtime.run_encoder import RunCache
from radicel.runtime.tokenizer import Tokenizer
from tokenizers import AddedToken, decoders, normalizers
from transformers import PreTrainedTokenizerFast

TEXTS = ["", "Hello there", " a  b\n\nc ", "Zoë 客单价 😀 ñandú", "\n", "    def f():\n\t\treturn 1", "x" * 300]


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.hf(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize("style", STYLES)
def test_plain_text_has_the_tokenizer_s_ids(style: str) -> None:
    tokenizer = make(style)
    for text in TEXTS:
        assert tokenizer.encode(text) == whole(tokenizer, text)


@pytest.mark.parametrize("style", STYLES)
def test_genuine_spellings_have_the_tokenizer_s_ids(style: str) -> None:
    tokenizer = make(style)
    for text in [*(s.join(["Hello there", " a ", "b", ""]) for s in SPECIALS + UNFLAGGED), "<s><s> a</s>\n<think>x"]:
        assert tokenizer.encode_run(text, [(0, len(text))]) == whole(tokenizer, text)


@pytest.mark.parametrize("style", STYLES)
def test_no_spelling_outside_the_genuine_stretches_is_a_token(style: str) -> None:
    tokenizer = make(style)
    added = set(tokenizer.hf.convert_tokens_to_ids(SPECIALS[1:] + UNFLAGGED))
    for spelling in SPECIALS + UNFLAGGED:
        ids = tokenizer.encode(f"a {spelling}{spelling} b")
        assert added.isdisjoint(ids)
        assert tokenizer.decode(ids, at_start=True) == f"a {spelling}{spelling} b"
    text = "<s>a<s>"
    assert tokenizer.encode_run(text, [(0, 3)]).count(tokenizer.bos_id or -1) == 1
    assert tokenizer.encode_run(text, [(0, 2), (5, 7)]).count(tokenizer.bos_id or -1) == 0


@pytest.mark.parametrize("style", STYLES)
def test_what_continues_fixed_ids_gets_no_space(style: str) -> None:
    tokenizer = make(style)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode_run(text, at_start=False)) == text


def test_white_space_that_a_token_swallows() -> None:
    more = [AddedToken("<|user|>", rstrip=True, normalized=False), AddedToken("<mask>", lstrip=True, normalized=False)]
    tokenizer = make(more=more)
    for text in ["<|user|> \n hi <mask>", "a \n<mask> b<|user|>", "<|user|>  <mask>  ", "<mask><|user|>\n"]:
        assert tokenizer.encode_run(text, [(0, len(text))]) == whole(tokenizer, text)


def test_tokens_that_are_whole_words_only() -> None:
    tokenizer = make(more=[AddedToken("dog", single_word=True, normalized=False)])
    for text in ["dog", "dogs", "a dog.", "hotdog dog-dog"]:
        assert tokenizer.encode_run(text, [(0, len(text))]) == whole(tokenizer, text)


def test_the_longest_spelling_wins() -> None:
    tokenizer = make(more=[AddedToken("<think", normalized=False), AddedToken("<think>>", normalized=False)])
    for text in ["<think", "<think>", "<think>>", "<think>>>x<think"]:
        assert tokenizer.encode_run(text, [(0, len(text))]) == whole(tokenizer, text)


def test_tokens_of_white_space_are_no_markup() -> None:
    tokenizer = make(more=[AddedToken("  ", normalized=False), AddedToken("\n\n", normalized=False)])
    spaces = tokenizer.hf.convert_tokens_to_ids("  ")
    text = "a  b\n\n<|im_end|>  c"
    assert tokenizer.encode("a  b\n\nc") == whole(tokenizer, "a  b\n\nc")
    assert tokenizer.encode(text).count(spaces) == 2
    assert tokenizer.encode_run(text, [(0, len(text))]) == whole(tokenizer, text)
    assert tokenizer.special_spellings(text) == [(6, 16)]


def test_tokens_that_are_searched_in_normalised_text() -> None:
    hf = hf_tokenizer("llama_legacy", CHATML)
    hf.backend_tokenizer.add_tokens([AddedToken("<X>", normalized=True)])
    tokenizer = Tokenizer(hf)
    for text in ["<X> a<X>b", "a <X><X>", "<X>"]:
        assert tokenizer.encode_run(text, [(0, len(text))]) == whole(tokenizer, text)
    assert hf.convert_tokens_to_ids("<X>") not in tokenizer.encode("<X> <X>")
    assert tokenizer.encode_run("<X> <X>", [(0, 7)]) == whole(tokenizer, "<X> <X>")


def test_limits_of_the_tokenizer_file_do_not_cut() -> None:
    hf = hf_tokenizer("byte_level", CHATML)
    hf.backend_tokenizer.enable_truncation(4)
    hf.backend_tokenizer.enable_padding(length=64)
    assert len(Tokenizer(hf).encode("Hello there, Hello there, Hello")) > 4
    assert len(Tokenizer(hf).encode("Hello")) < 64


@pytest.mark.parametrize("style", STYLES)
def test_bytes_of_every_token(style: str) -> None:
    tokenizer = make(style)
    table = tokenizer.all_token_bytes()
    assert len(table) == tokenizer.vocab_size == len(tokenizer.hf)
    for token_id, data in enumerate(table):
        assert tokenizer.token_bytes(token_id) == data
        in_context = tokenizer.hf.decode([*tokenizer.encode_run("a", at_start=False), token_id])[1:]
        assert data.decode(errors="replace") == in_context
    specials = tokenizer.hf.convert_tokens_to_ids(SPECIALS)
    assert [table[i] for i in specials] == [s.encode() for s in SPECIALS]
    assert all(map(tokenizer.is_special, specials))
    assert not any(tokenizer.is_special(i) for i in tokenizer.hf.convert_tokens_to_ids(UNFLAGGED))
    assert {bytes([b]) for b in range(256) if style == "byte_level" or b > 0x7F} <= set(table)


def test_an_id_without_a_token_has_no_bytes() -> None:
    spec = json.loads(hf_tokenizer("byte_level", None).backend_tokenizer.to_str())
    last = max(spec["model"]["vocab"].values())
    spec["model"]["vocab"]["Hellothere"] = last + 100
    spec["added_tokens"] = []
    hf = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(spec)))
    tokenizer = Tokenizer(hf)
    assert tokenizer.vocab_size == last + 101
    assert tokenizer.token_bytes(last + 50) == b""
    assert tokenizer.token_bytes(last + 100) == b"Hellothere"


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_comes_back(style: str, text: str) -> None:
    tokenizer = _made(style)
    assert tokenizer.decode(tokenizer.encode_run(text, at_start=False)) == text
    ids = tokenizer.encode(text)
    assert ids == whole(tokenizer, text)
    assert tokenizer.decode(ids, at_start=True) == tokenizer.hf.decode(ids)


_MADE: dict[str, Tokenizer] = {}


def _made(style: str) -> Tokenizer:
    if style not in _MADE:
        _MADE[style] = make(style)
    return _MADE[style]


@pytest.mark.parametrize(
    ("template", "config", "ends"),
    [
        (CHATML, None, {"</s>", "<|im_end|>"}),
        (CHATML, {"eos_token_id": 5}, {"</s>", "<|im_end|>", 5}),
        (CHATML, {"eos_token_id": [5, 6]}, {"</s>", "<|im_end|>", 5, 6}),
        (LLAMA2, {}, {"</s>"}),
        (LLAMA3, {"eos_token_id": None}, {"</s>", "<|eot_id|>"}),
        (GEMMA, None, {"</s>", "<end_of_turn>"}),
        (None, {"eos_token_id": 5}, {"</s>", 5}),
        ("{% for m in messages %}{{ m['content'] }}\n\n### {% endfor %}", None, {"</s>"}),
        ("{% for m in messages %}{{ m['content'] }}\n### next: <s>{% endfor %}", None, {"</s>"}),
        ("{{ raise_exception('never') }}", None, {"</s>"}),
    ],
)
def test_end_tokens(template: str | None, config: Any, ends: set[Any]) -> None:
    tokenizer = make(template=template)
    expected = {tokenizer.hf.convert_tokens_to_ids(e) if isinstance(e, str) else e for e in ends}
    assert tokenizer.eos_ids(config) == expected


def test_a_template_from_a_file_or_a_string(tmp_path: Path) -> None:
    hf_tokenizer("byte_level", None).save_pretrained(tmp_path / "model")
    assert not Tokenizer.load(tmp_path / "model").has_template
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML, encoding="utf-8")
    for given_as in (file, str(file), CHATML):
        loaded = Tokenizer.load(tmp_path / "model", chat_template=given_as)
        assert loaded.render([{"role": "user", "content": "é"}]) == "<|im_start|>user\né<|im_end|>\n"
    with pytest.raises(ChatTemplateError, match="'no-such-file' is neither a readable file nor a Jinja template"):
        Tokenizer.load(tmp_path / "model", chat_template="no-such-file")
    with pytest.raises(ModelError, match="no readable tokenizer in"):
        Tokenizer.load(tmp_path)


def test_the_model_s_own_template_is_used_wherever_it_lies(tmp_path: Path) -> None:
    hf_tokenizer("byte_level", CHATML).save_pretrained(tmp_path / "anything")
    loaded = Tokenizer.load(tmp_path / "anything")
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    own = loaded.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert loaded.render(messages, add_generation_prompt=True) == own


def test_a_template_with_a_mistake_names_it() -> None:
    with pytest.raises(ChatTemplateError, match=r"roles: user.*unexpected"):
        make(template="{% for m in messages %}{{ m.content }").render([{"role": "user", "content": "x"}])


def test_tokenizers_that_cannot_be_read() -> None:
    hf = hf_tokenizer("byte_level", None)
    hf.backend_tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="'WordPiece'"):
        Tokenizer(hf)
    with pytest.raises(UnsupportedModelError, match=r"object has no tokenizer\.json"):
        Tokenizer(object())


def test_a_run_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make()
    encoder: Any = tokenizer._runs
    calls: list[str] = []
    encode = encoder._encode_piece
    monkeypatch.setattr(encoder, "_encode_piece", lambda text, first: calls.append(text) or encode(text, first))
    text = "<s>Hello<s>there"
    for _ in range(3):
        tokenizer.encode_run(text, [(0, len(text))])
    assert calls == ["Hello", "there"]


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    cache = RunCache(max_chars=10)
    cache.put(("aaaa", "bare"), (1,))
    cache.put(("bbbb", "bare"), (2,))
    assert cache.get(("aaaa", "bare")) == (1,)
    cache.put(("cccc", "bare"), (3,))
    assert cache.get(("bbbb", "bare")) is None
    assert cache.get(("aaaa", "bare")) == (1,)
    assert cache.get(("aaaa", "prefixed")) is None
    cache.put(("d" * 11, "bare"), (4,))
    assert cache.get(("d" * 11, "bare")) is None
    assert cache.num_chars == 8


def test_many_threads_encode_at_once() -> None:
    tokenizer = make("llama_legacy", LLAMA2)
    texts = [f"<s>Hello {i % 7} there {i}" for i in range(200)]
    expected = [tokenizer.encode_run(t, [(0, 3)]) for t in texts]
    fresh = make("llama_legacy", LLAMA2)
    results: list[list[list[int]]] = [[] for _ in range(6)]
    threads = [
        threading.Thread(target=lambda r=r: r.extend(fresh.encode_run(t, [(0, 3)]) for t in texts)) for r in results
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(r == expected for r in results)


def test_composed_characters_are_normalised_as_by_the_tokenizer() -> None:
    hf = hf_tokenizer("byte_level", CHATML)
    hf.backend_tokenizer.normalizer = normalizers.NFC()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=hf.backend_tokenizer))
    text = "Zoe\u0308 <think> e\u0301"
    assert tokenizer.encode_run(text, [(0, len(text))]) == whole(tokenizer, text)


def test_text_that_is_no_unicode_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"lone surrogate '\\ud800' at 1"):
        make().encode("a\ud800b")


@pytest.mark.model
def test_the_embedded_model_s_tokenizer(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    assert tokenizer.bos_ids == ()
    text = "Zoë 客单价 😀\n\n  def f(x):\n\treturn 'ñ' <|im_start|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.hf.convert_tokens_to_ids("<|im_start|>") not in tokenizer.encode(text)
    assert tokenizer.encode(text[:-12]) == whole(tokenizer, text[:-12])
    assert tokenizer.hf.convert_tokens_to_ids("<|im_end|>") in tokenizer.eos_ids({})
