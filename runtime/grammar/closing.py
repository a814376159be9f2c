"""A text that ends within its budget: masks narrowed to what can still be finished.

In: a matcher, the outline of its grammar, before each step the tokens that are left. Out: masks. Far from the budget's
end they are the engine's. Near it, a token is allowed only where the shortest completion after it still fits; at last
that leaves the completion itself. What the outline cannot follow is left as it is, and the engine's masks stand.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...constraint import Constraint
from ...errors import ConstraintError
from ...schema.constraint_rules import constraint_rules, rules_in_turns, size
from .matcher import CompiledGrammar, Mask, Matcher
from .outline import Outline, OutlineError, Place
from .vocabulary import Vocabulary

__all__ = ["ClosingGrammar", "ClosingMatcher"]

_MOST_TRIED = 48
_FEED = 64
_ZONE = 12
_SPARE = 3
_FAR = 4_000
_MOST_KNOWN = 10_000
_LARGE = 4_000  # characters
_TURN = 0.001  # seconds of work before a pause
_MOST_CONTINUED = 3  # bytes of a character after its first, each of which may be a token


class ClosingGrammar:
    """A `CompiledGrammar` whose matchers close their texts in time.

    The outline is made when it is first needed, or ahead by `prepare`: compiling need not wait for it.
    """

    def __init__(self, inner: CompiledGrammar, constraint: Constraint, vocabulary: Vocabulary) -> None:
        self._inner = inner
        self._constraint = constraint
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._made = False
        self._outline: Outline | None = None

    def matcher(self) -> ClosingMatcher:
        """A fresh matcher at the start."""
        return ClosingMatcher(self._inner.matcher(), self.prepare, self._vocabulary)

    @property
    def is_large(self) -> bool:
        """Whether making the outline would hold up a step."""
        return size(self._constraint) > _LARGE

    def prepare(self, *, gently: bool = False) -> Outline | None:
        """The outline, made once; None where the grammar has none.

        Args:
            gently: in turns of a millisecond, between which other threads may work.
        """
        with self._lock:
            if not self._made:
                with contextlib.suppress(OutlineError, RecursionError, ConstraintError):
                    self._outline = self._made_in_turns() if gently else self._made_at_once()
                self._made = True
            return self._outline

    def _made_at_once(self) -> Outline:
        return Outline(*constraint_rules(self._constraint, self._vocabulary.tool_text_format))

    def _made_in_turns(self) -> Outline:
        pause = _pauses()
        return Outline(*rules_in_turns(self._constraint, self._vocabulary.tool_text_format, pause), pause)


class ClosingMatcher:
    """A `Matcher` (see `matcher.py`) that closes its text in time; `fill_mask_within` is told how much is left."""

    closes = True

    def __init__(self, inner: Matcher, outline: Callable[[], Outline | None], vocabulary: Vocabulary) -> None:
        self._inner = inner
        self._prepare: Callable[[], Outline | None] | None = outline
        self._outline: Outline | None = None
        self._vocabulary = vocabulary
        self._data = bytearray()
        self._lengths: list[int] = []
        self._at = 0  # bytes of the data that the place stands behind
        self._place = Place(())

    def accept(self, token_id: int) -> bool:
        """Advances over a token."""
        if not self._inner.accept(token_id):
            return False
        text = self._vocabulary.text_bytes[token_id]
        self._lengths.append(len(text))
        self._data += text
        return True

    def accept_run(self, ids: Sequence[int]) -> bool:
        """Advances over text tokens, all or none."""
        inner: Any = self._inner
        if not inner.accept_run(ids):
            return False
        texts = [self._vocabulary.text_bytes[i] for i in ids]
        self._lengths += map(len, texts)
        self._data += b"".join(texts)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last accepted tokens."""
        self._inner.rollback(num_tokens)
        for _ in range(num_tokens):
            size = self._lengths.pop()
            del self._data[len(self._data) - size :]
        if self._at > len(self._data) and self._outline is not None:
            self._at, self._place = 0, self._outline.start

    def fork(self) -> ClosingMatcher:
        """An independent matcher in the same state."""
        other = ClosingMatcher.__new__(ClosingMatcher)
        other.__dict__.update(self.__dict__)
        other._inner = self._inner.fork()
        other._data, other._lengths = bytearray(self._data), list(self._lengths)
        return other

    def mask_state(self) -> Any:
        """The engine's state (`ahead.py`)."""
        return getattr(self._inner, "mask_state", lambda: None)()

    def fill_mask(self, row: Mask) -> None:
        """Writes the engine's mask."""
        self._inner.fill_mask(row)

    def finish_mask(self, row: Mask) -> None:
        """Makes the mask of `mask_state()`, in this row already, what `fill_mask` writes."""
        inner: Any = self._inner
        inner.finish_mask(row)

    def fill_mask_within(self, row: Mask, remaining: int) -> None:
        """Writes the mask of the ids after which the text can end within `remaining` tokens, the next one included."""
        self.fill_mask(row)
        self._close(row, remaining)

    def finish_mask_within(self, row: Mask, remaining: int) -> None:
        """Makes the mask of `mask_state()`, in this row already, what `fill_mask_within` writes."""
        self.finish_mask(row)
        self._close(row, remaining)

    def _close(self, row: Mask, remaining: int) -> None:
        if self._prepare is not None and remaining <= _FAR:
            self._outline, self._prepare = self._prepare(), None
            if self._outline is not None:
                self._place = self._outline.start
        if self._outline is None:
            return
        try:
            self._narrow(row, remaining, self._outline)
        except OutlineError:
            self._outline = None

    def is_complete(self) -> bool:
        """Whether the text so far is a whole value."""
        return self._inner.is_complete()

    def is_terminated(self) -> bool:
        """Whether nothing but an end can follow."""
        return self._inner.is_terminated()

    def forced_tokens(self) -> list[int]:
        """The ids that must come next."""
        return self._inner.forced_tokens()

    def _narrow(self, row: Mask, remaining: int, outline: Outline) -> None:
        behind = len(self._data) - self._at
        if outline.most_tokens is None:
            outline.most_tokens = self._tokens(outline, outline.longest)
        # One token may begin several things, each of which must then be finished.
        zone = _ZONE + min(16 * outline.most_tokens, 4 * outline.most_tokens + 32)
        if remaining > 4 * zone + behind:
            return
        self._feed(outline, len(self._data) if remaining <= 2 * zone + behind // 8 else _FEED)
        if self._at < len(self._data) - 3:
            return
        need = self._need(outline, self._place, bytes(self._data[self._at :]))
        if need is None or remaining > need + zone:
            return
        allowed = self._fitting(row, remaining, outline)
        if allowed is not None and allowed.any():
            row[:] = allowed

    def _feed(self, outline: Outline, most: int) -> None:
        """Lets the outline follow the text, whole characters only."""
        chunk = bytes(self._data[self._at : self._at + most])
        text = _whole(chunk)
        place = outline.walk(self._place, text)
        if not place.readings:
            raise OutlineError("the outline and the engine disagree")
        self._place = place
        self._at += len(text.encode())

    def _need(self, outline: Outline, place: Place, begun: bytes) -> int | None:
        """Tokens that finish the text from a place, where a character may have begun; None where none are known."""
        if not begun:
            rest = outline.completion(place)
            return None if rest is None else self._tokens(outline, rest)
        for tail in (b"\x80", b"\xbf", b"\x80\x80", b"\xbf\xbf", b"\xa0\x80", b"\x80\x80\x80", b"\x90\x80\x80"):
            try:
                char = (begun + tail).decode()
            except UnicodeDecodeError:
                continue
            later = outline.step(place, char)
            rest = outline.completion(later) if later.readings else None
            if rest is not None:
                return len(tail) + self._tokens(outline, rest)
        return None

    def _tokens(self, outline: Outline, text: str) -> int:
        """Tokens that spell the text at most: in one spelling or the other."""
        if not text:
            return 0
        known = outline.tokens.get(text)
        if known is None:
            if len(outline.tokens) > _MOST_KNOWN:
                outline.tokens.clear()
            vocabulary = self._vocabulary
            known = max(len(vocabulary.longest_fit(text.encode())), len(vocabulary.encode(text)))
            known = outline.tokens[text] = known + (_SPARE if len(text) > 1 else 0)
        return known

    def _fitting(self, row: Mask, remaining: int, outline: Outline) -> Mask | None:
        """The allowed ids of a mask after which the rest fits."""
        vocabulary = self._vocabulary
        begun = bytes(self._data[self._at :])
        allowed = vocabulary.empty_mask()
        for end in vocabulary.end_ids:
            _copy(row, allowed, end)
        if self._place.in_free_string:
            # More characters make nothing longer: what fitted before takes one token less of the rest. One that is
            # only begun takes some more to be finished.
            need = self._need(outline, self._place, begun)
            if need is not None and need < remaining and not begun:
                allowed |= row & vocabulary.plain_mask
            if need is not None and need + _MOST_CONTINUED < remaining:
                allowed |= row & vocabulary.partial_mask
        best: tuple[int, int] | None = None
        for token_id in self._candidates(row & ~allowed, outline):
            need = self._need_after(outline, begun + vocabulary.text_bytes[token_id])
            if need is None:
                continue
            if need < remaining:
                _copy(row, allowed, token_id)
            best = min(best or (need, token_id), (need, token_id))
        if best is not None and not allowed.any():
            _copy(row, allowed, best[1])  # the shortest way, which may be shorter than was reckoned
        return allowed

    def _need_after(self, outline: Outline, data: bytes) -> int | None:
        text = _whole(data)
        place = outline.walk(self._place, text)
        if not place.readings:
            return None
        return self._need(outline, place, data[len(text.encode()) :])

    def _candidates(self, row: Mask, outline: Outline) -> Sequence[int]:
        """Ids that are worth a try: those that begin the completion, and others as far as they are few."""
        vocabulary = self._vocabulary
        rest = (outline.completion(self._place) or "").encode()
        begun = bytes(self._data[self._at :])
        path = [] if begun else [i for i in vocabulary.starting(rest) if row[i >> 5] >> (i & 31) & 1]
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        ids = np.flatnonzero(bits[: vocabulary.size])
        if len(ids) > _MOST_TRIED:
            ids = ids[np.linspace(0, len(ids) - 1, _MOST_TRIED).astype(np.int64)]
        ends = [i for i in map(int, ids) if i not in vocabulary.end_ids]
        return [*path, *(i for i in ends if i not in path)]


def _pauses() -> Callable[[], None]:
    """A call that now and then gives the interpreter to other threads: for a while, so that one that waits gets it."""
    began = time.thread_time()

    def pause() -> None:
        nonlocal began
        worked = time.thread_time() - began
        if worked > _TURN:
            time.sleep(worked / 4)
            began = time.thread_time()

    return pause


def _whole(data: bytes) -> str:
    """The characters of data that may end inside one."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


def _copy(source: Mask, target: Mask, token_id: int) -> None:
    target.view(np.uint32)[token_id >> 5] |= source.view(np.uint32)[token_id >> 5] & np.uint32(1 << (token_id & 31))
