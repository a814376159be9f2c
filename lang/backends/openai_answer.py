"""The answer to one generation over the OpenAI protocol, put together from its parts.

In: the response, or the chunks of a stream, in order. Out: pieces of text meanwhile; generations at the end, checked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ..backend import GenerateRequest, Generation, Meta, OnText
from ..errors import ConstraintError, OutputValidationError, RemoteError
from ..stops import StopMatcher
from .conform import check_conforms
from .openai_wire import Call, Piece, pieces, unwrap

__all__ = ["Answer"]


@dataclass
class _Sample:
    """One sample as its pieces come in."""

    stops: StopMatcher
    text: str = ""
    refusal: str = ""
    finish_reason: str | None = None
    matched_stop: str | int | None = None
    logprobs: list[float] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)

    def take(self, piece: Piece) -> str:
        """Takes a piece; returns the text that may be shown now."""
        if self.finish_reason is not None:
            return ""
        self.logprobs += piece.logprobs
        self.token_texts += piece.token_texts
        self.refusal += piece.refusal
        shown = self.stops.feed(piece.text)
        if self.stops.matched is not None:
            self.finish_reason, self.matched_stop = "stop", self.stops.matched
        elif piece.finish_reason is not None:
            self.finish_reason, self.matched_stop = piece.finish_reason, piece.matched_stop
            shown += self.stops.finish()
        self.text += shown
        return shown


class Answer:
    """The samples of one request, put together from the parts of the server's answer."""

    def __init__(self, request: GenerateRequest, call: Call, on_text: OnText | None) -> None:
        s = request.sampling
        stops = (s.stop or (), s.stop_regex or (), bool(s.keep_stop)) if call.own_stops else ()
        self._request, self._call, self._on_text = request, call, on_text
        self._samples = [_Sample(StopMatcher(*stops)) for _ in range(s.n or 1)]
        self._usage: dict[str, Any] = {}
        self._submitted = time.monotonic()
        self._first: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every sample was ended by a stop found here, so that the server may be left."""
        return all(sample.stops.matched is not None for sample in self._samples)

    def take(self, data: dict[str, Any]) -> None:
        """Takes a response or a chunk."""
        self._usage = data.get("usage") or self._usage
        for piece in pieces(data):
            if not 0 <= piece.index < len(self._samples):
                continue
            if self._first is None and piece.text:
                self._first = time.monotonic() - self._submitted
            shown = self._samples[piece.index].take(piece)
            if shown and self._on_text is not None and not self._call.wrapped:
                self._on_text(piece.index, shown)

    def generations(self, where: str) -> list[Generation]:
        """What the server wrote, checked.

        Raises:
            RemoteError: the answer broke off, or the server withheld it.
            OutputValidationError: the model refused, or the text is not what the constraint allows.
        """
        return [self._generation(index, sample, where) for index, sample in enumerate(self._samples)]

    def _generation(self, index: int, sample: _Sample, where: str) -> Generation:
        name = self._request.name
        if sample.refusal:
            message = f"{where} refused to answer gen({name!r}): {sample.refusal}"
            raise OutputValidationError(message, text=sample.refusal, name=name)
        if sample.finish_reason is None:
            raise RemoteError(f"{where}: the answer to gen({name!r}) broke off after {sample.text[-60:]!r}")
        if sample.finish_reason not in ("stop", "length"):
            raise RemoteError(f"{where} ended gen({name!r}) for the reason {sample.finish_reason!r}")
        text = unwrap(sample.text, self._request.constraint) if self._call.wrapped else sample.text
        if self._call.wrapped and text and self._on_text is not None:
            self._on_text(index, text)
        self._check(text, sample, where)
        return Generation(text, meta=self._meta(index, sample))

    def _check(self, text: str, sample: _Sample, where: str) -> None:
        constraint, name = self._request.constraint, self._request.name
        if constraint is None or sample.finish_reason != "stop":
            return
        try:
            check_conforms(constraint, text)
        except ConstraintError as error:
            message = f"{where} did not keep to the constraint of gen({name!r}): {error}"
            raise OutputValidationError(message, text=text, name=name) from error

    def _meta(self, index: int, sample: _Sample) -> Meta:
        details = self._usage.get("prompt_tokens_details") or {}
        total = self._usage.get("completion_tokens") or 0
        s = self._request.sampling
        return Meta(
            finish_reason=sample.finish_reason,
            matched_stop=sample.matched_stop,
            prompt_tokens=self._usage.get("prompt_tokens") or 0,
            cached_tokens=details.get("cached_tokens") or 0,
            completion_tokens=len(sample.logprobs) or (total if index == 0 else 0),
            logprobs=tuple(sample.logprobs) if s.logprobs else None,
            token_texts=tuple(sample.token_texts) if s.logprobs or s.return_text_in_logprobs else None,
            first_token_s=self._first,
            total_s=time.monotonic() - self._submitted,
        )
