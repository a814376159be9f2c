"""In which order cached tokens are given up.

In: leaves of the radix tree as they become evictable, and what the future needs. Out: the next leaf, and how many
tokens of its end may go before another one is next.

First go tokens that nothing is known to need, those of the least recently used leaf first; then those that will be
needed, farthest next use first (Belady 1966, "A study of replacement algorithms for a virtual-storage computer"). A
token is never needed later than those above it, so what a leaf loses first is its end, stretch by stretch.

A leaf waits in the first queue until it comes up; where it turns out to be needed it goes on to the second. Entries
are not removed when a leaf is locked, gets a child, is used again or needed sooner; they are put right when they come
up. Where it is needed *later* than its entry says, whoever knows that says so (`reconsider`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import TypeAlias

from .demand_tree import Need
from .radix_node import Namespace, Node, Tokens, is_unlocked_leaf, path_tokens

__all__ = ["EvictionOrder", "Future"]

Future: TypeAlias = Callable[[Namespace, Tokens], Need]
"""What is needed again of the beginning of these tokens, and when."""


class EvictionOrder:
    """Every unlocked leaf, in one of two queues.

    Args:
        future: what will be needed; None: nothing is known.
    """

    def __init__(self, future: Future | None) -> None:
        self._future = future
        self._unneeded: list[tuple[int, int, Node]] = []  # (last_used, serial, node): one entry where `node.queued`
        self._leased: list[
            tuple[int, int, Node]
        ] = []  # (-time of next use, serial, node): valid if `node.leased` is it
        self._most_leased = 64

    def add(self, node: Node) -> None:
        """The node is an unlocked leaf now, or another one than before."""
        node.leased = None
        if not node.queued:
            node.queued = True
            heapq.heappush(self._unneeded, (node.last_used, node.serial, node))

    def next(self, *, leased: bool = True) -> tuple[Node, int] | None:
        """Takes out the leaf whose end is to go first, and how many tokens of it go before another leaf is next.

        Who leaves some of it adds it again, and its parent once that is a leaf. None where there is nothing (but what
        is needed again, unless `leased`).
        """
        return self._next_unneeded() or (self._next_leased() if leased else None)

    def reconsider(self, node: Node) -> None:
        """The node is needed later than before, or no more."""
        if node.leased is not None:
            self.add(node)

    def reconsider_all(self) -> None:
        """Any node may be needed later than before, or no more."""
        entries, self._leased = self._leased, []
        for _, _, node in entries:
            self.reconsider(node)

    def check(self, nodes: Iterable[Node]) -> None:
        """Raises AssertionError where the queues are not what is said above.

        Args:
            nodes: every node of the tree.
        """
        known = set(nodes)
        queued = [node for _, _, node in self._unneeded]
        assert len(set(queued)) == len(queued), "a node is queued twice"
        assert all(node.queued for node in queued), "queued and not marked"
        assert not any(node.queued for node in known - set(queued)), "marked and not queued"
        leased = {entry[2] for entry in self._leased if entry[2].leased is entry}
        for node in known:
            assert (node.leased is not None) == (node in leased), f"{node} has a lease entry that is in no queue"
            assert not (node.queued and node.leased), f"{node} is in both queues"
            if is_unlocked_leaf(node):
                assert node.queued or node.leased, f"{node} is an unlocked leaf that eviction would miss"
                self._check_lease(node)

    def _check_lease(self, node: Node) -> None:
        if node.leased is not None:
            needed, _, time = self._need(node)
            assert needed == len(node), f"nothing needs the end of {node}, and nobody said so"
            assert time is not None, f"nothing needs {node}"
            assert time <= -node.leased[0], f"{node} is needed later than at {-node.leased[0]}, and nobody said so"

    def _next_unneeded(self) -> tuple[Node, int] | None:
        """The leaf that was not used for longest, of those whose ends nothing needs."""
        while self._unneeded:
            used, _, node = heapq.heappop(self._unneeded)
            node.queued = False
            if not is_unlocked_leaf(node):
                continue
            if node.last_used != used:
                self.add(node)
                continue
            needed, _, time = self._need(node)
            if needed < len(node):
                return node, len(node) - needed
            assert time is not None
            self._add_leased(node, time)
        return None

    def _next_leased(self) -> tuple[Node, int] | None:
        """The leaf whose end is needed last; right where all others were looked at, by `_next_unneeded`."""
        while self._leased:
            entry = heapq.heappop(self._leased)
            node = entry[2]
            if node.leased is not entry:
                continue
            node.leased = None
            if not is_unlocked_leaf(node):
                continue
            _, since, time = self._need(node)
            if time is None or time == -entry[0]:
                return node, len(node) - since
            self._add_leased(node, time)
        return None

    def _add_leased(self, node: Node, time: int) -> None:
        node.leased = (-time, node.serial, node)
        heapq.heappush(self._leased, node.leased)
        if len(self._leased) > self._most_leased:
            self._leased = [entry for entry in self._leased if entry[2].leased is entry]
            heapq.heapify(self._leased)
            self._most_leased = 64 + 2 * len(self._leased)

    def _need(self, node: Node) -> Need:
        """What is needed of a node's edge, counted from where it begins."""
        if self._future is None:
            return _NOTHING
        tokens = path_tokens(node)
        begin = len(tokens) - len(node)
        need = self._future(node.namespace, tokens)
        if need.length <= begin:
            return _NOTHING
        return Need(need.length - begin, max(0, need.since - begin), need.time)


_NOTHING = Need(0, 0, None)
