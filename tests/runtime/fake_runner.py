"""A pseudo-model whose output depends on every visible token *as read through page table and slots*.

Two layers, as in a real model: layer 0 writes the keys of all tokens of a step before anything is read; layer 1 keys
are a hash of all visible layer 0 keys, read through the row; the output is a hash of all visible layer 1 keys. A
wrong, stale or freed slot anywhere below a query changes what it sees, and so the tokens that come out.
`reference_logits` computes the same without any cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from radicel.runtime.batch import TRASH_SLOT, SampleBatch, StepBatch, StepResult
from radicel.runtime.grammar.matcher import mask_words
from radicel.runtime.request import ResolvedSampling, Sequence, SequenceResult

VOCAB = 40
END = 39
_MASK = (1 << 64) - 1


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64."""
    x = x.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _key0(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return _mix(tokens.astype(np.uint64) * np.uint64(1_000_003) + positions.astype(np.uint64))


def _attend(keys: np.ndarray) -> np.ndarray:
    """For each position a hash of the keys up to it (order matters through the position that is mixed in)."""
    return np.cumsum(_mix(keys + np.arange(len(keys), dtype=np.uint64)), dtype=np.uint64)


def _logits(hidden: int) -> np.ndarray:
    noise = _mix(np.uint64(hidden) + np.arange(VOCAB, dtype=np.uint64))
    return (noise >> np.uint64(40)).astype(np.float64) / (1 << 24) * 8.0


def reference_logits(tokens: list[int]) -> np.ndarray:
    """Logits after the last of these tokens."""
    ids = np.array(tokens, dtype=np.int64)
    with np.errstate(over="ignore"):
        keys1 = _mix(_attend(_key0(ids, np.arange(len(ids)))))
        return _logits(int(_attend(keys1)[-1]))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - math.log(float(np.exp(shifted).sum()))


@dataclass
class FakePenalty:
    counts: dict[int, int]
    seen: set[int]

    def add(self, token_id: int) -> None:
        self.counts[token_id] = self.counts.get(token_id, 0) + 1
        self.seen.add(token_id)


@dataclass
class FakeStep:
    """Results that count as known from `read` on; the runner allows one step beside the unread one."""

    result: StepResult
    runner: FakeRunner

    def read(self) -> StepResult:
        self.runner.events.append("read")
        self.runner.unread.remove(self)
        return self.result


@dataclass
class FakeRunner:
    num_slots: int = 4096
    num_rows: int = 64
    context_length: int = 2048
    vocab_size: int = VOCAB
    steps: list[StepBatch] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    fail_at: int | None = None
    closed: bool = False
    asynchronous: bool = False
    sampled: list[int] = field(default_factory=list)
    unread: list[FakeStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = np.zeros((self.num_rows, self.context_length), dtype=np.int64)
        self.keys0 = np.zeros(self.num_slots, dtype=np.uint64)
        self.keys1 = np.zeros(self.num_slots, dtype=np.uint64)
        self.tokens = np.full(self.num_slots, -1, dtype=np.int64)

    def forward(self, batch: StepBatch) -> list[np.ndarray]:
        self.events.append("forward")
        if self.fail_at is not None and len(self.steps) >= self.fail_at:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        batch = replace(batch, token_ids=np.array([t if t >= 0 else self.sampled[-1 - t] for t in batch.token_ids]))
        self.steps.append(batch)
        self._check_shapes(batch)
        assert len(self.unread) <= self.asynchronous, "a step is launched before the one before the last was read"
        for update in batch.updates:
            self.table[update.row, update.start : update.start + len(update.slots)] = update.slots
        written = [(u.row, position) for u in batch.updates for position in range(u.start, u.start + len(u.slots))]
        assert len(set(written)) == len(written), "two updates of a step write an entry"
        for update in batch.updates:
            if update.like >= 0:
                like = self.table[update.like, update.start : update.start + len(update.slots)]
                assert np.array_equal(like, update.slots), f"row {update.like} is not like row {update.row}"
        rows = np.repeat(batch.rows, batch.q_lens)
        own = batch.slots != TRASH_SLOT
        self.table[rows[own], batch.positions[own]] = batch.slots[own]
        with np.errstate(over="ignore"):
            hidden = self._layers(batch)
        return [_logits(int(hidden[row])) for row in batch.logit_rows]

    def _layers(self, batch: StepBatch) -> np.ndarray:
        starts = np.concatenate([[0], np.cumsum(batch.q_lens)])
        self.keys0[batch.slots] = _key0(batch.token_ids, batch.positions)
        self.tokens[batch.slots] = batch.token_ids
        self.keys0[TRASH_SLOT] = self.tokens[TRASH_SLOT] = 0xDEAD
        seen = []
        for b in range(batch.num_seqs):
            rows = self.table[batch.rows[b], : batch.kv_lens[b]]
            seen.append(_mix(_attend(self.keys0[rows])[batch.kv_lens[b] - batch.q_lens[b] :]))
        self.keys1[batch.slots] = np.concatenate(seen)
        self.keys1[TRASH_SLOT] = 0xDEAD
        hidden = []
        for b in range(batch.num_seqs):
            rows = self.table[batch.rows[b], : batch.kv_lens[b]]
            # a query's own key is read through its row like any other: for a TRASH_SLOT query that is the tree's slot
            hidden.append(_attend(self.keys1[rows])[batch.kv_lens[b] - batch.q_lens[b] :])
        assert starts[-1] == batch.num_tokens
        return np.concatenate(hidden)

    def _check_shapes(self, batch: StepBatch) -> None:
        assert batch.num_tokens == int(batch.q_lens.sum()) == len(batch.positions) == len(batch.slots)
        assert (batch.q_lens >= 1).all()
        assert len(set(batch.rows.tolist())) == batch.num_seqs
        real = batch.slots[batch.slots != TRASH_SLOT]
        assert len(set(real.tolist())) == len(real), "two tokens of a step write to one slot"
        assert (np.diff(batch.logit_rows) > 0).all()
        ends = np.cumsum(batch.q_lens)
        assert (batch.positions[ends - 1] + 1 == batch.kv_lens).all()

    def sample(self, output: list[np.ndarray], batch: SampleBatch) -> FakeStep:
        self.events.append("sample")
        masks = {} if batch.masks is None else dict(zip(batch.mask_rows.tolist(), batch.masks))
        penalties = {p.row: p for p in batch.penalties}
        ids, logprobs, tops = [], [], {}
        for i, row in enumerate(batch.rows.tolist()):
            logits = output[row]
            token = choose(
                logits,
                penalty=penalties.get(i),
                bias=batch.logit_bias.get(i, {}),
                mask=masks.get(i),
                temperature=float(batch.temperature[i]),
                draw=(int(batch.seed[i]), int(batch.sample_index[i]), int(batch.draw_index[i])),
            )
            known = log_softmax(logits)
            ids.append(token)
            logprobs.append(float(known[token]) if batch.want_logprobs[i] else math.nan)
            if batch.top_logprobs[i]:
                tops[i] = _top(known, int(batch.top_logprobs[i]))
        queries = [log_softmax(output[r]) for r in batch.query_rows]
        self.sampled = ids
        step = FakeStep(
            StepResult(
                ids,
                logprobs,
                tops,
                [float(known[t]) for known, t in zip(queries, batch.query_ids)],
                {q: _top(queries[q], int(n)) for q, n in enumerate(batch.query_top) if n},
                [end_logprob(output[r], ends) for r, ends in zip(batch.end_rows, batch.end_ids)],
            ),
            self,
        )
        self.unread.append(step)
        assert len(self.unread) == 1, "a step is sampled before the last one was read"
        return step

    def penalty_state(self, prompt_ids: Any, output_ids: Any) -> FakePenalty:
        state = FakePenalty({}, set(prompt_ids))
        for token in output_ids:
            state.add(token)
        return state

    def close(self) -> None:
        self.closed = True


def end_logprob(logits: np.ndarray, ends: frozenset[int]) -> float:
    return math.log(float(np.exp(log_softmax(logits))[sorted(ends)].sum()))


def _top(known: np.ndarray, count: int) -> dict[int, float]:
    return {int(i): float(known[i]) for i in np.argsort(-known, kind="stable")[:count]}


def choose(logits, *, penalty=None, bias=(), mask=None, temperature=0.0, draw=(0, 0, 0)) -> int:
    """The sampler's contract, small: penalties, bias, mask, then the lowest id among the largest, or a seeded draw."""
    logits = logits.copy()
    if penalty is not None:
        for token, count in penalty.state.counts.items():
            logits[token] -= penalty.frequency * count + penalty.presence
        for token in penalty.state.seen:
            logits[token] *= penalty.repetition if logits[token] < 0 else 1 / penalty.repetition
    for token, value in dict(bias).items():
        logits[token] += value
    if mask is not None:
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(logits)].astype(bool)
        assert bits.any(), "a mask row is all zero"
        logits[~bits] = -np.inf
    if temperature > 0:
        seed, sample, index = draw
        with np.errstate(over="ignore"):
            key = _mix(np.array([(seed * 31 + sample * 7 + index) & _MASK], dtype=np.uint64))[0]
            noise = (_mix(key + np.arange(len(logits), dtype=np.uint64)) >> np.uint64(11)).astype(np.float64)
        logits = logits / temperature - np.log(-np.log((noise + 0.5) / (1 << 53)))
    return int(np.argmax(logits))


class FakeMatcher:
    """A grammar as a finite automaton: state → {token: next state}; `final` states may end."""

    def __init__(self, rules: dict[int, dict[int, int]], final: set[int], ends: frozenset[int], state: int = 0) -> None:
        self.rules, self.final, self.ends = rules, final, ends
        self.history = [state]
        self.waits = 0  # how often it says that it is not ready

    @property
    def is_ready(self) -> bool:
        self.waits -= 1
        return self.waits < 0

    @property
    def state(self) -> int:
        return self.history[-1]

    def accept(self, token_id: int) -> bool:
        if self.state != -1 and token_id in self.rules.get(self.state, {}):
            self.history.append(self.rules[self.state][token_id])
            return True
        if token_id in self.ends and self.state in self.final:
            self.history.append(-1)
            return True
        return False

    def fill_mask(self, row: np.ndarray) -> None:
        allowed = set(self.rules.get(self.state, {}))
        if self.state in self.final:
            allowed |= self.ends
        row[:] = 0
        bits = row.view(np.uint32)
        for token in allowed:
            bits[token // 32] |= np.uint32(1 << (token % 32))
        assert len(row) == mask_words(VOCAB)

    def rollback(self, num_tokens: int) -> None:
        del self.history[len(self.history) - num_tokens :]

    def fork(self) -> FakeMatcher:
        twin = FakeMatcher(self.rules, self.final, self.ends)
        twin.history = list(self.history)
        return twin

    def is_complete(self) -> bool:
        return self.state in self.final or self.state == -1

    def is_terminated(self) -> bool:
        return self.state == -1 or (self.state in self.final and not self.rules.get(self.state))

    def forced_tokens(self) -> list[int]:
        state, forced = self.state, []
        while state not in self.final and len(self.rules.get(state, {})) == 1 and len(forced) < 50:
            ((token, state),) = self.rules[state].items()
            forced.append(token)
        return forced


@dataclass
class Told:
    """A listener that remembers what it was told, and insists on being told once."""

    result: SequenceResult | None = None
    error: BaseException | None = None
    calls: int = 0

    def on_finish(self, seq: Sequence, result: SequenceResult) -> None:
        self.result, self.calls = result, self.calls + 1
        assert self.calls == 1

    def on_error(self, seq: Sequence, error: BaseException) -> None:
        self.error, self.calls = error, self.calls + 1
        assert self.calls == 1


def greedy(max_tokens: int, **more: Any) -> ResolvedSampling:
    """Greedy sampling, ended by END unless said otherwise."""
    more.setdefault("end_ids", frozenset({END}))
    return ResolvedSampling(max_tokens=max_tokens, temperature=more.pop("temperature", 0.0), **more)


def sequence(
    prompt: list[int], max_tokens: int = 8, *, sampling: dict[str, Any] | None = None, **more: Any
) -> Sequence:
    """A sequence told to a `Told`."""
    return Sequence(list(prompt), greedy(max_tokens, **(sampling or {})), more.pop("listener", None) or Told(), **more)


@dataclass
class Expected:
    output_ids: list[int]
    reason: str
    end_id: int | None
    logprobs: list[float]
    forced: int


@dataclass
class _Penalty:
    state: FakePenalty
    frequency: float
    presence: float
    repetition: float


def reference(
    prompt: list[int], sampling: ResolvedSampling, *, limit: int = 2048, matcher: FakeMatcher | None = None
) -> Expected:
    """What a sequence must give, computed token by token without cache, batch, tree or engine."""
    out, logprobs, forced = [], [], 0
    counts = FakePenalty({}, set(prompt))
    penalty = _Penalty(counts, sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)

    def add(token: int) -> None:
        logprobs.append(float(log_softmax(reference_logits(prompt + out))[token]))
        out.append(token)
        counts.add(token)

    most = min(len(prompt) + sampling.max_tokens, limit) - len(prompt)
    while True:
        if matcher is not None and matcher.is_terminated():
            return Expected(out, "stop", None, logprobs, forced)
        if len(out) >= most:
            return Expected(out, "length", None, logprobs, forced)
        run = matcher.forced_tokens() if matcher is not None else []
        if run:
            assert matcher is not None
            assert matcher.accept(run[0])
            add(run[0])
            forced += 1
            continue
        bias = dict(sampling.logit_bias)
        stops = sampling.end_ids | sampling.stop_token_ids
        mask = None
        if matcher is not None:
            mask = np.zeros(mask_words(VOCAB), dtype=np.int32)
            matcher.fill_mask(mask)
        elif len(out) < sampling.min_tokens:
            bias.update(dict.fromkeys(stops, -np.inf))
        token = choose(
            reference_logits(prompt + out),
            penalty=penalty,
            bias=bias,
            mask=mask,
            temperature=sampling.temperature,
            draw=(sampling.seed, sampling.sample_index, len(out)),
        )
        if matcher is not None:
            assert matcher.accept(token)
        if token in stops:
            return Expected(out, "stop", token, logprobs, forced)
        add(token)
