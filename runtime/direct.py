"""Using a backend without a program: `generate`, `agenerate`, `score`.

In: prompts as text, ids or messages, and keywords. Out: `Generation`s, `Score`s, or an iterator of text.
`DirectCalls` is mixed into `LocalRuntime` and needs nothing of it but `submit_input`, `submit_score` and `together`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
from abc import abstractmethod
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from ..backend import GenerateRequest, Generation, Handle, OnText, Score, ScoreRequest
from ..constraint import Constraint
from ..errors import IncompleteOutputError, InvalidValueError
from ..heap import undisturbed
from ..prompt import Prompt
from ..retries import is_checked, retrying
from ..sampling import SamplingParams, split_sampling
from .graph_session import Launch
from .inputs import PromptInput, RawPrompt, read_prompts
from .together import Together
from .token_buffer import IdList

__all__ = ["DirectCalls"]

T = TypeVar("T")

_CONSTRAINT_KEYS = (
    "schema", "regex", "json_schema", "grammar", "choices", "dtype", "strict", "whitespace", "any_order", "validate",
    "on_budget", "thinking", "tools",
)  # fmt: skip


_ONE_STREAM = "stream=True takes one prompt and n=1; start several streams for several prompts"


class DirectCalls:
    """The calls of a backend that need no program."""

    @abstractmethod
    def submit_input(
        self,
        prompt: PromptInput,
        sampling: SamplingParams,
        constraint: Constraint | None,
        on_text: OnText | None,
        launch: Launch | None = None,
    ) -> Handle[list[Generation]]:
        """Starts one generation; `launch` takes its sequences instead of the engine."""

    @abstractmethod
    def together(self) -> Together:
        """What takes the sequences of requests that are to start together."""

    @abstractmethod
    def submit_score(self, request: ScoreRequest) -> Handle[list[Score]]:
        """Starts one scoring."""

    def generate(
        self,
        prompt: RawPrompt | Seq[RawPrompt],
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        **kw: Any,
    ) -> Any:
        """Continues a prompt, or each of a list of prompts side by side.

        Args:
            prompt: text, token ids (taken as they are, no BOS is added), messages (an assistant turn is opened after
                them; a last assistant message is continued), or a list of these.
            sampling: sampling parameters; keywords (`temperature=0`, `max_tokens=…`) win over it.
            stream: returns an iterator of text pieces at once; closing it cancels the request. One prompt, `n` of 1.
            **kw: sampling keywords, and at most one of `schema`, `regex`, `json_schema`, `grammar`, `choices`, `dtype`
                with their `strict` and `whitespace`.

        Returns:
            A `Generation` (with `n` above 1 a list of them); a list for a list; an iterator with `stream`.

        Raises:
            InvalidValueError: an argument that cannot be, by name.
            IncompleteOutputError: a constrained value was cut short (in a list: `.error` of that item instead).
            OutputValidationError: the type's own validator refused the value (in a list likewise).
        """
        with undisturbed():  # a prompt may have a hundred thousand ids, and the collector would go through them all
            prompts, many, params, constraint = _asked(prompt, sampling, kw, stream)
            if stream:
                return self._stream(prompts[0], params, constraint)
            handles = self._submit_all(prompts, params, constraint)
        with _cancelling(handles):
            results = _as_they_come(handles, constraint, alone=not many)
        return results if many else results[0]

    async def agenerate(
        self,
        prompt: RawPrompt | Seq[RawPrompt],
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        **kw: Any,
    ) -> Any:
        """`generate` for an event loop; with `stream` an async iterator. Cancelling it cancels the request."""
        with undisturbed():
            prompts, many, params, constraint = _asked(prompt, sampling, kw, stream)
            if stream:
                return self._astream(prompts[0], params, constraint)
            handles = self._submit_all(prompts, params, constraint)
        with _cancelling(handles):
            await asyncio.gather(*(asyncio.wrap_future(h.future) for h in handles), return_exceptions=True)
        results = [_settled(handle, constraint, alone=not many) for handle in handles]
        return results if many else results[0]

    def score(self, prompt: RawPrompt, continuations: Seq[str], *, end: bool = False) -> list[Score]:
        """How likely each continuation is after the prompt.

        Args:
            prompt: text or messages.
            continuations: texts; each is tokenised in one run with the literal it follows.
            end: whether the end of the turn is part of each.

        Returns:
            One `Score` per continuation, in order; log probabilities are natural logs.
        """
        prompts, many = read_prompts(prompt)
        if many or isinstance(prompts[0], IdList):
            raise InvalidValueError("score takes one prompt, as text or messages")
        texts = _checked_continuations(continuations)
        handle = self.submit_score(ScoreRequest(prompts[0], texts, score_end=(end,) * len(texts)))
        with _cancelling([handle]):
            return handle.result()

    def _submit_all(
        self, prompts: list[PromptInput], params: SamplingParams, constraint: Constraint | None
    ) -> list[Handle[list[Generation]]]:
        if len(prompts) == 1:
            return [self._submit(prompts[0], params, constraint, None)]
        handles: list[Handle[list[Generation]]] = []
        together = self.together()
        for prompt in prompts:
            try:
                handles.append(self._submit(prompt, params, constraint, None, together.launch))
            except Exception as error:
                failed: Future[list[Generation]] = Future()
                failed.set_exception(error)
                handles.append(Handle(failed))
        together.send()
        return handles

    def _submit(
        self,
        prompt: PromptInput,
        params: SamplingParams,
        constraint: Constraint | None,
        on_text: OnText | None,
        launch: Launch | None = None,
    ) -> Handle[list[Generation]]:
        """Starts one generation; with `validate="after"` again where a sample fails its check."""
        request = GenerateRequest(cast("Prompt", prompt), params, constraint)

        def again(changed: GenerateRequest) -> Handle[list[Generation]]:
            return self.submit_input(changed.prompt, changed.sampling, changed.constraint, None)

        handle = self.submit_input(prompt, params, constraint, None if is_checked(request) else on_text, launch)
        return retrying(handle, request, again, on_text)

    def _stream(self, prompt: PromptInput, params: SamplingParams, constraint: Constraint | None) -> Iterator[str]:
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        handle = self._submit(prompt, params, constraint, lambda _, piece: pieces.put(piece))
        handle.future.add_done_callback(lambda _: pieces.put(None))
        return TextPieces(handle, pieces, constraint)

    async def _astream(
        self, prompt: PromptInput, params: SamplingParams, constraint: Constraint | None
    ) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        def put(piece: str | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody reads any more
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        handle = self._submit(prompt, params, constraint, lambda _, piece: put(piece))
        handle.future.add_done_callback(lambda _: put(None))
        with _cancelling([handle]):
            while (piece := await pieces.get()) is not None:
                yield piece
            _settled(handle, constraint, alone=True)


class TextPieces(Iterator[str]):
    """The text of a request as it appears. Closing it, or dropping it, cancels the request, read from or not."""

    def __init__(
        self, handle: Handle[list[Generation]], pieces: queue.SimpleQueue[str | None], constraint: Constraint | None
    ) -> None:
        # A generator that was never begun runs nothing when it is closed, so this one begins at once.
        self._pieces = _read(handle, pieces, constraint)
        next(self._pieces)

    def __next__(self) -> str:
        piece = next(self._pieces)
        assert piece is not None
        return piece

    def close(self) -> None:
        """Cancels the request if it is not finished."""
        self._pieces.close()


def _read(
    handle: Handle[list[Generation]], pieces: queue.SimpleQueue[str | None], constraint: Constraint | None
) -> Generator[str | None, None, None]:
    """Nothing, and then the pieces."""
    with _cancelling([handle]):
        yield None
        while (piece := pieces.get()) is not None:
            yield piece
        _settled(handle, constraint, alone=True)


def _checked_continuations(continuations: Seq[str]) -> tuple[str, ...]:
    if isinstance(continuations, str) or not isinstance(continuations, Iterable):
        raise TypeError(f"score: continuations={continuations!r:.80}: must be a list of texts")
    texts = tuple(continuations)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"score: continuations[{i}]={text!r:.80} is a {type(text).__name__}, not a text")
    return texts


def _asked(
    prompt: RawPrompt | Seq[RawPrompt], sampling: SamplingParams | None, kw: Mapping[str, Any], stream: bool
) -> tuple[list[PromptInput], bool, SamplingParams, Constraint | None]:
    """What a call of `generate` asks for: prompts, whether a list of them, parameters, constraint."""
    prompts, many = read_prompts(prompt)
    params, constraint = _split(sampling, kw)
    if stream and (many or (params.n or 1) > 1):
        raise InvalidValueError(_ONE_STREAM)
    return prompts, many, params, constraint


def _split(sampling: SamplingParams | None, kw: Mapping[str, Any]) -> tuple[SamplingParams, Constraint | None]:
    said, rest = split_sampling(kw)
    constraint = Constraint.from_gen(**{k: rest.pop(k) for k in _CONSTRAINT_KEYS if k in rest})
    if rest:
        raise InvalidValueError(f"unknown keyword {next(iter(rest))!r}: sampling and constraint keywords are accepted")
    return said.over(sampling), constraint


def _settled(handle: Handle[list[Generation]], constraint: Constraint | None, *, alone: bool) -> Any:
    """The samples of a request with their values; what went wrong is raised when `alone`, else kept in `.error`."""
    try:
        samples = [_valued(sample, constraint) for sample in handle.result()]
    except Exception as error:
        if alone:
            raise
        return Generation("", error=error)
    if alone:
        for sample in samples:
            if sample.error is not None:
                raise sample.error
    return samples[0] if len(samples) == 1 else samples


def _as_they_come(handles: list[Handle[list[Generation]]], constraint: Constraint | None, *, alone: bool) -> list[Any]:
    """`_settled` of each.

    Texts are waited for from the last on: the others are there by then, mostly, and this thread does not wake up for
    each of them, while the engine's would wait for the interpreter. Values are made while others are generated.
    """
    if constraint is not None:
        return [_settled(handle, constraint, alone=alone) for handle in handles]
    return [_settled(handle, None, alone=alone) for handle in reversed(handles)][::-1]


def _valued(sample: Generation, constraint: Constraint | None) -> Generation:
    if constraint is None:
        return Generation(sample.text, sample.token_ids, sample.text, sample.meta, sample.error, sample.replaced)
    if sample.meta.finish_reason != "stop":
        cut = IncompleteOutputError(
            f"cut by {sample.meta.finish_reason!r} after {sample.meta.completion_tokens} tokens, before the text was a "
            f"whole value; raise max_tokens. So far: {sample.text[-60:]!r}",
            text=sample.text,
        )
        return dataclasses.replace(sample, error=cut)
    try:
        return dataclasses.replace(sample, value=constraint.parse(sample.text))
    except Exception as error:
        return dataclasses.replace(sample, error=error)


@contextlib.contextmanager
def _cancelling(handles: Seq[Handle[Any]]) -> Iterator[None]:
    """Cancels what is still in flight when the block is left by an exception or a closed generator."""
    try:
        yield
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
