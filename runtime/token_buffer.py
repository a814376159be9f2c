"""The ids of one sequence as an array that grows in place.

In: a prompt as a list, then ids as they come. Out: int32 views of any stretch, made without copying or scanning.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["IdList", "TokenBuffer"]

_BLOCK = 1024
"""Ids that are compared at once."""


class IdList(list[int]):
    """Ids as a list, and the same as an array: what is asked of a hundred thousand of them is asked of the array.

    Args:
        ids: integers.
        like: ids that these may begin with; what is common need not be read again.

    Attributes:
        array: int32, or int64 where an id is too large for any model; nobody may write to it.

    Raises:
        TypeError: one of them is no integer.
    """

    __slots__ = ("array",)

    def __init__(self, ids: Sequence[int], like: IdList | None = None) -> None:
        super().__init__(ids)
        same = 0 if like is None else self._common(like)
        try:
            # Reads a list of integers faster than numpy and the array module do.
            read = np.frombuffer(struct.pack(f"{len(self) - same}i", *self[same:] if same else self), dtype=np.intc)
        except struct.error:
            read = np.array([max(-1, min(operator.index(i), 1 << 62)) for i in self[same:]], dtype=np.int64)
        self.array: NDArray[np.signedinteger] = read
        if like is not None and same:
            self.array = np.concatenate((like.array[:same], read))

    def _common(self, like: IdList) -> int:
        """How many ids are surely the same from the first on, in whole blocks.

        Lists that were made of one another share their integers, and compare at a glance. A sum is an `int` only where
        everything in it is one: 3.0 equals 3, too.
        """
        at = 0
        while (block := self[at : at + _BLOCK]) and block == like[at : at + _BLOCK] and type(sum(block)) is int:
            at += len(block)
        return at


class TokenBuffer:
    """An int32 array with room at its end; appending is amortised O(1). Tokens once written never change."""

    __slots__ = ("_data", "_length")

    def __init__(self, ids: Sequence[int]) -> None:
        self._length = len(ids)
        self._data: NDArray[np.int32] = np.empty(max(16, self._length + self._length // 4), dtype=np.int32)
        self._data[: self._length] = ids.array if isinstance(ids, IdList) else ids

    def __len__(self) -> int:
        return self._length

    def append(self, token_id: int) -> None:
        """Adds one id."""
        if self._length == len(self._data):
            self._data = np.concatenate([self._data, np.empty_like(self._data)])
        self._data[self._length] = token_id
        self._length += 1

    def extend(self, ids: Sequence[int]) -> None:
        """Adds several ids."""
        end = self._length + len(ids)
        while end > len(self._data):
            self._data = np.concatenate([self._data, np.empty_like(self._data)])
        self._data[self._length : end] = ids
        self._length = end

    def view(self, start: int, end: int) -> NDArray[np.int32]:
        """The ids at [start, end), as a view that later appends leave as it is."""
        if not 0 <= start <= end <= self._length:
            raise IndexError(f"[{start}, {end}) is not within the {self._length} tokens")
        return self._data[start:end]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._length:
            raise IndexError(f"{index} is not within the {self._length} tokens")
        return int(self._data[index])
