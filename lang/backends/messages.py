"""A prompt as chat messages, and as ChatML text, for backends that have no tokenizer of their own.

In: a `Prompt`. Out: closed turns, the turn that is still open, the raw text outside of turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..prompt import Prompt, TurnBegin, TurnEnd

__all__ = ["Chat", "Message", "chatml", "split_turns"]

Message = dict[str, str]


@dataclass
class Chat:
    """A prompt, taken apart.

    Attributes:
        messages: the closed turns, as `{"role": …, "content": …}`.
        open: the turn that the model is to continue, or None.
        raw: the text outside of turns, in order.
    """

    messages: list[Message] = field(default_factory=list)
    open: Message | None = None
    raw: str = ""

    def all_messages(self) -> list[Message]:
        """The closed turns, and the open one where it has text already."""
        started = [dict(self.open)] if self.open is not None and self.open["content"] else []
        return [*map(dict, self.messages), *started]


def split_turns(prompt: Prompt) -> Chat:
    """The turns of a prompt and what stands between them."""
    chat = Chat()
    for part in prompt:
        if isinstance(part, TurnBegin):
            chat.open = {"role": part.role, "content": ""}
        elif isinstance(part, TurnEnd):
            if chat.open is not None:
                chat.messages.append(chat.open)
            chat.open = None
        elif chat.open is not None:
            chat.open["content"] += part.text
        else:
            chat.raw += part.text
    return chat


def chatml(prompt: Prompt) -> str:
    """The prompt as one text, its roles in ChatML; raw text stands verbatim where it was written."""
    pieces = []
    for part in prompt:
        if isinstance(part, TurnBegin):
            pieces.append(f"<|im_start|>{part.role}\n")
        elif isinstance(part, TurnEnd):
            pieces.append("<|im_end|>\n")
        else:
            pieces.append(part.text)
    return "".join(pieces)
