"""Forced text → forced ids.

In: the bytes that a grammar leaves no choice about, the ids accepted so far, and which ids it allows further on.
Out: the ids to append without asking the model: spelled as the tokenizer spells them in this context, the tail held
back where a longer legal token could start in it, so that the model never continues an odd split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from .matcher import Mask
from .vocabulary import Vocabulary

__all__ = ["forced_ids"]

_CONTEXT_TOKENS = 4

_FEW = 8
"""So many longer tokens that go on with one byte are tried one by one; of the others, one mask tells."""
_FEW_BYTES = 2
"""So many bytes are tried one by one; of the others, one mask tells."""


class Ahead(Protocol):
    """What a grammar says of ids further on."""

    def allows(self, ids: Sequence[int]) -> bool:
        """Whether these ids may come next, one after the other."""
        ...

    def mask_after(self, ids: Sequence[int]) -> Mask:
        """The mask after these ids, which are allowed."""
        ...


def forced_ids(forced: bytes, accepted: Sequence[int], vocabulary: Vocabulary, ahead: Ahead) -> list[int]:
    """The ids that `forced` becomes after `accepted`, without those that must be held back."""
    text = _whole_characters(forced)
    ids = _spelled(text, accepted, vocabulary) if text else []
    return ids[: _certain(ids, vocabulary, ahead)] if ids and ahead.allows(ids) else []


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


def _certain(ids: Sequence[int], vocabulary: Vocabulary, ahead: Ahead) -> int:
    """How many of `ids`, which are allowed, no longer legal token could replace, whatever follows them."""
    rest = b""
    certain = len(ids)
    following = _Following(ids, vocabulary, ahead)
    for index in range(len(ids) - 1, -1, -1):
        rest = vocabulary.text_bytes[ids[index]] + rest
        longer = vocabulary.longer_than(rest)
        if longer:
            before = ids[:index]
            last = vocabulary.replacing.get(rest)
            if last is None or not ahead.allows([*before, last]):
                last = _allowed_of(following.among(longer), before, ahead)
            if last is not None:
                certain = index
                vocabulary.replacing[rest] = last
        elif len(rest) > 64:
            break
    return certain


class _Following:
    """The bytes that a text may go on with after `ids`, and those that are no token on their own.

    Where almost anything may follow, one of the first is enough; where little may, its mask is cheap.
    """

    def __init__(self, ids: Sequence[int], vocabulary: Vocabulary, ahead: Ahead) -> None:
        self._ids = ids
        self._vocabulary = vocabulary
        self._ahead = ahead
        self._asked: dict[int, bool] = {}
        self._all: frozenset[int] | None = None

    def among(self, longer: Mapping[int, Sequence[int]]) -> Iterator[Sequence[int]]:
        """Of tokens by a byte, those whose byte is one of these; some may come twice."""
        for byte, tokens in longer.items():
            if self._all is None and byte not in self._asked and len(self._asked) >= _FEW_BYTES:
                self._all = self._vocabulary.following_bytes(self._ahead.mask_after(self._ids))
            if self._all is not None:
                yield from (longer[follows] for follows in self._all & longer.keys())
                return
            if self._ask(byte):
                yield tokens

    def _ask(self, byte: int) -> bool:
        known = self._asked.get(byte)
        if known is None:
            single = self._vocabulary.single_bytes[byte]
            known = self._asked[byte] = single is None or self._ahead.allows([*self._ids, single])
        return known


def _allowed_of(groups: Iterable[Sequence[int]], before: Sequence[int], ahead: Ahead) -> int | None:
    """A token of these groups that may come after `before`, if there is one."""
    rest: list[int] = []
    for group in groups:
        for token in group[:_FEW]:
            if ahead.allows([*before, token]):
                return token
        rest += group[_FEW:]
    if not rest:
        return None
    mask, found = ahead.mask_after(before), np.asarray(rest)
    allowed = (mask[found >> 5] >> (found & 31) & 1).nonzero()[0]
    return rest[allowed[0]] if len(allowed) else None
