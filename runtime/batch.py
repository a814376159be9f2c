"""One model step as data: every tensor that a step needs, as plain numpy arrays made on the CPU.

In: what the scheduler chose to run. Out: a `StepBatch` for the model runner.

A step is ragged: sequence b contributes `q_lens[b] >= 1` new tokens, whatever they are (a prefill chunk, one decode
token, a forced run, drafted tokens). Their keys and values are written to `slots` before attention reads, layer by
layer, so a token may attend to another token of the same step: siblings join a step with their leader's prefix.

Names carry where a length lives: `q_lens` are tokens of this step, `kv_lens` tokens visible after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TRASH_SLOT",
    "Chain",
    "PenaltyRow",
    "PenaltyState",
    "PendingStep",
    "RowUpdate",
    "Runner",
    "SampleBatch",
    "Segment",
    "StepBatch",
    "StepResult",
    "StepTimes",
]

Int = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float = NDArray[np.float32]

TRASH_SLOT = 0
"""The slot that no token owns. Tokens whose keys and values the tree already holds (a query for logits only) write
theirs here; nothing reads it."""


class RowUpdate(NamedTuple):
    """New entries of the page table: positions `start ..` of row `row` now live in `slots`.

    Attributes:
        row: row of the page table, owned by one live sequence.
        start: first position that changes.
        slots: int32, one KV slot per position from `start` on; nobody may write to it.
        like: a row that shows these slots at these positions, once the updates of the step that have no such row are
            written; -1 where none is known. A hint: entries of a row on the device need not be sent there.

    No entry is written by two updates of a step.
    """

    row: int
    start: int
    slots: Int
    like: int = -1


class Segment(NamedTuple):
    """Positions [start, start + length) of a sequence, held by one radix node: the same slots for all that stand on it.

    Attributes:
        node: a number of its own for each node (and for each part, once it is split).
        slot: of its first position, where its slots follow one another; else -1.
    """

    node: int
    start: int
    length: int
    slot: int = -1


Chain = tuple[Segment, ...]
"""The nodes that a sequence stands on, from position 0 without gaps; what follows them, the sequence has for itself."""


@dataclass(frozen=True)
class StepBatch:
    """The ragged batch of one step. B sequences, T = sum(q_lens) tokens, R rows whose logits are wanted.

    Attributes:
        token_ids: int64 [T], the new tokens, sequence after sequence. A negative one is not known yet: -1 - i is what
            row i of the last `SampleBatch` gave, which is on the device already.
        positions: int64 [T], position of each in its sequence.
        slots: int64 [T], where its key and value go (`TRASH_SLOT` where the tree already holds them).
        rows: int32 [B], page-table row of each sequence.
        q_lens: int32 [B], tokens of this step.
        kv_lens: int32 [B], tokens visible to the last query of this step: its position + 1. Query i of sequence b
            sees positions 0 .. kv_lens[b] - q_lens[b] + i.
        logit_rows: int64 [R], indices into T whose logits are wanted, in increasing order.
        updates: page-table entries to write before the step, beside those of its own tokens, which are known by
            `rows`, `positions` and `slots`.
        chains: of each sequence, the nodes of the radix tree that show its prefix; None where nobody keeps them.
            A hint for attention, which may read what several sequences share once. The same object as in the last
            step where nothing changed.
    """

    token_ids: Int64
    positions: Int64
    slots: Int64
    rows: Int
    q_lens: Int
    kv_lens: Int
    logit_rows: Int64
    updates: tuple[RowUpdate, ...] = field(default=())
    chains: tuple[Chain, ...] | None = field(default=None)

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.token_ids.shape[0])

    @property
    def num_seqs(self) -> int:
        """B."""
        return int(self.rows.shape[0])


class PenaltyState(Protocol):
    """Token counts of one sequence, kept where the sampler needs them. Made by the runner, held by the sequence."""

    def add(self, token_id: int) -> None:
        """Counts one more generated token (changes state)."""
        ...


@dataclass(frozen=True)
class PenaltyRow:
    """A sampled row whose earlier tokens change its logits.

    Attributes:
        row: index into the sampled rows, 0 .. S-1.
        state: its counts.
    """

    row: int
    state: PenaltyState
    frequency: float
    presence: float
    repetition: float


@dataclass(frozen=True)
class SampleBatch:
    """What to do with the logits of a step: S rows to sample from, Q to look a token up in, E to sum end tokens in.

    Order on a row: penalties, logit bias, mask, then (temperature 0) the lowest id among the largest logits, or
    temperature, top-k, top-p, min-p and a draw that depends only on (seed, sample_index, draw_index). Log
    probabilities are those of the unmodified logits at temperature 1.

    Attributes:
        rows: int64 [S], indices into `StepBatch.logit_rows`.
        temperature, top_p, min_p: float32 [S].
        top_k: int32 [S], 0 for all.
        seed, sample_index, draw_index: int64 [S]; draw_index counts the sequence's generated tokens.
        masks: int32 [M, mask_words], or None where no row is constrained. Filled while the forward pass runs.
        mask_rows: int64 [M], the sampled rows (0 .. S-1) they belong to.
        penalties: rows with penalties.
        logit_bias: sampled row → {id: bias}.
        want_logprobs: bool [S].
        top_logprobs: int32 [S], alternatives wanted, 0 for none.
        query_rows, query_ids: int64 [Q], look up the log probability of query_ids[i] in logit row query_rows[i].
        query_top: int32 [Q], alternatives wanted beside it.
        end_rows: int64 [E] and end_ids (E sets of ids): the log of the summed probability of the set in that row.
    """

    rows: Int64
    temperature: Float
    top_p: Float
    min_p: Float
    top_k: Int
    seed: Int64
    sample_index: Int64
    draw_index: Int64
    masks: Int | None
    mask_rows: Int64
    penalties: Sequence[PenaltyRow]
    logit_bias: Mapping[int, Mapping[int, float]]
    want_logprobs: NDArray[np.bool_]
    top_logprobs: Int
    query_rows: Int64
    query_ids: Int64
    query_top: Int
    end_rows: Int64
    end_ids: Sequence[frozenset[int]]


class StepTimes(NamedTuple):
    """Seconds by the device's clock.

    Attributes:
        before: since the end of the step before; nothing ran.
        forward: the forward pass.
        between: until sampling was launched; nothing ran.
        sampling: sampling, look-ups and the copies of their results.
    """

    before: float
    forward: float
    between: float
    sampling: float


@dataclass(frozen=True)
class StepResult:
    """What a step gave, on the CPU.

    Attributes:
        token_ids: [S] sampled ids.
        logprobs: [S] their log probabilities; NaN where not wanted.
        top_logprobs: sampled row → {id: logprob}, most likely first, where wanted.
        query_logprobs: [Q].
        query_top: query → {id: logprob}, where wanted.
        end_logprobs: [E].
        times: by the device's clock; None where there is none.
    """

    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: Mapping[int, dict[int, float]]
    query_logprobs: list[float]
    query_top: Mapping[int, dict[int, float]]
    end_logprobs: list[float]
    times: StepTimes | None = None


class PendingStep(Protocol):
    """A step whose results may still be on their way from the device."""

    def read(self) -> StepResult:
        """Waits for the device and returns the results. The one synchronising call of a step."""
        ...


class Runner(Protocol):
    """The model as the engine sees it (`model_runner.py`; tests use a fake). Used by the engine's thread only.

    Steps run on the device in the order in which they are launched, page-table updates included: what a step reads
    may be given to others as soon as it is launched.

    Attributes:
        asynchronous: whether the device works beside the CPU, so that it pays to launch a step before the one before
            it was read.
        vocab_size: width of a logit row; ids at or above the tokenizer's size are never sampled.
        num_slots: slots of the KV pool, `TRASH_SLOT` included.
        num_rows: rows of the page table.
        context_length: most tokens of a sequence, prompt and output.
    """

    asynchronous: bool
    vocab_size: int
    num_slots: int
    num_rows: int
    context_length: int

    def forward(self, batch: StepBatch) -> Any:
        """Launches the step and returns what `sample` needs. On a GPU it returns before the device is done."""
        ...

    def sample(self, output: Any, batch: SampleBatch) -> PendingStep:
        """Launches sampling and look-ups on the logits of `forward`."""
        ...

    def penalty_state(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> PenaltyState:
        """Counts for a sequence with penalties."""
        ...

    def close(self) -> None:
        """Frees the device's memory."""
        ...
