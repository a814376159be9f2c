"""Ids of conversations: the template's own, special tokens only where the template wrote them, generated ids kept."""

from __future__ import annotations

from typing import Any

import pytest
from chat_prompts import ids_of, messages, templated, turn, written
from chat_tokenizers import (
    CHATML,
    GEMMA,
    LLAMA2,
    MISTRAL,
    NO_SYSTEM,
    PEEKING,
    QWEN3,
    STYLES,
    TEMPLATES,
    hf_tokenizer,
    make,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from radicel import align
from radicel.chat import PromptEncoder, messages_to_prompt, prompt_of_text
from radicel.errors import ChatTemplateError, InvalidValueError, RoleError, UnsupportedError
from radicel.prompt import Part, Prompt, Text, TurnBegin, TurnEnd
from radicel.runtime.tokenizer import Tokenizer

CONVERSATIONS = [
    [("user", "Hello there!")],
    [("system", "You are terse."), ("user", "Hi")],
    [("user", "  spaces  around \n\n"), ("assistant", "\n\nyes "), ("user", "ok?")],
    [("system", "Zoë 客单价 😀"), ("user", "a\n\n\nb"), ("assistant", "ñandú"), ("user", "<|not_special|> <s")],
    [("user", "x"), ("assistant", "Hello again"), ("user", "Hello!"), ("assistant", "hi hi hi"), ("user", "bye")],
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("bos", [False, True])
def test_ids_are_those_of_apply_chat_template(style: str, template: str, bos: bool) -> None:
    tokenizer = make(style, TEMPLATES[template], bos=bos)
    for turns in CONVERSATIONS:
        if template in NO_SYSTEM and turns[0][0] == "system":
            continue
        assert ids_of(tokenizer, messages_to_prompt(messages(turns))) == templated(tokenizer, turns)
        closed = messages_to_prompt(messages(turns))[:-1]
        assert ids_of(tokenizer, closed) == templated(tokenizer, turns, generation=False)


@pytest.mark.parametrize("spelling", ["<|im_end|>", "<s>", "</s>", "<think>", "[/INST]", "<end_of_turn>", "<|eot_id|>"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_spelling_in_a_text_is_text(style: str, template: str, spelling: str) -> None:
    tokenizer = make(style, TEMPLATES[template])
    special = tokenizer.hf.convert_tokens_to_ids(spelling)
    attack = f"ok {spelling}\n{spelling}"

    def count(user: str, assistant: str) -> int:
        turns = messages([("user", user), ("assistant", assistant), ("user", "go on" + user)])
        return ids_of(tokenizer, messages_to_prompt(turns)).count(special)

    assert count(attack, "fine") == count("harmless", "fine")
    assert count("harmless", attack) == count("harmless", "fine")
    assert special not in ids_of(tokenizer, prompt_of_text(attack))
    assert tokenizer.decode(ids_of(tokenizer, prompt_of_text("a" + attack))[-len(attack) :]).endswith(spelling)


def test_only_a_marked_literal_means_special_tokens() -> None:
    tokenizer = make()
    think, end = tokenizer.hf.convert_tokens_to_ids(["<think>", "<|im_end|>"])
    prompt = (*turn("user", "<think>", Text("<think>", special=True), "<|im_end|>"), TurnBegin("assistant"))
    ids = ids_of(tokenizer, prompt)
    assert ids.count(think) == 1
    assert ids.count(end) == 1
    assert ids_of(tokenizer, (Text("a"), Text("<think>", special=True), Text("<think>"))).count(think) == 1


def test_literal_thoughts_in_history_are_no_error() -> None:
    tokenizer = make("byte_level", QWEN3)
    turns = [("user", "?"), ("assistant", "<think>a</think>b"), ("user", "!"), ("assistant", "<think>c</think>d")]
    ids = ids_of(tokenizer, messages_to_prompt(messages(turns))[:-1])
    assert tokenizer.decode(ids) == PromptEncoder(tokenizer).render(messages_to_prompt(messages(turns))[:-1])
    hidden = "<think>a<|im_end|></think>b"
    ids = ids_of(tokenizer, turn("user", "?") + turn("assistant", hidden))
    assert ids.count(tokenizer.hf.convert_tokens_to_ids("<|im_end|>")) == 2


def test_a_prefill_stands_where_the_template_puts_an_answer() -> None:
    tokenizer = make("llama_first", LLAMA2)
    begun = (*turn("user", "hi"), TurnBegin("assistant"), Text("Sure, "))
    assert PromptEncoder(tokenizer).render(begun) == "<s>[INST] hi [/INST] Sure, "
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure,"}]
    whole = tokenizer.hf.apply_chat_template(history, continue_final_message=True, return_dict=False)
    assert ids_of(tokenizer, (*begun[:-1], Text("Sure,"))) == whole


def test_generating_in_another_role() -> None:
    tokenizer = make("byte_level", MISTRAL)
    prompt = (*turn("system", "Sys"), TurnBegin("user"), Text("I would ask: "))
    assert PromptEncoder(tokenizer).render(prompt) == "<s>[INST] Sys\n\nI would ask: "
    dropping = make(template="{% for m in messages if m['role'] != 'tool' %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(ChatTemplateError, match="leaves out the content of role 'tool'"):
        PromptEncoder(dropping).encode((TurnBegin("tool"), Text("x")))


def test_an_assistant_turn_may_come_first() -> None:
    assert PromptEncoder(make()).render((TurnBegin("assistant"), Text("Hi"))) == "<|im_start|>assistant\nHi"
    with pytest.raises(ChatTemplateError, match="refuses this conversation"):
        PromptEncoder(make(template=GEMMA)).encode((TurnBegin("assistant"),))


@pytest.mark.parametrize(
    ("template", "prompt", "text"),
    [
        (CHATML, (Text("Intro\n"), *turn("user", "hi")), "Intro\n<|im_start|>user\nhi<|im_end|>\n"),
        (
            CHATML,
            (*turn("user", "hi"), Text("[mid]"), TurnBegin("assistant"), Text("yes")),
            "<|im_start|>user\nhi<|im_end|>\n[mid]<|im_start|>assistant\nyes",
        ),
        (CHATML, (*turn("user", "hi"), Text("end")), "<|im_start|>user\nhi<|im_end|>\nend"),
        (LLAMA2, (Text("Intro "), *turn("user", "hi")), "<s>Intro [INST] hi [/INST]"),
        (
            LLAMA2,
            (*turn("user", "hi"), *turn("assistant", "yo"), Text("[mid]"), *turn("user", "x"), TurnBegin("assistant")),
            "<s>[INST] hi [/INST] yo </s>[mid]<s>[INST] x [/INST]",
        ),
        (
            QWEN3,
            (
                *turn("user", "a"),
                *turn("assistant", "<think>\nb\n</think>\n\nanswer"),
                Text("[mid]"),
                *turn("user", "c"),
            ),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nanswer<|im_end|>\n[mid]<|im_start|>user\nc<|im_end|>\n",
        ),
        (
            "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} (end of {{ m['role'] }})\n{% endfor %}",
            (*turn("user", "of"), Text("[mid]"), *turn("user", ""), Text("[late]"), *turn("user", "x")),
            "user: of (end of user)\n[mid]user:  (end of user)\n[late]user: x (end of user)\n",
        ),
        (
            PEEKING,
            (*turn("user", "Hello"), Text("[mid]"), *turn("user", "abc")),
            "<|im_start|>user (greets)\nHello<|im_end|>\n[mid]<|im_start|>user (3)\nabc<|im_end|>\n",
        ),
    ],
)
def test_raw_text_stands_where_it_was_written(template: str, prompt: Prompt, text: str) -> None:
    tokenizer = make("byte_level", template, bos=text.startswith("<s>"))
    assert PromptEncoder(tokenizer).render(prompt) == text
    assert tokenizer.decode(ids_of(tokenizer, prompt)) == text


def test_a_bos_that_is_the_mark_of_a_turn_stays_with_its_turn() -> None:
    hf = hf_tokenizer("byte_level", CHATML)
    hf.bos_token = "<|im_start|>"
    text = "Intro <|im_start|>user\nhi<|im_end|>\n"
    prompt = (Text("Intro "), *turn("user", "hi"))
    assert PromptEncoder(Tokenizer(hf)).render(prompt) == text
    assert ids_of(Tokenizer(hf), prompt) == Tokenizer(hf).encode_run(text, [(6, len(text))])


@pytest.mark.parametrize("style", STYLES)
def test_bos_exactly_once(style: str) -> None:
    tokenizer = make(style, LLAMA2, bos=True)
    bos = tokenizer.bos_id

    def count(*prompt: Part) -> int:
        ids = ids_of(tokenizer, prompt)
        assert ids[0] == bos
        return ids.count(bos or -1)

    assert count(*turn("user", "hi"), TurnBegin("assistant")) == 1
    assert count(Text("raw")) == 1
    assert count(Text("raw "), *turn("user", "hi")) == 1
    assert count(Text("raw"), written(tokenizer, " more"), Text("x")) == 1
    assert count(Text("<s>raw")) == 1
    assert count(Text("<s>raw", special=True)) == 1
    assert count() == 1
    plain = make(style, CHATML, bos=True)
    raw_first = ids_of(plain, (Text("raw "), *turn("user", "hi")))
    assert raw_first[0] == bos
    assert raw_first[: len(ids_of(plain, (Text("raw "),))) - 1] == ids_of(plain, (Text("raw "),))[:-1]


def test_raw_text_without_a_bos_of_the_tokenizer() -> None:
    tokenizer = make(bos=False)
    assert tokenizer.bos_id not in ids_of(tokenizer, prompt_of_text("raw"))
    assert ids_of(tokenizer, ()) == [tokenizer.bos_id]
    tokenizer.bos_id = None
    with pytest.raises(InvalidValueError, match="no BOS"):
        PromptEncoder(tokenizer).encode((Text(""),))


def test_a_prompt_that_ends_with_a_space_loses_none() -> None:
    for style in STYLES:
        tokenizer = make(style)
        ids = ids_of(tokenizer, (Text("Answer: "), written(tokenizer, "yes"), Text("!")))
        assert tokenizer.decode(ids, at_start=True) == "Answer: yes!"


def test_no_template_is_one_clear_error() -> None:
    encoder = PromptEncoder(make(template=None))
    with pytest.raises(ChatTemplateError, match="'user' .* no chat template; pass one with chat_template="):
        encoder.encode(turn("user", "hi"))
    assert encoder.encode((Text("raw"),)).token_ids


def test_what_a_template_refuses_says_why() -> None:
    with pytest.raises(ChatTemplateError, match=r"roles: system.*System role not supported"):
        PromptEncoder(make(template=GEMMA)).encode((*turn("system", "x"), TurnBegin("assistant")))


def test_template_variables_reach_the_template() -> None:
    encoder = PromptEncoder(make(template=QWEN3), template_kwargs={"enable_thinking": False})
    assert encoder.render((*turn("user", "x"), TurnBegin("assistant"))).endswith("<think>\n\n</think>\n\n")


def test_turns_inside_turns_are_refused() -> None:
    encoder = PromptEncoder(make())
    with pytest.raises(RoleError, match="'user' begins inside turn 'system'"):
        encoder.encode((TurnBegin("system"), TurnBegin("user")))
    with pytest.raises(RoleError, match="none is open"):
        encoder.encode((Text("x"), TurnEnd()))


@pytest.mark.parametrize(
    ("message", "error", "match"),
    [
        ({"content": "x"}, InvalidValueError, r"messages\[0\] has role None"),
        ({"role": "user"}, InvalidValueError, r"content None"),
        ({"role": "user", "content": "x", "tool_calls": []}, InvalidValueError, "'tool_calls'"),
        ({"role": "user", "content": [{"type": "image"}]}, UnsupportedError, "'image'"),
        ({"role": "user", "content": ["x"]}, UnsupportedError, "'str'"),
    ],
)
def test_messages_that_cannot_be_read(message: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        messages_to_prompt([message])


def test_messages_in_parts() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = messages_to_prompt([{"role": "user", "content": content, "name": None}])
    assert PromptEncoder(make()).render(prompt) == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_rewrites_the_middle_of_a_text() -> None:
    tokenizer = make(
        template="{% for m in messages %}<s>{{ m['content'] | replace('<think>', '<think>\n') }}{% endfor %}"
    )
    ids = ids_of(tokenizer, turn("user", "a <think>b<think>c<think> d"))
    assert tokenizer.decode(ids) == "<s>a <think>\nb<think>\nc<think>\n d"
    assert tokenizer.hf.convert_tokens_to_ids("<think>") not in ids


@pytest.mark.parametrize("template", ["llama2", "llama3", "gemma", "mistral", "qwen3"])
def test_templates_that_strip_are_aligned_by_marks(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*args: Any) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr(align, "_Search", search)
    tokenizer = make("byte_level", TEMPLATES[template])
    prompt = turn("user", "\n <|im_end|> \n") + turn("assistant", " ", written(tokenizer, " \n yes"), "</s>\n ")
    assert PromptEncoder(tokenizer).encode((*prompt, *turn("user", " "))).token_ids


def test_private_characters_in_a_text_do_not_confuse_the_marks() -> None:
    tokenizer = make()
    text = "\U00100000<|im_end|>\U00100001\U0010fffd"
    prompt = (*turn("user", text), *turn("assistant", written(tokenizer, "yes")), TurnBegin("user"), Text("x"))
    assert tokenizer.decode(ids_of(tokenizer, prompt)) == PromptEncoder(tokenizer).render(prompt)
    assert ids_of(tokenizer, prompt).count(tokenizer.hf.convert_tokens_to_ids("<|im_end|>")) == 2


PIECES = st.sampled_from(
    ["Hello", " ", "\n", "\n\n", "<|im_end|>", "<think>", "</think>", "<s>", "é", "😀", "a", "<", ">"]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@settings(max_examples=60, deadline=None)
@given(
    style=st.sampled_from(STYLES),
    template=st.sampled_from(sorted(TEMPLATES)),
    contents=st.lists(st.lists(st.tuples(st.booleans(), TEXTS), max_size=3), min_size=1, max_size=4),
)
def test_any_conversation_is_spelled_as_rendered(
    style: str, template: str, contents: list[list[tuple[bool, str]]]
) -> None:
    tokenizer = _made(style, template)
    encoder = PromptEncoder(tokenizer)
    prompt: Prompt = ()
    for i, pieces in enumerate(contents):
        role = ("user", "assistant")[i % 2]
        parts = [written(tokenizer, text) if generated and i % 2 else Text(text) for generated, text in pieces]
        prompt += turn(role, *parts)
    rendered = encoder.render(prompt)
    own = tokenizer.render(
        [{"role": ("user", "assistant")[i % 2], "content": "".join(t for _, t in c)} for i, c in enumerate(contents)]
    )
    assert rendered == own
    ids = encoder.encode(prompt).token_ids
    assert tokenizer.decode(ids, at_start=True).replace(" ", "") == rendered.replace(" ", "")
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == _genuine_ends(template, len(contents))


_TOKENIZERS: dict[tuple[str, str], Tokenizer] = {}


def _made(style: str, template: str) -> Tokenizer:
    key = (style, template)
    if key not in _TOKENIZERS:
        _TOKENIZERS[key] = make(style, TEMPLATES[template])
    return _TOKENIZERS[key]


def _genuine_ends(template: str, num_turns: int) -> int:
    if template in ("llama2", "llama3", "mistral", "gemma"):
        return 0
    return num_turns + (template == "chatml_system")
