"""A text that ends within its budget: masks narrowed to what can still be finished.

In: a matcher, what is known of its grammar's places (`reach.py`), before each step the tokens that are left. Out:
masks. A token is taken out where the shortest completion known after it does not fit any more, and no other: while all
fit, and that is until near the budget's end, masks are the engine's; at last they leave the completion itself. Forced
text comes as one run while it fits, too. What the outline cannot follow is left as it is, and the engine's masks stand.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from ...constraint import Constraint
from ...errors import ConstraintError
from ...schema.apart import goes
from ...schema.constraint_rules import bare, constraint_rules, rules_in_turns, size
from .matcher import CompiledGrammar, Mask, Matcher
from .needs import NEVER, Needs
from .outline import Outline, OutlineError
from .reach import Path, Reach, TooMuchWork
from .texts import whole_characters
from .vocabulary import Vocabulary

__all__ = ["ClosingGrammar", "ClosingMatcher", "Steering", "pauses"]

_FEED = 256
_FAR = 4_000
_LARGE = 4_000  # characters
_FIRST, _FIRST_LARGE = 2, 8  # places that are followed before the first step
_TURN = 0.001  # seconds of work before a pause
_BUSY_PAUSE = 4.0  # of that


class Steering:
    """What closing the texts of a constraint takes: made when it is first needed, or ahead, beside its compiling.

    Args:
        constraint: it.
        vocabulary: the tokens.
        exact: whether masks wait for what they ask of it. Else how far a step looks depends on what was found before.
    """

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary, *, exact: bool = False) -> None:
        self._constraint = constraint
        self._vocabulary = vocabulary
        self._exact = exact
        self._lock = threading.Lock()
        self._made = False
        self._reach: Reach | None = None
        self.making: Future[None] | None = None
        """Of the thread that makes it ahead, if one does."""

    def is_ready(self) -> bool:
        """Whether nobody who asks has to wait for a thread that makes it."""
        return self.making is None or self.making.done()

    def prepare(self, pause: Callable[[], None] | None = None) -> Reach | None:
        """What is known of the grammar's places, made once; None where the grammar has no outline.

        Args:
            pause: called now and then, so that other threads get their turn; None: made at once.
        """
        with self._lock:
            if not self._made:
                with contextlib.suppress(OutlineError, RecursionError, ConstraintError):
                    self._reach = self._made_in_turns(pause or (lambda: None))
                self._made = True
            return self._reach

    def begin(self, pause: Callable[[], None]) -> None:
        """Makes it, and follows the places that a text begins with, so that its first steps need not: in turns."""
        reach = self.prepare(pause)
        if reach is not None:
            large = size(self._constraint) > _LARGE
            reach.warm(pause, lambda: True, _FIRST_LARGE if large else _FIRST)

    def warm(self, pause: Callable[[], None], wanted: Callable[[], bool]) -> None:
        """Follows what most texts will come to, in turns and while it is `wanted`, so that steps need not."""
        reach = self.prepare(pause)
        if reach is not None:
            reach.warm(pause, wanted)

    def _made_in_turns(self, pause: Callable[[], None]) -> Reach:
        tool_format = self._vocabulary.tool_text_format
        if goes(size(self._constraint), bare(self._constraint)):
            rules, root = rules_in_turns(self._constraint, tool_format, pause)
        else:
            rules, root = constraint_rules(self._constraint, tool_format)
        return Reach(Outline(rules, root, pause), self._vocabulary, pause, silent=self._silent, exact=self._exact)

    @property
    def _silent(self) -> int:
        """Markers that a call may still need: its own begins it, and another one its arguments."""
        return len(self._vocabulary.markers) if self._constraint.form == "tools" else 0


class ClosingGrammar:
    """A `CompiledGrammar` whose matchers close their texts in time."""

    def __init__(self, inner: CompiledGrammar, steering: Steering, vocabulary: Vocabulary) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self.steering = steering

    def matcher(self) -> ClosingMatcher:
        """A fresh matcher at the start."""
        steering = self.steering
        return ClosingMatcher(self._inner.matcher(), steering.prepare, self._vocabulary, steering.is_ready)


class ClosingMatcher:
    """A `Matcher` (see `matcher.py`) that closes its text in time; `fill_mask_within` is told how much is left."""

    closes = True

    def __init__(
        self,
        inner: Matcher,
        reach: Callable[[], Reach | None],
        vocabulary: Vocabulary,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._inner = inner
        self._prepare: Callable[[], Reach | None] | None = reach
        self._is_ready = is_ready
        self._reach: Reach | None = None
        self._generation = 0
        self._vocabulary = vocabulary
        self._data = bytearray()
        self._history: list[tuple[int, Path | None]] = []  # of each token: its bytes, the way out before it
        self._at = 0  # bytes of the data that the place stands behind
        self._place = 0
        self._way: Path | None = None  # tokens that finish the text, as far as they are known

    @property
    def is_ready(self) -> bool:
        """Whether its masks within a budget can be had without waiting for another thread."""
        return self._prepare is None or self._is_ready()

    def accept(self, token_id: int) -> bool:
        """Advances over a token."""
        if not self._inner.accept(token_id):
            return False
        self._note(token_id)
        return True

    def accept_run(self, ids: Sequence[int]) -> bool:
        """Advances over text tokens, all or none."""
        inner: Any = self._inner
        if not inner.accept_run(ids):
            return False
        for token_id in ids:
            self._note(token_id)
        return True

    def _note(self, token_id: int) -> None:
        """Keeps what is to be known of an accepted token."""
        text = self._vocabulary.text_bytes[token_id]
        self._history.append((len(text), self._way))
        if text:
            self._way = self._way[1:] if self._way and self._way[0] == token_id else None
        self._data += text

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last accepted tokens."""
        self._inner.rollback(num_tokens)
        for _ in range(num_tokens):
            size, self._way = self._history.pop()
            del self._data[len(self._data) - size :]
        if self._at > len(self._data):
            self._at = self._place = self._generation = 0

    def fork(self) -> ClosingMatcher:
        """An independent matcher in the same state."""
        other = ClosingMatcher.__new__(ClosingMatcher)
        other.__dict__.update(self.__dict__)
        other._inner = self._inner.fork()
        other._data, other._history = bytearray(self._data), list(self._history)
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
        reach = self._known_places(remaining)
        if reach is None:
            return
        try:
            with reach.lock:
                if self._near(remaining, reach):
                    self._narrow(row, remaining - reach.spare, reach)
        except OutlineError:
            self._reach = None

    def forced_tokens_within(self, remaining: int) -> list[int]:
        """The ids that must come next, but none where spelled so the rest would not fit: masks then decide."""
        ids = self._inner.forced_tokens()
        reach = self._known_places(remaining) if ids else None
        if reach is None:
            return ids
        try:
            with reach.lock:
                fits = not self._near(remaining, reach) or self._fits(ids, remaining - reach.spare, reach)
        except OutlineError:
            self._reach = None
            return ids
        return ids if fits else []

    def is_complete(self) -> bool:
        """Whether the text so far is a whole value."""
        return self._inner.is_complete()

    def is_terminated(self) -> bool:
        """Whether nothing but an end can follow."""
        return self._inner.is_terminated()

    def forced_tokens(self) -> list[int]:
        """The ids that must come next."""
        return self._inner.forced_tokens()

    def _known_places(self, remaining: int) -> Reach | None:
        if self._prepare is not None and remaining <= _FAR:
            self._reach, self._prepare = self._prepare(), None
        return self._reach

    def _near(self, remaining: int, reach: Reach) -> bool:
        """Whether the end may be near, and the text was followed so far."""
        behind = len(self._data) - self._at
        if remaining > 4 * reach.zone + behind:
            return False
        self._feed(reach, len(self._data) if remaining <= 2 * reach.zone + behind // 8 else _FEED)
        return self._at >= len(self._data) - 3

    def _feed(self, reach: Reach, most: int) -> None:
        """Lets the outline follow the text, whole characters only."""
        reach.settle()
        if self._generation != reach.generation:
            self._generation, self._at, self._place = reach.generation, 0, reach.number(reach.start)
        if self._at == len(self._data):
            return
        chunk = bytes(self._data[self._at : self._at + most])
        text = whole_characters(chunk)
        place = reach.walk(self._place, text)
        if place < 0:
            raise OutlineError("the outline and the engine disagree")
        self._place = place
        self._at += len(text.encode())

    def _needed(self, reach: Reach) -> int:
        """Tokens that finish the text from here: by the way that it is on, or a shorter one."""
        if self._way is None or reach.need(self._place, self._begun) < len(self._way):
            self._way = reach.path(self._place, self._begun)
        return NEVER if self._way is None else len(self._way)

    @property
    def _begun(self) -> bytes:
        """The first bytes of a character that is not whole yet."""
        return bytes(self._data[self._at :])

    def _fits(self, ids: list[int], remaining: int, reach: Reach) -> bool:
        """Whether the text can end in time after these ids, or cannot in any case."""
        need = self._needed(reach)
        if remaining > need + reach.zone or need > remaining:
            return True
        data = b"".join(self._vocabulary.text_bytes[token_id] for token_id in ids)
        return tuple(ids) == (self._way or ())[: len(ids)] or (
            len(ids) + reach.need_after(self._place, self._begun + data) <= remaining
        )

    def _narrow(self, row: Mask, remaining: int, reach: Reach) -> None:
        need = self._needed(reach)
        if need >= NEVER or remaining > need + reach.zone:
            return
        needs = self._known(row, reach)
        if needs is None:
            if remaining > need + reach.zone // 2:
                return
            needs = reach.after_some(self._place, self._begun, row)
        if needs.most < remaining:
            return
        allowed = self._fitting(row, remaining, needs)
        if not allowed.any():
            # A token that keeps the spelling of forced text whole does not fit: any other may.
            plain = getattr(self._inner, "fill_whole_mask", self._inner.fill_mask)
            plain(row)
            allowed = self._fitting(row, remaining, needs)
        if not allowed.any():  # perhaps less is needed than was reckoned
            best = needs.least(row) if not self._way or not _has(row, self._way[0]) else self._way[0]
            if best is None:
                return
            _copy(row, allowed, best)
        row[:] = allowed

    def _known(self, row: Mask, reach: Reach) -> Needs | None:
        """What is needed after each token; None where that takes long to find out."""
        if self._begun:
            return reach.after_some(self._place, self._begun, row)
        try:
            return reach.after(self._place)
        except TooMuchWork:
            return None

    def _fitting(self, row: Mask, remaining: int, needs: Needs) -> Mask:
        """The allowed ids of a mask after which the rest fits."""
        allowed: Mask = row & needs.within(remaining, self._vocabulary.size)
        for end in self._vocabulary.end_ids:
            _copy(row, allowed, end)
        way = self._way
        if way is not None and len(way) < remaining:
            for silent in self._vocabulary.markers:
                _copy(row, allowed, silent)
        if way and len(way) <= remaining:
            _copy(row, allowed, way[0])
        return allowed


def pauses(is_busy: Callable[[], bool] = lambda: False, rest: float = 0.25) -> Callable[[], None]:
    """A call that now and then gives the interpreter to other threads: for a while, so that one that waits gets it.

    Args:
        is_busy: whether there is more urgent work than what pauses, which then takes a small part of the time.
        rest: how long a pause is else, in parts of the time worked.
    """
    began = time.thread_time()
    due = time.perf_counter() + _TURN

    def pause() -> None:
        nonlocal began, due
        if time.perf_counter() < due:  # a turn is not over sooner than by the clock, which costs less to read
            return
        worked = time.thread_time() - began
        if worked > _TURN:
            time.sleep(worked * (_BUSY_PAUSE if is_busy() else rest))
            began, worked = time.thread_time(), 0.0
        due = time.perf_counter() + _TURN - worked

    return pause


def _has(row: Mask, token_id: int) -> bool:
    return bool(row[token_id >> 5] >> (token_id & 31) & 1)


def _copy(source: Mask, target: Mask, token_id: int) -> None:
    target.view(np.uint32)[token_id >> 5] |= source.view(np.uint32)[token_id >> 5] & np.uint32(1 << (token_id & 31))
