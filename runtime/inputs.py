"""What a caller may pass as a prompt to `rt.generate`, made into one form.

In: a string, token ids, messages, or a list of these. Out: `PromptInput`s, and whether it was a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import InvalidValueError
from ..prompt import Prompt, Text, TurnBegin, TurnEnd
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
    if isinstance(value, str):
        return [_read_one(value, "prompt")], False
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidValueError(f"prompt: {_WANTED}, not {type(value).__name__}")
    if (ids := _ids(value, "prompt")) is not None:
        return [ids], False
    if value and all(isinstance(x, Mapping) for x in value):
        return [_read_one(value, "prompt")], False
    found: list[PromptInput] = []
    for i, x in enumerate(value):
        like = found[-1] if found and isinstance(found[-1], IdList) else None
        found.append(_read_one(x, f"prompt[{i}]", like))
    return found, True


_WANTED = "give text, token ids, messages, or a list of these"


def _ids(values: Sequence[Any], where: str, like: IdList | None = None) -> IdList | None:
    """The ids, where it is a list of integers and has any: a hundred thousand perhaps, many of them those of `like`."""
    if not (values and isinstance(values[0], int)):
        return None
    try:
        ids = IdList(values, like)
    except TypeError:
        return None
    if any(isinstance(ids[i], bool) for i in np.flatnonzero(ids.array <= 1).tolist()):
        return None
    if ids.array.min() < 0:
        i = int((ids.array < 0).argmax())
        raise InvalidValueError(f"{where}[{i}]={ids[i]}: token ids are integers ≥ 0")
    return ids


def _read_one(value: Any, where: str, like: IdList | None = None) -> PromptInput:
    if isinstance(value, str):
        return (Text(value),)
    if isinstance(value, Sequence) and value and not isinstance(value, (bytes, bytearray, memoryview)):
        if (ids := _ids(value, where, like)) is not None:
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
