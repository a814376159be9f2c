"""Prompts for the tests of the encoder, and what transformers makes of the same conversation."""

from __future__ import annotations

from typing import Any

from radicel.chat import PromptEncoder
from radicel.prompt import Generated, Part, Prompt, Text, TurnBegin, TurnEnd
from radicel.runtime.tokenizer import Tokenizer


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
