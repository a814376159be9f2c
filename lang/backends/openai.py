"""Programs on a server that speaks the OpenAI protocol: OpenAI's own, vLLM, SGLang, llama.cpp and others.

In: requests of programs. Out: calls of the `openai` client, many at once on one background thread, and generations.
What the protocol cannot say is refused with the reason (`openai_wire.py`); every bound value is checked here again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from ..backend import GenerateRequest, Generation, Handle, Meta, OnText, Score, ScoreRequest
from ..errors import (
    BackendError,
    ContextLengthError,
    InvalidValueError,
    RadicelError,
    RemoteError,
    UnsupportedError,
)
from ..prompt import EncodedPrompt, Prompt
from .loop import LoopThread
from .openai_answer import Answer
from .openai_guided import SERVERS
from .openai_limits import RateLimit, retry_after
from .openai_scores import chosen_scores, echoed_scores
from .openai_wire import Call, Dialect, generate_call, pieces, score_call, unwrap

__all__ = ["OpenAIBackend"]


class OpenAIBackend:
    """A server that speaks the OpenAI protocol.

    Args:
        model: the server's name for the model; SGLang's `model_name=` is accepted.
        base_url: of the server, such as `"http://localhost:8000/v1"`; None is OpenAI's own.
        api_key: else the environment variable OPENAI_API_KEY; a server of your own (`base_url`) needs none.
        chat: True for the chat endpoint (programs write roles), False for the completions endpoint (programs write
            plain text; a `gen` then needs `max_tokens`); None is False for models named "…instruct" of OpenAI's own.
        extended: whether the server takes what vLLM and SGLang add to the protocol: `top_k`, `min_p`, `min_tokens`,
            `repetition_penalty`, `stop_token_ids`, `ignore_eos`, and going on with an assistant turn that the program
            began; None is True where `base_url` is given.
        timeout: seconds of silence after which a call is given up. A `gen`'s own `timeout=` is the whole call's.
        max_retries: how often a call that failed for a passing reason (connection, 408, 409, 429, 5xx) is made
            again, later each time. A stream that broke off is not: its text has been shown.
        max_concurrency: calls in flight at once; more wait here.
        requests_per_minute: calls that begin in a minute at most; None: no limit of ours.
        rate_limit_wait: seconds that a call waits, all in all, while the server refuses it for being asked too often
            (429), beyond `max_retries`: as long as its `Retry-After` says, else twice as long each time. All calls
            wait together. 0, or `max_retries=0`: not at all.
        server: "vllm" or "sglang", where it is one of these: regexes and grammars then bind a `gen` in its own words,
            on both endpoints, and `extended` is True.

    A `select` on the completions endpoint sums the logprobs of the echoed choices (the server must allow `echo`
    with `logprobs`). On the chat endpoint the model writes one of the choices, bound by a JSON schema: the value is
    right, `meta.probabilities` then only says which one it was. JSON schemas bind a `gen` on the chat endpoint; a
    regex or a grammar is refused, unless `server` says whose words to use. `meta.matched_stop` is known where the
    server tells it, or the stop was found here (`keep_stop`, `stop_regex`, more than four stops). There are no
    token ids. With `n > 1` the server tells only the sum of completion tokens: it stands in the first sample's
    meta, unless `logprobs` are asked for, which count them; a call left at a stop found here has no counts.
    `priority` changes nothing, and a `select` of a chat is made at temperature 0.

    Raises:
        BackendError: the `openai` package is missing, or there is no key.
        InvalidValueError: a server, a limit or a time that cannot be.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        chat: bool | None = None,
        extended: bool | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_concurrency: int = 64,
        requests_per_minute: float | None = None,
        rate_limit_wait: float = 300.0,
        server: str | None = None,
        model_name: str | None = None,
        is_chat_model: bool | None = None,
    ) -> None:
        name = model if model is not None else model_name
        if name is None:
            raise BackendError("OpenAIBackend needs the name of a model, such as OpenAIBackend('gpt-4o-mini')")
        base_url = base_url or os.environ.get("OPENAI_BASE_URL")
        chat = is_chat_model if chat is None else chat
        if chat is None:
            chat = base_url is not None or "instruct" not in name
        _check_limits(max_concurrency, max_retries, requests_per_minute, rate_limit_wait, timeout)
        if server is not None and server not in SERVERS:
            raise InvalidValueError(f"server={server!r}: must be {' or '.join(map(repr, SERVERS))}, or left out")
        takes_more = base_url is not None or server is not None
        self._dialect = Dialect(name, chat, takes_more if extended is None else extended, server)
        self._openai = _package()
        self._where = f"model {name!r} at {base_url or 'api.openai.com'}"
        self._client = self._make_client(base_url, api_key, timeout, max_retries)
        self._max_concurrency = max_concurrency
        self._limit = RateLimit(requests_per_minute, rate_limit_wait if max_retries else 0.0)
        self._slots: asyncio.Semaphore | None = None  # made on the loop's thread
        self._loop = LoopThread("radicel-openai", self._client.close)

    def submit(self, request: GenerateRequest, on_text: OnText | None = None) -> Handle[list[Generation]]:
        """Starts a generation; see `Backend.submit`. Refuses what the protocol cannot say."""
        call = generate_call(request, self._dialect, stream=on_text is not None)
        label = f"gen({request.name!r}) of {self._where}"
        return self._loop.start(self._generate(request, call, on_text), label, request.sampling.timeout)

    def submit_score(self, request: ScoreRequest) -> Handle[list[Score]]:
        """Starts a scoring; see the class for what its logprobs are."""
        call = score_call(request, self._dialect)
        label = f"select({request.name!r}) of {self._where}"
        return self._loop.start(self._score(request, call), label, request.sampling.timeout)

    def submit_prefill(self, prompt: Prompt) -> Handle[int]:
        """Does nothing: the server's cache is its own."""
        future: Future[int] = Future()
        future.set_result(0)
        return Handle(future)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Raises UnsupportedError: the server's tokenizer is not known here."""
        raise UnsupportedError(f"the tokenizer of {self._where} is not known, so a prompt has no token ids here")

    def flush_cache(self) -> None:
        """Does nothing: the server's cache is its own."""

    def close(self) -> None:
        """Ends the backend; calls in flight fail with `BackendClosedError`. A second call does nothing."""
        self._loop.close()

    def __enter__(self) -> OpenAIBackend:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _make_client(self, base_url: str | None, api_key: str | None, timeout: float, max_retries: int) -> Any:
        key = api_key or os.environ.get("OPENAI_API_KEY") or (base_url and "none")
        if not key:
            raise BackendError("no API key: set the environment variable OPENAI_API_KEY or give api_key=")
        return self._openai.AsyncOpenAI(api_key=key, base_url=base_url, timeout=timeout, max_retries=max_retries)

    async def _generate(self, request: GenerateRequest, call: Call, on_text: OnText | None) -> list[Generation]:
        if request.sampling.max_tokens == 0:
            return [Generation("", meta=Meta("length"))] * (request.sampling.n or 1)
        answer = Answer(request, call, on_text)
        async with aclosing(self._answers(call)) as parts:
            async for data in parts:
                answer.take(data)
                if answer.is_complete:
                    break
        return answer.generations(self._where)

    async def _score(self, request: ScoreRequest, call: Call) -> list[Score]:
        async with aclosing(self._answers(call)) as parts:
            data = await anext(parts)
        if not call.wrapped:
            return echoed_scores(request, data, self._where)
        texts = [piece.text for piece in pieces(data)]
        return chosen_scores(request, unwrap("".join(texts[:1]), None), self._where, data.get("usage") or {})

    async def _answers(self, call: Call) -> AsyncGenerator[dict[str, Any], None]:
        """The response, or the chunks of the stream, as plain data; leaving early ends the call on the server."""
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._max_concurrency)
        async with self._slots:
            try:
                response = await self._created(call)
                if not call.body.get("stream"):
                    yield response.model_dump()
                    return
                async with response:
                    async for chunk in response:
                        yield chunk.model_dump()
            except RadicelError:
                raise
            except Exception as error:
                translated = self._translated(error)
                if translated is None:
                    raise
                raise translated from error

    async def _created(self, call: Call) -> Any:
        """The response, or the beginning of the stream; waits while the server is asked too often."""
        endpoint = self._client.chat.completions if self._dialect.chat else self._client.completions
        waited: float | None = 0.0
        times = 0
        while True:
            await self._limit.enter()
            try:
                return await endpoint.create(**call.body)
            except self._openai.RateLimitError as error:
                if error.code == "insufficient_quota":  # no waiting helps
                    raise
                assert waited is not None
                waited = await self._limit.refused(waited, times, retry_after(error.response.headers))
                if waited is None:
                    raise
                times += 1

    def _translated(self, error: Exception) -> RadicelError | None:
        """The client's and the network's errors as ours; None where it is neither."""
        if isinstance(error, self._openai.APIStatusError):
            text = f"{self._where}: HTTP {error.status_code}: {error.message}"
            too_long = error.code == "context_length_exceeded" or "maximum context length" in error.message
            return ContextLengthError(text) if too_long else RemoteError(text)
        library = type(error).__module__.partition(".")[0]
        if isinstance(error, (self._openai.OpenAIError, OSError)) or library.startswith(("httpx", "httpcore")):
            return RemoteError(f"{self._where}: {type(error).__name__}: {error}")
        return None


def _check_limits(
    max_concurrency: int, max_retries: int, per_minute: float | None, rate_limit_wait: float, timeout: float
) -> None:
    if max_concurrency < 1:
        raise InvalidValueError(f"max_concurrency={max_concurrency!r}: must be at least 1")
    if max_retries < 0:
        raise InvalidValueError(f"max_retries={max_retries!r}: must be at least 0")
    if per_minute is not None and not per_minute > 0:
        raise InvalidValueError(f"requests_per_minute={per_minute!r}: must be more than 0, or None")
    if rate_limit_wait < 0:
        raise InvalidValueError(f"rate_limit_wait={rate_limit_wait!r}: must be at least 0 seconds")
    if not timeout > 0:
        raise InvalidValueError(f"timeout={timeout!r}: must be more than 0 seconds")


def _package() -> Any:
    try:
        import openai
    except ImportError as error:
        raise BackendError("OpenAIBackend needs the `openai` package: pip install 'radicel[openai]'") from error
    return openai
