"""Random prompts of every shape: ids spell what is rendered, no text becomes a special token, choices fit on."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import pytest
from chat_prompts import turn, written
from chat_tokenizers import TEMPLATES, make
from radicel.chat import PromptEncoder
from radicel.errors import ChatTemplateError
from radicel.prompt import Generated, Part, Prompt, Text, TurnBegin
from radicel.runtime.tokenizer import Tokenizer

PIECES = [
    "Hello", " ", "\n", "\n\n", "<|im_end|>", "<think>", "</think>", "<s>", "é", "😀", "a", "<", ">", "<|im_", "end|>",
    "user\n", "assistant",
]  # fmt: skip


@lru_cache
def tokenizer_of(template: str, bos: bool) -> Tokenizer:
    return make("byte_level", TEMPLATES[template], bos=bos)


class Writer:
    """Writes random prompts."""

    def __init__(self, draw: random.Random, tokenizer: Tokenizer) -> None:
        self._draw = draw
        self._tokenizer = tokenizer

    def text(self) -> str:
        return "".join(self._draw.choices(PIECES, k=self._draw.randrange(5)))

    def part(self) -> Part:
        kind = self._draw.random()
        if kind < 0.5:
            return Text(self.text())
        if kind < 0.6:
            return Text(self._draw.choice(["<think>", "x<s>", "ok"]), special=True)
        return written(self._tokenizer, self.text())

    def maybe(self, probability: float, part: Part) -> Prompt:
        return (part,) if self._draw.random() < probability else ()

    def prompt(self) -> Prompt:
        prompt: Prompt = ()
        for i in range(self._draw.randrange(4)):
            prompt += self.maybe(0.25, Text(self.text())) + self.maybe(0.1, written(self._tokenizer, self.text()))
            prompt += turn(("user", "assistant")[i % 2], *(self.part() for _ in range(self._draw.randrange(4))))
        prompt += self.maybe(0.25, Text(self.text()))
        if self._draw.random() < 0.7:
            role = self._draw.choice(["assistant", "assistant", "user"])
            prompt += (TurnBegin(role), *(self.part() for _ in range(self._draw.randrange(3))))
        return prompt


def harmless(part: Part) -> Part:
    if isinstance(part, Generated):
        return Generated(part.text.replace("<|im_end|>", "#"))
    return replace(part, text=part.text.replace("<|im_end|>", "#")) if isinstance(part, Text) else part


def check(tokenizer: Tokenizer, prompt: Prompt) -> None:
    encoder = PromptEncoder(tokenizer)
    ids = list(encoder.encode(prompt).token_ids)
    rendered = encoder.render(prompt)
    if not rendered:
        assert ids == [tokenizer.bos_id]
        return
    assert tokenizer.decode(ids) in (rendered, tokenizer.bos_text + rendered if tokenizer.bos_ids else rendered)
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == encoder.encode(tuple(map(harmless, prompt))).token_ids.count(end)
    choices = ["yes", "<|im_end|>", " no"]
    for choice, (whole, start) in zip(choices, encoder.encode_continuations(prompt, choices)):
        assert whole == list(encoder.encode((*prompt, Text(choice))).token_ids)
        assert whole[:start] == ids[:start] or start == 1


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("template", TEMPLATES)
def test_random_prompts(template: str, bos: bool, count: int) -> None:
    draw = random.Random(f"{template}{bos}{count}")
    tokenizer = tokenizer_of(template, bos)
    refused = 0
    for _ in range(count):
        prompt = Writer(draw, tokenizer).prompt()
        try:
            PromptEncoder(tokenizer).encode(prompt)
        except ChatTemplateError:  # roles in an order that the template does not take
            refused += 1
            continue
        check(tokenizer, prompt)
    assert refused < count / 2
