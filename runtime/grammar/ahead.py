"""Masks of many sequences at once, on all cores.

In: matchers that are about to be asked for their mask. Out: nothing to see; an engine keeps the mask of the state that
it is in, so `fill_mask` copies what was computed here side by side, outside of the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..cores import usable_cores
from .matcher import Mask, Matcher, mask_words

__all__ = ["MaskPool"]

_FEWEST = 4
"""Fewer masks are not worth handing out."""
_MOST_THREADS = 16


class MaskPool:
    """Threads that compute masks. Used by one thread.

    Args:
        vocab_size: of the masks.
        threads: how many; None: the cores of this process, at most 16. One computes nothing ahead.
    """

    def __init__(self, vocab_size: int, threads: int | None = None) -> None:
        self._words = mask_words(vocab_size)
        self._threads = threads or min(_MOST_THREADS, usable_cores())
        self._executor: Any = None
        self._scratch: Mask = np.empty((0, self._words), dtype=np.int32)

    def compute(self, matchers: Iterable[Matcher]) -> None:
        """Has the masks of these matchers computed, as far as their engine can; changes no state."""
        if self._threads < 2:
            return
        states = [state for matcher in matchers if (state := _state(matcher)) is not None]
        if len(states) < _FEWEST:
            return
        if self._executor is None:
            from llguidance import LLExecutor  # only where something is constrained

            self._executor = LLExecutor(self._threads)
        if len(self._scratch) < len(states):
            self._scratch = np.empty((len(states), self._words), dtype=np.int32)
        jobs = [(state, i) for i, state in enumerate(states)]
        self._executor.unsafe_compute_mask_ptr(jobs, self._scratch.ctypes.data, self._words * 4, len(states))


def _state(matcher: Matcher) -> Any:
    ask = getattr(matcher, "mask_state", None)
    return ask() if ask is not None else None
