"""Which prefixes will be needed again, and when first: a tree over token ids of what the future is known to ask for.

In: demands, each a run of token ids and the time at which it is needed. Out: for any run of tokens, how much of its
beginning is still needed, and when next. It knows nothing of slots: what is dropped from the cache stays wanted here.

Times are plain integers (`leases.py` makes them). A node's heap has an entry of each demand that ends at or below it;
entries of demands that are over stay until they are on top.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .radix_cache import Namespace

__all__ = ["Demand", "DemandTree", "Need"]

Tokens = NDArray[np.int32]

_EMPTY = np.empty(0, dtype=np.int32)


class Demand:
    """One future use of a prefix; compared by identity.

    Attributes:
        namespace: where it is needed; the tree is told nothing of it.
        tokens: the prefix; never written.
        time: when it is needed.
        active: whether it still is.
    """

    __slots__ = ("active", "namespace", "node", "time", "tokens")

    def __init__(self, namespace: Namespace, tokens: Tokens, time: int) -> None:
        self.namespace = namespace
        self.tokens = tokens
        self.time = time
        self.active = True
        self.node: _Node | None = None


class Need(NamedTuple):
    """What is needed of a run of tokens.

    Attributes:
        length: its first so many tokens are needed.
        since: of these, [since, length) are needed at `time` first, those before sooner or then too.
        time: when the last of them is needed first; None where nothing is.
    """

    length: int
    since: int
    time: int | None


class _Node:
    __slots__ = ("children", "count", "parent", "times", "tokens")

    def __init__(self, parent: _Node | None, tokens: Tokens) -> None:
        self.parent = parent
        self.tokens = tokens
        self.children: dict[int, _Node] = {}
        self.count = 0  # active demands that end here or below
        self.times: list[tuple[int, int, Demand]] = []

    def first(self) -> int:
        """When this node is needed first; only of one with active demands."""
        while not self.times[0][2].active:
            heapq.heappop(self.times)
        return self.times[0][0]


class DemandTree:
    """The demands of one namespace.

    Attributes:
        size: how many tokens they have, those that several begin with once.
    """

    def __init__(self) -> None:
        self.size = 0
        self._root = _Node(None, _EMPTY)
        self._serials = itertools.count()

    def __len__(self) -> int:
        return self._root.count

    def add(self, demand: Demand) -> None:
        """One more demand."""
        node, done, tokens = self._root, 0, demand.tokens
        entry = (demand.time, next(self._serials), demand)
        while True:
            node.count += 1
            heapq.heappush(node.times, entry)
            if done == len(tokens):
                break
            child = node.children.get(int(tokens[done]))
            if child is None:
                child = _Node(node, tokens[done:])
                node.children[int(tokens[done])] = child
                self.size += len(child.tokens)
                done = len(tokens)
            else:
                common = _common(child.tokens, tokens[done:])
                if common < len(child.tokens):
                    child = _split(child, common)
                done += common
            node = child
        demand.node = node

    def remove(self, demand: Demand) -> None:
        """A demand is over; one that is already is left alone."""
        if not demand.active:
            return
        demand.active = False
        at = demand.node
        demand.node = None
        while at is not None:
            at.count -= 1
            above = at.parent
            if above is not None and not at.count:
                del above.children[int(at.tokens[0])]
                self.size -= len(at.tokens)
            at = above
        if not self._root.count:
            self._root.times.clear()

    def need(self, tokens: Tokens) -> Need:
        """What is needed of the beginning of `tokens`."""
        node, done, since, time = self._root, 0, 0, None
        while done < len(tokens):
            child = node.children.get(int(tokens[done]))
            if child is None:
                break
            if (first := child.first()) != time:
                since, time = done, first
            common = _common(child.tokens, tokens[done:])
            done += common
            if common < len(child.tokens):
                break
            node = child
        return Need(done, since, time)

    def check(self) -> None:
        """Raises AssertionError where the tree is not what its docstring says."""
        stack, size = [self._root], 0
        while stack:
            node = stack.pop()
            size += len(node.tokens)
            live = [entry for entry in node.times if entry[2].active]
            assert len(live) == node.count, f"{node.count} demands counted, {len(live)} there"
            assert node.parent is None or node.count, "a node that nobody needs"
            for first, child in node.children.items():
                assert child.parent is node, "a child that does not know its parent"
                assert int(child.tokens[0]) == first, "a child under another key"
                stack.append(child)
        assert size == self.size, f"{self.size} tokens counted, {size} there"


def _split(node: _Node, length: int) -> _Node:
    """Puts a new node on the edge of `node`, after `length` of its tokens; demands keep the nodes where they end."""
    above = node.parent
    assert above is not None
    upper = _Node(above, node.tokens[:length])
    upper.count, upper.times = node.count, [entry for entry in node.times if entry[2].active]
    heapq.heapify(upper.times)
    above.children[int(upper.tokens[0])] = upper
    node.tokens, node.parent = node.tokens[length:], upper
    upper.children[int(node.tokens[0])] = node
    return upper


def _common(edge: Tokens, tokens: Tokens) -> int:
    length = min(len(edge), len(tokens))
    differs = edge[:length] != tokens[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
