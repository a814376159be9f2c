"""The ids of one sequence as an array that grows in place.

In: a prompt as a list, then ids as they come. Out: int32 views of any stretch, made without copying or scanning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["IdList", "TokenBuffer"]


class IdList(Sequence[int]):
    """Ids of a prompt, which never change, as an array: what is asked of a hundred thousand of them is asked of that.

    Args:
        array: int32, or int64 where an id is too large for any model; nobody may write to it.
        exact: the ids, where the array does not hold them as they are.

    Attributes:
        least, most: of the array; 0 and -1 where it is empty.
    """

    __slots__ = ("_exact", "array", "least", "most")

    def __init__(self, array: NDArray[np.signedinteger], exact: list[int] | None = None) -> None:
        self.array = array
        self.array.flags.writeable = False
        self.least, self.most = (int(array.min()), int(array.max())) if len(array) else (0, -1)
        self._exact = exact

    @classmethod
    def of(cls, ids: Sequence[int]) -> IdList:
        """Ids of a tokenizer."""
        return cls.packed(struct.pack(f"{len(ids)}i", *ids))

    @classmethod
    def packed(cls, ids: bytes) -> IdList:
        """Ids of a tokenizer, as C ints (`EncodedPrompt.packed`)."""
        return cls(np.frombuffer(ids, dtype=np.intc))

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if self._exact is not None:
            return self._exact[index]
        found = self.array[index]
        return found.tolist() if isinstance(index, slice) else int(found)

    def __iter__(self) -> Iterator[int]:
        return map(int, self.array) if self._exact is None else iter(self._exact)  # one by one: few look at all

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<IdList of {len(self)} ids>"


class TokenBuffer:
    """An int32 array with room at its end; appending is amortised O(1). Tokens once written never change.

    A prompt's array is used as it is until a token comes behind it, which then finds no room and has all copied: so a
    prompt that waits, or starts a step, costs nothing here however long it is.
    """

    __slots__ = ("_data", "_length")

    def __init__(self, ids: Sequence[int]) -> None:
        self._data: NDArray[np.int32]
        if isinstance(ids, IdList):
            self._data = ids.array.astype(np.int32, copy=False)
        else:
            self._data = np.array(ids, dtype=np.int32)
        self._length = len(self._data)

    def __len__(self) -> int:
        return self._length

    def append(self, token_id: int) -> None:
        """Adds one id."""
        if self._length == len(self._data):
            self._make_room(1)
        self._data[self._length] = token_id
        self._length += 1

    def extend(self, ids: Sequence[int]) -> None:
        """Adds several ids."""
        end = self._length + len(ids)
        if end == self._length:  # the array may be a prompt's, which takes no writing, not even of nothing
            return
        if end > len(self._data):
            self._make_room(len(ids))
        self._data[self._length : end] = ids
        self._length = end

    def _make_room(self, count: int) -> None:
        """A larger array, for that many more at least; views keep the old one."""
        grown = np.empty(self._length + max(count, self._length // 4, 64), dtype=np.int32)
        grown[: self._length] = self._data[: self._length]
        self._data = grown

    def view(self, start: int, end: int) -> NDArray[np.int32]:
        """The ids at [start, end), as a view that later appends leave as it is."""
        if not 0 <= start <= end <= self._length:
            raise IndexError(f"[{start}, {end}) is not within the {self._length} tokens")
        return self._data[start:end]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._length:
            raise IndexError(f"{index} is not within the {self._length} tokens")
        return int(self._data[index])
