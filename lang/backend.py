"""The contract between a program and what runs it.

In: a `GenerateRequest` or `ScoreRequest`, holding a `Prompt` and what is asked for.
Out: a `Handle`: a future of `Generation`s or `Score`s, which can be cancelled; text pieces to `on_text` meanwhile.

A backend is used from many threads at once. `submit*` never blocks on a model; what is wrong with a request (a bad
constraint, a prompt that cannot fit) is raised by `submit*` itself or set on that handle's future, and touches no
other request. Callbacks (`on_text`, the future's) run on a thread of the backend: they return quickly, never raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from .errors import BackendError
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .constraint import Constraint
    from .prompt import EncodedPrompt, Prompt

__all__ = [
    "Backend",
    "GenerateRequest",
    "Generation",
    "GraphBackend",
    "GraphSession",
    "Handle",
    "Keep",
    "Meta",
    "OnText",
    "PlannedRequest",
    "PrefillRequest",
    "Score",
    "ScoreRequest",
    "refuse_to_wait",
    "serves_requests",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Meta(Mapping[str, Any]):
    """What is known about one generated value. Attributes; also readable as a mapping (`meta["prompt_tokens"]`).

    Attributes:
        finish_reason: `"stop"`, `"length"`, `"cancelled"` or `"error"`.
        matched_stop: the stop string, the stop pattern's match or the stop token id that ended it, else None.
        prompt_tokens: tokens before the value, cached ones included. With token healing, the first token of the value
            may begin with the prompt's last bytes; tokens that spell nothing beyond these count here.
        cached_tokens: those of them that were served from the prefix cache.
        completion_tokens: generated tokens, without the end token.
        forced_tokens: those of them that the grammar left no choice about.
        token_ids: ids of the value, without the end token.
        reencoded: which of the named exceptions to kept ids happened (`EncodedPrompt.reencoded`), if any.
        logprobs: natural-log probability of each generated token, if asked for.
        top_logprobs: per generated position a dict id → logprob, if asked for.
        prompt_logprobs: of the prompt's tokens from `logprob_start_len` on, if asked for. The first token of a
            prompt has none: its entry is None.
        token_texts: text of each generated token, if `return_text_in_logprobs`; of a remote server, which gives no
            ids, with `logprobs`, too.
        queue_s: seconds from submission to the first step.
        first_token_s: seconds from submission to the first token.
        total_s: seconds from submission to the end.
        submitted_at: when it was submitted, in seconds of `time.monotonic()`, where the backend says so.
        computed: why tokens of the prompt were computed instead of taken from the cache, reason → tokens: `"new"` (the
            cache never had them behind the tokens before them), `"evicted"` (it had them, and dropped them or was
            flushed), `"logits"` (it has them; they ran since what follows them was wanted), `"again"` (they ran for
            this value before it was preempted; counted beside the others), `"uncached"` (there is no prefix cache).
            Of a `select`, those of all its choices.
        retries: how often it was generated again, since the finished value failed (`gen(validate="after")`).
        probabilities: of a `select`: choice → probability, normalised over the choices.
        choice_logprobs: of a `select`: choice → the score its rule gave.
    """

    finish_reason: str | None = None
    matched_stop: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    reencoded: tuple[str, ...] = ()
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[dict[int, float], ...] | None = None
    prompt_logprobs: tuple[float | None, ...] | None = None
    token_texts: tuple[str, ...] | None = None
    queue_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0
    submitted_at: float | None = None
    computed: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    probabilities: dict[str, float] | None = None
    choice_logprobs: dict[str, float] | None = None

    def __getitem__(self, key: str) -> Any:
        if key not in _META_FIELDS:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_META_FIELDS)

    def __len__(self) -> int:
        return len(_META_FIELDS)

    def __hash__(self) -> int:
        return id(self)


_META_FIELDS = tuple(f.name for f in fields(Meta))


@dataclass(frozen=True)
class Generation:
    """One sample of a request.

    Attributes:
        text: the generated text, without the end token and (unless kept) the stop.
        token_ids: the ids that spell `text`, as sampled; empty where the backend has none.
        replaced: ids at the end of the prompt that `token_ids` spell anew, before `text` (token healing).
        value: the text converted by the constraint (`Constraint.parse`), else the text. A backend leaves it None:
            whoever asked converts, on its own thread, since a type's validators are the user's code.
        meta: what is known about it.
        error: why there is no value, where `rt.generate` was given a list.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    value: Any = None
    meta: Meta = field(default_factory=Meta)
    error: Exception | None = None
    replaced: tuple[int, ...] = ()


@dataclass(frozen=True)
class Score:
    """The likelihood of one continuation.

    Attributes:
        text: the continuation.
        token_ids: the ids that were scored: those after the longest prefix that every continuation of the request
            shares with the prompt, so that the scores of one request compare the same event.
        token_logprobs: natural-log probability of each of `token_ids`.
        logprob: their sum, the end of turn included where it was asked for.
        end_logprob: log of the summed probability of the end tokens after the continuation, where it was asked for.
        unconditional_logprobs: of `token_ids` with nothing (BOS) before them, where it was asked for.
        prompt_tokens, cached_tokens, computed, submitted_at, queue_s, total_s: as in `Meta`; here the continuation
            counts as part of the prompt for what was cached and computed.
    """

    text: str
    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    logprob: float
    end_logprob: float | None = None
    unconditional_logprobs: tuple[float, ...] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed: dict[str, int] = field(default_factory=dict)
    submitted_at: float | None = None
    queue_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True)
class GenerateRequest:
    """Continue a prompt.

    Attributes:
        prompt: what stands before.
        sampling: the merged parameters; the backend fills what they do not say from the model's defaults.
        constraint: what the text must be, or None.
        name: the variable, for messages and mocks.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    constraint: Constraint | None = None
    name: str | None = None


@dataclass(frozen=True)
class ScoreRequest:
    """How likely each continuation is after the prompt.

    Attributes:
        prompt: what stands before.
        continuations: the texts, each tokenised in one run with the literal it follows.
        score_end: per continuation, whether the end of the turn is part of it.
        unconditional: whether each is scored without the prompt, too.
        sampling: priority and timeout are taken from here.
        name: the variable, for messages and mocks.
    """

    prompt: Prompt
    continuations: tuple[str, ...]
    score_end: tuple[bool, ...] = ()
    unconditional: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    name: str | None = None


@dataclass(frozen=True)
class PrefillRequest:
    """Compute a prompt ahead, so that it is cached.

    Attributes:
        prompt: what is computed.
        sampling: priority and timeout are taken from here.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)


class Handle(Generic[T]):
    """A request in flight.

    Attributes:
        future: resolves to the result, or to what went wrong. It is never cancelled by `future.cancel()`.
    """

    def __init__(self, future: Future[T] | None = None, cancel: Callable[[], None] | None = None) -> None:
        self.future: Future[T] = future if future is not None else Future()
        self._cancel = cancel

    def result(self, timeout: float | None = None) -> T:
        """Waits and returns the result or raises what went wrong.

        Raises:
            BackendError: called from a callback, on the very thread that would have to make the result.
        """
        if not self.future.done():
            refuse_to_wait()
        return self.future.result(timeout)

    def cancel(self) -> None:
        """Asks the backend to stop; the future then fails with `CancelledError` unless it was done already."""
        if self._cancel is not None:
            self._cancel()


def serves_requests() -> None:
    """Marks the calling thread as one that makes results: it must not wait for any (`Handle.result`)."""
    _this_thread.serves = True


def refuse_to_wait() -> None:
    """Raises BackendError on a thread that makes results: what is waited for there would never come."""
    if getattr(_this_thread, "serves", False):
        raise BackendError(
            "a callback of a backend waits for a result, which is made on the callback's own thread and would never "
            "come; wait on another thread, or attach a callback to the new request's future"
        )


_this_thread = threading.local()

OnText = Callable[[int, str], None]
"""Called with (sample index, piece) as text appears. The pieces of a sample concatenate to its text."""


@runtime_checkable
class Backend(Protocol):
    """What runs a program."""

    def submit(self, request: GenerateRequest, on_text: OnText | None = None) -> Handle[list[Generation]]:
        """Starts a generation; the result lists `n` samples."""
        ...

    def submit_score(self, request: ScoreRequest) -> Handle[list[Score]]:
        """Starts a scoring; the result has one `Score` per continuation, in order."""
        ...

    def submit_prefill(self, prompt: Prompt) -> Handle[int]:
        """Computes a prompt ahead so that it is cached; the result is its number of tokens (0: no such cache)."""
        ...

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The token ids that a request with this prompt would start from."""
        ...

    def flush_cache(self) -> None:
        """Drops every cached prefix that no live request holds."""
        ...

    def close(self) -> None:
        """Ends the backend; requests in flight fail with `BackendClosedError`. A second call does nothing."""
        ...


@dataclass(frozen=True)
class Keep:
    """What of a request is needed again by requests that are not there yet: a hint, never needed for a right answer.

    Attributes:
        length: the first so many tokens of its prompt; None: the whole prompt and whatever the request writes. More
            than the prompt has counts as the whole prompt.
        uses: places (`PlannedRequest.place`) of the later requests that begin with those tokens.
    """

    length: int | None
    uses: tuple[int, ...]


@dataclass(frozen=True)
class PlannedRequest:
    """A request of a graph, with its place in it.

    Attributes:
        request: what is asked for.
        place: its place in the graph's depth-first order, at least 0; requests of one graph are admitted in this
            order as far as they are there. A request submitted at some place is from then on itself the need for its
            prompt: no `Keep` has to name it.
        keeps: prefixes that later places of the graph need.
        on_text: called as text appears; of a `GenerateRequest` only.
        run: identity of the run or batch that it is part of, whose graphs follow one another; None: its graph alone.
            A backend may serve the requests of one run as they came, and those of several in turns.
        awaited: whether more may come once it is answered: a body may go on, or other places of the graph do.
    """

    request: GenerateRequest | ScoreRequest | PrefillRequest
    place: int
    keeps: tuple[Keep, ...] = ()
    on_text: OnText | None = None
    run: object | None = None
    awaited: bool = False


class GraphSession(Protocol):
    """One graph of requests, sent wave by wave; the owner of every lease that it takes. From any thread.

    Usage, with a graph whose places 0 and 1 are known and whose place 2 goes on from what place 0 writes:

        session = backend.open_graph()
        try:
            first = PlannedRequest(a, place=0, keeps=(Keep(None, uses=(2,)),))
            handles = session.submit([first, PlannedRequest(b, place=1)])
            ...                                                     # `a` resolves
            handles += session.submit([PlannedRequest(c, place=2)])  # or session.withdraw([2])
            ...
        finally:
            session.close()

    A lease lives from the submission that names it until the last of its uses was admitted, cancelled or withdrawn,
    at most until `close`. It is not a lock: under memory pressure leased prefixes are dropped after all others, those
    with the farthest next use first, and computed again when they are needed.
    """

    def submit(self, requests: Sequence[PlannedRequest]) -> list[Handle[Any]]:
        """Starts the requests of a wave; returns at once, one handle per request and in their order.

        The handles resolve as those of `submit`, `submit_score` and `submit_prefill` do. What is wrong with one request
        is set on its handle's future and touches no other. Waves may come in any order and number; everything that can
        start together should come in one call, so that it is ordered together.

        Raises:
            BackendClosedError, EngineDeadError, ForkedProcessError: nothing runs any more.
            ValueError: the session is closed.
        """
        ...

    def withdraw(self, places: Iterable[int]) -> None:
        """Says that no request will come at these places: what only they need is leased no longer. Places whose
        request was submitted are left alone (their handles cancel)."""
        ...

    def close(self) -> None:
        """Ends the graph's leases. Requests in flight go on. A second call does nothing."""
        ...


@runtime_checkable
class GraphBackend(Backend, Protocol):
    """A backend that makes use of the future: whoever sends many requests asks `isinstance(backend, GraphBackend)`
    and, where it is not one, calls `submit` for each request in order of place instead."""

    def open_graph(self) -> GraphSession:
        """Begins a graph. Whoever opens it closes it, whatever happens; one that is dropped unclosed is closed when it
        is collected."""
        ...
