"""A backend without a model: it answers what it was told to, so that a program has a unit test.

In: requests, and the replies given to `MockBackend`. Out: generations and scores, delivered on the mock's own thread,
piece by piece, as a real backend does; which reply answers which request depends on nothing but their order.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from ..backend import GenerateRequest, Generation, Handle, Meta, OnText, Score, ScoreRequest
from ..errors import BackendClosedError, BackendError, ConstraintError
from ..prompt import EncodedPrompt, Prompt
from ..stops import StopMatcher
from .conform import check_conforms
from .delivery import Delivery, Job, Steps
from .messages import chatml
from .replies import MockRequest, Replies, RepliesSource, Reply

__all__ = ["MockBackend", "MockRequest", "Reply"]

_Taken = Reply | BaseException | Callable[[], Reply | BaseException]


class MockBackend:
    """Answers each request with a reply given beforehand.

    Args:
        replies: a list (a queue, in request order); a dict by variable name, whose values are a reply for every
            request of that name or a list as that name's queue; or a callable that gets the `MockRequest`. A reply
            is the text as a `str`, a `Reply`, an exception (raised in the program), or for a `select` the choice or
            `{choice: logprob}`. A callable runs on the mock's thread, in request order, and may raise.

    Stops, `min_tokens`, `max_tokens`, `n`, `timeout` and cancellation do what they do on a real backend; a reply that
    is not what its request's constraint allows is a `ConstraintError`. A mock's token is a piece of the reply (by
    default a word with the white space before it); of prompts it counts the UTF-8 bytes, and there are no token ids,
    so `meta.top_logprobs` and `meta.prompt_logprobs` stay None. Temperature, penalties, biases and seeds change
    nothing. With `max_tokens=0` no reply is used.

    Attributes:
        requests: every `gen` and `select` so far, in request order.
        prefilled: the texts of the prompts computed ahead (`prog.cache`).
    """

    def __init__(self, replies: RepliesSource = ()) -> None:
        self.requests: list[MockRequest] = []
        self.prefilled: list[str] = []
        self._replies = Replies(replies)
        self._lock = threading.Lock()
        self._delivery = Delivery("radicel-mock")
        self._closed = False

    def submit(self, request: GenerateRequest, on_text: OnText | None = None) -> Handle[list[Generation]]:
        """Starts a generation; see `Backend.submit`."""
        return self._start(request, lambda seen, taken: _generate(request, seen, taken, on_text))

    def submit_score(self, request: ScoreRequest) -> Handle[list[Score]]:
        """Starts a scoring in which the choice that the reply names is the only possible one."""
        return self._start(request, lambda seen, taken: _score(request, seen, taken))

    def submit_prefill(self, prompt: Prompt) -> Handle[int]:
        """Notes the prompt in `prefilled`; a mock has no cache, so the result is 0."""
        with self._lock:
            self._check_open()
            self.prefilled.append(chatml(prompt))
        future: Future[int] = Future()
        future.set_result(0)
        return Handle(future)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The prompt's ChatML text as UTF-8 bytes."""
        return EncodedPrompt(tuple(chatml(prompt).encode()))

    def render(self, prompt: Prompt) -> str:
        """The prompt's text, its roles in ChatML."""
        return chatml(prompt)

    def flush_cache(self) -> None:
        """Does nothing: a mock has no cache."""

    def close(self) -> None:
        """Ends the mock; requests in flight fail with `BackendClosedError`. A second call does nothing."""
        with self._lock:
            self._closed = True
        self._delivery.close()

    def __enter__(self) -> MockBackend:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(
        self, request: GenerateRequest | ScoreRequest, steps: Callable[[MockRequest, _Taken], Steps]
    ) -> Handle[Any]:
        seen = MockRequest.of(request)
        with self._lock:  # the order of requests, of replies and of jobs is one order
            self._check_open()
            self.requests.append(seen)
            unused = isinstance(request, GenerateRequest) and request.sampling.max_tokens == 0
            taken = Reply("", finish_reason="length") if unused else self._replies.take(seen)
            job = Job(steps(seen, taken), f"{seen} on the mock backend", request.sampling.timeout)
            self._delivery.start(job)
        return Handle(job.future, lambda: self._delivery.cancel(job))

    def _check_open(self) -> None:
        if self._closed:
            raise BackendClosedError("the mock backend is closed")


def _generate(request: GenerateRequest, seen: MockRequest, taken: _Taken, on_text: OnText | None) -> Steps:
    submitted = time.monotonic()
    yield 0.0
    queued = time.monotonic() - submitted
    reply = _reply(taken)
    if isinstance(reply.logprobs, Mapping):
        raise BackendError(f"{seen}: the reply gives logprobs of choices, but this request is no select")
    yield reply.delay
    generations = []
    for index, tokens in enumerate(reply.samples(request.sampling.n or 1)):
        sample = _Sample(request.sampling.max_tokens, request.sampling.min_tokens or 0, _matcher(request))
        first: float | None = None
        for position, token in enumerate(tokens):
            if not sample.wants_more:
                break
            if position:
                yield reply.piece_delay
            first = time.monotonic() - submitted if first is None else first
            _show(sample.push(token), index, on_text)
        _show(sample.finish(whole=sample.count == len(tokens), reason=reply.finish_reason), index, on_text)
        _check(request, seen, sample)
        meta = _meta(request, seen, reply, sample, tokens[: sample.count])
        meta = replace(meta, queue_s=queued, first_token_s=first, total_s=time.monotonic() - submitted)
        generations.append(Generation(sample.text, meta=meta))
    return generations


def _score(request: ScoreRequest, seen: MockRequest, taken: _Taken) -> Steps:
    yield 0.0
    reply = _reply(taken)
    yield reply.delay
    given = reply.logprobs if isinstance(reply.logprobs, Mapping) else {"".join(reply.samples(1)[0]): 0.0}
    for choice in given:
        if choice not in request.continuations:
            raise ConstraintError(f"{seen}: the reply {choice!r} is not one of the choices {request.continuations}")
    size = len(chatml(request.prompt).encode())
    base = (0.0,) if request.unconditional else None
    # Each choice is one token of its own and has no end, so that every rule takes the likeliest one.
    logprobs = [float(given.get(choice, -math.inf)) for choice in request.continuations]
    return [
        Score(choice, (i,), (logprob,), logprob, None, base, prompt_tokens=size)
        for i, (choice, logprob) in enumerate(zip(request.continuations, logprobs))
    ]


def _reply(taken: _Taken) -> Reply:
    found = taken() if callable(taken) else taken
    if isinstance(found, BaseException):
        raise found
    return found


def _matcher(request: GenerateRequest) -> StopMatcher:
    s = request.sampling
    return StopMatcher(s.stop or (), s.stop_regex or (), bool(s.keep_stop))


def _show(text: str, index: int, on_text: OnText | None) -> None:
    if text and on_text is not None:
        on_text(index, text)


@dataclass
class _Sample:
    """One sample as it comes in: its tokens through the stops, up to its budget."""

    max_tokens: int | None
    min_tokens: int
    stops: StopMatcher
    count: int = 0
    text: str = ""
    finish_reason: str | None = None

    @property
    def wants_more(self) -> bool:
        return self.stops.matched is None and (self.max_tokens is None or self.count < self.max_tokens)

    def push(self, token: str) -> str:
        """The text that may be shown after one more token."""
        self.count += 1
        shown = self.stops.skip(token) if self.count <= self.min_tokens else self.stops.feed(token)
        self.text += shown
        return shown

    def finish(self, *, whole: bool, reason: str) -> str:
        """The text that was held back; `whole`: all of the reply's tokens were taken."""
        if self.stops.matched is not None:
            self.finish_reason = "stop"
        else:
            self.finish_reason = reason if whole else "length"
        shown = self.stops.finish()
        self.text += shown
        return shown


def _meta(request: GenerateRequest, seen: MockRequest, reply: Reply, sample: _Sample, tokens: Sequence[str]) -> Meta:
    logprobs: tuple[float, ...] | None = None
    if request.sampling.logprobs:
        given = reply.logprobs if isinstance(reply.logprobs, Sequence) else [0.0] * len(tokens)
        logprobs = tuple(map(float, given[: len(tokens)]))
    return Meta(
        finish_reason=sample.finish_reason,
        matched_stop=sample.stops.matched,
        prompt_tokens=len(seen.prompt.encode()),
        completion_tokens=sample.count,
        logprobs=logprobs,
        token_texts=tuple(tokens) if request.sampling.return_text_in_logprobs else None,
    )


def _check(request: GenerateRequest, seen: MockRequest, sample: _Sample) -> None:
    """Raises ConstraintError where the reply is not what its request allows; one that was cut short is no value."""
    if request.constraint is None or sample.finish_reason != "stop":
        return
    try:
        check_conforms(request.constraint, sample.text)
    except ConstraintError as error:
        message = f"the mock's reply {sample.text!r} for {seen} is not what its constraint allows: {error}"
        raise ConstraintError(message, keyword=error.keyword, pointer=error.pointer) from error
