"""Masks of many sequences at once, on all cores.

In: matchers that are about to be asked for their mask, and the rows for them. Out: rows written side by side, outside
of the interpreter's lock; `Matcher.finish_mask` does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cores import usable_cores
from .matcher import Mask, Matcher

__all__ = ["MOST_THREADS", "MaskPool", "MaskState"]

MOST_THREADS = 16
_FEWEST = 4
"""Fewer masks are not worth handing out."""

_log = logging.getLogger("radicel")


class MaskState(NamedTuple):
    """What an engine computes a mask of.

    Attributes:
        lane: a number; the states of one lane are computed one after the other, whatever threads there are.
        state: the engine's own.
    """

    lane: int
    state: Any


class MaskPool:
    """Threads that compute masks. Used by one thread.

    Args:
        threads: how many; None: the cores of this process, at most 16. One computes nothing ahead.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(MOST_THREADS, usable_cores())
        self._executor: Any = None

    def compute(self, matchers: Sequence[Matcher], rows: Mask) -> NDArray[np.bool_]:
        """Has the masks of these matchers computed, as far as their engine can; changes no state of theirs.

        Args:
            matchers: as many as there are rows.
            rows: int32 [len(matchers), mask_words], C-contiguous (changed).

        Returns:
            which rows hold what the matcher's `finish_mask` takes; the others are as they were.
        """
        done = np.zeros(len(matchers), np.bool_)
        if self._threads < 2 or len(matchers) < _FEWEST:
            return done
        jobs = [(state, i) for i, matcher in enumerate(matchers) if (state := _state(matcher)) is not None]
        if len(jobs) < _FEWEST:
            return done
        if self._executor is None:
            from llguidance import LLExecutor  # only where something is constrained

            self._executor = LLExecutor(self._threads)
        # A thread takes neighbours: those of one lane, which would wait for each other.
        jobs.sort(key=lambda job: job[0].lane)
        try:
            self._executor.unsafe_compute_mask_ptr(
                [(state.state, i) for state, i in jobs], rows.ctypes.data, rows.strides[0], len(rows)
            )
        except Exception:  # then each is asked for its own, and the one that fails fails alone
            _log.debug("masks are computed one by one", exc_info=True)
            return done
        done[[i for _, i in jobs]] = True
        return done


def _state(matcher: Matcher) -> MaskState | None:
    ask = getattr(matcher, "mask_state", None)
    state: MaskState | None = ask() if ask is not None else None
    return state
