"""What a chat is made of, on the way from messages to token ids.

In: messages, or text. Out: a `Prompt`; and the `Codec`, the contract of a tokenizer with its chat template, with which
`PromptEncoder` (`encode.py`) turns a prompt into ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .encode import PromptEncoder
from .errors import InvalidValueError, UnsupportedError
from .prompt import Part, Prompt, Text, TurnBegin, TurnEnd

__all__ = ["Codec", "PromptEncoder", "messages_to_prompt", "prompt_of_text"]


class Codec(Protocol):
    """What the encoder needs of a tokenizer. Used from many threads."""

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts before raw text, often one BOS, often nothing."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The BOS token, whether or not it is put there."""
        ...

    @property
    def bos_text(self) -> str:
        """Its spelling, else ""."""
        ...

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template."""
        ...

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False, **kwargs: Any
    ) -> str:
        """What the template makes of messages with `role` and `content`; raises ChatTemplateError."""
        ...

    def special_spellings(self, text: str) -> Sequence[tuple[int, int]]:
        """Where a text spells a special token, marked special or not (`<think>`), in order."""
        ...

    def encode_run(self, text: str, genuine: Sequence[tuple[int, int]] = (), *, at_start: bool = True) -> list[int]:
        """The ids of a run, without BOS.

        Args:
            text: the run.
            genuine: sorted, disjoint stretches of it in which spellings of special tokens mean the tokens.
            at_start: whether the run begins the sequence (after BOS); else it continues ids that are fixed.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token contributes to a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids that continue a text, special tokens spelled out."""
        ...


def prompt_of_text(text: str) -> Prompt:
    """A raw prompt: no template, and nothing in it means a special token."""
    return (Text(text),)


def messages_to_prompt(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    """A conversation in the common format, followed by an open assistant turn.

    Args:
        messages: each with `role` and `content` (a string, or a list of `{"type": "text", "text": …}`).

    Raises:
        InvalidValueError: a message without role or content, or with a key that would be lost.
        UnsupportedError: content that is not text.
    """
    parts: list[Part] = []
    for index, message in enumerate(messages):
        parts += [TurnBegin(_role(index, message)), *_content(index, message), TurnEnd()]
    return (*parts, TurnBegin("assistant"))


def _role(index: int, message: Mapping[str, Any]) -> str:
    unknown = [key for key in message if key not in ("role", "content") and message[key] is not None]
    if unknown:
        raise InvalidValueError(
            f"messages[{index}] has {unknown[0]!r}, which is not supported; use role and content only"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidValueError(f"messages[{index}] has role {role!r}: must be a non-empty string")
    return role


def _content(index: int, message: Mapping[str, Any]) -> list[Text]:
    content = message.get("content")
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, (list, tuple)):
        raise InvalidValueError(f"messages[{index}] has content {content!r}: must be a string or a list of text parts")
    texts: list[Text] = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise UnsupportedError(f"messages[{index}] has a content part of type {kind!r}: only text is supported")
        texts.append(Text(part["text"]))
    return texts
