"""A bounded cache of compiled grammars.

In: keys and values with a cost in bytes. Out: the value again, while it is among the most recently used ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Least-recently-used cache with a bound on entries and on bytes. May be used from many threads."""

    def __init__(self, entries: int, size: int) -> None:
        self._max_entries = entries
        self._max_bytes = size
        self._items: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> V | None:
        """The value, which becomes the most recently used one, or None."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            self._items.move_to_end(key)
            return item[0]

    def put(self, key: str, value: V, cost: int) -> None:
        """Adds a value that costs so many bytes, and drops the oldest while there is too much."""
        with self._lock:
            old = self._items.pop(key, None)
            self._bytes += cost - (old[1] if old else 0)
            self._items[key] = (value, cost)
            while self._items and (len(self._items) > self._max_entries or self._bytes > self._max_bytes):
                _, (_, freed) = self._items.popitem(last=False)
                self._bytes -= freed

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._items.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def bytes(self) -> int:
        """What the values in the cache cost together."""
        return self._bytes
