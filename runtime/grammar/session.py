"""One sequence in its grammar, whichever engine stands behind it.

In: an engine's `Core`, which knows only text tokens. Out: the `Matcher` of the contract: end tokens, rollback over
them, forced text and errors are handled here, once, the same for both engines. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ...errors import ConstraintError
from .forced import forced_ids
from .matcher import Mask
from .vocabulary import Vocabulary

__all__ = ["Core", "Session"]


class Core(Protocol):
    """An engine's own state of one sequence."""

    def consume(self, token_id: int) -> bool:
        """Advances over a text token; False, and no change, where it is not allowed."""
        ...

    def fill(self, row: Mask) -> None:
        """Writes the mask, end tokens included exactly where the text may end (no change of state)."""
        ...

    def allows(self, ids: Sequence[int]) -> bool:
        """Whether these text tokens may come next, one after the other (no change of state)."""
        ...

    def undo(self, count: int) -> None:
        """Takes back the last consumed tokens."""
        ...

    def copy(self) -> Core:
        """An independent copy."""
        ...

    def may_end(self) -> bool:
        """Whether the text so far is a whole one."""
        ...

    def must_end(self) -> bool:
        """Whether nothing can follow."""
        ...

    def forced_bytes(self) -> bytes:
        """The bytes that must come next (no change of state)."""
        ...

    def error(self) -> str | None:
        """What broke inside the engine, if something did."""
        ...

    def mask_state(self) -> Any:
        """What `MaskPool` computes the mask of ahead; None where it cannot, or nothing more may be asked."""
        ...


class Session:
    """A `Matcher` (see `matcher.py`) over an engine's `Core`."""

    def __init__(self, core: Core, vocabulary: Vocabulary, accepted: Sequence[int] = (), ended: bool = False) -> None:
        self._core = core
        self._vocabulary = vocabulary
        self._accepted = list(accepted)
        self._ended = ended
        # Forced bytes that were held back, and after how many tokens.
        self._held: tuple[int, bytes] | None = None

    def accept(self, token_id: int) -> bool:
        """Advances over a token; False, and no change, where the grammar does not allow it.

        Raises:
            ConstraintError: the engine gave up (too complex): this sequence cannot go on.
        """
        if self._ended or not 0 <= token_id < self._vocabulary.size:
            return False
        if token_id in self._vocabulary.end_ids:
            self._ended = self._core.may_end()
            return self._ended
        if not self._vocabulary.text_bytes[token_id] and token_id not in self._vocabulary.markers:
            return False
        if not self._core.consume(token_id):
            self._check_alive()
            return False
        self._accepted.append(token_id)
        return True

    def fill_mask(self, row: Mask) -> None:
        """Writes the mask of the ids that may come next.

        Raises:
            ConstraintError: the engine gave up, or allows nothing: this sequence cannot go on.
        """
        if self._ended:
            row[:] = 0
            return
        self._core.fill(row)
        if self._held is not None and self._held[0] == len(self._accepted):
            self._keep_whole(row, self._held[1])
        self._check_alive(None if row.any() else "it allows no token although the text is not finished")

    def fill_whole_mask(self, row: Mask) -> None:
        """Writes the same without regard to bytes that were held back: every token that the grammar allows."""
        self._held = None
        self.fill_mask(row)

    def mask_state(self) -> Any:
        """The engine's state whose mask `fill_mask` will want; None where that needs no engine (`ahead.py`)."""
        return None if self._ended else self._core.mask_state()

    def allows(self, ids: Sequence[int]) -> bool:
        """Whether these text tokens may come next, one after the other (no change of state)."""
        return self._core.allows(ids)

    def mask_after(self, ids: Sequence[int]) -> Mask:
        """The mask after these tokens, which are allowed (no change of state)."""
        done = 0
        row = self._vocabulary.empty_mask()
        try:
            for token_id in ids:
                done += self._core.consume(token_id)
            self._core.fill(row)
        finally:
            if done:
                self._core.undo(done)
        return row

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last accepted tokens, an end token included."""
        if num_tokens < 0 or num_tokens > len(self._accepted) + self._ended:
            have = len(self._accepted) + self._ended
            raise ValueError(f"rollback({num_tokens}): only {have} tokens were accepted")
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            self._core.undo(num_tokens)
            del self._accepted[-num_tokens:]

    def fork(self) -> Session:
        """An independent matcher in the same state."""
        other = Session(self._core.copy(), self._vocabulary, self._accepted, self._ended)
        other._held = self._held
        return other

    def is_complete(self) -> bool:
        """Whether the text so far is a whole value, so that it may end here."""
        return self._ended or self._core.may_end()

    def is_terminated(self) -> bool:
        """Whether nothing but an end token can follow, or one was accepted."""
        return self._ended or self._core.must_end()

    def forced_tokens(self) -> list[int]:
        """The ids that must come next, whatever the model says; empty where there is a choice."""
        if self.is_terminated() or self._core.may_end():
            return []
        forced = self._core.forced_bytes()
        if not forced:
            return []
        ids = forced_ids(forced, self._accepted, self._vocabulary, self)
        self._held = None if ids else (len(self._accepted), forced)
        return ids

    def _keep_whole(self, row: Mask, held: bytes) -> None:
        """Leaves the tokens that begin with the bytes held back, so that the model never sees an odd split of them.

        Where no allowed token begins with all of them, with as many of them as one does.
        """
        for size in range(len(held), 0, -1):
            whole = row & self._vocabulary.beginning_mask(held[:size])
            if whole.any():
                row[:] = whole
                return

    def _check_alive(self, problem: str | None = None) -> None:
        problem = self._core.error() or problem
        if problem is not None:
            raise ConstraintError(f"the grammar cannot go on after {self._tail()!r}: {problem}", keyword="engine")

    def _tail(self) -> str:
        return b"".join(self._vocabulary.text_bytes[i] for i in self._accepted[-8:]).decode("utf-8", "replace")
