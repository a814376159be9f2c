"""Generated ids stay as they were sampled, in every place where the template leaves their text as it was."""

from __future__ import annotations

import time
from typing import Any

import pytest
from chat_prompts import ids_of, is_in, messages, turn, written
from chat_tokenizers import GEMMA, LLAMA2, QWEN3, STYLES, TEMPLATES, make
from radicel.chat import PromptEncoder, messages_to_prompt
from radicel.prompt import Generated, Prompt, Text, TurnBegin, TurnEnd


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("template", ["chatml", "chatml_system", "llama3", "gemma", "qwen3"])
def test_a_longer_conversation_extends_a_shorter_one(style: str, template: str) -> None:
    tokenizer = make(style, TEMPLATES[template])
    encoder = PromptEncoder(tokenizer)
    prompt: Prompt = ()
    before: list[int] = []
    for question, answer in [("Hello?", "Yes\n\nHello, ñandú"), (" <|im_end|> ", "no<|im_end|>!"), ("bye", "😀")]:
        prompt += (*turn("user", question), TurnBegin("assistant"))
        open_ids = list(encoder.encode(prompt).token_ids)
        assert open_ids[: len(before)] == before
        reply = written(tokenizer, answer)
        assert reply.token_ids is not None
        prompt += (reply,)
        encoded = encoder.encode(prompt)
        assert encoded.token_ids == (*open_ids, *reply.token_ids)
        assert encoded.reencoded == ()
        before = list(encoded.token_ids)
        prompt += (TurnEnd(),)
        closed = list(encoder.encode(prompt).token_ids)
        assert closed[: len(before)] == before
        assert len(closed) > len(before)


@pytest.mark.parametrize("style", STYLES)
def test_generated_ids_stay_in_raw_text(style: str) -> None:
    tokenizer = make(style)
    newline = tokenizer.encode_run("\n", at_start=False)
    assert tokenizer.encode_run("\n\n", at_start=False) != newline * 2 or style == "byte_level"
    prompt: Prompt = (Text("Hello:"), Generated("\n\n", (*newline, *newline)), Text("you"))
    head = ids_of(tokenizer, prompt[:1])
    ids = ids_of(tokenizer, prompt)
    assert ids[: len(head) + 2 * len(newline)] == head + newline * 2
    assert tokenizer.decode(ids[len(head) :]) == "\n\nyou"  # and no space of the tokenizer's own


def test_white_space_as_a_whole_answer_is_kept() -> None:
    tokenizer = make("llama_first")
    newline = tuple(tokenizer.encode_run("\n", at_start=False))
    assert tokenizer.encode_run("\n\n", at_start=False) != list(newline * 2)
    prompt = turn("user", "Hi") + turn("assistant", Generated("\n\n", newline * 2)) + turn("user", "Hi")
    encoded = PromptEncoder(tokenizer).encode(prompt)
    assert is_in(newline * 2, list(encoded.token_ids))
    assert encoded.reencoded == ()


@pytest.mark.parametrize("style", ["llama_legacy", "llama_first"])
def test_an_answer_that_begins_with_the_template_s_space_is_kept(style: str) -> None:
    tokenizer = make(style, LLAMA2, bos=True)
    reply = written(tokenizer, " Hello")  # the model writes the space that the template puts before an answer
    assert reply.token_ids is not None
    first = (*turn("user", "hi"), TurnBegin("assistant"))
    head = ids_of(tokenizer, first)
    encoded = PromptEncoder(tokenizer).encode((*first, reply, TurnEnd(), *turn("user", "more")))
    assert list(encoded.token_ids[: len(head) + len(reply.token_ids)]) == head + list(reply.token_ids)
    assert encoded.reencoded == ()
    text = PromptEncoder(tokenizer).render((*first, reply, TurnEnd(), *turn("user", "more")))
    spelled = tokenizer.decode(encoded.token_ids)
    # The older style itself puts a space after each special token, as transformers' encoding shows, too.
    assert (spelled.replace("[INST]  ", "[INST] ") if style == "llama_legacy" else spelled) == text


def test_an_answer_whose_end_the_template_strips_keeps_the_rest() -> None:
    tokenizer = make("byte_level", GEMMA)
    reply = written(tokenizer, "Hello there\n\n")
    assert reply.token_ids is not None
    encoded = PromptEncoder(tokenizer).encode(turn("user", "hi") + turn("assistant", reply))
    assert is_in(reply.token_ids[:-2], list(encoded.token_ids))
    assert encoded.reencoded == ("template",)
    assert tokenizer.decode(encoded.token_ids).endswith("model\nHello there<end_of_turn>\n")


def test_history_without_thoughts_keeps_the_answer() -> None:
    tokenizer = make("byte_level", QWEN3)
    encoder = PromptEncoder(tokenizer)
    think = tokenizer.hf.convert_tokens_to_ids(["<think>", "</think>"])
    thought, answer = written(tokenizer, "\nHmm, Paris.\n"), written(tokenizer, "\n\nIt is Paris")
    assert thought.token_ids is not None
    assert answer.token_ids is not None
    text = f"<think>{thought.text}</think>{answer.text}"
    reply = Generated(text, (think[0], *thought.token_ids, think[1], *answer.token_ids))
    assert reply.token_ids is not None
    asked = turn("user", "Where?")
    last = encoder.encode(asked + turn("assistant", reply))
    assert is_in(reply.token_ids, list(last.token_ids))  # written anew by the template, but as it was
    assert last.reencoded == ()
    later = encoder.encode(asked + turn("assistant", reply) + turn("user", "Sure?"))
    assert think[0] not in later.token_ids
    assert is_in(answer.token_ids[2:], list(later.token_ids))
    assert later.reencoded == ("template",)


def test_thoughts_of_their_own_leave_the_answer_whole() -> None:
    tokenizer = make("byte_level", QWEN3)
    answer = written(tokenizer, "It is Paris")
    assert answer.token_ids is not None
    parts = (Text("<think>\n", special=True), written(tokenizer, "Hmm"), Text("\n</think>\n\n", special=True), answer)
    encoded = PromptEncoder(tokenizer).encode(turn("user", "?") + turn("assistant", *parts) + turn("user", "Sure?"))
    assert is_in(answer.token_ids, list(encoded.token_ids))
    assert "Hmm" not in tokenizer.decode(encoded.token_ids)
    assert encoded.reencoded == ("template",)


@pytest.mark.parametrize("template", ["peeking", "reorder", "mistral"])
def test_ids_are_kept_where_the_template_moves_or_reads_texts(template: str) -> None:
    tokenizer = make("byte_level", TEMPLATES[template])
    reply = written(tokenizer, "Hello, yes certainly")
    assert reply.token_ids is not None
    prompt = turn("system", "Be <|im_end|> kind") + turn("user", "Hello") + turn("assistant", reply)
    encoded = PromptEncoder(tokenizer).encode((*prompt, *turn("user", "and <|im_end|> so"), TurnBegin("assistant")))
    assert is_in(reply.token_ids, list(encoded.token_ids))
    assert encoded.reencoded == ()
    plain = PromptEncoder(tokenizer).encode(
        messages_to_prompt(
            messages([("system", "Be kind"), ("user", "Hello"), ("assistant", reply.text), ("user", "and so")])
        )
    )
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    assert encoded.token_ids.count(end) == plain.token_ids.count(end)


def test_several_gens_and_a_prefill_in_one_turn() -> None:
    tokenizer = make()
    a, b = written(tokenizer, "Paris"), written(tokenizer, "ok")
    assert a.token_ids is not None
    assert b.token_ids is not None
    start = (*turn("user", "Where?"), TurnBegin("assistant"), Text("It is "))
    head = ids_of(tokenizer, start)
    encoded = PromptEncoder(tokenizer).encode((*start, a, Text(". Sure? "), b, TurnEnd()))
    assert encoded.reencoded == ()
    middle = tokenizer.encode_run(". Sure? ", at_start=False)
    assert list(encoded.token_ids[: len(head) + 5 + len(middle) + 2]) == [*head, *a.token_ids, *middle, *b.token_ids]
    assert tokenizer.decode(encoded.token_ids).endswith("assistant\nIt is Paris. Sure? ok<|im_end|>\n")


def test_a_text_without_ids_is_encoded_with_what_stands_around_it() -> None:
    tokenizer = make()
    assert ids_of(tokenizer, (Text("He"), Generated("llo"), Text(" there"))) == tokenizer.encode("Hello there")
    whole = ids_of(tokenizer, turn("user", "Hello there"))
    assert ids_of(tokenizer, turn("user", "He", Generated("llo"), " there")) == whole


def test_a_long_conversation_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make()
    encoder = PromptEncoder(tokenizer)
    runs: Any = tokenizer._runs
    calls: list[str] = []
    encode = runs._encode_piece
    monkeypatch.setattr(runs, "_encode_piece", lambda text, first: calls.append(text) or encode(text, first))
    prompt: Prompt = ()
    for i in range(300):
        prompt += turn("user", f"Question {i} " * 20) + turn("assistant", written(tokenizer, f"Answer {i}"))
    encoder.encode(prompt)
    calls.clear()
    begin = time.perf_counter()
    encoder.encode((*prompt, *turn("user", "one more")))
    assert calls == ["user\none more"]
    assert time.perf_counter() - begin < 1.0  # some 20 ms
