"""The first tokens after a prompt whose end is spelled anew: they spell that end, naturally, and then go on.

In: the ids taken back, and the grammar of what is generated, if any. Out: a `Matcher` for the engine.

What may come: the prompt's own next token, or any token that spells all that is left of the end (and more). So the
model is never led into a cut that neither the tokenizer nor the prompt has: told only which bytes must come, it would
write " " and then "Hello" for " Hel", because " " is likely for the sake of other words. No torch here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .grammar.matcher import Mask, Matcher, mask_words

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

__all__ = ["PrefixMatcher", "Spellings"]

Ids = NDArray[np.int64]

# Of more next tokens than the first number, so many, evenly spread, show whether the tokenizer cuts before them.
_CHECKED, _SAMPLED = 128, 32


class Spellings:
    """The tokens of a vocabulary by their bytes. Used from many threads.

    Args:
        token_bytes: what each id spells, b"" where it may not stand for text.
        vocab_size: columns of the logits.
        encode: the ids of a text in the middle of a text.
    """

    def __init__(self, token_bytes: Seq[bytes], vocab_size: int, encode: Callable[[str], Seq[int]]) -> None:
        self._bytes = list(token_bytes)
        self._size = vocab_size
        self._encode = encode
        order = sorted((i for i, token in enumerate(self._bytes) if token), key=self._bytes.__getitem__)
        self._keys = [self._bytes[i] for i in order]
        self._ids: Ids = np.array(order, np.int64)
        self.longest = max(map(len, self._keys), default=0)
        self.mask: Callable[[bytes], Mask] = lru_cache(maxsize=256)(self._mask)
        """The ids that begin with some bytes; at least one byte. Not to be changed."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> Spellings:
        """Those of a tokenizer; its markup never spells a text."""
        plain = [b"" if tokenizer.is_markup(i) else token for i, token in enumerate(tokenizer.all_token_bytes())]
        return cls(plain, vocab_size, lambda text: tokenizer.encode_run(text, at_start=False))

    def empty_mask(self) -> Mask:
        """A mask that allows nothing."""
        return np.zeros(mask_words(self._size), np.int32)

    def token_bytes(self, token_id: int) -> bytes:
        """What an id spells."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def goes_on(self, start: bytes) -> bool:
        """Whether a token begins with these bytes and is longer."""
        after = bisect_right(self._keys, start)
        return after < len(self._keys) and self._keys[after].startswith(start)

    def spelling(self, data: bytes) -> list[int]:
        """The ids that spell exactly these bytes."""
        found: list[int] = self._ids[bisect_left(self._keys, data) : bisect_right(self._keys, data)].tolist()
        return found

    def some_follow(self, token_id: int, next_ids: Ids) -> bool:
        """Whether one of these (of many: of an even choice of them) follows the token where the tokenizer cuts."""
        few = next_ids if len(next_ids) <= _CHECKED else next_ids[:: len(next_ids) // _SAMPLED]
        return any(self._follows(token_id, int(i)) for i in few)

    def _follows(self, first: int, second: int) -> bool:
        try:
            text = (self._bytes[first] + self.token_bytes(second)).decode()
        except UnicodeDecodeError:
            return True  # a character goes over the border
        return list(self._encode(text)) == [first, second]

    def _mask(self, rest: bytes) -> Mask:
        low = bisect_left(self._keys, rest)
        stem = rest.rstrip(b"\xff")
        high = bisect_left(self._keys, stem[:-1] + bytes([stem[-1] + 1]), low) if stem else len(self._keys)
        allowed = np.zeros(mask_words(self._size) * 32, np.bool_)
        allowed[self._ids[low:high]] = True
        mask: Mask = np.packbits(allowed, bitorder="little").view(np.int32)
        return mask


class PrefixMatcher:
    """A `Matcher` (see `matcher.py`) for what begins with the text of some ids.

    Args:
        tail: the ids; each stays allowed as long as those before it were taken.
        spellings: the vocabulary.
        end_ids: ids that end a text.
        inner: the matcher of everything, the text of `tail` included; None where what follows it is free.
    """

    def __init__(
        self, tail: Seq[int], spellings: Spellings, end_ids: frozenset[int] = frozenset(), inner: Matcher | None = None
    ) -> None:
        self._tail = list(tail)
        self._spellings = spellings
        self._end_ids = end_ids
        self._inner = inner
        self._prefix = b"".join(map(spellings.token_bytes, tail))
        self._accepted: list[int] = []
        self._spelled = [0]  # bytes of the prefix that stand after each accepted token
        self._ended = False

    def accept(self, token_id: int) -> bool:
        """Advances over a token; False, and no change, where it does not spell the bytes or `inner` refuses it."""
        if self._ended:
            return False
        at = self._spelled[-1]
        data = self._spellings.token_bytes(token_id)
        rest = self._prefix[at:]
        if rest and not (data and (rest.startswith(data) or data.startswith(rest))):
            return False
        if self._inner is not None and not self._inner.accept(token_id):
            return False
        if token_id in self._end_ids:
            self._ended = True
        else:
            self._accepted.append(token_id)
            self._spelled.append(min(len(self._prefix), at + len(data)))
        return True

    @property
    def is_ready(self) -> bool:
        """Whether what follows the bytes can be had without waiting for another thread."""
        return bool(getattr(self._inner, "is_ready", True))

    def mask_state(self) -> Any:
        """The state of the engine behind it, if there is one (`grammar/ahead.py`)."""
        return getattr(self._inner, "mask_state", lambda: None)()

    def fill_mask(self, row: Mask) -> None:
        """Writes the mask of the ids that may come next: after the bytes, what `inner` says, or any."""
        if self._inner is not None:
            self._inner.fill_mask(row)
        else:
            row[:] = 0 if self._ended else -1
        self._spell(row)

    def finish_mask(self, row: Mask) -> None:
        """Makes the mask of `mask_state()`, in this row already, what `fill_mask` writes."""
        inner: Any = self._inner
        inner.finish_mask(row)
        self._spell(row)

    def _spell(self, row: Mask) -> None:
        """Leaves what spells the bytes naturally, where something does."""
        rest = self._prefix[self._spelled[-1] :]
        if rest and not self._ended:
            natural = row & self._natural(rest)
            if natural.any():
                row[:] = natural

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last accepted tokens, an end token included."""
        have = len(self._accepted) + self._ended
        if not 0 <= num_tokens <= have:
            raise ValueError(f"rollback({num_tokens}): only {have} tokens were accepted")
        if self._inner is not None:
            self._inner.rollback(num_tokens)
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        keep = len(self._accepted) - num_tokens
        del self._accepted[keep:], self._spelled[keep + 1 :]

    def fork(self) -> PrefixMatcher:
        """An independent matcher in the same state."""
        inner = None if self._inner is None else self._inner.fork()
        other = PrefixMatcher(self._tail, self._spellings, self._end_ids, inner)
        other._accepted, other._spelled, other._ended = list(self._accepted), list(self._spelled), self._ended
        return other

    def is_complete(self) -> bool:
        """Whether the text may end here."""
        done = self._spelled[-1] == len(self._prefix)
        return done and (self._inner is None or self._inner.is_complete())

    def is_terminated(self) -> bool:
        """Whether nothing but an end token can follow, or one was accepted."""
        return self._ended or (self._inner is not None and self._inner.is_terminated())

    def forced_tokens(self) -> list[int]:
        """What `inner` leaves no choice about; how the bytes alone are spelled, the model says."""
        return [] if self._inner is None else self._inner.forced_tokens()

    def _natural(self, rest: bytes) -> Mask:
        """The ids that may come next while `rest` is left, as far as `inner` is not asked."""
        mask: Mask = self._spellings.mask(rest).copy()
        words = mask.view(np.uint32)
        done = len(self._accepted)
        if self._accepted == self._tail[:done]:
            words[self._tail[done] >> 5] |= np.uint32(1 << (self._tail[done] & 31))
        if self._inner is not None:
            for token in self._spellings.spelling(rest):
                if words[token >> 5] >> (token & 31) & 1 and not self._leads_on(self._inner, token):
                    words[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))
        return mask

    def _leads_on(self, inner: Matcher, token_id: int) -> bool:
        """Whether something that `inner` lets follow a token that ends where the bytes end follows it naturally."""
        if not inner.accept(token_id):
            return False
        try:
            if inner.is_complete():
                return True
            row = self._spellings.empty_mask()
            inner.fill_mask(row)
            following = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            return self._spellings.some_follow(token_id, following)
        finally:
            inner.rollback(1)
