"""From a plan to the arrays of a step.

In: the scheduler's `Work`s. Out: a `StepBatch` for `forward`, then a `SampleBatch` for `sample`; both list rows in the
order of the plan, and results come back in that order. Between the two, results of the step before may arrive: a
sequence that is over by them, or has forced tokens to run first, is not sampled (`goes_on`).

The batch is built from views of each sequence's tokens; nothing here looks at a history, so the cost of a row does not
grow with its length.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch import TRASH_SLOT, Chain, PenaltyRow, RowUpdate, Runner, SampleBatch, StepBatch
from .grammar.matcher import Mask, Matcher, mask_words
from .request import ResolvedSampling, Sequence, SequenceState
from .scheduler import Work

__all__ = ["SettingArrays", "build_samples", "build_step", "goes_on"]


def build_step(works: Seq[Work], updates: Seq[RowUpdate], chains: Seq[Chain] | None = None) -> StepBatch:
    """The ragged batch of these works."""
    q_lens = [work.end - work.start for work in works]
    offsets = [0, *accumulate(q_lens)]
    given = [work.slots for work in works]
    if sum(map(len, given)) == offsets[-1]:
        slots = np.concatenate(given).astype(np.int64)
    else:
        slots = np.full(offsets[-1], TRASH_SLOT, dtype=np.int64)
        for part, end in zip(given, offsets[1:]):
            slots[end - len(part) : end] = part
    logit_rows: list[int] = []
    for work, offset, end in zip(works, offsets, offsets[1:]):
        if work.samples and not work.lookups and not work.scores_end:  # most of them
            logit_rows.append(end - 1)
        else:
            logit_rows += [offset + i for i in wanted_logits(work)]
    return StepBatch(
        token_ids=_token_ids(works, offsets),
        positions=_positions(works, q_lens, offsets),
        slots=slots,
        rows=np.array([work.seq.row for work in works], dtype=np.int32),
        q_lens=np.array(q_lens, dtype=np.int32),
        kv_lens=np.array([work.end for work in works], dtype=np.int32),
        logit_rows=np.array(logit_rows, dtype=np.int64),
        updates=tuple(updates),
        chains=None if chains is None else tuple(chains),
    )


def goes_on(work: Work) -> bool:
    """Whether a token is drawn for a work that was planned to be sampled, now that all earlier tokens are known."""
    seq = work.seq
    return work.samples and seq.state is SequenceState.RUNNING and work.end == seq.length and seq.wants_token


def wanted_logits(work: Work) -> list[int]:
    """The tokens of a work, counted from its start, whose logits somebody wants; increasing."""
    if work.samples and not work.lookups and not work.scores_end:
        return [work.end - 1 - work.start]
    wanted = [token - 1 - work.start for token in work.lookups]
    if work.scores_end:
        wanted.append(len(work.seq.prompt_ids) - 1 - work.start)
    if work.samples:
        wanted.append(work.end - 1 - work.start)
    return wanted if len(wanted) < 2 else sorted(set(wanted))


def build_samples(
    works: Seq[Work],
    runner: Runner,
    on_error: Callable[[Sequence, Exception], None],
    compute_masks: Callable[[list[Matcher], Mask], NDArray[np.bool_]] | None = None,
    settings: SettingArrays | None = None,
) -> tuple[SampleBatch, list[Sequence]]:
    """What to do with the logits, and whose token each sampled row is.

    Fills the masks, so it is called while the forward pass runs.

    `compute_masks` may write masks side by side (`MaskPool.compute`) before the others are asked for one by one;
    `settings` keeps from step to step what it can.

    A sequence whose matcher raises is handed to `on_error`; its row is sampled without a mask, to be thrown away.
    """
    builder = _SampleBuilder(runner, on_error, settings or SettingArrays())
    for work in works:
        builder.add(work)
    return builder.build(compute_masks), builder.sampled


@dataclass(frozen=True)
class _Settings:
    """As in `SampleBatch`, of the rows of a step."""

    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    top_k: NDArray[np.int32]
    seed: NDArray[np.int64]
    sample_index: NDArray[np.int64]
    want_logprobs: NDArray[np.bool_]
    top_logprobs: NDArray[np.int32]


class SettingArrays:
    """How the rows of a step are sampled, as arrays; those of the step before where the rows are the same."""

    def __init__(self) -> None:
        self._rows: list[ResolvedSampling] = []
        self._arrays = self._made([])

    def of(self, rows: list[ResolvedSampling]) -> _Settings:
        """The arrays of these rows; nobody may write to them."""
        same = len(rows) == len(self._rows) and all(map(operator.is_, rows, self._rows))
        if not same:
            self._rows, self._arrays = rows, self._made(rows)
        return self._arrays

    def _made(self, rows: list[ResolvedSampling]) -> _Settings:
        return _Settings(
            temperature=np.array([s.temperature for s in rows], dtype=np.float32),
            top_p=np.array([s.top_p for s in rows], dtype=np.float32),
            min_p=np.array([s.min_p for s in rows], dtype=np.float32),
            top_k=np.array([s.top_k for s in rows], dtype=np.int32),
            seed=np.array([_as_int64(s.seed) for s in rows], dtype=np.int64),
            sample_index=np.array([s.sample_index for s in rows], dtype=np.int64),
            want_logprobs=np.array([s.wants_logprobs for s in rows], dtype=np.bool_),
            top_logprobs=np.array([s.top_logprobs for s in rows], dtype=np.int32),
        )


class _SampleBuilder:
    def __init__(
        self, runner: Runner, on_error: Callable[[Sequence, Exception], None], settings: SettingArrays
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._on_error = on_error
        self._num_logits = 0
        self.sampled: list[Sequence] = []
        self._rows: list[int] = []
        self._masked: list[int] = []
        self._penalties: list[PenaltyRow] = []
        self._bias: dict[int, Mapping[int, float]] = {}
        self._queries: list[tuple[int, int, int]] = []
        self._end_rows: list[int] = []
        self._end_ids: list[frozenset[int]] = []

    def add(self, work: Work) -> None:
        seq, samples = work.seq, goes_on(work)
        if work.samples and not work.lookups and not work.scores_end:
            if samples:
                self._add_sampled(seq, self._num_logits)
            self._num_logits += 1
            return
        row_of = {position: self._num_logits + i for i, position in enumerate(wanted_logits(work))}
        self._num_logits += len(row_of)
        for token in work.lookups:
            top = seq.sampling.top_logprobs if token >= len(seq.prompt_ids) else 0
            self._queries.append((row_of[token - 1 - work.start], seq.tokens[token], top))
        if work.scores_end and seq.score_end_ids is not None:
            self._end_rows.append(row_of[len(seq.prompt_ids) - 1 - work.start])
            self._end_ids.append(seq.score_end_ids)
        if samples:
            self._add_sampled(seq, row_of[work.end - 1 - work.start])

    def _add_sampled(self, seq: Sequence, row: int) -> None:
        index, sampling = len(self.sampled), seq.sampling
        seq.unread = index
        self.sampled.append(seq)
        self._rows.append(row)
        if seq.matcher is not None:
            self._masked.append(index)
        if not sampling.edits_logits:
            return
        bias = sampling.logit_bias
        if seq.matcher is None and len(seq.output_ids) < sampling.min_tokens:
            bias = {**bias, **dict.fromkeys(sampling.end_ids | sampling.stop_token_ids, -np.inf)}
        if bias:
            self._bias[index] = bias
        if sampling.has_penalties:
            if seq.penalty_state is None:
                seq.penalty_state = self._runner.penalty_state(seq.prompt_ids, seq.output_ids)
            self._penalties.append(
                PenaltyRow(
                    index,
                    seq.penalty_state,
                    sampling.frequency_penalty,
                    sampling.presence_penalty,
                    sampling.repetition_penalty,
                )
            )

    def build(self, compute_masks: Callable[[list[Matcher], Mask], NDArray[np.bool_]] | None) -> SampleBatch:
        settings = self._settings.of([seq.sampling for seq in self.sampled])
        query_rows, query_ids, query_top = zip(*self._queries) if self._queries else ((), (), ())
        return SampleBatch(
            rows=np.array(self._rows, dtype=np.int64),
            temperature=settings.temperature,
            top_p=settings.top_p,
            min_p=settings.min_p,
            top_k=settings.top_k,
            seed=settings.seed,
            sample_index=settings.sample_index,
            draw_index=np.array([len(seq.output_ids) for seq in self.sampled], dtype=np.int64),
            masks=self._masks(compute_masks),
            mask_rows=np.array(self._masked, dtype=np.int64),
            penalties=self._penalties,
            logit_bias=self._bias,
            want_logprobs=settings.want_logprobs,
            top_logprobs=settings.top_logprobs,
            query_rows=np.array(query_rows, dtype=np.int64),
            query_ids=np.array(query_ids, dtype=np.int64),
            query_top=np.array(query_top, dtype=np.int32),
            end_rows=np.array(self._end_rows, dtype=np.int64),
            end_ids=self._end_ids,
        )

    def _masks(self, compute: Callable[[list[Matcher], Mask], NDArray[np.bool_]] | None) -> NDArray[np.int32] | None:
        if not self._masked:
            return None
        constrained = [self.sampled[index] for index in self._masked]
        masks = np.zeros((len(constrained), mask_words(self._runner.vocab_size)), dtype=np.int32)
        computed = [False] * len(masks)
        if compute is not None:
            computed = compute([seq.matcher for seq in constrained if seq.matcher is not None], masks).tolist()
        for mask, seq, done in zip(masks, constrained, computed):
            try:
                _write_mask(mask, seq, done)
            except Exception as error:
                mask[:] = -1
                self._on_error(seq, error)
        for empty in np.flatnonzero(~masks.any(axis=1)).tolist():
            masks[empty] = -1
            seq = constrained[empty]
            self._on_error(seq, RuntimeError(f"the grammar of sequence {seq.id} allows no token, and has not ended"))
        return masks


def _write_mask(mask: Mask, seq: Sequence, computed: bool) -> None:
    """The mask of a sequence; where it is `computed`, what the engine says of it is there already."""
    matcher: Any = seq.matcher
    if getattr(matcher, "closes", False):
        (matcher.finish_mask_within if computed else matcher.fill_mask_within)(mask, seq.max_len - len(seq))
    else:
        (matcher.finish_mask if computed else matcher.fill_mask)(mask)
    if len(seq.output_ids) < seq.sampling.min_tokens:
        _forbid(mask, seq.sampling.end_ids | seq.sampling.stop_token_ids)


def _token_ids(works: Seq[Work], offsets: list[int]) -> NDArray[np.int64]:
    ids = np.empty(offsets[-1], dtype=np.int64)
    unread: list[int] = []  # of rows whose one token is not known yet: nearly all of a steady batch
    places: list[int] = []
    for work, at in zip(works, offsets):
        seq = work.seq
        if work.start == seq.length:
            unread.append(seq.unread)
            places.append(at)
            continue
        known = min(work.end, seq.length)
        ids[at : at + known - work.start] = seq.tokens.view(work.start, known)
        if known < work.end:
            ids[at + known - work.start] = -1 - seq.unread
    if places:
        ids[places] = -1 - np.array(unread)
    return ids


def _positions(works: Seq[Work], q_lens: list[int], offsets: list[int]) -> NDArray[np.int64]:
    starts = np.array([work.start - offset for work, offset in zip(works, offsets)], dtype=np.int64)
    return np.repeat(starts, q_lens) + np.arange(offsets[-1], dtype=np.int64)


def _forbid(mask: NDArray[np.int32], ids: frozenset[int]) -> None:
    """Clears these ids, unless the grammar allows nothing else."""
    before = mask.copy()
    words = mask.view(np.uint32)
    for token in ids:
        if token // 32 < len(words):
            words[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << (token % 32)))
    if not mask.any():
        mask[:] = before


def _as_int64(seed: int) -> int:
    """Any integer as a 64-bit seed: the same for equal seeds."""
    return (seed + 2**63) % 2**64 - 2**63
