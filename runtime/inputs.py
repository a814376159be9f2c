"""What a caller may pass as a prompt to `rt.generate`, made into one form.

In: a string, token ids, messages, or a list of these. Out: `PromptInput`s, and whether it was a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import InvalidValueError
from ..prompt import Prompt, Text, TurnBegin, TurnEnd
from .id_reader import IdReader
from .token_buffer import IdList

__all__ = ["PromptInput", "RawPrompt", "read_prompts"]

RawPrompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
PromptInput: TypeAlias = Prompt | IdList
"""A prompt in parts, or ids to be taken as they are."""


def read_prompts(value: Any) -> tuple[list[PromptInput], bool]:
    """The prompts in `value` and whether it was a list of prompts.

    Raises:
        InvalidValueError: neither text, ids, messages nor a list of one of these; says what it is.
    """
    reader = IdReader()
    if isinstance(value, str):
        return [_read_one(value, "prompt", reader)], False
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidValueError(f"prompt: {_WANTED}, not {type(value).__name__}")
    if (ids := _ids(value, "prompt", reader)) is not None:
        return [ids], False
    if value and all(isinstance(x, Mapping) for x in value):
        return [_read_one(value, "prompt", reader)], False
    return [_read_one(x, f"prompt[{i}]", reader) for i, x in enumerate(value)], True


_WANTED = "give text, token ids, messages, or a list of these"


def _ids(values: Sequence[Any], where: str, reader: IdReader) -> IdList | None:
    """The ids, where it is a list of integers and has any."""
    if not (values and isinstance(values[0], int)):
        return None
    try:
        ids = reader.read(values)
    except TypeError:
        return None
    if ids.least < 0:
        i = int((ids.array < 0).argmax())
        raise InvalidValueError(f"{where}[{i}]={ids[i]}: token ids are integers ≥ 0")
    return ids


def _read_one(value: Any, where: str, reader: IdReader) -> PromptInput:
    if isinstance(value, str):
        return (Text(value),)
    if isinstance(value, Sequence) and value and not isinstance(value, (bytes, bytearray, memoryview)):
        if (ids := _ids(value, where, reader)) is not None:
            return ids
        if all(isinstance(x, Mapping) for x in value):
            return _messages(value, where)
    raise InvalidValueError(f"{where}: {_WANTED}, not {value!r:.80}")


def _messages(messages: Sequence[Mapping[str, Any]], where: str) -> Prompt:
    """The conversation, and an assistant turn opened after it; a last assistant message is continued."""
    parts: list[Any] = []
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise InvalidValueError(f"{where}[{i}]={message!r:.80}: a message has a 'role' and a 'content', both text")
        parts += [TurnBegin(role), Text(content), TurnEnd()]
    if messages[-1]["role"] == "assistant":
        return tuple(parts[:-1])
    return (*parts, TurnBegin("assistant"))
