"""What stands before a node, as data: the parts of a prompt, in order, before any template or tokenizer saw them.

In: the walk from the root of a stream to a node (`ir.py`).
Out: a `Prompt`, a tuple of parts. A backend turns it into token ids (`chat.py`) or into messages.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

__all__ = ["EncodedPrompt", "Generated", "Part", "Prompt", "Text", "TurnBegin", "TurnEnd"]


@dataclass(frozen=True)
class Text:
    """Text given by the program.

    Attributes:
        text: the text; adjacent ones are one run for the tokenizer.
        special: whether spellings of special tokens in it mean the tokens (`special("<fim_mid>")`); otherwise
            such a spelling is plain text.
    """

    text: str
    special: bool = False


@dataclass(frozen=True)
class Generated:
    """Text that a model wrote.

    Attributes:
        text: the visible text, without the end token and (unless kept) the stop.
        token_ids: the ids that spell `text`, as sampled; None where the backend has none.
        finish_reason: why it ended, as in `meta.finish_reason`.
        replaced: ids at the end of the literal before it that `token_ids` spell anew, before `text` (token healing).
    """

    text: str
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    replaced: tuple[int, ...] = ()


@dataclass(frozen=True)
class TurnBegin:
    """A role turn begins: `system`, `user`, `assistant`, `tool` or what the template knows."""

    role: str


@dataclass(frozen=True)
class TurnEnd:
    """The open role turn ends."""


Part: TypeAlias = Text | Generated | TurnBegin | TurnEnd
Prompt: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as token ids.

    Attributes:
        token_ids: the ids, BOS included exactly once where the tokenizer has one.
        reencoded: why ids of an earlier generation could not be kept, if that happened: any of `"stop"` (cut inside
            a token), `"healing"`, `"forced"` (border of a forced run), `"template"` (history rewritten).
    """

    token_ids: tuple[int, ...]
    reencoded: tuple[str, ...] = ()

    @cached_property
    def packed(self) -> bytes:
        """The ids as C ints, made once: a graph is made of a prompt's ids, and then its request is.

        Raises:
            OverflowError: an id that is no C int.
        """
        try:
            return struct.pack(f"{len(self.token_ids)}i", *self.token_ids)
        except struct.error as error:
            raise OverflowError(f"a token id of the prompt is no C int: {error}") from error
