"""Where the keys and values of each sequence are: its row, its slots, its place in the tree.

In: what the scheduler decided (attach, grow, decode, release). Out: slots for a step, and the page-table entries that
the step has to write first (`take_updates`), without those of its own tokens' slots: these the step itself says.

Who has what, and when it changes hands:

    attach      the cached prefix [0, tree_len) is locked on `node`; row: free → sequence (`start`)
    grow        a prefill chunk, [kv_len, kv_len + n): pool → tree, on a new child of `node`; the lock moves there
    rematch     [kv_len, kv_len + n): the tree's already; the lock moves down, and the row is pointed there
    decode      [kv_len, kv_len + n): pool → `own_slots`
    release     [tree_len, kv_len): `own_slots` → tree, where it lacks them; those it has → pool, and so that of a
                token which was never read. The row is over, so nothing points at a slot that is freed here, but the
                step in flight: whoever gets the slot writes it in a later one. Then the lock goes, and the row is free.

A path that the row of a running sequence shows is not sent again to the rows of others: they are said to be like it
(`RowUpdate.like`), which holds until that sequence is released, as the path is locked so long.

With `prefix_cache=False` there is no tree: everything is owned, and freed at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np

from .batch import Chain, RowUpdate, Segment
from .demand_tree import Demand
from .dropped import DroppedStretches
from .engine_config import EngineConfig
from .kv_pool import SlotPool, Slots
from .leases import LeaseBook, namespace_of
from .radix_cache import Node, RadixCache, Way
from .request import Sequence

__all__ = ["NO_SLOTS", "Placement"]

NO_SLOTS: Slots = np.empty(0, dtype=np.int32)

_REMEMBERED = 4  # dropped tokens that are remembered, for each slot: so many pools full of them


class Placement:
    """Tree, pool and rows, and how sequences sit in them.

    Args:
        num_slots, num_rows: of the KV pool (`TRASH_SLOT` included) and the page table.
    """

    def __init__(self, config: EngineConfig, *, num_slots: int, num_rows: int) -> None:
        self.pool = SlotPool(num_slots)
        self.leases = LeaseBook(self._needed_less, enabled=config.leases and config.prefix_cache)
        self.dropped = DroppedStretches(_REMEMBERED * num_slots)
        self.tree = RadixCache(self.leases.need if config.leases else None, self.dropped)
        self.free_rows = list(range(min(num_rows, config.max_running)))[::-1]
        self.updates: list[RowUpdate] = []  # not yet part of a step
        # A node whose path was written to the row of a sequence that runs: it stays there as long, being locked.
        self._row_of: dict[Node, tuple[int, Slots]] = {}  # with the slots of the path
        self._node_of: dict[int, Node] = {}
        # What was found while this step is planned: where each prompt that was peeked at leads, as long as nothing was
        # evicted, and who was matched last, when the tree had grown so often, and up to where.
        self._ways: dict[Sequence, tuple[Way, int]] = {}
        self._matched: tuple[Sequence | None, int, int] = (None, 0, 0)
        self._config = config

    @property
    def available(self) -> int:
        """Slots that can be had: free ones and evictable ones."""
        return self.pool.num_free + self.tree.evictable_size

    @property
    def owned(self) -> int:
        """Slots that are neither free nor in the tree."""
        return self.pool.capacity - self.pool.num_free - self.tree.evictable_size - self.tree.protected_size

    def peek(self, seq: Sequence) -> tuple[int, int]:
        """Length of the cached prefix of a waiting sequence, and the serial of the node it ends in."""
        way = self.tree.way(namespace_of(seq), seq.tokens.view(0, len(seq.tokens)))
        self._ways[seq] = way, self.tree.cuts
        return way.length, -1 if way.node is None else way.node.serial

    def attach(self, seq: Sequence) -> None:
        """Locks the cached prefix of a waiting sequence."""
        self.extend(seq)
        if not self._config.prefix_cache:
            return
        start, done = self._known_way(seq)
        seq.node, more = self.tree.follow(start, seq.tokens.view(done, seq.prefill_end))
        seq.tree_len = done + more
        self.tree.lock(seq.node)
        self._matched = seq, self.tree.grown, seq.prefill_end

    def _known_way(self, seq: Sequence) -> tuple[Node, int]:
        """A node that the tokens of a sequence lead to, from a look at it in this step, and where that ends."""
        way, cuts = self._ways.get(seq, (None, 0))
        if way is not None and cuts == self.tree.cuts:
            node, end = way.start(seq.prefill_end)
            if node is not None and end:  # an empty root may have been dropped
                return node, end
        return self.tree.root(namespace_of(seq)), 0

    def planned(self) -> None:
        """The step is planned: forgets what was found for it."""
        self._ways.clear()
        self._matched = (None, 0, 0)

    def extend(self, seq: Sequence) -> None:
        """Takes what the grammar of a sequence forces before its first token into its prefill, which is not over."""
        prompt_len = len(seq.prompt_ids)
        fed_at_once = len(seq) if self._config.forced_runs or seq.ran_to > prompt_len else prompt_len + 1
        seq.prefill_end = min(len(seq), fed_at_once)

    def detach(self, seq: Sequence) -> None:
        """Takes `attach` back."""
        if seq.node is not None:
            self.tree.unlock(seq.node)
        seq.node, seq.tree_len = None, 0

    def start(self, seq: Sequence) -> None:
        """Gives an attached sequence a row that shows its cached prefix; its first step is the one being planned."""
        seq.row = self.free_rows.pop()
        if seq.first_step_at is None:
            seq.first_step_at = time.monotonic()
        if seq.tree_len:
            self._show(seq)
        if seq.node is not None:
            reach = self.dropped.take(namespace_of(seq), seq.tokens.view(0, seq.prefill_end), seq.tree_len)
            seq.dropped_to = max(seq.dropped_to, reach)
        _skip(seq)

    def rematch(self, seq: Sequence) -> None:
        """Takes over what others have put into the tree since, and points the row at it."""
        if seq.node is None or seq.kv_len >= seq.prefill_end:
            return
        if self._matched == (seq, self.tree.grown, seq.prefill_end):
            return  # by `attach`, a moment ago
        node, slots = self.tree.match(seq.node, seq.tokens.view(seq.kv_len, seq.prefill_end))
        if len(slots):
            self.tree.lock(node)
            self.tree.unlock(seq.node)
            self.updates.append(RowUpdate(seq.row, seq.kv_len, slots))
            seq.node, seq.tree_len = node, seq.tree_len + len(slots)
            _skip(seq)

    def grow(self, seq: Sequence, count: int) -> Slots:
        """Slots for the next `count` tokens of a prefill, put into the tree, which must not have them."""
        seq.note_computed(seq.kv_len, seq.kv_len + count, cacheable=seq.node is not None)
        if seq.node is None:
            return self.decode([seq], [count])[0]
        slots = self._take(count)
        child = self.tree.extend(seq.node, seq.tokens.view(seq.kv_len, seq.kv_len + count), slots)
        self.tree.lock(child)
        self.tree.unlock(seq.node)
        seq.node, seq.tree_len = child, seq.tree_len + count
        return slots

    def decode(self, sequences: list[Sequence], counts: list[int]) -> list[Slots]:
        """Slots of their own for the next tokens of these sequences; all must be available."""
        slots = self._take(sum(counts))
        numbers = slots.tolist()
        shares, done = [], 0
        for seq, count in zip(sequences, counts):
            end = done + count
            shares.append(slots[done:end])
            seq.own_slots += numbers[done:end]
            done = end
        return shares

    def release(self, seq: Sequence) -> None:
        """Takes a sequence off its row and slots; what it computed stays in the tree."""
        own = np.array(seq.own_slots, dtype=np.int32)
        if seq.node is not None:
            known = min(seq.kv_len, len(seq))
            own, unread = own[: known - seq.tree_len], own[known - seq.tree_len :]
            if len(own):
                self.dropped.take(namespace_of(seq), seq.tokens.view(0, known), seq.tree_len)
                _, own = self.tree.insert(seq.node, seq.tokens.view(seq.tree_len, known), own)
            self.tree.unlock(seq.node)
            self.pool.give_back(unread)
        self.pool.give_back(own)
        self._forget_row(seq.row)
        self.free_rows.append(seq.row)
        seq.row, seq.node, seq.tree_len, seq.own_slots = -1, None, 0, []
        seq.chain, seq.chain_key = (), (None, -1)

    def flush(self) -> int:
        """Drops whatever no live sequence holds; the number of slots freed."""
        slots = self.tree.evict(self.tree.evictable_size)
        self.pool.give_back(slots)
        self.pool.tidy()
        return len(slots)

    def make_room(self, count: int) -> bool:
        """Whether `count` slots are free, or can be had of prefixes that nobody is known to need; frees these."""
        missing = count - self.pool.num_free
        if missing > 0:
            self.pool.give_back(self.tree.evict(missing, leased=False))
        return self.pool.num_free >= count

    def take_updates(self) -> list[RowUpdate]:
        """The page-table entries that changed since the last step, in order."""
        updates, self.updates = self.updates, []
        return updates

    def chains(self, sequences: Iterable[Sequence]) -> list[Chain]:
        """The nodes that show the prefixes of running sequences; the same object as long as they are the same."""
        above: dict[Node, Chain] = {}  # siblings have all but their last node in common
        found = []
        for seq in sequences:
            key = (seq.node, self.tree.splits)
            if seq.chain_key != key:
                chain = self._chain(seq.node, above) if seq.node is not None else ()
                if chain != seq.chain:
                    seq.chain = chain
                seq.chain_key = key
            found.append(seq.chain)
        return found

    def _chain(self, node: Node, above: dict[Node, Chain]) -> Chain:
        parent = node.parent
        if parent is None:
            return ()
        if (chain := above.get(parent)) is None:
            chain = above[parent] = _chain(self.tree.path(parent))
        return (*chain, _segment(node, chain))

    def row_slots(self, seq: Sequence) -> Slots:
        """The slots of [0, kv_len) of a running sequence, as its row should show them (for checks)."""
        own = np.array(seq.own_slots, dtype=np.int32)
        return own if seq.node is None else np.concatenate([self.tree.path_slots(seq.node), own])

    def _take(self, count: int) -> Slots:
        missing = count - self.pool.num_free
        if missing > 0:
            self.pool.give_back(self.tree.evict(missing))
        return self.pool.take(count)

    def _needed_less(self, demand: Demand | None) -> None:
        self.tree.reconsider(None if demand is None else (demand.namespace, demand.tokens))

    def _show(self, seq: Sequence) -> None:
        """Writes the path of the sequence's node to its row: like another row as far as that shows the same path."""
        assert seq.node is not None
        own, at = [], seq.node
        while at not in self._row_of and at.parent is not None:
            own.append(at.slots)
            at = at.parent
        slots = np.concatenate(own[::-1]) if own else NO_SLOTS
        alike = seq.tree_len - len(slots)
        if alike:
            row, shown = self._row_of[at]
            self.updates.append(RowUpdate(seq.row, 0, shown, row))
        else:  # only of these rows: what is like another row is written after them, and never like such a row again
            self._row_of[seq.node] = seq.row, slots
            self._node_of[seq.row] = seq.node
        if len(slots):
            self.updates.append(RowUpdate(seq.row, alike, slots))

    def _forget_row(self, row: int) -> None:
        """The row is nobody's: what is not written of it yet is wanted no more, and no other row is like it."""
        node = self._node_of.pop(row, None)
        if node is not None:
            del self._row_of[node]
        if self.updates:
            self.updates = [
                update if update.like != row else update._replace(like=-1)
                for update in self.updates
                if update.row != row
            ]


def _chain(path: list[Node]) -> Chain:
    chain: list[Segment] = []
    for node in path:
        chain.append(_segment(node, chain))
    return tuple(chain)


def _segment(node: Node, above: Seq[Segment]) -> Segment:
    start = above[-1].start + above[-1].length if above else 0
    # A split leaves a node its serial and shortens it: the part below is another node to whoever compares.
    return Segment(node.serial, start, len(node), node.first_slot)


def _skip(seq: Sequence) -> None:
    """Moves `pos` over what need not run, because its keys and values are there and nobody wants its logits."""
    seq.pos = min(seq.kv_len, seq.first_logits())
    seq.ran_to = max(seq.ran_to, seq.pos)
