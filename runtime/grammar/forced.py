"""Forced text → forced ids.

In: the bytes that a grammar leaves no choice about, the ids accepted so far, and a look at the masks further on.
Out: the ids to append without asking the model: spelled as the tokenizer spells them in this context, the tail held
back where a longer legal token could start in it, so that the model never continues an odd split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .matcher import Mask
from .vocabulary import Vocabulary

__all__ = ["forced_ids"]

_CONTEXT_TOKENS = 8

MaskAfter = Callable[[Sequence[int]], "Mask | None"]
"""The mask after accepting these ids on top of the present state; None where they are not allowed."""


def forced_ids(forced: bytes, accepted: Sequence[int], vocabulary: Vocabulary, mask_after: MaskAfter) -> list[int]:
    """The ids that `forced` becomes after `accepted`, without those that must be held back."""
    text = _whole_characters(forced)
    ids = _spelled(text, accepted, vocabulary) if text else []
    return ids[: _certain(ids, vocabulary, mask_after)]


def _whole_characters(data: bytes) -> str:
    """The text of `data`, without the beginning of a character at its end; nothing where it starts inside one.

    The rest of a character is not text: spelled as such it would become U+FFFD, which nobody forced.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode() if error.reason == "unexpected end of data" else ""


def _spelled(text: str, accepted: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """`text` encoded after the last accepted ids; on its own where those are not spelled canonically."""
    tail = list(accepted[-_CONTEXT_TOKENS:])
    before = b"".join(vocabulary.text_bytes[i] for i in tail)
    try:
        ids = vocabulary.encode(before.decode() + text)
    except UnicodeDecodeError:
        ids = []
    if tail and ids[: len(tail)] == tail:
        return ids[len(tail) :]
    return vocabulary.encode(text)


def _certain(ids: Sequence[int], vocabulary: Vocabulary, mask_after: MaskAfter) -> int:
    """How many of `ids` no longer legal token could replace, whatever follows them."""
    rest = b""
    certain = len(ids)
    for index in range(len(ids) - 1, -1, -1):
        rest = vocabulary.text_bytes[ids[index]] + rest
        longer = vocabulary.longer_than(rest)
        if not len(longer):
            if len(rest) > 64:
                break
            continue
        mask = mask_after(ids[:index])
        if mask is None or (mask[longer >> 5] >> (longer & 31) & 1).any():
            certain = index
    return certain
