"""The invariants of scheduler, tree and pool, checked between two steps.

In: a scheduler, and the sequences of the step in flight. Out: nothing, or an AssertionError that says what is broken.

- Every slot but the trash slot is free, cached or owned, exactly one of them, and the sizes say the same.
- No live row points to a free slot: a running sequence's prefix is on a locked path, its own slots are its alone.
- A locked node's count is the number of its holders and locked children; a child's prefix is its holder's tokens.
- The leases are those of open graphs: of each sequence of theirs that waits, and of what they still expect.
- Every page-table row is free or held by one running sequence; who waits holds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from .batch import TRASH_SLOT
from .request import Sequence, SequenceState
from .scheduler import Scheduler

__all__ = ["check_invariants"]


def check_invariants(scheduler: Scheduler, in_flight: Collection[Sequence] = ()) -> None:
    """Raises AssertionError where an invariant does not hold. Cost: proportional to the pool and the live tokens."""
    scheduler.placement.pool.check()
    scheduler.waiting.check()
    scheduler.leases.check(scheduler.waiting)
    holders = Counter(seq.node for seq in scheduler.running if seq.node is not None)
    scheduler.placement.tree.check(dict(holders))
    _check_slots(scheduler)
    _check_rows(scheduler)
    is_free = np.zeros(scheduler.placement.pool.capacity + 1, dtype=np.bool_)
    is_free[scheduler.placement.pool.free_slots()] = True
    for seq in scheduler.running:
        _check_running(scheduler, seq, is_free, seq in in_flight)
    for seq in scheduler.waiting:
        held = (seq.row, seq.node, seq.own_slots, seq.tree_len)
        assert held == (-1, None, [], 0), f"{seq.id} waits and holds {held}"


def _check_slots(scheduler: Scheduler) -> None:
    cached = [node.slots for node in scheduler.placement.tree.nodes()]
    owned = [np.array(seq.own_slots, dtype=np.int32) for seq in scheduler.running]
    every = np.concatenate([scheduler.placement.pool.free_slots(), *cached, *owned])
    uses = np.bincount(every, minlength=scheduler.placement.pool.capacity + 1)
    assert uses[TRASH_SLOT] == 0, "the trash slot is free, cached or owned"
    lost, twice = np.flatnonzero(uses[TRASH_SLOT + 1 :] == 0) + TRASH_SLOT + 1, np.flatnonzero(uses > 1)
    assert not len(lost), f"slots neither free nor cached nor owned: {lost}"
    assert not len(twice), f"slots in two places: {twice}"
    assert scheduler.placement.owned == sum(map(len, owned)), (scheduler.placement.owned, sum(map(len, owned)))


def _check_rows(scheduler: Scheduler) -> None:
    rows = [seq.row for seq in scheduler.running]
    assert len(set(rows)) == len(rows), "two sequences share a row"
    assert not set(rows) & set(scheduler.placement.free_rows), "a row is free and in use"
    assert all(row >= 0 for row in rows), "a running sequence has no row"


def _check_running(scheduler: Scheduler, seq: Sequence, is_free: NDArray[np.bool_], in_flight: bool) -> None:
    assert seq.state is SequenceState.RUNNING, f"{seq.id} runs and is {seq.state}"
    unread = seq.unread >= 0
    assert in_flight or not unread, f"{seq.id} waits for a token that no step samples"
    assert seq.pos <= seq.kv_len <= len(seq) + unread, (seq.id, seq.pos, seq.kv_len, len(seq))
    assert len(seq) == len(seq.tokens), (seq.id, len(seq), len(seq.tokens))
    if not in_flight:
        wanted = seq.first_logits()
        assert seq.pos <= wanted, f"{seq.id} ran past position {wanted}, whose logits it wants"
    if seq.node is None:
        assert not scheduler.config.prefix_cache, f"{seq.id} runs outside the tree"
        return
    tokens = scheduler.placement.tree.path_tokens(seq.node)
    assert np.array_equal(tokens, seq.tokens.view(0, seq.tree_len)), f"{seq.id} holds a prefix that is not its own"
    assert not is_free[scheduler.placement.row_slots(seq)].any(), f"the row of {seq.id} points to a free slot"
