"""What runs next: every step, the sequences that run and how many tokens of each, within slots, rows and budget.

In: sequences (`add`, `remove`). Out: a `Plan`, the work of one step; slots, locks and rows are settled before it runs.

A step is planned in three passes: (1) decoding rows, always, all of them; where slots run out the least important
sequence is preempted; (2) prefills in progress, and (3) admissions. Beyond the one token of each decoding row, a step
has at most `prefill_chunk` tokens, and a few more where they end a prompt (`spare_tokens`).

Nothing is computed twice. The slots of a prefill chunk go to the tree when the chunk is *planned*, before the forward
pass: within a step keys and values are written before attention reads, layer by layer, so a sibling planned later in
the same pass may already point at them. And before a chunk is planned, its sequence matches the tree again from where
it stands. So whoever is planned first leads, and its siblings find its tokens instead of computing them; one that
waits costs no row while a leader has used up the budget. (Were the step to raise after that, the tree would hold
slots that were never written: but then the engine is dead, and the tree with it.)

A step may be planned while the tokens of the one before are still being sampled (`schedule_ahead`): a row that goes on
then runs a token that nobody knows yet. Should that token end the text, the row ran in vain.

Where tokens, locks and rows go, and who has them when, is `placement.py`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .batch import Chain, RowUpdate
from .engine_config import EngineConfig, spare_tokens
from .kv_pool import Slots
from .placement import NO_SLOTS, Placement
from .request import Sequence, SequenceState
from .stats import Counters
from .waiting import WaitingQueue

__all__ = ["Plan", "Scheduler", "Work"]

_NO_LOOKUPS = range(0)


class Work(NamedTuple):
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
        updates: page-table entries to write before it, beside those of the tokens that run.
        chains: of each work's sequence, the radix nodes that show its prefix.
        done: sequences that turned out to have nothing left to run; they only need to be finished.
        held: whether a sequence waits for its grammar, which another thread is making ready.
        ahead: whether it is planned before the last step's tokens are known; nobody is preempted then.
        budget: tokens that may still be planned, beyond one for each decoding row; below 0 after the end of a prompt
            that took more.
        admitting: whether sequences may still be admitted; not after a preemption, or once the next one has no room.
    """

    budget: int = 0
    admitting: bool = True
    works: list[Work] = field(default_factory=list)
    updates: list[RowUpdate] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)
    done: list[Sequence] = field(default_factory=list)
    held: bool = False
    ahead: bool = False


@dataclass
class _Load:
    """Slots that those that run will want: soon, and (once somebody asked) until they end."""

    reserved: int
    growth: int | None = None


class Scheduler:
    """Decides what runs; owns both queues and the placement. Used by one thread.

    Args:
        num_slots, num_rows: of the KV pool (`TRASH_SLOT` included) and the page table.
        begin: called once before the last token of a prompt runs, on admission where the grammar is ready; appends
            what that forces. False where the sequence is over by that (then `begin` has removed it).
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
        self.placement = Placement(config, num_slots=num_slots, num_rows=num_rows)
        self.leases = self.placement.leases
        self.waiting = WaitingQueue(config, self.placement.peek, self._has_room)
        self.running: list[Sequence] = []  # the most important first
        self._begin = begin
        self._spare = spare_tokens(config.prefill_chunk)
        self._arrivals = 0
        self._stalled_steps = 0
        self._share_written = 1.0  # of the tokens that sequences of graphs may write, how many they do write

    def add(self, sequences: Iterable[Sequence]) -> None:
        """New sequences wait; those of one graph that come together are leased together."""
        sequences, wave = list(sequences), self._arrivals
        for seq in sequences:
            seq.arrival, seq.wave = self._arrivals, wave
            self._arrivals += 1
            self.waiting.add(seq)
        self.leases.submitted(sequences)

    def remove(self, seq: Sequence) -> None:
        """The sequence is over, wherever it stands; what it computed stays in the tree."""
        if seq.state is SequenceState.WAITING:
            self.waiting.remove(seq)
        elif seq.state is SequenceState.RUNNING:
            if seq.kv_len >= len(seq.prompt_ids):
                seq.ran_to = max(seq.ran_to, len(seq.prompt_ids))
            self._stop(seq)
        if seq.graph is not None and seq.ending is not None and seq.max_len > len(seq.prompt_ids):
            share = len(seq.output_ids) / (seq.max_len - len(seq.prompt_ids))
            self._share_written += (share - self._share_written) / 16
        self.leases.ended(seq)
        self._count_prompt(seq)
        seq.state = SequenceState.FINISHED

    def schedule(self) -> Plan:
        """Plans a step; empty only where nothing runs and nobody waits (or all are done, or held by their grammars).

        Every token that was sampled is known.
        """
        plan = Plan(budget=self.config.prefill_chunk)
        if not (self.running or self.waiting):  # as after the last results, which somebody waits for
            self._stalled_steps = 0
            return plan
        self.waiting.new_step()
        while True:
            self._plan_step(plan)
            if plan.works or plan.done or plan.held or len(self.running) < 2:
                break
            self._preempt(self.running[-1], plan)  # several prefills hold all slots: the first of them gets room
        return plan

    def schedule_ahead(self, flight: Plan) -> Plan | None:
        """Plans the step after `flight`, which runs and whose results are not known yet.

        Returns:
            a plan, empty where there is nothing to run beside what the results decide; None, with nothing changed,
            where results decide what has to run, or slots are so scarce that somebody would be preempted.
        """
        if any(_decides(work) for work in flight.works):
            return None
        decoding = [seq for seq in self.running if seq.pos >= seq.prefill_end]
        if sum(max(0, seq.target() - seq.pos) for seq in decoding) > self.placement.available:
            return None
        plan = Plan(budget=self.config.prefill_chunk, ahead=True)
        self.waiting.new_step()
        self._plan_step(plan)
        return plan

    def _plan_step(self, plan: Plan) -> None:
        self._plan_decodes(plan)
        self._plan_prefills(plan)
        self._admit(plan)
        if plan.works:  # else nothing runs that would write them
            plan.updates = self.placement.take_updates()
            plan.chains = self.placement.chains(work.seq for work in plan.works)
        self.placement.planned()

    def _plan_decodes(self, plan: Plan) -> None:
        """One token of each decoding row, and further forced ones within the budget.

        A long run of one row would hold up the others, so beside these it takes several steps.

        Where slots run out, the least important sequences are preempted, prefills included, until the rest fits.
        """
        wanting = [
            (seq, more) for seq in self.running if seq.pos >= seq.prefill_end and (more := seq.target() - seq.pos) > 0
        ]
        if not wanting:
            return
        most = self.config.forced_chunk if len(wanting) > 1 else self.config.prefill_chunk
        decoding = [seq for seq, _ in wanting]
        counts = [1] * len(wanting)
        if self.config.forced_runs:
            for i, (_, more) in enumerate(wanting):
                if more > 1:
                    counts[i] = min(more, plan.budget + 1, most)
                    plan.budget -= counts[i] - 1
        wanted = sum(counts)
        while wanted > self.placement.available:
            victim = self.running[-1]
            if decoding[-1] is victim:
                decoding.pop()
                wanted -= counts[-1]
                plan.budget += counts.pop() - 1
            self._preempt(victim, plan)
        for seq, count, slots in zip(decoding, counts, self.placement.decode(decoding, counts)):
            plan.works.append(self._work(seq, seq.pos + count, slots))

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
        """Plans the next tokens of a prefill; all but the last where the grammar of what follows is not ready."""
        if not seq.begun and not _is_held(seq):
            seq.begun = True
            if not self._begin(seq):
                return
            self.placement.extend(seq)
        self.placement.rematch(seq)
        target = seq.target() if seq.begun else len(seq.prompt_ids) - 1
        if not seq.begun and target <= seq.pos:
            plan.held = True
            return
        if target <= seq.pos:
            plan.done.append(seq)
            return
        room = seq.kv_len - seq.pos + self.placement.available
        left = min(target, seq.prefill_end) - seq.pos
        count = min(left, plan.budget, room)
        if count < left <= min(plan.budget + self._spare, room) and seq.begun:
            count = left  # the end of a prompt, which is not worth a step of its own
        if count > 0:
            end = seq.pos + count
            slots = self.placement.grow(seq, end - seq.kv_len) if end > seq.kv_len else NO_SLOTS
            plan.works.append(self._work(seq, end, slots))
            plan.budget -= count

    def _work(self, seq: Sequence, end: int, slots: Slots) -> Work:
        """Moves `pos` to `end`: from here on the step will run."""
        start, prompt_len = seq.pos, len(seq.prompt_ids)
        if prompt_len <= start >= seq.ran_to and not seq.sampling.wants_logprobs:
            # A decoding row of which nothing but its next token is wanted: the same as below, for hundreds a step.
            seq.pos = seq.ran_to = end
            samples = end == seq.length + (seq.unread >= 0) < seq.max_len and seq.ending is None
            return Work(seq, start, end, slots, _NO_LOOKUPS, samples, False)
        lookups = _NO_LOOKUPS
        if seq.lookup_at < seq.lookup_end:
            first = max(seq.lookup_at, start + 1)
            lookups = range(first, max(first, min(end + 1, seq.lookup_end)))
        samples = end == seq.length + (seq.unread >= 0) < seq.max_len and seq.ending is None
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
        load: _Load | None = None  # of all that run, reckoned once: hundreds may run, and hundreds be looked at
        while plan.budget > 0 and self.placement.free_rows and (seq := self.waiting.next()) is not None:
            if above is not None and seq.priority <= above:
                return
            if not seq.begun and not _is_held(seq):
                seq.begun = True
                if not self._begin(seq):
                    continue
            self.placement.attach(seq)
            if load is None:
                load = _Load(sum(map(self._reserve, self.running)))
            if self.running and load.reserved + self._reserve(seq) > self.placement.available:
                self.placement.detach(seq)
                plan.admitting = False  # whoever is next waits for room, so that nobody smaller takes it for ever
                return
            if self._better_later(seq, load):
                self.placement.detach(seq)
                self.waiting.hold_graphs()
                continue
            self.waiting.admitted(seq)
            self.leases.admitted(seq)
            seq.state = SequenceState.RUNNING
            bisect.insort(self.running, seq, key=_importance)
            self.placement.start(seq)
            self._plan_chunk(seq, plan)
            load.reserved += self._reserve(seq)
            if load.growth is not None:
                load.growth += self._growth(seq)

    def _better_later(self, seq: Sequence, load: _Load) -> bool:
        """Whether a graph's sequence waits until others end, since to run it now would cost prefixes that are needed
        again, or the preemption of somebody."""
        if seq.graph is None or not self.config.leases or self.config.policy == "fcfs" or self.waiting.overdue:
            return False
        if self.waiting.in_order or not self.running or seq.priority > self.running[-1].priority:
            return False
        if load.growth is None:
            load.growth = sum(map(self._growth, self.running))
        wanted = load.growth + self._growth(seq)
        if wanted > self.placement.available:
            return True
        price = self.config.lease_price if len(self.running) < self.config.least_running else 0
        return not self.placement.make_room(wanted - price)

    def _has_room(self) -> bool:
        """Whether all that run and wait find room at a time, with every prefix that is known to be needed.

        What is needed counts in full, also as far as it is locked already.
        """
        if not (self.config.leases and self.config.prefix_cache):
            return False
        written = math.ceil(self._share_written * self.waiting.unwritten)
        wanted = self.leases.demanded + self.waiting.unleased + written
        available = self.placement.available
        return wanted <= available and wanted + sum(map(self._growth, self.running)) <= available

    def _growth(self, seq: Sequence) -> int:
        """The slots that a sequence will probably want until it ends, judging by those that ended before."""
        written = len(seq.output_ids)
        more = max(0.0, self._share_written * (seq.max_len - len(seq.prompt_ids)) - written)
        return max(self._reserve(seq), min(seq.max_len, len(seq) + math.ceil(more)) - seq.kv_len)

    def _reserve(self, seq: Sequence) -> int:
        """The slots that a running sequence will want soon: the rest of its prefill, and some to decode."""
        prefill = max(0, seq.prefill_end - seq.kv_len)
        return prefill + max(0, min(self.config.decode_headroom, seq.max_len - max(len(seq), seq.kv_len)))

    def _preempt(self, seq: Sequence, plan: Plan) -> None:
        plan.admitting = False
        self._stop(seq)
        seq.state = SequenceState.WAITING
        self.counters.preemptions += 1
        self.waiting.add(seq)
        self.leases.waits(seq)

    def _stop(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self.placement.release(seq)

    def _count_prompt(self, seq: Sequence) -> None:
        if seq.prompt_counted:
            return
        seq.prompt_counted = True
        self.counters.prompt_tokens += seq.cached_tokens + seq.prompt_run
        self.counters.cached_tokens += seq.cached_tokens


def _decides(work: Work) -> bool:
    """Whether a step's results decide what of this sequence runs next, beyond how the text goes on."""
    seq = work.seq
    forced_are_looked_up = work.samples and seq.matcher is not None and seq.sampling.wants_logprobs
    return bool(work.lookups) or work.scores_end or forced_are_looked_up


def _is_held(seq: Sequence) -> bool:
    """Whether another thread is making ready what the masks of a sequence take: a step would wait for it."""
    return seq.matcher is not None and seq.wants_token and not getattr(seq.matcher, "is_ready", True)


def _importance(seq: Sequence) -> tuple[int, tuple[int, int]]:
    return -seq.priority, seq.rank
