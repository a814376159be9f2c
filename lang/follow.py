"""Text as it appears: what `text_iter` and `text_async_iter` are made of.

In: a stream or a variable whose text grows. Out: pieces of it, each once and in order, then the error if there is one.

A follower is asked for what is new (`poll`, with the executor's `changed` held); the two loops below ask, in a thread
or in an event loop, whenever something changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from .backend import Backend
from .bindings import Binding
from .errors import CancelledError
from .executor import Executor
from .ir import Node, chain, expand, parts_of
from .prompt import Generated, Part, Prompt, Text
from .stream import Stream

__all__ = [
    "Follower",
    "Piece",
    "StreamFollower",
    "VariableFollower",
    "blame",
    "finished",
    "follow",
    "follow_async",
    "render",
]

T = TypeVar("T")


class Piece(NamedTuple):
    """What is new.

    Attributes:
        text: new text, perhaps none.
        done: whether this is all.
        error: what to raise after it.
        meta: of the variable, once it is there; else None.
    """

    text: str
    done: bool
    error: BaseException | None = None
    meta: Any = None


class Follower(Protocol):
    """Something whose text grows."""

    def poll(self) -> Piece:
        """What is new since the last call. Called with the executor's `changed` held."""
        ...


def render(backend: Backend, prompt: Prompt) -> str:
    """The prompt as the text that the backend would see, where it can say that; else its contents one after another."""
    own: Callable[[Prompt], str] | None = getattr(backend, "render", None)
    if own is not None:
        return own(prompt)
    return "".join(part.text for part in prompt if isinstance(part, (Text, Generated)))


class StreamFollower:
    """The whole text of a stream, as `State.text()` gives it in the end.

    Where a chat template rewrites earlier text (it strips or moves history), what follows the first difference is
    shown again: what was shown cannot be taken back.

    Args:
        stream: the stream.
        over: whether the stream ends where it now is.
        error: what to raise when it is over.
    """

    def __init__(self, stream: Stream, over: Callable[[], bool], error: Callable[[], BaseException | None]) -> None:
        self._stream = stream
        self._over = over
        self._error = error
        self._inherited = chain(stream.start)
        self._index = 0
        self._next: deque[Node] = deque()
        self._parts: list[Part] = []
        self._whole = ""
        self._shown = ""

    def poll(self) -> Piece:
        """See `Follower.poll`."""
        executor = self._stream.executor
        over = self._over()
        if self._take_whole_nodes():
            self._whole = render(executor.backend, tuple(self._parts))
        if not self._next:
            return Piece(self._advance_to(self._whole), over, self._error() if over else None)
        cell = executor.cells[self._next[0]]
        new = self._advance_to(self._whole + cell.text())
        return Piece(new, cell.done, blame(executor, cell.failure))

    def _take_whole_nodes(self) -> bool:
        """Goes on to the first node whose text is not all there; whether that added anything."""
        taken = False
        while self._next or self._more():
            node = self._next[0]
            if node.op.generates and self._stream.executor.cells[node].written is None:
                break
            self._parts.extend(parts_of(node, self._written))
            self._next.popleft()
            taken = True
        return taken

    def _more(self) -> bool:
        own = self._index - len(self._inherited)
        if own >= len(self._stream.nodes):
            return False
        self._next.extend(expand(self._inherited[self._index] if own < 0 else self._stream.nodes[own]))
        self._index += 1
        return True if self._next else self._more()

    def _written(self, node: Node) -> Generated:
        written = self._stream.executor.cells[node].written
        assert written is not None
        return written

    def _advance_to(self, text: str) -> str:
        kept = len(self._shown) if text.startswith(self._shown) else _common(self._shown, text)
        self._shown = text
        return text[kept:]


class VariableFollower:
    """The text of one variable.

    Args:
        executor: of the program.
        find: the variable, or None while the body has not made it.
        missing: what to raise if the body will not make it, or None while it still may.
    """

    def __init__(
        self,
        executor: Executor,
        find: Callable[[], Binding | None],
        missing: Callable[[], BaseException | None],
    ) -> None:
        self._executor = executor
        self._find = find
        self._missing = missing
        self._binding: Binding | None = None
        self._shown = 0

    def poll(self) -> Piece:
        """See `Follower.poll`."""
        self._binding = self._binding or self._find()
        if self._binding is None:
            error = self._missing()
            return Piece("", error is not None, error)
        done = self._binding.done
        error = blame(self._executor, self._binding.error()) if done else None
        text = "" if error is not None and not self._has_text else self._binding.text()
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return Piece(new, done, error, self._binding.meta() if done and error is None else None)

    @property
    def _has_text(self) -> bool:
        return self._binding is not None and all(cell.failure is None for cell in self._binding.cells)


def follow(
    executor: Executor, follower: Follower, on_drop: Callable[[], None], form: Callable[[Piece], T]
) -> Iterator[T]:
    """The pieces, waiting in this thread. `on_drop` is called when the iterator is closed before its end."""
    piece = Piece("", False)

    def news() -> bool:
        nonlocal piece
        piece = follower.poll()
        return piece.done or piece.text != ""

    try:
        while not piece.done:
            executor.wait(news)
            if piece.text:
                yield form(piece)
    except GeneratorExit:
        on_drop()
        raise
    if piece.error is not None:
        raise piece.error


async def follow_async(
    executor: Executor, follower: Follower, on_drop: Callable[[], None], form: Callable[[Piece], T], last: bool
) -> AsyncIterator[T]:
    """The pieces, awaited. `on_drop` is called when the iterator is closed or its task is cancelled before the end.

    Args:
        last: whether the last piece is given also where it has no text.
    """
    news = asyncio.Event()
    wake = _waker(news)
    unwatch = executor.watch(wake)
    piece = Piece("", False)
    try:
        while not piece.done:
            news.clear()
            with executor.changed:
                piece = follower.poll()
            if piece.text or (last and piece.done and piece.error is None):
                yield form(piece)
            elif not piece.done:
                await news.wait()
    except (GeneratorExit, asyncio.CancelledError):
        on_drop()
        raise
    finally:
        unwatch()
    if piece.error is not None:
        raise piece.error


async def finished(executor: Executor) -> None:
    """Waits in an event loop until the program is finished."""
    done = asyncio.Event()
    executor.on_finish(_waker(done))
    await done.wait()


def _common(a: str, b: str) -> int:
    """How many characters the texts have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _waker(event: asyncio.Event) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there any more
            loop.call_soon_threadsafe(event.set)

    return wake


def blame(executor: Executor, error: BaseException | None) -> BaseException | None:
    """The error; for what was cancelled because the body raised, what the body raised."""
    return executor.body_error or error if isinstance(error, CancelledError) else error
