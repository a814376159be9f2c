"""However a program puts its literals together, their ids are those of the whole text."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from chat_tokenizers import STYLES, TEMPLATES, make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from radicel import MockBackend, assistant, function, gen, system, user, user_begin, user_end
from radicel.chat import PromptEncoder
from radicel.prompt import Prompt
from radicel.runtime.tokenizer import Tokenizer

PARTS = ["Hel", "lo", " ", "  ", "\n", "\n\n", "yes no", "é", "e\u0301", "😀", "客单价", "quick br", "own", "1", "234",
         "{", '"', "'s", "don't", "  x", ".", " the", "<think>", "<|im_", "end|>", "\t", "ñandú", ""]  # fmt: skip


@cache
def tokenizer(style: str, template: str, bos: bool) -> Tokenizer:
    return make(style, TEMPLATES[template], bos=bos)


class Listening(MockBackend):
    """Keeps the prompts as the runtime would get them."""

    def __init__(self) -> None:
        super().__init__(lambda request: "ok")
        self.prompts: list[Prompt] = []

    def submit(self, request: Any, on_text: Any = None) -> Any:
        self.prompts.append(request.prompt)
        return super().submit(request, on_text)


@function
def helper(s: Any, texts: list[str]) -> None:
    for text in texts:
        s += text


def append(s: Any, pieces: list[str], ways: list[int]) -> None:
    """Appends the pieces, each in one of the ways in which a program may."""
    for piece, way in zip(pieces, ways):
        half = len(piece) // 2
        if way == 0:
            s += piece
        elif way == 1:
            s += f"{piece[:half]}{piece[half:]}"
        elif way == 2:
            s += [piece[:half], piece[half:]]
        elif way == 3:
            helper(s, [piece[:half], "", piece[half:]])
        elif way == 4:
            s += helper([piece])
        else:
            with s.var_scope(f"v{len(s.variables())}"):
                s += piece[:half]
                s += piece[half:]


texts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join)
WAYS = st.integers(0, 5)


@st.composite
def split(draw: Any) -> tuple[str, list[str], list[int]]:
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    return text, pieces, [draw(WAYS) for _ in pieces]


def ask(body: Any) -> Prompt:
    backend = Listening()
    function(body).run(backend=backend)
    return backend.prompts[-1]


common = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("style", STYLES)
@common
@given(case=split())
def test_raw_text(style: str, bos: bool, case: tuple[str, list[str], list[int]]) -> None:
    text, pieces, ways = case

    def body(s: Any) -> None:
        append(s, pieces, ways)
        s += gen("x", max_tokens=1)

    codec = tokenizer(style, "chatml", bos)
    encoded = PromptEncoder(codec).encode(ask(body)) if text else None
    if encoded is not None:
        assert list(encoded.token_ids) == [*codec.bos_ids, *codec.encode(text)]
        if not codec.special_spellings(text):
            assert list(encoded.token_ids) == codec.hf(text)["input_ids"]


@pytest.mark.parametrize("template", ["chatml", "llama2", "llama3", "gemma"])
@pytest.mark.parametrize("style", STYLES)
@common
@given(case=split(), said=split())
def test_role_turns(style: str, template: str, case: Any, said: Any) -> None:
    """As `apply_chat_template(tokenize=True)` has them, where the contents spell no special token."""
    codec = tokenizer(style, template, False)
    (question, first, first_ways), (rules, second, second_ways) = case, said
    if codec.special_spellings(question) or codec.special_spellings(rules):
        return

    def body(s: Any) -> None:
        if template != "gemma":
            with s.system():
                append(s, second, second_ways)
        with s.user():
            append(s, first, first_ways)
        s += assistant(gen("x", max_tokens=1))

    messages = [] if template == "gemma" else [{"role": "system", "content": rules}]
    messages.append({"role": "user", "content": question})
    want = codec.hf.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert list(PromptEncoder(codec).encode(ask(body)).token_ids) == want


@pytest.mark.parametrize("style", STYLES)
@common
@given(case=split())
def test_between_values(style: str, case: tuple[str, list[str], list[int]]) -> None:
    """A text between two values is one run, whatever it was put together from."""
    text, pieces, ways = case
    codec = tokenizer(style, "chatml", False)

    def body(s: Any) -> None:
        s += "Q" + gen("x", max_tokens=1)
        append(s, pieces, ways)
        s += gen("y", max_tokens=1)

    prompt = ask(body)
    assert PromptEncoder(codec).encode(prompt).token_ids == tuple(codec.encode("Qok" + text))  # a mock has no ids


def test_roles_in_every_spelling() -> None:
    codec = tokenizer("byte_level", "chatml", False)

    def spelled(s: Any) -> None:
        s += system("Be kind")
        s += user("Hel" + "lo")
        s += assistant("Hel" + gen("x", max_tokens=1))

    def written(s: Any) -> None:
        with s.system():
            s += "Be"
            s += " kind"
        s += user_begin()
        helper(s, ["Hel", "lo"])
        s += user_end()
        with s.assistant():
            s += "H"
            s += "el"
            s += gen("x", max_tokens=1)

    encoder = PromptEncoder(codec)
    assert encoder.encode(ask(spelled)).token_ids == encoder.encode(ask(written)).token_ids
