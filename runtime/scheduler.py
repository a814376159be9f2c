"""What runs next: every step, the sequences that run and how many tokens of each, within slots, rows and budget.

In: sequences (`add`, `remove`). Out: a `Plan`, the work of one step; slots, locks and rows are settled before it runs.

A step is planned in three passes: (1) decoding rows, always, all of them; where slots run out the least important
sequence is preempted; (2) prefills in progress, and (3) admissions. Beyond the one token of each decoding row, a step
has at most `prefill_chunk` tokens.

Nothing is computed twice. The slots of a prefill chunk go to the tree when the chunk is *planned*, before the forward
pass: within a step keys and values are written before attention reads, layer by layer, so a sibling planned later in
the same pass may already point at them. And before a chunk is planned, its sequence matches the tree again from where
it stands. So whoever is planned first leads, and its siblings find its tokens instead of computing them; one that
waits costs no row while a leader has used up the budget. (Were the step to raise after that, the tree would hold
slots that were never written: but then the engine is dead, and the tree with it.)

Who has what, and when it changes hands:

    admission      row: free → sequence; the matched prefix [0, tree_len) is locked
    prefill chunk  [kv_len, kv_len + n): pool → tree, on a new child of `node`; the lock moves to the child
    re-match       [kv_len, kv_len + n): the tree's already; the lock moves down, the row is pointed there
    decode         [kv_len, kv_len + n): pool → `own_slots`
    finish,        [tree_len, kv_len): `own_slots` → tree, where it lacks them; those it has → pool. The row is over, so
    preemption     nothing points at a slot that is freed here. Then the lock goes, and the row is free.

With `prefix_cache=False` there is no tree: everything is owned, and freed at the end.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .batch import RowUpdate
from .engine_config import EngineConfig
from .kv_pool import SlotPool, Slots
from .radix_cache import Namespace, RadixCache
from .request import Sequence, SequenceState
from .stats import Counters
from .waiting import WaitingQueue

__all__ = ["Plan", "Scheduler", "Work"]

_NO_SLOTS = np.empty(0, dtype=np.int32)
_NO_LOOKUPS = range(0)


@dataclass(frozen=True)
class Work:
    """What one sequence does in a step.

    Attributes:
        start, end: the positions that run, [start, end).
        slots: where the keys and values of the last `len(slots)` of them go; those before are there already.
        lookups: the tokens whose log probability is looked up in the logits of the position before each.
        samples: whether a token is drawn from the last position's logits.
        scores_end: whether the end tokens are scored after the prompt's last token.
    """

    seq: Sequence
    start: int
    end: int
    slots: Slots
    lookups: range
    samples: bool
    scores_end: bool


@dataclass
class Plan:
    """One step.

    Attributes:
        works: in the order of the batch.
        updates: page-table entries to write before it.
        done: sequences that turned out to have nothing left to run; they only need to be finished.
        budget: tokens that may still be planned, beyond one for each decoding row.
        admitting: whether sequences may still be admitted; not after a preemption, or once the next one has no room.
    """

    budget: int = 0
    admitting: bool = True
    works: list[Work] = field(default_factory=list)
    updates: list[RowUpdate] = field(default_factory=list)
    done: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Decides what runs; owns the tree, the pool, the rows and both queues. Used by one thread.

    Args:
        num_slots, num_rows: of the KV pool (`TRASH_SLOT` included) and the page table.
        begin: called once before a sequence is first admitted; appends what its grammar forces. False where the
            sequence is over by that (then `begin` has removed it).
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_slots: int,
        num_rows: int,
        counters: Counters,
        begin: Callable[[Sequence], bool] = lambda seq: True,
    ) -> None:
        self.config = config
        self.counters = counters
        self.pool = SlotPool(num_slots)
        self.tree = RadixCache()
        self.waiting = WaitingQueue(config, self._peek)
        self.running: list[Sequence] = []  # the most important first
        self.free_rows = list(range(min(num_rows, config.max_running)))[::-1]
        self._begin = begin
        self._arrivals = 0
        self._updates: list[RowUpdate] = []
        self._stalled_steps = 0

    @property
    def available(self) -> int:
        """Slots that can be had: free ones and evictable ones."""
        return self.pool.num_free + self.tree.evictable_size

    @property
    def owned(self) -> int:
        """Slots that are neither free nor in the tree."""
        return self.pool.capacity - self.pool.num_free - self.tree.evictable_size - self.tree.protected_size

    def add(self, seq: Sequence) -> None:
        """A new sequence waits."""
        seq.arrival = self._arrivals
        self._arrivals += 1
        self.waiting.add(seq)

    def remove(self, seq: Sequence) -> None:
        """The sequence is over, wherever it stands; what it computed stays in the tree."""
        if seq.state is SequenceState.WAITING:
            self.waiting.remove(seq)
        elif seq.state is SequenceState.RUNNING:
            if seq.kv_len >= len(seq.prompt_ids):
                seq.ran_to = max(seq.ran_to, len(seq.prompt_ids))
            self._release(seq)
        self._count_prompt(seq)
        seq.state = SequenceState.FINISHED

    def flush(self) -> int:
        """Drops whatever no live sequence holds; the number of slots freed."""
        slots = self.tree.evict(self.tree.evictable_size)
        self.pool.give_back(slots)
        return len(slots)

    def schedule(self) -> Plan:
        """Plans a step; empty only where nothing runs and nobody waits (or everything turned out to be done)."""
        plan = Plan(budget=self.config.prefill_chunk)
        self.waiting.new_step()
        while True:
            self._plan_decodes(plan)
            self._plan_prefills(plan)
            self._admit(plan)
            if plan.works or plan.done or len(self.running) < 2:
                break
            self._preempt(self.running[-1], plan)  # several prefills hold all slots: the first of them gets room
        plan.updates, self._updates = self._updates, []
        return plan

    def row_slots(self, seq: Sequence) -> Slots:
        """The slots of [0, kv_len) of a running sequence, as its page-table row should show them."""
        own = np.array(seq.own_slots, dtype=np.int32)
        return own if seq.node is None else np.concatenate([self.tree.path_slots(seq.node), own])

    def _plan_decodes(self, plan: Plan) -> None:
        """One token of each decoding row, and further forced ones within the budget.

        Where slots run out, the least important sequences are preempted, prefills included, until the rest fits.
        """
        counts: list[int] = []
        decoding: list[Sequence] = []
        for seq in self.running:
            if seq.pos >= seq.prefill_end:
                count = min(seq.target() - seq.pos, plan.budget + 1) if self.config.forced_runs else 1
                plan.budget -= count - 1
                decoding.append(seq)
                counts.append(count)
        wanted = sum(counts)
        while wanted > self.available:
            victim = self.running[-1]
            if decoding[-1] is victim:
                decoding.pop()
                wanted -= counts[-1]
                plan.budget += counts.pop() - 1
            self._preempt(victim, plan)
        slots = self._take(wanted)
        done = 0
        for seq, count in zip(decoding, counts):
            own = slots[done : done + count]
            done += count
            self._update_row(seq, own)
            seq.own_slots.extend(own.tolist())
            plan.works.append(self._work(seq, seq.pos + count, own))

    def _plan_prefills(self, plan: Plan) -> None:
        """Goes on with prefills, each after the admission of those that are more important.

        A prefill that got nothing for `max_overtakes` steps lets nobody pass any more.
        """
        stalled = False
        for seq in [seq for seq in self.running if seq.pos < seq.prefill_end]:
            if self._stalled_steps < self.config.max_overtakes:
                self._admit(plan, above=seq.priority)
            if plan.budget > 0:
                self._plan_chunk(seq, plan)
            else:
                stalled = True
        self._stalled_steps = self._stalled_steps + 1 if stalled else 0

    def _plan_chunk(self, seq: Sequence, plan: Plan) -> None:
        """Plans the next tokens of a prefill."""
        self._match(seq)
        target = seq.target()
        if target <= seq.pos:
            plan.done.append(seq)
            return
        count = min(min(target, seq.prefill_end) - seq.pos, plan.budget, seq.kv_len - seq.pos + self.available)
        if count > 0:
            end = seq.pos + count
            slots = self._grow(seq, end - seq.kv_len) if end > seq.kv_len else _NO_SLOTS
            plan.works.append(self._work(seq, end, slots))
            plan.budget -= count

    def _work(self, seq: Sequence, end: int, slots: Slots) -> Work:
        """Moves `pos` to `end`: from here on the step will run."""
        start, prompt_len = seq.pos, len(seq.prompt_ids)
        lookups = _NO_LOOKUPS
        if seq.lookup_at < seq.lookup_end:
            first = max(seq.lookup_at, start + 1)
            lookups = range(first, max(first, min(end + 1, seq.lookup_end)))
        samples = end == len(seq) and seq.wants_token
        work = Work(seq, start, end, slots, lookups, samples, seq.wants_end_logprob and start < prompt_len <= end)
        if start < prompt_len or start < seq.ran_to:
            self._count_run(seq, end)
        seq.pos = end
        seq.ran_to = max(seq.ran_to, end)
        return work

    def _count_run(self, seq: Sequence, end: int) -> None:
        """Counts the positions [pos, end), as far as they are the prompt's or ran before."""
        prompt_len = len(seq.prompt_ids)
        seq.prompt_run += max(0, min(end, prompt_len) - max(seq.pos, seq.ran_to))
        self.counters.computed_tokens += max(0, min(end, max(prompt_len, seq.ran_to)) - seq.pos)
        seq.ran_to = max(seq.ran_to, end)
        if end >= prompt_len:
            self._count_prompt(seq)

    def _admit(self, plan: Plan, above: int | None = None) -> None:
        """Admits who is next, as long as budget, rows and slots last; with `above`, only higher priorities."""
        if not (plan.admitting and self.waiting):
            return
        reserved = sum(map(self._reserve, self.running))
        while plan.budget > 0 and self.free_rows and (seq := self.waiting.next()) is not None:
            if above is not None and seq.priority <= above:
                return
            if not seq.begun:
                seq.begun = True
                if not self._begin(seq):
                    continue
            slots = self._attach(seq)
            if self.running and reserved + self._reserve(seq) > self.available:
                self._detach(seq)
                plan.admitting = False  # whoever is next waits for room, so that nobody smaller takes it for ever
                return
            self._start(seq, slots)
            self._plan_chunk(seq, plan)
            reserved += self._reserve(seq)

    def _reserve(self, seq: Sequence) -> int:
        """The slots that a running sequence will want soon: the rest of its prefill, and some to decode."""
        prefill = max(0, seq.prefill_end - seq.kv_len)
        return prefill + max(0, min(self.config.decode_headroom, seq.max_len - max(len(seq), seq.kv_len)))

    def _attach(self, seq: Sequence) -> Slots:
        """Locks the cached prefix of a waiting sequence; its slots."""
        forced = len(seq) if self.config.forced_runs or seq.ran_to else len(seq.prompt_ids) + 1
        seq.prefill_end = min(len(seq), forced)
        if not self.config.prefix_cache:
            return _NO_SLOTS
        seq.node, slots = self.tree.match(self.tree.root(_namespace(seq)), seq.tokens.view(0, seq.prefill_end))
        seq.tree_len = len(slots)
        self.tree.lock(seq.node)
        return slots

    def _detach(self, seq: Sequence) -> None:
        if seq.node is not None:
            self.tree.unlock(seq.node)
        seq.node, seq.tree_len = None, 0

    def _start(self, seq: Sequence, slots: Slots) -> None:
        self.waiting.admitted(seq)
        seq.state = SequenceState.RUNNING
        bisect.insort(self.running, seq, key=_importance)
        seq.row = self.free_rows.pop()
        if len(slots):
            self._updates.append(RowUpdate(seq.row, 0, slots))
        self._skip(seq)

    def _skip(self, seq: Sequence) -> None:
        """Moves `pos` over what need not run, because its keys and values are there and nobody wants its logits."""
        seq.pos = min(seq.kv_len, seq.first_logits())
        seq.ran_to = max(seq.ran_to, seq.pos)

    def _match(self, seq: Sequence) -> None:
        """Takes over what others have put into the tree since, and points the row at it."""
        if seq.node is None or seq.kv_len >= seq.prefill_end:
            return
        node, slots = self.tree.match(seq.node, seq.tokens.view(seq.kv_len, seq.prefill_end))
        if len(slots):
            self.tree.lock(node)
            self.tree.unlock(seq.node)
            self._update_row(seq, slots)
            seq.node, seq.tree_len = node, seq.tree_len + len(slots)
            self._skip(seq)

    def _grow(self, seq: Sequence, count: int) -> Slots:
        """Slots for the next `count` tokens of a prefill, put where they belong."""
        slots = self._take(count)
        self._update_row(seq, slots)
        if seq.node is None:
            seq.own_slots.extend(slots.tolist())
        else:
            child = self.tree.extend(seq.node, seq.tokens.view(seq.kv_len, seq.kv_len + count), slots)
            self.tree.lock(child)
            self.tree.unlock(seq.node)
            seq.node, seq.tree_len = child, seq.tree_len + count
        return slots

    def _take(self, count: int) -> Slots:
        missing = count - self.pool.num_free
        if missing > 0:
            self.pool.give_back(self.tree.evict(missing))
        return self.pool.take(count)

    def _update_row(self, seq: Sequence, slots: Slots) -> None:
        self._updates.append(RowUpdate(seq.row, seq.kv_len, slots))

    def _preempt(self, seq: Sequence, plan: Plan) -> None:
        plan.admitting = False
        self._release(seq)
        seq.state = SequenceState.WAITING
        self.counters.preemptions += 1
        self.waiting.add(seq)

    def _release(self, seq: Sequence) -> None:
        """Takes a running sequence off its row and slots."""
        self.running.remove(seq)
        own = np.array(seq.own_slots, dtype=np.int32)
        if seq.node is not None:
            if len(own):
                _, own = self.tree.insert(seq.node, seq.tokens.view(seq.tree_len, seq.kv_len), own)
            self.tree.unlock(seq.node)
        self.pool.give_back(own)
        self.free_rows.append(seq.row)
        seq.row, seq.node, seq.tree_len, seq.own_slots = -1, None, 0, []

    def _count_prompt(self, seq: Sequence) -> None:
        if seq.prompt_counted:
            return
        seq.prompt_counted = True
        self.counters.prompt_tokens += seq.cached_tokens + seq.prompt_run
        self.counters.cached_tokens += seq.cached_tokens

    def _peek(self, seq: Sequence) -> tuple[int, int]:
        return self.tree.peek(_namespace(seq), seq.tokens.view(0, len(seq.tokens)))


def _namespace(seq: Sequence) -> Namespace:
    return ("user", seq.namespace)


def _importance(seq: Sequence) -> tuple[int, int]:
    return -seq.priority, seq.arrival
