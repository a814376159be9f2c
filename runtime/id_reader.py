"""Prompts that a caller gives as ids, read into arrays; what several begin with is read once.

In: lists of integers. Out: `IdList`s, which are not the caller's. Anything that is no integer is refused, a bool too.

Lists that were made of one another share their integers, and such lists compare at a glance: the beginning of a prompt
that equals one before is copied as an array, not converted. That it equals is not enough, as 3.0 == 3 and True == 1:
a sum is an `int` only where everything in it is one or a bool, and bools are looked for where an id is 0 or 1.

How far two lists agree Python does not say; it compares them up to the first difference, in one go and without taking
anything out of them. So in the list that others are compared with, every `_BLOCK`-th id is a `_Mark`, which compares
like the id and notes that it was reached.
"""

from __future__ import annotations

import contextlib
import operator
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .token_buffer import IdList

__all__ = ["IdReader"]

_BLOCK = 1024
"""Ids between two marks; beginnings that agree are shared in so large pieces."""
_MOST = 8
"""Prompts that others are compared with."""


class _Mark:
    """The last id of a block, in the list of a prompt that others are compared with.

    Args:
        value: the id.
        end: how many ids come up to here.
        reached: the `end` of the last mark that an id was equal to.
    """

    __slots__ = ("_end", "_reached", "_value")

    def __init__(self, value: int, end: int, reached: list[int]) -> None:
        self._value, self._end, self._reached = value, end, reached

    def __eq__(self, other: object) -> bool:
        if equal := bool(other == self._value):
            self._reached[0] = self._end
        return equal

    __hash__ = None  # type: ignore[assignment]


class _Known:
    """A prompt that was read.

    Args:
        array: int32, its ids.
        like: one that begins with the same ids, if any.
        own: what follows them.
    """

    def __init__(self, array: NDArray[np.int32], like: _Known | None, own: list[int]) -> None:
        self.array = array
        self._like, self._own = like, own
        self._first = int(array[0])
        self._reached = [0]

    @cached_property
    def _marked(self) -> list[Any]:
        """Its ids, the very objects of the caller's lists where they can be, and marks."""
        shared = [] if self._like is None else self._like._marked[: len(self.array) - len(self._own)]
        marked: list[Any] = [*shared, *self._own]
        for last in range(_BLOCK - 1, len(marked), _BLOCK):
            marked[last] = _Mark(int(self.array[last]), last + 1, self._reached)
        self._like, self._own = None, []
        return marked

    @cached_property
    def _may_be_bools(self) -> list[int]:
        """Where its ids equal a bool."""
        places: list[int] = np.flatnonzero(self.array <= 1).tolist()
        return places

    def common(self, values: list[Any]) -> int:
        """With how many of its ids, in whole blocks, a prompt begins, which has integers there and nothing else.

        Raises:
            TypeError: there is a bool among them.
        """
        if values[0] != self._first:
            return 0
        self._reached[0] = 0
        with contextlib.suppress(TypeError):  # where they differ, one may have no order
            list.__lt__(values, self._marked)
        end = self._reached[0]
        if not end or not _are_integers(values if len(values) <= 2 * end else values[:end]):
            return 0
        for i in self._may_be_bools:
            if i < end:
                _refuse_bool(values, i)
        return end


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
        like, start = self._alike(values) if len(values) >= _BLOCK else (None, 0)
        own = values[start:]
        array = np.empty(start + len(own), dtype=np.intc)
        if like is not None:
            array[:start] = like.array[:start]
        try:
            # Reads a list of integers faster than numpy and the array module do.
            struct.pack_into(f"{len(own)}i", array.data, array.itemsize * start, *own)
        except struct.error:
            return _too_large([*array[:start].tolist(), *own])
        ids = IdList(array)
        if ids.least <= 1:
            _refuse_bools(own, array[start:])
        if len(array) >= _BLOCK:
            self._remember(_Known(array, like, own), like, start)
        return ids

    def _alike(self, values: list[Any]) -> tuple[_Known | None, int]:
        """A prompt that begins like this one, and for how many ids: the first of which it has half, else the one of
        which it has most."""
        best: tuple[_Known | None, int] = (None, 0)
        for known in self._known:
            count = known.common(values)
            if count > best[1]:
                best = known, count
                if 2 * count >= len(known.array):
                    break
        return best

    def _remember(self, new: _Known, like: _Known | None, count: int) -> None:
        """Keeps a prompt, unless another begins so and is as long; in its place one that goes on where it ends."""
        known = [one for one in self._known if one is not like]
        if like is None or 2 * count < len(like.array):
            known = [new, *([] if like is None else [like]), *known]
        else:
            goes_on = len(new.array) > len(like.array) and count >= len(like.array) // _BLOCK * _BLOCK
            known.insert(0, new if goes_on else like)
        self._known = known[:_MOST]


def _are_integers(values: list[Any]) -> bool:
    """Whether all are certainly integers (or bools); what has no sum may be some too, of another type."""
    try:
        return type(sum(values)) is int
    except TypeError:
        return False


def _refuse_bool(values: Sequence[object], i: int) -> None:
    """One is an integer to Python; as an id it is a mistake."""
    if isinstance(values[i], bool):
        raise TypeError(f"{values[i]} at {i} is a bool, no token id")


def _refuse_bools(values: Sequence[object], array: NDArray[np.signedinteger]) -> None:
    for i in np.flatnonzero(array <= 1).tolist():
        _refuse_bool(values, i)


def _too_large(values: Sequence[Any]) -> IdList:
    """Ids of which one does not fit an int32, or is no integer."""
    exact = [operator.index(value) for value in values]
    array = np.array([max(-1, min(value, 1 << 62)) for value in exact], dtype=np.int64)
    _refuse_bools(values, array)
    return IdList(array, exact)
