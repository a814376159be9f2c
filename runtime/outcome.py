"""What a step's results do to the sequences: tokens accepted, text pushed, forced runs appended, ends noticed.

In: a plan, whom its rows were sampled for, and its `StepResult`. Out: sequences with more tokens, finished
(`finish`) or failed (`fail`).

    sampled token ──► end or stop id? ──► STOP, the id is not output
                  └─► matcher accepts ──► output, sink ──► stop string, grammar over: STOP; length: LENGTH
                                                       └─► what the grammar forces next is output at once

What a matcher, sink or callback raises fails that one sequence and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from ..errors import BackendError
from .batch import StepResult
from .request import FinishReason, Sequence, SequenceState
from .scheduler import Plan
from .stats import Counters

__all__ = ["GrammarMismatchError", "Outcomes"]


class GrammarMismatchError(BackendError):
    """A grammar's mask allowed a token that its matcher then refused."""


class Outcomes:
    """Applies results.

    Args:
        finish: called once a sequence has nothing left to run.
        fail: called with what a sequence's own matcher, sink or callback raised.
    """

    def __init__(
        self,
        counters: Counters,
        finish: Callable[[Sequence, FinishReason], None],
        fail: Callable[[Sequence, BaseException], None],
    ) -> None:
        self._counters = counters
        self._finish = finish
        self._fail = fail

    def begin(self, seq: Sequence) -> bool:
        """Appends what the grammar forces before any token is sampled; False where the sequence is over by that."""
        try:
            if seq.matcher is not None and seq.wants_token:
                if seq.matcher.is_terminated():
                    seq.ending = FinishReason.STOP
                else:
                    self._follow_grammar(seq)
        except Exception as error:
            self._fail(seq, error)
            return False
        if seq.ending is not None and seq.target() <= 0:
            self._finish(seq, seq.ending)
            return False
        return True

    def apply(self, plan: Plan, sampled: Seq[Sequence], result: StepResult) -> int:
        """Gives every sequence of the plan what it asked for, and finishes those that have nothing left to run.

        Returns:
            how many of the sampled tokens were followed by forced ones.
        """
        query = sample = end = forced = 0  # how many results of each kind are handed out
        for work in plan.works:
            seq = work.seq
            for token in work.lookups:
                _keep_logprob(seq, token, result.query_logprobs[query], result.query_top.get(query, {}))
                query += 1
            if work.scores_end:
                seq.end_logprob = result.end_logprobs[end]
                end += 1
            if sample < len(sampled) and sampled[sample] is seq:
                seq.unread = -1
                if seq.state is SequenceState.RUNNING:
                    before = seq.forced_tokens
                    self._apply_sample(seq, sample, result)
                    forced += seq.forced_tokens > before
                sample += 1
            if not (work.samples and seq.ending is None):
                self.settle(seq)
        return forced

    def settle(self, seq: Sequence) -> None:
        """Finishes a sequence that has nothing left to run, and whose results are all there."""
        if seq.state is SequenceState.RUNNING and not seq.wants_results and seq.target() <= seq.pos:
            self._finish(seq, seq.ending or FinishReason.LENGTH)

    def _apply_sample(self, seq: Sequence, row: int, result: StepResult) -> None:
        try:
            goes_on = self._take(seq, result.token_ids[row])
            if seq.sampling.wants_logprobs and seq.end_id is None:
                _keep_logprob(seq, len(seq) - 1, result.logprobs[row], result.top_logprobs.get(row, {}))
            if seq.matcher is not None and goes_on:
                self._follow_grammar(seq)
        except Exception as error:
            self._fail(seq, error)

    def _follow_grammar(self, seq: Sequence) -> None:
        """Appends what must come next, until there is a choice or the text is over, which it was not before."""
        matcher = seq.matcher
        assert matcher is not None
        within = getattr(matcher, "forced_tokens_within", None)
        while forced := matcher.forced_tokens() if within is None else within(seq.max_len - len(seq)):
            if self._joins_at_once(seq, forced):
                self._take_run(seq, forced)
                if seq.ending is not None:
                    return
                continue
            for token in forced:
                goes_on = self._take(seq, token)
                if seq.end_id is None:
                    seq.forced_tokens += 1
                    self._counters.forced_tokens += 1
                if not goes_on:
                    return

    def _joins_at_once(self, seq: Sequence, forced: list[int]) -> bool:
        """Whether nothing can happen between the tokens of a forced run, so that they are taken together."""
        sampling = seq.sampling
        return (
            hasattr(seq.matcher, "accept_run")
            and len(forced) <= seq.max_len - len(seq)
            and seq.on_token is None
            and (seq.sink is None or not seq.sink.can_stop)
            and sampling.end_ids.isdisjoint(forced)
            and sampling.stop_token_ids.isdisjoint(forced)
        )

    def _take_run(self, seq: Sequence, forced: list[int]) -> None:
        """What `_take` does, for the tokens of a forced run together."""
        matcher: Any = seq.matcher
        if seq.first_token_at is None:
            seq.first_token_at = time.monotonic()
        if not matcher.accept_run(forced):
            raise GrammarMismatchError(
                f"the tokens {forced} were forced upon sequence {seq.id}, and its grammar refuses them"
            )
        seq.append_run(forced)
        seq.forced_tokens += len(forced)
        self._counters.forced_tokens += len(forced)
        self._counters.generated_tokens += len(forced)
        for token in forced:
            if seq.penalty_state is not None:
                seq.penalty_state.add(token)
            if seq.sink is not None:
                seq.sink.push(token)
        self._look_for_end(seq, stopped=False)

    def _take(self, seq: Sequence, token: int) -> bool:
        """The next token: an end, or one more of the output, seen by grammar and sink. Whether the text goes on."""
        sampling, matcher = seq.sampling, seq.matcher
        if seq.first_token_at is None:
            seq.first_token_at = time.monotonic()
        is_end = token in sampling.end_ids
        if matcher is not None and (is_end or token not in sampling.stop_token_ids) and not matcher.accept(token):
            raise GrammarMismatchError(
                f"token {token} was chosen for sequence {seq.id} as number {len(seq.output_ids)} of its output, and "
                "its grammar refuses it; mask and matcher disagree"
            )
        if is_end or token in sampling.stop_token_ids:
            seq.end_id, seq.ending = token, FinishReason.STOP
            seq.matched_stop = token if token in sampling.stop_token_ids else None
        else:
            self._append(seq, token)
        return seq.ending is None

    def _append(self, seq: Sequence, token: int) -> None:
        seq.append_output(token)
        self._counters.generated_tokens += 1
        if seq.penalty_state is not None:
            seq.penalty_state.add(token)
        stopped = seq.sink is not None and seq.sink.push(token)
        if seq.on_token is not None:
            seq.on_token(token)
        self._look_for_end(seq, stopped)

    def _look_for_end(self, seq: Sequence, stopped: bool) -> None:
        if stopped or (seq.matcher is not None and seq.matcher.is_terminated()):
            seq.ending = FinishReason.STOP
        elif seq.length >= seq.max_len:
            # A value that is whole at its limit was closed in time.
            whole = seq.matcher is not None and getattr(seq.matcher, "closes", False) and seq.matcher.is_complete()
            seq.ending = FinishReason.STOP if whole else FinishReason.LENGTH


def _keep_logprob(seq: Sequence, index: int, logprob: float, top: dict[int, float]) -> None:
    """The log probability of token `index`, which is the next one that is wanted."""
    assert index == seq.lookup_at, (index, seq.lookup_at)
    seq.lookup_at += 1
    if index < len(seq.prompt_ids):
        assert seq.prompt_logprobs is not None
        seq.prompt_logprobs.append(logprob)
    else:
        seq.logprobs.append(logprob)
        if seq.sampling.top_logprobs:
            seq.top_logprobs.append(top)
