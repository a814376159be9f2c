"""What the tests of the language share: checks of every node, and a backend whose requests a test answers by hand."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from radicel import verify
from radicel.backend import GenerateRequest, Generation, Handle, Meta, OnText, Score, ScoreRequest
from radicel.errors import CancelledError, UnsupportedError
from radicel.prompt import EncodedPrompt, Generated, Prompt, Text


@pytest.fixture(autouse=True, scope="session")
def _verified_nodes() -> Iterator[None]:
    was = verify.enable(True)
    yield
    verify.enable(was)


class Held:
    """A request that waits for the test to answer it."""

    def __init__(self, request: GenerateRequest | ScoreRequest, on_text: OnText | None) -> None:
        self.request = request
        self.on_text = on_text
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self.cancelled = False

    @property
    def text(self) -> str:
        """The prompt's contents."""
        return "".join(p.text for p in self.request.prompt if isinstance(p, (Text, Generated)))

    def piece(self, text: str) -> None:
        if self.on_text is not None:
            self.on_text(0, text)

    def answer(self, text: str, finish_reason: str = "stop") -> None:
        if isinstance(self.request, ScoreRequest):
            logprobs = [0.0 if c == text else -9.0 for c in self.request.continuations]
            self.future.set_result(
                [Score(c, (i,), (lp,), lp) for i, (c, lp) in enumerate(zip(self.request.continuations, logprobs))]
            )
            return
        n = self.request.sampling.n or 1
        self.future.set_result([Generation(text, (), None, Meta(finish_reason=finish_reason)) for _ in range(n)])

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)

    def cancel(self) -> None:
        self.cancelled = True
        if not self.future.done():
            self.future.set_exception(CancelledError("cancelled"))


class HeldBackend:
    """Answers nothing by itself."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.arrived = threading.Condition()

    def submit(self, request: GenerateRequest, on_text: OnText | None = None) -> Handle[Any]:
        return self._hold(request, on_text)

    def submit_score(self, request: ScoreRequest) -> Handle[Any]:
        return self._hold(request, None)

    def _hold(self, request: GenerateRequest | ScoreRequest, on_text: OnText | None) -> Handle[Any]:
        held = Held(request, on_text)
        with self.arrived:
            self.held.append(held)
            self.arrived.notify_all()
        return Handle(held.future, held.cancel)

    def wait(self, count: int, timeout: float = 10.0) -> list[Held]:
        """The requests, when `count` have arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.held) >= count, timeout), f"{len(self.held)} requests"
            return list(self.held)

    def names(self) -> list[str | None]:
        return [held.request.name for held in self.held]

    def submit_prefill(self, prompt: Prompt) -> Handle[int]:
        raise AssertionError("not used")

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        raise UnsupportedError("no tokenizer")

    def flush_cache(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def held() -> HeldBackend:
    """A backend whose requests the test answers."""
    return HeldBackend()


def wait_until(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    """Whether the condition became true in time."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@pytest.fixture
def until() -> Callable[..., bool]:
    """`wait_until`."""
    return wait_until


@pytest.fixture
def interrupt_soon() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context in which the main thread gets Ctrl-C after a moment."""

    @contextlib.contextmanager
    def soon() -> Iterator[None]:
        previous = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        try:
            yield
        finally:
            timer.join()
            signal.signal(signal.SIGINT, previous)

    return soon


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Fails the test if threads of the language are there after it that were not before it."""
    before = set(threading.enumerate())

    def ours() -> set[str]:
        return {t.name for t in set(threading.enumerate()) - before if t.name.startswith("radicel")}

    yield
    assert wait_until(lambda: not ours(), 5.0), f"threads left: {ours()}"
