"""What a run cost, as plain data: the result of `collect.py`, and all that the text, the page and the traces read.

In: nothing; `collect.py` fills it. Out: sums and durations derived from the fields.

Times are seconds since the first node of the report was recorded. Counts are tokens, or the backend's own unit
(`Costs.unit`) where it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["REASONS", "Asked", "Costs", "Fork", "Joined", "NodeCost", "Piece", "ProgramCost", "Said", "Step", "Stretch"]

REASONS = {
    "new": "never shared: nothing before it had this text",
    "boundary": "boundary: the same text was there, in other tokens",
    "evicted": "evicted: it was in the cache and was dropped",
    "logits": "logits: cached, and run for what follows it",
    "again": "again: run before, until it had to make room",
    "uncached": "uncached: the prefix cache is off",
    "unknown": "unknown: the backend does not say why",
}
"""Why prompt tokens were computed."""


@dataclass(frozen=True)
class Piece:
    """A generated token as text.

    Attributes:
        text: what it adds; "" where its character ends with a later token.
        logprob: natural log of its probability, where it was asked for.
        others: the likeliest tokens there and their log probabilities, where they were asked for.
    """

    text: str
    logprob: float | None = None
    others: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class NodeCost:
    """What one `gen` or `select` cost; with `n > 1`, all its samples together.

    Attributes:
        number: its place in `Costs.nodes`.
        program: the place of its program in `Costs.programs`.
        kind: "gen" or "select".
        name: its variable.
        site: file and line where it was recorded.
        branch: which branches it stands in, outermost first: "1 of 3".
        state: "done", "failed", "cancelled", or how far it is: "recorded", "sent".
        text: what it wrote.
        error: what went wrong.
        finish_reason: as in `Meta`.
        prompt_tokens, cached_tokens, generated_tokens, forced_tokens: as in `Meta`.
        computed: why prompt tokens were computed: a reason of `REASONS` → how many.
        samples: how many were generated.
        retries: how often it was generated again.
        reencoded: as in `Meta`.
        recorded_s, sent_s, started_s, first_token_s, ended_s: when it was recorded, sent to the backend, in its first
            model step, when its first token was there, and when it ended; None where that did not happen or nobody
            knows.
        pieces: the first sample token by token; empty where its tokens are not known.
        probabilities: of a `select`, per choice.
    """

    number: int
    program: int
    kind: str
    name: str
    site: str
    branch: tuple[str, ...] = ()
    state: str = "done"
    text: str = ""
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    computed: Mapping[str, int] = field(default_factory=dict)
    samples: int = 1
    retries: int = 0
    reencoded: tuple[str, ...] = ()
    recorded_s: float = 0.0
    sent_s: float | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    pieces: tuple[Piece, ...] = ()
    probabilities: Mapping[str, float] = field(default_factory=dict)

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that the model ran."""
        return sum(self.computed.values())

    @property
    def mean_logprob(self) -> float | None:
        """The mean log probability of its tokens, where it was asked for."""
        known = [piece.logprob for piece in self.pieces if piece.logprob is not None]
        return sum(known) / len(known) if known else None

    @property
    def waited_s(self) -> float | None:
        """From being recorded to the first model step: for values before it, then for its turn."""
        return _between(self.recorded_s, self.started_s)

    @property
    def prefill_s(self) -> float | None:
        """From the first model step to the first token; for a `select`, to its end."""
        return _between(self.started_s, self.ended_s if self.first_token_s is None else self.first_token_s)

    @property
    def decode_s(self) -> float | None:
        """From the first token to the end."""
        return _between(self.first_token_s, self.ended_s)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)


@dataclass(frozen=True)
class Said:
    """Text that the program gave; `role` is "" outside turns."""

    role: str
    text: str


@dataclass(frozen=True)
class Asked:
    """A `gen` or `select` at this place of the text."""

    role: str
    node: int


@dataclass(frozen=True)
class Fork:
    """Branches begin here."""

    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Joined:
    """Branches came back: "gather_variable", "append" or "first"."""

    mode: str


Step: TypeAlias = Said | Asked | Fork | Joined


@dataclass(frozen=True)
class ProgramCost:
    """One run of a program.

    Attributes:
        item: its place in the batch.
        name: the program's.
        caller: the place in `Costs.programs` of the one that called it, or None.
        steps: what its body recorded, in order.
        error: what it failed with.
    """

    item: int
    name: str
    caller: int | None
    steps: tuple[Step, ...]
    error: str | None


@dataclass(frozen=True)
class Stretch:
    """A run of tokens with which texts of several requests go on alike: a node of the prefix tree.

    Attributes:
        parent: the stretch before it; None at the root, which has no tokens.
        begin: how many tokens stand before it.
        length: its own.
        text: what it spells.
        calls: the nodes whose text runs through it.
        written: whether it was generated (by the first of `calls`).
        computed: how many tokens of it were computed, all calls together; `length` where each was computed once. None
            where the backend does not say.
        children: the stretches after it.
    """

    parent: int | None
    begin: int
    length: int
    text: str
    calls: tuple[int, ...]
    written: bool
    computed: int | None
    children: tuple[int, ...]


@dataclass(frozen=True)
class Costs:
    """Everything.

    Attributes:
        programs: every run, in the order of the states, each followed by those that it called.
        nodes: every `gen` and `select`.
        stretches: the prefix tree of their texts; the first is the root. Empty where it is not known.
        sharing_of: how many of the nodes `stretches` shows.
        unit: what is counted: "tokens", or "bytes" by a mock.
        stretch_unit: what `stretches` are made of: "tokens", or "bytes" where no tokenizer is known.
        now_s: when the report was made.
    """

    programs: tuple[ProgramCost, ...]
    nodes: tuple[NodeCost, ...]
    stretches: tuple[Stretch, ...]
    sharing_of: int
    unit: str
    stretch_unit: str
    now_s: float

    @property
    def wall_s(self) -> float:
        """From the first node's being recorded to the end of the last one."""
        ends = [node.ended_s if node.ended_s is not None else self.now_s for node in self.nodes]
        return max(ends, default=0.0)

    def computed(self) -> dict[str, int]:
        """Why prompt tokens were computed, all nodes together, the usual reasons first."""
        return summed(self.nodes)


def summed(nodes: Iterable[NodeCost]) -> dict[str, int]:
    """Why prompt tokens were computed, these nodes together, in the order of `REASONS`."""
    counts: Counter[str] = Counter()
    for node in nodes:
        counts.update(node.computed)
    known = [reason for reason in REASONS if counts[reason]]
    return {reason: counts[reason] for reason in [*known, *(r for r in counts if r not in REASONS)]}
