"""Values that are checked after they are finished, and generated again where they fail.

In: a request whose constraint has keywords that no mask enforces (`validate="after"`). Out: a handle like any other,
whose samples passed the check, or did not within a few tries. A new try has another seed and a higher temperature, as
the same ones would give the same text; `meta.retries` says how many it took.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from .backend import GenerateRequest, Generation, Handle, OnText
from .errors import OutputValidationError

__all__ = ["MOST_RETRIES", "is_checked", "retrying"]

MOST_RETRIES = 3
_WARMER = 0.3
_NEXT_SEED = 0x9E3779B1

Submit = Callable[[GenerateRequest], Handle[list[Generation]]]


def is_checked(request: Any) -> bool:
    """Whether samples of the request are checked when they are finished; it is then submitted without `on_text`."""
    return isinstance(request, GenerateRequest) and request.constraint is not None and request.constraint.checked


def retrying(handle: Handle[Any], request: Any, submit: Submit, on_text: OnText | None) -> Handle[Any]:
    """The handle itself, or, where samples are checked, one that submits the request again for those that fail.

    Args:
        handle: of the first try.
        request: what was submitted.
        submit: submits another try.
        on_text: told each sample's text once it has passed.
    """
    if not is_checked(request):
        return handle
    tries = _Tries(submit, request, on_text)
    tries.watch(handle)
    return Handle(tries.future, tries.cancel)


class _Tries:
    """The tries of one request."""

    def __init__(self, submit: Submit, request: GenerateRequest, on_text: OnText | None) -> None:
        self.future: Future[list[Generation]] = Future()
        self._submit = submit
        self._request = request
        self._on_text = on_text
        self._done: list[Generation] = []
        self._open: list[int] = []  # samples that have not passed
        self._count = 0
        self._lock = threading.Lock()
        self._handle: Handle[list[Generation]] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Asks the backend to stop."""
        with self._lock:
            self._cancelled = True
            handle = self._handle
        if handle is not None:
            handle.cancel()

    def watch(self, handle: Handle[list[Generation]]) -> None:
        """Waits for a try."""
        with self._lock:
            self._handle = handle
            cancelled = self._cancelled
        if cancelled:
            handle.cancel()
        handle.future.add_done_callback(self._finished)

    def _finished(self, future: Future[list[Generation]]) -> None:
        try:
            self._took(future.result())
            if self._open and self._count < MOST_RETRIES and not self._cancelled:
                self._count += 1
                self.watch(self._submit(self._again()))
                return
        except BaseException as error:
            self.future.set_exception(error)
            return
        if self._on_text is not None:
            for index, sample in enumerate(self._done):
                self._on_text(index, sample.text)
        self.future.set_result(self._done)

    def _took(self, samples: list[Generation]) -> None:
        if not self._done:
            self._done, self._open = list(samples), list(range(len(samples)))
        for place, sample in zip(self._open, samples):
            self._done[place] = replace(sample, meta=replace(sample.meta, retries=self._count))
        self._open = [place for place in self._open if self._failed(self._done[place])]

    def _failed(self, sample: Generation) -> bool:
        assert self._request.constraint is not None
        if sample.meta.finish_reason != "stop":
            return False
        try:
            self._request.constraint.parse(sample.text)
        except OutputValidationError:
            return True
        return False

    def _again(self) -> GenerateRequest:
        """The request for the samples that failed, warmer and with another seed."""
        sampling = self._request.sampling
        changed: dict[str, Any] = {
            "n": len(self._open),
            "temperature": (1.0 if sampling.temperature is None else sampling.temperature) + _WARMER * self._count,
        }
        if sampling.seed is not None:
            changed["seed"] = sampling.seed + _NEXT_SEED * self._count
        return replace(self._request, sampling=replace(sampling, **changed))
