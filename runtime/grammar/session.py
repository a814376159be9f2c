"""One sequence in its grammar, whichever engine stands behind it.

In: an engine's `Core`, which knows only text tokens. Out: the `Matcher` of the contract: end tokens, rollback over
them, forced text and errors are handled here, once, the same for both engines. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ...errors import ConstraintError
from .ahead import MaskState
from .forced import forced_ids
from .matcher import Mask
from .vocabulary import Vocabulary

__all__ = ["Core", "Session"]


class Core(Protocol):
    """An engine's own state of one sequence."""

    def consume(self, token_id: int) -> bool:
        """Advances over a text token; False, and no change, where it is not allowed."""
        ...

    def consume_all(self, ids: Sequence[int]) -> bool:
        """Advances over text tokens, one after the other; False, and no change, where one is not allowed."""
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

    def mask_state(self) -> MaskState | None:
        """What `MaskPool` computes the mask of; None where it cannot, or nothing more may be asked."""
        ...


class _Ahead(NamedTuple):
    """What is known of the text that `ids` lead to, after so many accepted ones."""

    after: int
    ids: tuple[int, ...]
    held: bytes = b""
    mask: Mask | None = None


class Session:
    """A `Matcher` (see `matcher.py`) over an engine's `Core`."""

    def __init__(self, core: Core, vocabulary: Vocabulary, accepted: Sequence[int] = (), ended: bool = False) -> None:
        self._core = core
        self._vocabulary = vocabulary
        self._accepted = list(accepted)
        self._ended = ended
        self._held: _Ahead | None = None  # forced bytes that are held back there
        self._known: _Ahead | None = None  # the engine's mask there

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

    def accept_run(self, ids: Sequence[int]) -> bool:
        """Advances over text tokens, as `accept` does one by one; False, and no change, where one is not allowed."""
        if self._ended or not all(map(self._vocabulary.text_bytes.__getitem__, ids)):
            return False
        if not self._core.consume_all(ids):
            self._check_alive()
            return False
        self._accepted += ids
        return True

    def fill_mask(self, row: Mask) -> None:
        """Writes the mask of the ids that may come next.

        Raises:
            ConstraintError: the engine gave up, or allows nothing: this sequence cannot go on.
        """
        if self._ended:
            row[:] = 0
            return
        if self._known is not None and self._known.mask is not None and self._stands_at(self._known):
            row[:] = self._known.mask
        else:
            self._core.fill(row)
        self.finish_mask(row)
        if not row.any():
            self._check_alive("it allows no token although the text is not finished")

    def mask_state(self) -> MaskState | None:
        """The engine's state whose mask is wanted; None where `fill_mask` must be asked."""
        return None if self._ended or self._stands_at(self._known) else self._core.mask_state()

    def finish_mask(self, row: Mask) -> None:
        """Makes the mask of `mask_state()`, in this row already, what `fill_mask` writes.

        Raises:
            ConstraintError: the engine gave up: this sequence cannot go on.
        """
        if self._held is not None and self._stands_at(self._held):
            self._keep_whole(row, self._held.held)
        self._check_alive()

    def fill_whole_mask(self, row: Mask) -> None:
        """Writes the same without regard to bytes that were held back: every token that the grammar allows."""
        self._held = None
        self.fill_mask(row)

    def allows(self, ids: Sequence[int]) -> bool:
        """Whether these text tokens may come next, one after the other (no change of state)."""
        return self._core.allows(ids)

    def mask_after(self, ids: Sequence[int]) -> Mask:
        """The mask after these tokens, which are allowed (no change of state)."""
        row = self._vocabulary.empty_mask()
        if ids and not self._core.consume_all(ids):
            return row
        try:
            self._core.fill(row)
        finally:
            if ids:
                self._core.undo(len(ids))
        self._known = _Ahead(len(self._accepted), tuple(ids), mask=row)
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
            self._held = self._after_rollback(self._held)
            self._known = self._after_rollback(self._known)

    def fork(self) -> Session:
        """An independent matcher in the same state."""
        other = Session(self._core.copy(), self._vocabulary, self._accepted, self._ended)
        other._held, other._known = self._held, self._known
        return other

    def is_complete(self) -> bool:
        """Whether the text so far is a whole value, so that it may end here."""
        return self._ended or self._core.may_end()

    def is_terminated(self) -> bool:
        """Whether nothing but an end token can follow, or one was accepted."""
        return self._ended or self._core.must_end()

    def forced_tokens(self) -> list[int]:
        """The ids that must come next, whatever the model says; empty where there is a choice."""
        if self._ended or self._stands_at(self._held) or self._core.may_end():
            return []
        forced = self._core.forced_bytes()
        if not forced:
            return []
        ids = forced_ids(forced, self._accepted, self._vocabulary, self)
        rest = forced[sum(len(self._vocabulary.text_bytes[i]) for i in ids) :]
        self._held = _Ahead(len(self._accepted), tuple(ids), held=rest) if rest else None
        return ids

    def _after_rollback(self, ahead: _Ahead | None) -> _Ahead | None:
        """What is known of texts that may still come."""
        return None if ahead is None or ahead.after > len(self._accepted) else ahead

    def _stands_at(self, ahead: _Ahead | None) -> bool:
        """Whether the text is the one that something is known of."""
        if ahead is None or len(self._accepted) != ahead.after + len(ahead.ids):
            return False
        return tuple(self._accepted[ahead.after :]) == ahead.ids

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
