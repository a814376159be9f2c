"""What a `MockBackend` is told to answer, and how a reply is found for a request.

In: the `replies` of a `MockBackend`. Out: for each request, in the order of submission, its `Reply` or an exception.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import regex

from ..backend import GenerateRequest, ScoreRequest
from ..errors import BackendError
from ..prompt import Prompt
from ..sampling import SamplingParams
from .messages import Message, chatml, split_turns

__all__ = ["MockRequest", "Replies", "RepliesSource", "Reply", "ReplySource", "mock_tokens"]

_WORD = regex.compile(r"\s*\S+|\s+$")


def mock_tokens(text: str) -> tuple[str, ...]:
    """The text as the mock's tokens: words, each with the white space before it; white space at the end is one."""
    return tuple(_WORD.findall(text))


@dataclass(frozen=True)
class Reply:
    """What a request is answered with.

    Attributes:
        text: the text the model writes. For a `select`: the choice it takes.
        pieces: its tokens, one by one, as they are streamed; else the words of `text`, each with the white space
            before it. They are what `max_tokens`, `min_tokens`, `meta.completion_tokens` and `logprobs` count.
        logprobs: a float per token. For a `select`: choice → logprob (choices left out are impossible).
        finish_reason: `"stop"` or `"length"`, where the request's own stops and `max_tokens` do not say otherwise.
        texts: one text per sample of `n`; with `text` every sample is the same.
        delay: seconds before the first piece.
        piece_delay: seconds before each further piece.

    Raises:
        TypeError, ValueError: `text` contradicts `pieces` or `texts`, or a logprob is missing.
    """

    text: str | None = None
    pieces: Sequence[str] | None = None
    logprobs: Sequence[float] | Mapping[str, float] | None = None
    finish_reason: str = "stop"
    texts: Sequence[str] | None = None
    delay: float = 0.0
    piece_delay: float = 0.0

    def __post_init__(self) -> None:
        if self.text is not None and not isinstance(self.text, str):
            raise TypeError(f"Reply(text={self.text!r}): must be a str, the text as the model would write it")
        if self.texts is not None and (self.text is not None or self.pieces is not None):
            raise ValueError("Reply: texts= gives one text per sample; leave text= and pieces= out")
        if self.pieces is not None and self.text is not None and "".join(self.pieces) != self.text:
            raise ValueError(f"Reply: the pieces make {''.join(self.pieces)!r}, the text is {self.text!r}")
        if self.finish_reason not in ("stop", "length"):
            raise ValueError(f"Reply(finish_reason={self.finish_reason!r}): must be 'stop' or 'length'")
        if isinstance(self.logprobs, Mapping):
            return
        if self.text is None and self.pieces is None and self.texts is None:
            raise ValueError("Reply: give text=, pieces= or texts=, or for a select logprobs={choice: logprob}")
        if self.logprobs is not None:
            for tokens in self.samples(1 if self.texts is None else len(self.texts)):
                if len(tokens) != len(self.logprobs):
                    raise ValueError(f"Reply: {len(self.logprobs)} logprobs for the {len(tokens)} tokens {tokens}")

    def samples(self, n: int) -> list[tuple[str, ...]]:
        """The tokens of each of `n` samples.

        Raises:
            BackendError: `texts` has another number of them.
        """
        if self.texts is not None:
            if len(self.texts) != n:
                raise BackendError(f"the reply has {len(self.texts)} texts, the request asks for n={n} samples")
            return [mock_tokens(text) for text in self.texts]
        return [tuple(self.pieces) if self.pieces is not None else mock_tokens(self.text or "")] * n


@dataclass(frozen=True)
class MockRequest:
    """A request as a `MockBackend` saw it.

    Attributes:
        kind: `"gen"` or `"select"`.
        name: the variable.
        prompt: the text so far, its roles in ChatML.
        messages: the turns so far; the open one where it has text already.
        sampling: the merged parameters.
        constraint: what the text must be, or None.
        choices: of a `select`, else None.
        source: the request itself, as the backend contract has it.
    """

    kind: str
    name: str | None
    prompt: str
    messages: list[Message]
    sampling: SamplingParams
    constraint: Any = None
    choices: tuple[str, ...] | None = None
    source: GenerateRequest | ScoreRequest | None = None

    @classmethod
    def of(cls, request: GenerateRequest | ScoreRequest) -> MockRequest:
        """What a test wants to see of a request."""
        prompt: Prompt = request.prompt
        text, messages = chatml(prompt), split_turns(prompt).all_messages()
        if isinstance(request, ScoreRequest):
            choices = request.continuations
            return cls("select", request.name, text, messages, request.sampling, None, choices, request)
        return cls("gen", request.name, text, messages, request.sampling, request.constraint, None, request)

    def __str__(self) -> str:
        return f"{self.kind}({self.name!r})"


ReplySource: TypeAlias = str | Reply | BaseException | type[BaseException] | Mapping[str, float]
# A dict's values are a reply, or a list of replies as that name's queue.
RepliesSource: TypeAlias = Sequence[ReplySource] | Mapping[str, Any] | Callable[[MockRequest], ReplySource]


class Replies:
    """Finds the reply for each request. Used under the mock's lock, except `call`."""

    def __init__(self, source: RepliesSource) -> None:
        self._count = 0
        self._function: Callable[[MockRequest], ReplySource] | None = None
        self._queue: deque[Reply | BaseException] | None = None
        self._named: dict[str, Reply | BaseException | deque[Reply | BaseException]] = {}
        if isinstance(source, (str, bytes, Reply)):
            raise TypeError(f"MockBackend({source!r}): replies must be a list, a dict by variable name, or a callable")
        if isinstance(source, Mapping):
            for name, given in source.items():
                many = isinstance(given, (list, tuple, deque))
                self._named[name] = deque(map(as_reply, given)) if many else as_reply(given)
        elif callable(source):
            self._function = source
        else:
            self._queue = deque(map(as_reply, source))

    def take(self, request: MockRequest) -> Reply | BaseException | Callable[[], Reply | BaseException]:
        """The reply, or (for a callable) what will make it; a `BackendError` that says so where none is left."""
        self._count += 1
        if self._function is not None:
            function = self._function
            return lambda: as_reply(function(request))
        if self._queue is not None:
            return self._next(self._queue, request, "the list")
        if request.name is None or request.name not in self._named:
            names = ", ".join(map(repr, self._named)) or "none"
            return BackendError(f"the mock has no reply for {request}, request {self._count}; it has them for: {names}")
        found = self._named[request.name]
        return self._next(found, request, "its list") if isinstance(found, deque) else found

    def _next(self, queue: deque[Reply | BaseException], request: MockRequest, which: str) -> Reply | BaseException:
        if queue:
            return queue.popleft()
        return BackendError(f"the mock has no reply left for {request}, request {self._count}: {which} is used up")


def as_reply(given: Any) -> Reply | BaseException:
    """What a user wrote as a reply, as a `Reply` or an exception."""
    if isinstance(given, (Reply, BaseException)):
        return given
    if isinstance(given, str):
        return Reply(given)
    if isinstance(given, Mapping):
        return Reply(logprobs=dict(given))
    if isinstance(given, type) and issubclass(given, BaseException):
        return given()
    raise TypeError(f"{given!r} is no reply: give a str, a Reply, an exception, or for a select {{choice: logprob}}")
