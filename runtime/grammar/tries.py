"""Many texts as one tree, whose beginnings are gone through together and once.

In: texts as rows of numbers. Out: a `Trie` in arrays, so that a whole layer of it is followed by a few operations of
NumPy. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ints", "Trie"]

Ints = NDArray[np.int32]


class Trie:
    """A tree of texts. Node 0 is the root; a node's children follow one another, as its texts do in `texts`.

    Args:
        flat: the symbols of all texts, one text after the other.
        starts: text → where it begins there.
        sizes: text → how many symbols it has.
        pause: called now and then while it is made.

    Attributes:
        symbols: node → the last symbol of its beginning.
    """

    def __init__(self, flat: Ints, starts: Ints, sizes: Ints, pause: Callable[[], None] = lambda: None) -> None:
        own = np.zeros(len(starts), np.int32)
        going = np.flatnonzero(sizes > 0).astype(np.int32)
        span = int(flat.max(initial=0)) + 1
        layers = [np.zeros(1, np.int32)]  # symbols
        parents = [np.zeros(1, np.int32)]
        made, depth = 1, 0
        while len(going):
            keys = own[going].astype(np.int64) * span + flat[starts[going] + depth]
            nodes, places = np.unique(keys, return_inverse=True)
            own[going] = made + places.reshape(-1)
            layers.append((nodes % span).astype(np.int32))
            parents.append((nodes // span).astype(np.int32))
            made, depth = made + len(nodes), depth + 1
            going = going[sizes[going] > depth]
            pause()
        self.symbols: Ints = np.concatenate(layers)
        above = np.concatenate(parents)[1:]
        self._counts = np.bincount(above, minlength=made).astype(np.int32)
        self._firsts = np.searchsorted(above, np.arange(made)).astype(np.int32) + 1
        pause()
        self._held = np.bincount(own, minlength=made).astype(np.int32)
        self._below = self._held.copy()  # texts that end at a node or below it
        ends = np.cumsum([len(layer) for layer in layers])
        for first, end in zip(ends[-2::-1].tolist(), ends[:0:-1].tolist()):
            np.add.at(self._below, above[first - 1 : end - 1], self._below[first:end])
        self._begins = np.zeros(made, np.int32)  # where these are in `texts`
        for first, end in zip(ends[:-1].tolist(), ends[1:].tolist()):
            parent = above[first - 1 : end - 1]
            before = np.cumsum(self._below[first:end]) - self._below[first:end]
            own_before = before - before[self._firsts[parent] - first]  # of the children before it
            self._begins[first:end] = self._begins[parent] + self._held[parent] + own_before
        pause()
        self.texts: Ints = np.argsort(self._begins[own], kind="stable").astype(np.int32)

    def children(self, nodes: Ints) -> tuple[Ints, Ints]:
        """The children of some nodes, and for each of them the place of its parent among these."""
        return _spans(self._firsts[nodes], self._counts[nodes])

    def texts_at(self, nodes: Ints) -> tuple[Ints, Ints]:
        """The texts that end at some nodes, and for each of them the place of its node among these."""
        places, owners = _spans(self._begins[nodes], self._held[nodes])
        return self.texts[places], owners

    def texts_below(self, nodes: Ints) -> Ints:
        """The texts that end at some nodes or below them."""
        return self.texts[_spans(self._begins[nodes], self._below[nodes])[0]]


def _spans(firsts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Each first number and as many from it on as are counted, and whose each is."""
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    ends = np.cumsum(counts, dtype=np.int32)
    numbers = np.arange(len(owners), dtype=np.int32) + (firsts - ends + counts)[owners]
    return numbers.astype(np.int32, copy=False), owners
