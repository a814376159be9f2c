"""From what became of sequences to what a caller asked for.

In: the engine's calls of a listener, on its thread. Out: a future of `Generation`s or `Score`s, all samples or
continuations of one request together. One that fails takes its siblings with it: a request is all or nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

from ..backend import Generation, Meta, Score
from ..errors import CancelledError
from .request import FinishReason, Sequence, SequenceResult

if TYPE_CHECKING:
    from .detokenizer import TextStream
    from .tokenizer import Tokenizer

__all__ = ["Collector", "generations", "scores"]

T = TypeVar("T")


class Collector(Generic[T]):
    """A listener over the sequences of one request, which resolves the request's future once.

    Args:
        count: how many sequences will report.
        build: makes the request's result from their results, in the order of `sequences`.
        cancel_all: cancels the sequences that still run, after one failed.
    """

    def __init__(self, count: int, build: Callable[[list[SequenceResult]], T]) -> None:
        self.future: Future[T] = Future()
        self._build = build
        self._lock = threading.Lock()
        self._results: list[SequenceResult | None] = [None] * count
        self._index: dict[int, int] = {}
        self._missing = count
        self._cancelled = False
        self._sequences: list[Sequence] = []
        self._cancel: Callable[[Sequence], None] | None = None

    def watch(self, sequences: list[Sequence], cancel: Callable[[Sequence], None]) -> bool:
        """Takes the sequences that will report; False where the request was cancelled before they existed."""
        with self._lock:
            self._sequences = sequences
            self._index = {seq.id: i for i, seq in enumerate(sequences)}
            self._cancel = cancel
            return not self._cancelled

    def cancel(self) -> None:
        """Cancels the request: every sequence of it, and the future at once where none exists yet."""
        with self._lock:
            self._cancelled = True
            sequences, cancel = list(self._sequences), self._cancel
        if cancel is None:
            self.fail(CancelledError("the request was cancelled before it started"))
            return
        for seq in sequences:
            cancel(seq)

    def fail(self, error: BaseException) -> None:
        """Resolves the future with an error, unless it was resolved before."""
        with self._lock:
            if self._missing == 0:
                return
            self._missing = 0
        self.future.set_exception(error)

    def on_finish(self, seq: Sequence, result: SequenceResult) -> None:
        """One sequence ended."""
        if result.finish_reason is FinishReason.CANCELLED:
            self._drop_siblings(seq)
            self.fail(CancelledError("the request was cancelled"))
            return
        with self._lock:
            if self._missing == 0:
                return
            self._results[self._index[seq.id]] = result
            self._missing -= 1
            if self._missing:
                return
        try:
            value = self._build([r for r in self._results if r is not None])
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)

    def on_error(self, seq: Sequence, error: BaseException) -> None:
        """One sequence failed."""
        self._drop_siblings(seq)
        self.fail(error)

    def _drop_siblings(self, seq: Sequence) -> None:
        if self._cancel is not None:
            for other in self._sequences:
                if other is not seq:
                    self._cancel(other)


def generations(
    results: list[SequenceResult],
    sinks: Seq[TextStream],
    *,
    prompt_tokens: int,
    reencoded: tuple[str, ...],
    tokenizer: Tokenizer,
    with_texts: bool,
    with_top: bool,
    with_logprobs: bool,
) -> list[Generation]:
    """The samples of a request from what became of their sequences and texts."""
    made = []
    for result, sink in zip(results, sinks):
        ids, exceptions = sink.visible_ids(result.output_ids)
        healed = sink.num_healed
        completion = len(result.output_ids) - healed
        meta = Meta(
            finish_reason=result.finish_reason.value,
            matched_stop=sink.matched_stop if sink.matched_stop is not None else result.matched_stop,
            prompt_tokens=prompt_tokens + healed,
            cached_tokens=result.cached_tokens,
            completion_tokens=completion,
            forced_tokens=min(result.forced_tokens, completion),
            token_ids=tuple(ids[sink.num_hidden :]),
            reencoded=tuple(dict.fromkeys((*reencoded, *exceptions))),
            logprobs=tuple(result.logprobs[healed:]) if with_logprobs else None,
            top_logprobs=tuple(result.top_logprobs[healed:]) if with_top else None,
            prompt_logprobs=None if result.prompt_logprobs is None else tuple(result.prompt_logprobs),
            token_texts=tuple(tokenizer.decode([i]) for i in result.output_ids[healed:]) if with_texts else None,
            queue_s=result.queue_s,
            first_token_s=result.first_token_s,
            total_s=result.total_s,
            computed=result.computed,
            submitted_at=result.submitted_at,
        )
        made.append(Generation(sink.text, tuple(ids), None, meta, replaced=sink.replaced))
    return made


def scores(
    results: list[SequenceResult],
    texts: Seq[str],
    wholes: Seq[tuple[list[int], int]],
    *,
    unconditional: bool,
) -> list[Score]:
    """The scores of a request; with `unconditional`, the second half of `results` are the continuations alone."""
    made = []
    count = len(texts)
    for i, text in enumerate(texts):
        ids, start = wholes[i]
        logprobs = _known(results[i].prompt_logprobs)
        end = results[i].end_logprob
        alone = _known(results[count + i].prompt_logprobs) if unconditional else None
        made.append(
            Score(
                text=text,
                token_ids=tuple(ids[start:]),
                token_logprobs=logprobs,
                logprob=sum(logprobs) + (end or 0.0),
                end_logprob=end,
                unconditional_logprobs=alone,
                prompt_tokens=start,
                cached_tokens=results[i].cached_tokens,
                computed=results[i].computed,
                submitted_at=results[i].submitted_at,
                queue_s=results[i].queue_s,
                total_s=results[i].total_s,
            )
        )
    return made


def _known(logprobs: list[float | None] | None) -> tuple[float, ...]:
    return tuple(x for x in logprobs or () if x is not None)
