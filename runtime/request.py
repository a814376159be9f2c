"""The life of one sequence in the engine: a prompt as ids, how to continue it, and what became of it.

In: `Sequence(prompt_ids, ...)` from `local.py`. Out: calls of its listener, on the engine's thread.

    WAITING ──admitted──► RUNNING ──finished, cancelled, failed──► FINISHED
       ▲                     │
       └──────preempted──────┘          its computed tokens stay in the tree
"""

from __future__ import annotations

import enum
import itertools
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from .token_buffer import TokenBuffer

if TYPE_CHECKING:
    from ..backend import Keep
    from .batch import Chain, PenaltyState
    from .grammar.matcher import Matcher
    from .leases import Graph
    from .radix_cache import Node

__all__ = ["FinishReason", "Listener", "ResolvedSampling", "Sequence", "SequenceResult", "SequenceState", "TextSink"]


class SequenceState(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(str, enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class ResolvedSampling:
    """Sampling parameters with every default filled in (`SamplingParams` has their meaning).

    Attributes:
        end_ids: the model's end tokens, empty where `ignore_eos`.
        stop_token_ids: further ids that end the text.
        seed: always set; fresh randomness is drawn when the request is made.
        sample_index: which of the `n` samples this sequence is; draws depend on (seed, sample_index, position).
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    sample_index: int = 0
    end_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: bool = False
    top_logprobs: int = 0

    @cached_property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the logits."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0

    @cached_property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities of the output are wanted: their own, or those of alternatives."""
        return self.logprobs or self.top_logprobs > 0

    @cached_property
    def edits_logits(self) -> bool:
        """Whether logits are changed before a token is drawn, a grammar's mask aside."""
        return self.has_penalties or bool(self.logit_bias) or self.min_tokens > 0


class TextSink(Protocol):
    """Turns ids into text and finds stops in it (`detokenizer.py`). Used on the engine's thread only.

    Attributes:
        can_stop: whether there is a stop that `push` may find.
    """

    can_stop: bool

    def push(self, token_id: int) -> bool:
        """Takes the next id; True where a stop string or pattern now ends the text."""
        ...

    def finish(self) -> None:
        """No more ids come: what was held back is settled."""
        ...


@dataclass
class SequenceResult:
    """What became of a sequence.

    Attributes:
        output_ids: every sampled or forced id, the end token excluded.
        end_id: the end or stop token that was sampled, if one ended it.
        matched_stop: that id when it is one of `stop_token_ids`; stop strings are the sink's to know.
        logprobs: of output_ids (of the unmodified distribution, before temperature, penalties and masks), if asked.
        top_logprobs: per output position the most likely ids, if asked.
        prompt_logprobs: of prompt_ids[logprob_start:], None for position 0, if asked.
        end_logprob: log of the summed probability of `score_end_ids` after the last token, if asked.
        computed: why prompt tokens were computed: reason → how many (`Meta.computed`).
        submitted_at: `time.monotonic()` seconds.
    """

    finish_reason: FinishReason
    output_ids: list[int] = field(default_factory=list)
    end_id: int | None = None
    matched_stop: int | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None
    end_logprob: float | None = None
    cached_tokens: int = 0
    forced_tokens: int = 0
    queue_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0
    computed: dict[str, int] = field(default_factory=dict)
    submitted_at: float | None = None


class Listener(Protocol):
    """Who is told about a sequence; called on the engine's thread, returns quickly."""

    def on_finish(self, seq: Sequence, result: SequenceResult) -> None:
        """It ended; no further calls."""
        ...

    def on_error(self, seq: Sequence, error: BaseException) -> None:
        """It failed; no further calls."""
        ...


_ids = itertools.count()


@dataclass(eq=False)
class Sequence:
    """One sequence. Who fills a field: the caller before `submit`, the scheduler and the engine after.

    Attributes:
        prompt_ids: the prompt, at least one id.
        sampling: resolved parameters.
        listener: is told of the end.
        sink: text and stop strings, or None when only ids matter.
        matcher: the grammar's state, or None. Owned by the sequence from submission on.
        logprob_start: prompt position from which logprobs are wanted, or None.
        score_end_ids: end tokens whose summed logprob after the prompt is wanted, or None.
        priority: a higher number is served earlier.
        deadline: `time.monotonic()` seconds after which it is cancelled, or None.
        namespace: sequences share cached prefixes only within one namespace.
        on_token: called with every output id, on the engine's thread.
        graph: the graph of requests that it belongs to, or None.
        place: its place in the graph's order; its samples and continuations have the same.
        keeps: what of it later places need.
        run: the run of programs that it is part of, whose requests are served as they came; None: its graph alone.
        awaited: whether more may come once it is over; of those that came together these go first.

    Positions, while it lives (all half-open, `len`, which is kept in `length`, = prompt and output tokens so far):

        [0, kv_len)        keys and values are in the pool: [0, tree_len) on the path of `node`, which this sequence
                           has locked; [tree_len, kv_len) in `own_slots`, which are this sequence's alone.
        [0, pos)           ran already, or need not run.
        [pos, target())    still have to run. Where pos < kv_len they are queries: their logits are wanted, their
                           keys and values are there already.
        [0, prefill_end)   were known at admission; what they compute goes to the tree at once, later tokens are owned.
    `unread` ≥ 0: its next token is sampled by the step in flight, as row `unread` of those, and not known yet. The step
    after that may be planned all the same; `pos` and `kv_len` are then one beyond `len`, until the token is read.

        [0, ran_to)        were through at some time, before a preemption perhaps. `prompt_run` counts the prompt tokens
                           that ran for the first time; the others were cached.
        [0, dropped_to)    were in the cache before this sequence, as far as is known.
    """

    prompt_ids: Seq[int]
    sampling: ResolvedSampling
    listener: Listener
    sink: TextSink | None = None
    matcher: Matcher | None = None
    logprob_start: int | None = None
    score_end_ids: frozenset[int] | None = None
    priority: int = 0
    deadline: float | None = None
    namespace: str = ""
    on_token: Callable[[int], None] | None = None
    graph: Graph | None = None
    place: int = 0
    keeps: tuple[Keep, ...] = ()
    run: object | None = None
    awaited: bool = False

    # filled by the engine
    id: int = field(default_factory=lambda: next(_ids), init=False)
    state: SequenceState = field(default=SequenceState.WAITING, init=False)
    output_ids: list[int] = field(default_factory=list, init=False)
    length: int = field(default=0, init=False)
    submitted_at: float = field(default_factory=time.monotonic, init=False)
    first_step_at: float | None = field(default=None, init=False)
    first_token_at: float | None = field(default=None, init=False)
    ended_at: float | None = field(default=None, init=False)
    tokens: TokenBuffer = field(init=False, repr=False)
    cancelled: bool = field(default=False, init=False)
    checked: bool = field(default=False, init=False)
    max_len: int = field(default=0, init=False)
    arrival: int = field(default=-1, init=False)
    wave: int = field(default=-1, init=False)  # the arrival of the first of those that came with it
    rank: tuple[int, int] = field(default=(-1, 0), init=False)
    may_write: int = field(default=0, init=False)  # as of when it came to wait: healing changes `max_tokens` later

    # filled by the scheduler: where its keys and values are, and what has run
    row: int = field(default=-1, init=False)
    node: Node | None = field(default=None, init=False, repr=False)
    tree_len: int = field(default=0, init=False)
    own_slots: list[int] = field(default_factory=list, init=False, repr=False)
    chain: Chain = field(default=(), init=False, repr=False)
    chain_key: tuple[Node | None, int] = field(default=(None, -1), init=False, repr=False)
    pos: int = field(default=0, init=False)
    prefill_end: int = field(default=0, init=False)
    ran_to: int = field(default=0, init=False)
    prompt_run: int = field(default=0, init=False)
    prompt_counted: bool = field(default=False, init=False)
    dropped_to: int = field(default=0, init=False)
    computed: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    # filled from a step's results
    begun: bool = field(default=False, init=False)
    ending: FinishReason | None = field(default=None, init=False)
    end_id: int | None = field(default=None, init=False)
    matched_stop: int | None = field(default=None, init=False)
    lookup_at: int = field(default=0, init=False)
    logprobs: list[float] = field(default_factory=list, init=False, repr=False)
    top_logprobs: list[dict[int, float]] = field(default_factory=list, init=False, repr=False)
    prompt_logprobs: list[float | None] | None = field(default=None, init=False, repr=False)
    end_logprob: float | None = field(default=None, init=False)
    forced_tokens: int = field(default=0, init=False)
    penalty_state: PenaltyState | None = field(default=None, init=False, repr=False)
    unread: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self.tokens = TokenBuffer(self.prompt_ids)
        self.length = self.lookup_at = len(self.prompt_ids)
        if self.logprob_start is not None:
            self.lookup_at = min(max(self.logprob_start, 1), len(self.prompt_ids))
            self.prompt_logprobs = [None] if self.logprob_start == 0 else []

    def __len__(self) -> int:
        return self.length

    @property
    def kv_len(self) -> int:
        """Tokens whose keys and values are in the pool."""
        return self.tree_len + len(self.own_slots)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens, of those that are through, that were never computed for this sequence."""
        return min(self.ran_to, len(self.prompt_ids)) - self.prompt_run

    @property
    def wants_token(self) -> bool:
        """Whether it goes on: a token is to be sampled after the last one."""
        return self.ending is None and self.length < self.max_len

    @property
    def wants_end_logprob(self) -> bool:
        """Whether the end tokens after the prompt are still to be scored."""
        return self.score_end_ids is not None and self.end_logprob is None

    @property
    def wants_results(self) -> bool:
        """Whether a step has still to tell it something."""
        return self.wants_token or self.wants_end_logprob or self.lookup_at < self.lookup_end

    @property
    def lookup_end(self) -> int:
        """[lookup_at, lookup_end) are the known tokens whose log probability is still to be looked up.

        The logits that predict token i are those of position i - 1.
        """
        return len(self) if self.sampling.wants_logprobs else len(self.prompt_ids)

    def append_output(self, token_id: int) -> None:
        """Adds an output token; it still has to run."""
        self.output_ids.append(token_id)
        self.tokens.append(token_id)
        self.length += 1

    def append_run(self, ids: list[int]) -> None:
        """Adds output tokens; they still have to run."""
        self.output_ids += ids
        self.tokens.extend(ids)
        self.length += len(ids)

    def note_computed(self, begin: int, end: int, *, cacheable: bool) -> None:
        """Counts why the positions [begin, end) of its prefill are computed, before they run.

        Args:
            cacheable: whether there is a prefix cache.
        """
        first, prompt_end = max(begin, self.ran_to), min(end, len(self.prompt_ids))
        dropped = max(0, min(prompt_end, self.dropped_to) - first)
        counts = {"again": min(end, self.ran_to) - begin, "evicted": dropped}
        counts["new" if cacheable else "uncached"] = prompt_end - first - dropped
        for reason, count in counts.items():
            if count > 0:
                self.computed[reason] = self.computed.get(reason, 0) + count

    def why_computed(self) -> dict[str, int]:
        """Reason → prompt tokens computed for it; with `cached_tokens`, all but "again" sum to what is through."""
        of_its_own = sum(count for reason, count in self.computed.items() if reason != "again")
        logits = self.prompt_run - of_its_own
        return {**self.computed, "logits": logits} if logits > 0 else dict(self.computed)

    def first_logits(self) -> int:
        """The first position whose logits are still wanted; `len` where none are."""
        first = len(self)
        if self.wants_token:
            first -= 1
        if self.wants_end_logprob:
            first = min(first, len(self.prompt_ids) - 1)
        if self.lookup_at < self.lookup_end:
            first = min(first, self.lookup_at - 1)
        return first

    def target(self) -> int:
        """One past the last position that still has to run; at most `pos` where none has."""
        length = self.length
        if self.unread >= 0:
            return length + (length + 1 < self.max_len)
        if self.ending is None and length < self.max_len:
            return length
        end = 0
        if self.ending is None and self.kv_len < len(self) and self.logprob_start is None:
            end = len(self)  # prefill for its own sake; where a prompt is only scored, nobody needs its last token
        if self.wants_end_logprob:
            end = max(end, len(self.prompt_ids))
        if self.lookup_at < self.lookup_end:
            end = max(end, self.lookup_end - 1)
        return end

    def result(self, reason: FinishReason) -> SequenceResult:
        """What became of it, as of its end."""
        now = time.monotonic() if self.ended_at is None else self.ended_at
        return SequenceResult(
            finish_reason=reason,
            output_ids=self.output_ids,
            end_id=self.end_id,
            matched_stop=self.matched_stop,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
            end_logprob=self.end_logprob,
            cached_tokens=self.cached_tokens,
            forced_tokens=self.forced_tokens,
            queue_s=(self.first_step_at or now) - self.submitted_at,
            first_token_s=None if self.first_token_at is None else self.first_token_at - self.submitted_at,
            total_s=now - self.submitted_at,
            computed=self.why_computed(),
            submitted_at=self.submitted_at,
        )
