"""Prompts that a caller gives as ids, read into arrays; what several begin with is read once.

In: lists of integers. Out: `IdList`s, which are not the caller's. Anything that is no integer is refused, a bool too.

Lists that were made of one another share their integers, and such lists compare at a glance: a block of a prompt that
equals that of one before is copied as an array, not converted. That it equals is not enough, as 3.0 == 3 and True == 1:
a sum is an `int` only where everything in it is one or a bool, and bools are looked for where an id is 0 or 1.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .token_buffer import IdList

__all__ = ["IdReader"]

_BLOCK = 1024
"""Ids that are compared at once."""
_MOST = 8
"""Prompts that others are compared with."""

Block = list[int]


class _Known:
    """A prompt that was read.

    Args:
        array: int32, its ids.
        shared: its first blocks, which are those of another one, too.
        own: what follows them.
    """

    def __init__(self, array: NDArray[np.int32], shared: Sequence[Block], own: Block) -> None:
        self.array = array
        self._shared, self._own = shared, own

    @cached_property
    def blocks(self) -> list[Block]:
        """All of it; the last block may be short."""
        return [*self._shared, *(self._own[i : i + _BLOCK] for i in range(0, len(self._own), _BLOCK))]

    @cached_property
    def may_hide_bools(self) -> list[bool]:
        """For each block, whether an id of it equals a bool."""
        return [bool((self.array[i : i + _BLOCK] <= 1).any()) for i in range(0, len(self.array), _BLOCK)]

    def common(self, values: Sequence[int]) -> int:
        """With how many of its blocks a prompt begins, which has integers there and nothing else."""
        count = 0
        for block, hides in zip(self.blocks, self.may_hide_bools):
            mine = values[count * _BLOCK : (count + 1) * _BLOCK]
            if mine != block or type(sum(mine)) is not int or (hides and _has_bool(mine)):
                break
            count += 1
        return count


class IdReader:
    """Reads the prompts of one call, one after the other, each as if it came alone."""

    def __init__(self) -> None:
        self._known: list[_Known] = []  # the one used last first

    def read(self, values: Sequence[Any]) -> IdList:
        """The ids.

        Raises:
            TypeError: one of them is no integer.
        """
        values = values if isinstance(values, list) else list(values)
        like, count = self._alike(values)
        shared = [] if like is None else like.blocks[:count]
        start = sum(map(len, shared))
        own = values[start:]
        array = np.empty(start + len(own), dtype=np.intc)
        if like is not None:
            array[:start] = like.array[:start]
        try:
            # Reads a list of integers faster than numpy and the array module do.
            struct.pack_into(f"{len(own)}i", array.data, array.itemsize * start, *own)
        except struct.error:
            return _too_large([*chain.from_iterable(shared), *own])
        ids = IdList(array)
        if ids.least <= 1:
            _refuse_bools(own, array[start:])
        self._remember(_Known(array, shared, own), like, count)
        return ids

    def _alike(self, values: Sequence[int]) -> tuple[_Known | None, int]:
        """A prompt that begins like this one, and with how many blocks: the first of which it has half, else the one
        of which it has most."""
        best: tuple[_Known | None, int] = (None, 0)
        for known in self._known:
            count = known.common(values)
            if count > best[1]:
                best = known, count
                if 2 * count >= len(known.blocks):
                    break
        return best

    def _remember(self, new: _Known, like: _Known | None, count: int) -> None:
        """Keeps a prompt, unless another begins so and is as long; in its place one that goes on where it ends."""
        known = [one for one in self._known if one is not like]
        if like is None or 2 * count < len(like.blocks):
            known = [new, *([] if like is None else [like]), *known]
        else:
            goes_on = len(new.array) > len(like.array) and count >= len(like.array) // _BLOCK
            known.insert(0, new if goes_on else like)
        self._known = known[:_MOST]


def _has_bool(values: Sequence[object]) -> bool:
    return any(isinstance(value, bool) for value in values)


def _refuse_bools(values: Sequence[object], array: NDArray[np.signedinteger]) -> None:
    """They are integers to Python; as ids they are a mistake."""
    for i in np.flatnonzero(array <= 1).tolist():
        if isinstance(values[i], bool):
            raise TypeError(f"{values[i]} at {i} is a bool, no token id")


def _too_large(values: Sequence[Any]) -> IdList:
    """Ids of which one does not fit an int32, or is no integer."""
    exact = [operator.index(value) for value in values]
    array = np.array([max(-1, min(value, 1 << 62)) for value in exact], dtype=np.int64)
    _refuse_bools(values, array)
    return IdList(array, exact)
