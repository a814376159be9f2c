"""The contract between the engine and a grammar: what a constrained sequence asks of it.

In: token ids as they are chosen. Out: bit masks of the ids that may come next, and text that must come next.
Each method says whether it changes state. No torch here.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["CompiledGrammar", "Mask", "Matcher", "mask_words"]

Mask = NDArray[np.int32]
"""int32 [mask_words(vocab)]: bit i % 32 of word i // 32 is set where token i may come next."""


def mask_words(vocab_size: int) -> int:
    """Words of a mask row for a vocabulary of this size."""
    return (vocab_size + 31) // 32


class Matcher(Protocol):
    """The state of one sequence in its grammar. Used by one thread at a time.

    One that another thread still works for has `is_ready`: until that is true its masks may have to be waited for, and
    the scheduler holds the sequence at its prompt's last token.
    """

    def accept(self, token_id: int) -> bool:
        """Advances over a token (changes state). False, and no change, where the grammar does not allow it.

        An end token is accepted where the text may end; after it `is_terminated()` holds.
        """
        ...

    def fill_mask(self, row: Mask) -> None:
        """Writes the mask of the ids that may come next (no change of state).

        End tokens are set exactly where the text may end. Never all zero before `is_terminated()`.
        """
        ...

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last accepted tokens (changes state)."""
        ...

    def fork(self) -> Matcher:
        """An independent matcher in the same state (no change of state)."""
        ...

    def is_complete(self) -> bool:
        """Whether the text so far is a whole value, so that it may end here (no change of state)."""
        ...

    def is_terminated(self) -> bool:
        """Whether nothing but an end token can follow, or one was accepted (no change of state)."""
        ...

    def forced_tokens(self) -> list[int]:
        """The ids that must come next, whatever the model says (no change of state); empty where there is a choice.

        Encoded as the tokenizer would in this context; the last id is held back where a longer legal token could
        start there.
        """
        ...


class CompiledGrammar(Protocol):
    """A constraint made ready for one vocabulary. Immutable, shared by every sequence that uses it."""

    def matcher(self) -> Matcher:
        """A fresh matcher at the start."""
        ...
