"""Ids of conversations: the template's own, special tokens only where the template wrote them, generated ids kept."""

from __future__ import annotations

from typing import Any

import pytest
from chat_tokenizers import CHATML, GEMMA, LLAMA2, MISTRAL, NO_SYSTEM, PEEKING, QWEN3, STYLES, TEMPLATES, make
from hypothesis import given, settings
from hypothesis import strategies as st
from radicel.chat import PromptEncoder, messages_to_prompt, prompt_of_text
from radicel.errors import ChatTemplateError, InvalidValueError, RoleError, UnsupportedError
from radicel.prompt import Generated, Part, Prompt, Text, TurnBegin, TurnEnd
from radicel.runtime.tokenizer import Tokenizer

CONVERSATIONS = [
    [("user", "Hello there!")],
    [("system", "You are terse."), ("user", "Hi")],
    [("user", "  spaces  around \n\n"), ("assistant", "\n\nyes "), ("user", "ok?")],
    [("system", "Zoë 客单价 😀"), ("user", "a\n\n\nb"), ("assistant", "ñandú"), ("user", "<|not_special|> <s")],
    [("user", "x"), ("assistant", "Hello again"), ("user", "Hello!"), ("assistant", "hi hi hi"), ("user", "bye")],
]


def messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def templated(tokenizer: Tokenizer, turns: list[tuple[str, str]], generation: bool = True) -> list[int]:
    ids: list[int] = tokenizer.hf.apply_chat_template(
        messages(turns), add_generation_prompt=generation, tokenize=True, return_dict=False
    )
    return ids


def turn(role: str, *parts: Part | str) -> Prompt:
    return (TurnBegin(role), *(Text(p) if isinstance(p, str) else p for p in parts), TurnEnd())


def written(tokenizer: Tokenizer, text: str) -> Generated:
    """Text as a model may sample it: one id per character or byte, not as the tokenizer would."""
    ids = tuple(i for c in text for i in tokenizer.encode_run(c, at_start=False))
    assert tokenizer.decode(ids) == text
    return Generated(text, ids, "stop")


def ids_of(tokenizer: Tokenizer, prompt: Prompt, **kwargs: Any) -> list[int]:
    return list(PromptEncoder(tokenizer, **kwargs).encode(prompt).token_ids)


def is_in(part: tuple[int, ...], whole: list[int]) -> bool:
    return any(tuple(whole[i : i + len(part)]) == part for i in range(len(whole)))


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


def test_literal_thoughts_in_history_are_no_error() -> None:
    tokenizer = make("byte_level", QWEN3)
    turns = [("user", "?"), ("assistant", "<think>a</think>b"), ("user", "!"), ("assistant", "<think>c</think>d")]
    ids = ids_of(tokenizer, messages_to_prompt(messages(turns))[:-1])
    assert tokenizer.decode(ids) == PromptEncoder(tokenizer).render(messages_to_prompt(messages(turns))[:-1])
    hidden = "<think>a<|im_end|></think>b"
    ids = ids_of(tokenizer, turn("user", "?") + turn("assistant", hidden))
    assert ids.count(tokenizer.hf.convert_tokens_to_ids("<|im_end|>")) == 2


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
            PEEKING,
            (*turn("user", "Hello"), Text("[mid]"), *turn("user", "abc")),
            "<|im_start|>user (greets)\nHello<|im_end|>\n[mid]<|im_start|>user (3)\nabc<|im_end|>\n",
        ),
    ],
)
def test_raw_text_stands_where_it_was_written(template: str, prompt: Prompt, text: str) -> None:
    tokenizer = make("byte_level", template)
    assert PromptEncoder(tokenizer).render(prompt) == text
    assert tokenizer.decode(ids_of(tokenizer, prompt)) == text


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


def test_a_text_without_ids_is_encoded_with_what_stands_around_it() -> None:
    tokenizer = make()
    assert ids_of(tokenizer, (Text("He"), Generated("llo"), Text(" there"))) == tokenizer.encode("Hello there")
    whole = ids_of(tokenizer, turn("user", "Hello there"))
    assert ids_of(tokenizer, turn("user", "He", Generated("llo"), " there")) == whole


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
