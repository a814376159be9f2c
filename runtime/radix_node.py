"""One node of the radix tree, and what can be asked of it alone.

In: nothing but what `radix_cache.py` puts into the fields. Out: paths upwards, and whether it can be evicted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from .kv_pool import Slots

__all__ = ["EMPTY", "Namespace", "Node", "Tokens", "is_unlocked_leaf", "path_slots", "path_tokens", "upward"]

Tokens = NDArray[np.int32]
"""int32 [n]: token ids."""

Namespace = tuple[Hashable, ...]
"""The key of a root: (who gives the key, the key, …), so that a user's key never equals an internal one."""

EMPTY = np.empty(0, dtype=np.int32)


class Node:
    """One edge of the tree: the tokens from the parent's end to this node's end, and their slots.

    Attributes:
        tokens, slots: int32 arrays of equal length, at least 1 except at a root; never written in place, replaced by
            `hold`.
        first_slot: where the slots follow one another, the first; else -1.
        parent: None at a root and where the node was evicted.
        children: first token of the child's edge → child.
        locks: holders here plus locked children.
        last_used: the tree's clock when a holder last entered or left.
        serial: unique, in order of creation.
        queued: whether the queue of unneeded leaves has an entry for it.
        leased: its valid entry in the queue of leased leaves, if it has one.
        dropped: the key of what was dropped last right behind its end (`dropped.py`), if anything was.
    """

    __slots__ = (
        "children",
        "dropped",
        "first_slot",
        "last_used",
        "leased",
        "locks",
        "namespace",
        "parent",
        "queued",
        "serial",
        "slots",
        "tokens",
    )

    def __init__(self, parent: Node | None, namespace: Namespace, tokens: Tokens, slots: Slots, serial: int) -> None:
        self.parent = parent
        self.namespace = namespace
        self.hold(tokens, slots)
        self.serial = serial
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_used = 0
        self.queued = False
        self.leased: tuple[int, int, Node] | None = None
        self.dropped: int | None = None

    def hold(self, tokens: Tokens, slots: Slots) -> None:
        """Takes the place of what the edge held (changes state)."""
        self.tokens = tokens
        self.slots = slots
        self.first_slot = _first_of_run(slots)

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def __repr__(self) -> str:
        return f"<Node {self.serial}: {len(self)} tokens, {len(self.children)} children, {self.locks} locks>"


def _first_of_run(slots: Slots) -> int:
    """The first of slots that follow one another; -1 where they do not."""
    if not len(slots) or int(slots[-1]) - int(slots[0]) != len(slots) - 1 or (slots[1:] - slots[:-1] != 1).any():
        return -1
    return int(slots[0])


def is_unlocked_leaf(node: Node) -> bool:
    """Whether eviction may take tokens off its end."""
    return node.parent is not None and not node.locks and not node.children


def upward(node: Node) -> Iterator[Node]:
    """The node and those above it, the root included."""
    at: Node | None = node
    while at is not None:
        yield at
        at = at.parent


def path_tokens(node: Node) -> Tokens:
    """The tokens from the root to the end of `node`."""
    return np.concatenate([at.tokens for at in upward(node)][::-1])


def path_slots(node: Node, start: Node | None = None) -> Slots:
    """The slots from the end of `start`, a node above (None: from the root), to the end of `node`."""
    runs, at = [], node
    while at is not start and at.parent is not None:
        runs.append(at.slots)
        at = at.parent
    return np.concatenate(runs[::-1]) if runs else EMPTY
