"""The radix tree over token ids: which prefixes have their keys and values in the pool, and where.

In: token ids and the slots that hold them. Out: the longest cached prefix of a sequence, with its slots; slots that
were evicted, for the caller to give back to the pool. No tensors: tokens and slots are int32 numpy arrays.

Each edge (a node and the run of tokens that leads to it) holds one slot per token; page size 1, so two prompts part
at any token. A namespace has a root of its own: sequences share nothing across namespaces. After SGLang's
RadixAttention (Zheng et al. 2024, "SGLang: Efficient Execution of Structured Language Model Programs").

Locks. A holder locks the node where its prefix ends. `node.locks` counts the holders *at* the node plus its children
that are locked themselves, so moving a lock from a node to its child costs the same at any depth. A node with
`locks > 0` is never evicted. Splitting an edge makes a new *upper* node; the lower one keeps its identity, its holders
and the position where it ends, so whoever holds a node need not know that it was split.

Eviction takes tokens from the ends of unlocked leaves, in the order of `eviction.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .demand_tree import Need
from .dropped import DroppedStretches
from .eviction import EvictionOrder
from .kv_pool import Slots
from .radix_node import EMPTY, Namespace, Node, Tokens, path_slots, path_tokens, upward

__all__ = ["Match", "Namespace", "Node", "RadixCache", "Tokens", "Way"]


class Match(NamedTuple):
    """Attributes: the node where the cached prefix ends, and the slots from the start of the search to there, which
    nobody may write to: they may be the node's own."""

    node: Node
    slots: Slots


class Way(NamedTuple):
    """How far some tokens lead into the tree.

    Attributes:
        length: of the cached prefix.
        node, end: the one in whose edge it ends, and where that edge ends; None where there is no such namespace. As
            long as nothing is evicted (`cuts`) it ends there, whatever is added or split.
    """

    length: int
    node: Node | None
    end: int

    def start(self, most: int) -> tuple[Node | None, int]:
        """The last node that ends within the cached prefix and its first `most` tokens, and where."""
        node, end = self.node, self.end
        while node is not None and end > min(self.length, most):
            end -= len(node)
            node = node.parent
        return node, end


class RadixCache:
    """The tree of all namespaces.

    Args:
        future: what is needed again of the beginning of some tokens, and when; None: nothing is known.
        dropped: is told what was evicted, for reports; None: nobody asks.

    Attributes:
        evictable_size: slots on unlocked edges, "cached, held by none".
        protected_size: slots on locked edges.
        splits: how often an edge was split: until it was, a node's path is the same.
        grown: how often a node was added: until one was, what was matched would not be matched any further.
        cuts: how often tokens were evicted.
    """

    def __init__(
        self, future: Callable[[Namespace, Tokens], Need] | None = None, dropped: DroppedStretches | None = None
    ) -> None:
        self.evictable_size = 0
        self.protected_size = 0
        self.splits = self.grown = self.cuts = 0
        self._roots: dict[Namespace, Node] = {}
        self._serials = itertools.count()
        self._clock = 0
        self._order = EvictionOrder(future)
        self._dropped = dropped

    def root(self, namespace: Namespace) -> Node:
        """The root of a namespace, made on first use."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node(None, namespace, EMPTY, EMPTY, next(self._serials))
        return node

    def match(self, start: Node, tokens: Tokens) -> Match:
        """The longest cached run of `tokens` below `start`. Splits an edge where it ends inside one (changes state)."""
        node, length = self.follow(start, tokens)
        if not length:
            return Match(node, EMPTY)
        return Match(node, node.slots if len(node.slots) == length else path_slots(node, start))

    def follow(self, start: Node, tokens: Tokens) -> tuple[Node, int]:
        """`match` for who wants no slots: the node, and the length of the run."""
        self._clock += 1
        node, done = start, 0
        while (step := _step(node, tokens, done)) is not None:
            child, common = step
            node = child if common == len(child.tokens) else self._split(child, common)
            node.last_used = self._clock
            done += common
        return node, done

    def peek(self, namespace: Namespace, tokens: Tokens) -> tuple[int, int]:
        """(length of the cached prefix, serial of the node it ends in); no change of state."""
        way = self.way(namespace, tokens)
        return way.length, -1 if way.node is None else way.node.serial

    def way(self, namespace: Namespace, tokens: Tokens) -> Way:
        """How far the tokens lead; no change of state."""
        node = self._roots.get(namespace)
        done = end = 0
        while node is not None and done == end and (step := _step(node, tokens, done)) is not None:
            node, common = step
            done, end = done + common, end + len(node)
        return Way(done, node, end)

    def extend(self, node: Node, tokens: Tokens, slots: Slots) -> Node:
        """Adds a child with these tokens, at least one; `slots` are the tree's from here on.

        The node must have no child that begins with the same token: match first.
        """
        first = int(tokens[0])
        if first in node.children:
            raise ValueError(f"{node} has a child that begins with token {first}; match before extending")
        child = Node(node, node.namespace, tokens.copy(), slots, next(self._serials))
        child.last_used = self._clock
        node.children[first] = child
        self.grown += 1
        self.evictable_size += len(child)
        self._order.add(child)
        return child

    def insert(self, start: Node, tokens: Tokens, slots: Slots) -> tuple[Node, Slots]:
        """Puts a run of tokens below `start`, as far as the tree does not have it.

        Ownership of `slots`: [0, n) duplicate what the tree holds and come back, to be freed by the caller once nobody
        reads them; [n, len) are the tree's.

        Returns:
            the node where the run ends, and the duplicate slots.
        """
        node, known = self.match(start, tokens)
        count = len(known)
        if count < len(tokens):
            node = self.extend(node, tokens[count:], slots[count:])
        return node, slots[:count]

    def lock(self, node: Node) -> None:
        """One more holder whose prefix ends at `node`; its whole path is safe from eviction."""
        at: Node | None = node
        while at is not None:
            at.locks += 1
            if at.locks > 1:
                return
            self.evictable_size -= len(at)
            self.protected_size += len(at)
            at = at.parent

    def unlock(self, node: Node) -> None:
        """One holder less. What no other holder needs becomes evictable, and counts as used just now."""
        self._clock += 1
        at: Node | None = node
        while at is not None:
            if at.locks < 1:
                raise ValueError(f"{at} is unlocked more often than it was locked")
            at.locks -= 1
            if at.locks:
                return
            self.evictable_size += len(at)
            self.protected_size -= len(at)
            at.last_used = self._clock
            above = at.parent
            if above is None:
                self._drop_if_empty(at)
            elif not at.children:
                self._order.add(at)
            at = above

    def evict(self, count: int, *, leased: bool = True) -> Slots:
        """Takes up to `count` slots off unlocked leaves, those that will be needed again last and only if `leased`.

        Returns:
            the slots, fewer than asked only where everything else is locked (or leased). They are the caller's.
        """
        taken: list[Slots] = []
        missing = count
        while missing > 0 and (found := self._order.next(leased=leased)) is not None:
            node, most = found
            taken.append(self._cut(node, min(missing, most)))
            missing -= len(taken[-1])
        return np.concatenate(taken) if taken else EMPTY

    def reconsider(self, prefix: tuple[Namespace, Tokens] | None) -> None:
        """A prefix (None: any) is needed later than before, or no more."""
        if prefix is None:
            self._order.reconsider_all()
        elif (node := self.way(*prefix).node) is not None:
            self._order.reconsider(node)

    def path_slots(self, node: Node) -> Slots:
        """The slots from the root to the end of `node`: position i of the prefix lives in the i-th."""
        return path_slots(node)

    def path_tokens(self, node: Node) -> Tokens:
        """The tokens from the root to the end of `node`."""
        return path_tokens(node)

    def path(self, node: Node) -> list[Node]:
        """The nodes from the root's child to `node`."""
        return [at for at in upward(node) if at.parent is not None][::-1]

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self, holders: dict[Node, int]) -> None:
        """Raises AssertionError where the tree is not what its docstring says.

        Args:
            holders: node → how many live holders have it locked.
        """
        nodes = list(self.nodes())
        assert set(holders) <= set(nodes), "a holder's node is not in the tree"
        for node in nodes:
            _check_node(node, holders.get(node, 0))
        assert self.evictable_size == sum(len(n) for n in nodes if not n.locks), "evictable size"
        assert self.protected_size == sum(len(n) for n in nodes if n.locks), "protected size"
        self._order.check(nodes)

    def _split(self, child: Node, length: int) -> Node:
        above = child.parent
        assert above is not None
        upper = Node(above, child.namespace, child.tokens[:length], child.slots[:length], next(self._serials))
        upper.last_used = child.last_used
        upper.locks = 1 if child.locks else 0
        above.children[int(upper.tokens[0])] = upper
        child.hold(child.tokens[length:], child.slots[length:])
        child.parent = upper
        upper.children[int(child.tokens[0])] = child
        self.splits += 1
        return upper

    def _cut(self, leaf: Node, count: int) -> Slots:
        keep = len(leaf) - count
        self.cuts += 1
        self._note_dropped(leaf, count)
        if keep > 0:
            slots = leaf.slots[keep:]
            leaf.hold(leaf.tokens[:keep], leaf.slots[:keep])
            self.evictable_size -= len(slots)
            self._order.add(leaf)  # what is left may be needed sooner, or not at all
            return slots
        above = leaf.parent
        assert above is not None
        del above.children[int(leaf.tokens[0])]
        leaf.parent = None
        self.evictable_size -= len(leaf)
        if above.parent is None:
            self._drop_if_empty(above)
        elif not above.children and not above.locks:
            self._order.add(above)
        return leaf.slots

    def _note_dropped(self, leaf: Node, count: int) -> None:
        if self._dropped is not None:
            path = path_tokens(leaf)
            key = self._dropped.add(leaf.namespace, path, len(path) - count, leaf.dropped)
            above = leaf if count < len(leaf) else leaf.parent
            assert above is not None
            above.dropped = key

    def _drop_if_empty(self, root: Node) -> None:
        if not root.children and not root.locks:
            self._roots.pop(root.namespace, None)


def _step(node: Node, tokens: Tokens, done: int) -> tuple[Node, int] | None:
    """The child that `tokens[done:]` enters and how many tokens of its edge agree, at least 1; else None."""
    left = len(tokens) - done
    if left <= 0 or (child := node.children.get(int(tokens[done]))) is None:
        return None
    edge = child.tokens
    length = len(edge)
    if length == 1:  # which is the key
        return child, 1
    if length > left:
        length, edge = left, edge[:left]
    differs = edge != tokens[done : done + length]
    first = int(differs.argmax())
    return child, first if differs[first] else length


def _check_node(node: Node, holders: int) -> None:
    locked_children = sum(1 for child in node.children.values() if child.locks)
    assert node.locks == holders + locked_children, f"{node}: {holders} holders, {locked_children} locked children"
    assert len(node.tokens) == len(node.slots), f"{node}: {len(node.slots)} slots"
    follow = len(node) > 0 and bool((np.diff(node.slots) == 1).all())
    assert node.first_slot == (int(node.slots[0]) if follow else -1), f"{node}: its slots begin at {node.first_slot}"
    assert (len(node) == 0) == (node.parent is None), f"{node}: an empty edge, or a root with tokens"
    for first, child in node.children.items():
        assert child.parent is node, f"{child} does not know its parent {node}"
        assert child.namespace == node.namespace, f"{child} is in another namespace than {node}"
        assert first == int(child.tokens[0]), f"{child} begins with {int(child.tokens[0])}, its key is {first}"
