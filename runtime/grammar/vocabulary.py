"""What a grammar engine must know of a tokenizer.

In: the bytes of every token, which ids end a text, which are special, and (for forced text) the tokenizer itself.
Out: a `Vocabulary`: padded token bytes, canonical encoding of a text, and "which tokens begin with these bytes".
No torch here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidValueError
from .matcher import Mask, mask_words

__all__ = ["Vocabulary"]

_MOST_MASKS = 256
_MOST_STARTS = 4096
_MOST_TEXTS = 8192


class Vocabulary:
    """The tokens of a model, as a grammar sees them. Immutable; may be used from many threads.

    Args:
        token_bytes: what each id adds to the text, `b""` where it adds nothing.
        vocab_size: columns of the logits, ≥ `len(token_bytes)`; ids beyond `token_bytes` are never allowed.
        end_ids: every id that ends a text.
        hf_tokenizer: a transformers (or tokenizers) tokenizer, which spells forced text; None spells it by the
            longest token that fits, each time.
        special_ids: ids that never stand for text.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        vocab_size: int,
        end_ids: Iterable[int],
        hf_tokenizer: Any = None,
        special_ids: Iterable[int] = (),
    ) -> None:
        self.size = vocab_size
        self.end_ids = frozenset(end_ids)
        if len(token_bytes) > vocab_size:
            raise InvalidValueError(f"{len(token_bytes)} tokens do not fit a vocabulary of {vocab_size}")
        if not self.end_ids or min(self.end_ids) < 0 or max(self.end_ids) >= vocab_size:
            shown = sorted(self.end_ids)
            raise InvalidValueError(
                f"end_ids={shown}: must be at least one id below {vocab_size}, or no text could end"
            )
        self.special_ids = frozenset(special_ids) | self.end_ids
        self._hf_tokenizer = hf_tokenizer
        self._beginning: dict[bytes, Mask] = {}
        self._longer: dict[bytes, Mapping[int, Sequence[int]]] = {}
        self.replacing: dict[bytes, int] = {}
        """Forced text → the longer token that could last replace it: often it can again (`forced.py`)."""
        self._encoded: dict[str, tuple[int, ...]] = {}
        padded = [*token_bytes, *[b""] * (vocab_size - len(token_bytes))]
        self.names = tuple(padded)
        """What each id is called, special ones by their spelling."""
        self.text_bytes = tuple(b"" if i in self.special_ids else t for i, t in enumerate(padded))
        """What each id may add to a constrained text: nothing for special ids."""

    def prepare(self, pause: Callable[[], None] = lambda: None) -> None:
        """Makes what the first texts need, which is made when it is asked for otherwise.

        Args:
            pause: called now and then, so that other threads get their turn.
        """
        for name in ("_tokenizer", "_by_bytes", "_singles", "_beginnings", "_sorted_ids", "markers"):
            getattr(self, name)
            pause()

    def empty_mask(self) -> Mask:
        """A mask that allows nothing."""
        return np.zeros(mask_words(self.size), dtype=np.int32)

    def longer_than(self, start: bytes) -> Mapping[int, Sequence[int]]:
        """The ids of tokens that begin with `start` and go on, by the byte with which they do, most tokens first."""
        found = self._longer.get(start)
        if found is None:
            if len(self._longer) >= _MOST_STARTS:
                self._longer.clear()
                self.replacing.clear()
            keys, ids = self._sorted
            at, end = self._going_on(start)
            groups: dict[int, list[int]] = {}
            while at < end:
                byte = keys[at][len(start)]
                last = bisect_left(keys, start + bytes((byte + 1,)), at, end) if byte < 0xFF else end
                groups[byte] = ids[at:last]
                at = last
            most_first = sorted(groups.items(), key=lambda group: -len(group[1]))
            found = self._longer[start] = dict(most_first)
        return found

    def _going_on(self, start: bytes) -> tuple[int, int]:
        """From and up to where in `_sorted` the tokens are that begin with `start` and go on."""
        keys, _ = self._sorted
        low = bisect_right(keys, start)  # past `start` itself, which sorts before all that go on from it
        return low, bisect_left(keys, start + b"\xff" * 4, low)  # no UTF-8 text has four of these bytes

    def following_bytes(self, mask: Mask) -> frozenset[int]:
        """The bytes that are allowed as tokens, and those that are no token on their own."""
        words, bits, others = self._singles
        return others.union((mask[words] & bits).nonzero()[0].tolist())

    @cached_property
    def _singles(self) -> tuple[NDArray[np.int64], Mask, frozenset[int]]:
        """Word and bit of each byte's token; the bytes that are none."""
        ids = [-1 if single is None else single for single in self.single_bytes]
        words = np.array([max(i, 0) >> 5 for i in ids], dtype=np.int64)
        bits = np.array([0 if i < 0 else 1 << (i & 31) for i in ids], dtype=np.uint32).view(np.int32)
        return words, bits, frozenset(byte for byte, i in enumerate(ids) if i < 0)

    @cached_property
    def single_bytes(self) -> tuple[int | None, ...]:
        """Byte → the id of the token that is this byte, if there is one."""
        return tuple(self._by_bytes.get(bytes((byte,))) for byte in range(256))

    def beginning_mask(self, start: bytes) -> Mask:
        """The ids of tokens that begin with `start`, itself included."""
        mask = self._beginning.get(start)
        if mask is None:
            if len(self._beginning) >= _MOST_MASKS:
                self._beginning.clear()
            low, high = self._going_on(start)
            flags = np.zeros(mask_words(self.size) * 32, np.bool_)
            flags[self._sorted_ids[low:high]] = True
            own = self._by_bytes.get(start)
            if own is not None:
                flags[own] = True
            mask = np.packbits(flags, bitorder="little").view(np.int32)
            self._beginning[start] = mask
        return mask

    def encode(self, text: str) -> list[int]:
        """The ids of a text as the tokenizer spells it; no special token is read out of it.

        Empty where the tokenizer cannot spell exactly this text (it adds a space, or drops something).
        """
        known = self._encoded.get(text)
        if known is None:
            if len(self._encoded) >= _MOST_TEXTS:
                self._encoded.clear()
            known = self._encoded[text] = tuple(self._encode(text))
        return list(known)

    def _encode(self, text: str) -> list[int]:
        ids = self._greedy(text.encode()) if self._tokenizer is None else self._by_tokenizer(text)
        spelled = b"".join(self.text_bytes[i] for i in ids)
        return ids if spelled == text.encode() else []

    def longest_fit(self, data: bytes) -> list[int]:
        """Ids that spell the bytes, each time the longest token that fits; empty where no tokens do."""
        return self._greedy(data)

    @cached_property
    def spelled(self) -> tuple[bytes, ...]:
        """What tokens spell, sorted, each once."""
        return tuple(sorted({text for text in self.text_bytes if text}))

    @cached_property
    def tool_format(self) -> str:
        """How this tokenizer's models write tool calls (`lang/schema/tool_calls.py`), by their markers.

        Those of Mistral with their ids, or with `:text` where they are no special tokens.
        """
        names = set(self.names)
        if b"[TOOL_CALLS]" in names:
            form, markers = ("mistral11", self.markers) if b"[ARGS]" in names else ("mistral", self.markers[:1])
            return ":".join([form, *map(str, markers)]) if len(markers) == 1 + (form != "mistral") else f"{form}:text"
        return "llama3" if b"<|python_tag|>" in names and b"<tool_call>" not in names else "hermes"

    @cached_property
    def tool_text_format(self) -> str:
        """`tool_format` without special tokens: how the calls' text is written."""
        form, _, markers = self.tool_format.partition(":")
        return form if markers and markers != "text" else self.tool_format

    @cached_property
    def markers(self) -> tuple[int, ...]:
        """The special tokens that a grammar may ask for: Mistral's `[TOOL_CALLS]` and `[ARGS]`."""
        wanted = [self.names.index(name) for name in (b"[TOOL_CALLS]", b"[ARGS]") if name in self.names]
        return tuple(i for i in wanted if i in self.special_ids)

    def _by_tokenizer(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids if all(i < self.size for i in ids) else []

    def _greedy(self, data: bytes) -> list[int]:
        ids: list[int] = []
        position, size = 0, len(data)
        known = self._beginnings.get
        while position < size:
            end = last = position
            found = -1
            while end < size:
                end += 1
                token = known(data[position:end])
                if token is None:
                    break
                if token >= 0:
                    found, last = token, end
            if found < 0:
                return []
            ids.append(found)
            position = last
        return ids

    @cached_property
    def _beginnings(self) -> dict[bytes, int]:
        """What some token begins with, and the token that it is; -1 where it is none as a whole."""
        known = dict.fromkeys((text[:size] for text in self._by_bytes for size in range(1, len(text))), -1)
        known.update(self._by_bytes)
        return known

    @cached_property
    def _tokenizer(self) -> Any:
        """A copy of the fast tokenizer of our own: its settings are changed, and others use the original."""
        given = self._hf_tokenizer
        if given is None:
            return None
        backend = getattr(given, "backend_tokenizer", given)
        mine = type(backend).from_str(backend.to_str())
        mine.no_padding()
        mine.no_truncation()
        mine.encode_special_tokens = True
        return mine

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        groups: dict[bytes, list[int]] = {}  # sorted a few at a time: other threads wait for a sort
        for token_id, text in enumerate(self.text_bytes):
            if text:
                groups.setdefault(text[:2], []).append(token_id)
        of = self.text_bytes.__getitem__
        ids = [token_id for start in sorted(groups) for token_id in sorted(groups[start], key=of)]
        return list(map(of, ids)), ids

    @cached_property
    def _sorted_ids(self) -> NDArray[np.int32]:
        return np.array(self._sorted[1], np.int32)

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        return {text: i for i, text in reversed(list(enumerate(self.text_bytes))) if text}
