"""Many sequences of token ids, merged where they begin alike: each common stretch exists once, exact to the token.

In: sequences, one at a time, each from the root or from the end of one inserted before.
Out: nodes by number. Node 0 is the root; every other has an edge (at least one token) and a parent.

A node's number stands for the sequence that ends there, and stays: an edge that is split gets a new node above.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PrefixTree", "TokenArray", "common_prefix"]

TokenArray: TypeAlias = npt.NDArray[np.int32]

_NOTHING: TokenArray = np.empty(0, np.int32)


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """How many tokens two sequences begin with alike."""
    size = min(len(a), len(b))
    if not size:
        return 0
    differ = a[:size] != b[:size]
    first = int(differ.argmax())
    return first if differ[first] else size


class PrefixTree:
    """A path-compressed tree over token ids (int32; ids below 0 are whatever the caller makes of them).

    Attributes:
        edges: per node the tokens from its parent's end to its own.
        parents: per node its parent; -1 for the root.
        ends: per node the length of the sequence that ends there.
    """

    def __init__(self) -> None:
        self.edges: list[TokenArray] = [_NOTHING]
        self.parents: list[int] = [-1]
        self.ends: list[int] = [0]
        self._children: list[dict[int, int] | None] = [None]  # by the first token of their edges

    def __len__(self) -> int:
        return len(self.edges)

    def insert(self, tokens: TokenArray, at: int = 0) -> int:
        """Adds the sequence that ends at node `at` and goes on with `tokens`; returns the node where it ends."""
        begin, size = 0, len(tokens)
        while begin < size:
            children = self._children[at]
            child = None if children is None else children.get(int(tokens[begin]))
            if child is None:
                return self._add(at, tokens[begin:].copy())  # a view would keep all of `tokens`
            edge = self.edges[child]
            same = common_prefix(edge, tokens[begin:])
            at = child if same == len(edge) else self._split(child, same)
            begin += same
        return at

    def children(self, node: int) -> list[int]:
        """The nodes after `node`, in the order in which they came."""
        return list((self._children[node] or {}).values())

    def depth_first(self) -> list[int]:
        """Every node, each before its children and after all of the subtree of an earlier sibling."""
        order, todo = [], [0]
        while todo:
            node = todo.pop()
            order.append(node)
            todo.extend(reversed(self.children(node)))
        return order

    def up(self, node: int) -> Iterator[int]:
        """The node and those above it, without the root."""
        while node > 0:
            yield node
            node = self.parents[node]

    def sequence(self, node: int) -> TokenArray:
        """The tokens from the root to the end of `node`."""
        edges = [self.edges[n] for n in self.up(node)]
        return np.concatenate(edges[::-1]) if edges else _NOTHING

    def _add(self, parent: int, edge: TokenArray) -> int:
        node = len(self.edges)
        self.edges.append(edge)
        self.parents.append(parent)
        self.ends.append(self.ends[parent] + len(edge))
        self._children.append(None)
        self._link(parent, node)
        return node

    def _split(self, node: int, length: int) -> int:
        """Puts a new node on the edge of `node`, after `length` of its tokens."""
        edge, parent = self.edges[node], self.parents[node]
        upper = self._add(parent, edge[:length].copy())  # takes the place of `node` among its siblings
        self.edges[node] = edge[length:].copy()
        self.parents[node] = upper
        self._link(upper, node)
        return upper

    def _link(self, parent: int, node: int) -> None:
        children = self._children[parent]
        if children is None:
            children = self._children[parent] = {}
        children[int(self.edges[node][0])] = node
