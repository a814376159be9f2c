"""A prompt with each of several continuations, for scoring: natural tokens at the border, the same start for all."""

from __future__ import annotations

import pytest
from chat_tokenizers import LLAMA2, STYLES, make
from radicel.chat import PromptEncoder
from radicel.errors import InvalidValueError
from radicel.prompt import Generated, Prompt, Text, TurnBegin, TurnEnd


def test_a_token_at_the_border_is_healed() -> None:
    tokenizer = make()
    encoder = PromptEncoder(tokenizer)
    prompt = (Text("Say Hel"),)
    wholes = encoder.encode_continuations(prompt, ["lo", "ium"])
    assert wholes[0][0] == tokenizer.encode("Say Hello")
    assert wholes[1][0] == tokenizer.encode("Say Helium")
    before = encoder.encode(prompt).token_ids
    start = wholes[0][1]
    assert start < len(before)  # " Hello" is one token, so its beginning is none of both
    assert all(tuple(whole[:start]) == before[:start] for whole, _ in wholes)
    assert {start for _, start in wholes} == {start}


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("style", STYLES)
def test_after_a_template_each_is_encoded_as_in_the_whole_text(style: str, space: str) -> None:
    tokenizer = make(style, LLAMA2)
    encoder = PromptEncoder(tokenizer)
    prompt: Prompt = (TurnBegin("user"), Text("Hi"), TurnEnd(), TurnBegin("assistant"), Text(space))
    choices = ["Hello", "Goodbye", "^*B^&A"]
    before = list(encoder.encode(prompt).token_ids)
    for choice, (whole, start) in zip(choices, encoder.encode_continuations(prompt, choices)):
        assert whole == list(encoder.encode((*prompt, Text(choice))).token_ids)
        assert start <= len(before)
        assert whole[:start] == before[:start]
        assert tokenizer.decode(whole[start:]).strip().endswith(choice.strip("^"))


def test_after_generated_ids_nothing_merges() -> None:
    tokenizer = make("llama_first")
    hel = tuple(tokenizer.encode_run("Hel", at_start=False))
    prompt = (Text("Say "), Generated("Hel", hel))
    head = PromptEncoder(tokenizer).encode(prompt).token_ids
    for whole, start in PromptEncoder(tokenizer).encode_continuations(prompt, ["lo", "ium"]):
        assert tuple(whole[: len(head)]) == head
        assert start == len(head)


def test_a_prefix_of_another_choice_and_an_empty_one() -> None:
    tokenizer = make()
    (short, a), (long, b), (empty, c) = PromptEncoder(tokenizer).encode_continuations(
        (Text("Is it: "),), ["yes", "yes maybe", ""]
    )
    assert a == b == c
    assert tuple(empty) == PromptEncoder(tokenizer).encode((Text("Is it: "),)).token_ids
    assert long[: len(short)] == short


def test_an_empty_prompt_starts_from_bos() -> None:
    tokenizer = make(bos=False)
    for whole, start in PromptEncoder(tokenizer).encode_continuations((), ["yes", "no"]):
        assert whole[0] == tokenizer.bos_id
        assert start == 1
    tokenizer.bos_id = None
    with pytest.raises(InvalidValueError, match="no BOS"):
        PromptEncoder(tokenizer).encode_continuations((), ["yes"])


def test_without_anything_in_common_the_first_id_is_given() -> None:
    tokenizer = make(bos=False)
    wholes = PromptEncoder(tokenizer).encode_continuations((Text("H"),), ["ello", "i"])
    assert [start for _, start in wholes] == [1, 1]


def test_a_special_spelling_in_a_choice_is_text() -> None:
    tokenizer = make()
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    prompt = (TurnBegin("user"), Text("?"), TurnEnd(), TurnBegin("assistant"))
    before = PromptEncoder(tokenizer).encode(prompt).token_ids
    ((whole, _),) = PromptEncoder(tokenizer).encode_continuations(prompt, ["<|im_end|>"])
    assert whole.count(end) == before.count(end)
