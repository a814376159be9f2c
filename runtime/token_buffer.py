"""The ids of one sequence as an array that grows in place.

In: a prompt as a list, then ids as they come. Out: int32 views of any stretch, made without copying or scanning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenBuffer"]


class TokenBuffer:
    """An int32 array with room at its end; appending is amortised O(1). Tokens once written never change."""

    __slots__ = ("_data", "_length")

    def __init__(self, ids: Sequence[int]) -> None:
        self._length = len(ids)
        self._data: NDArray[np.int32] = np.empty(max(16, self._length + self._length // 4), dtype=np.int32)
        self._data[: self._length] = ids

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
