"""The line that shows how a batch gets on, while it runs: on a terminal, and nowhere else.

In: the executors of the programs, and their backend. Out: a line on standard error, a few times a second.

    judge  ━━━━━━━━━━━━╸          12 of 40 programs   512 tokens/s   82% cached   16 running  8 waiting   0:31  ETA 1:10

Tokens, cache and who runs are what the backend counts (`stats()`), so other work on it counts too, and a `select` is a
request for each of its choices; of a backend that counts nothing, they come from the values themselves. Values that
wait for values before them count as waiting.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..bindings import raise_again
from ..executor import Executor

if TYPE_CHECKING:
    from ..state import State

__all__ = ["Meter", "Reading", "progress", "shown_to_its_end"]

_PER_SECOND = 4
_WINDOW_S = 3.0
_LEAST_SHARE = 0.1  # of the work, or so many programs, before its end is foretold
_LEAST_DONE = 10


@dataclass(frozen=True)
class Reading:
    """How it stands.

    Attributes:
        done, total: programs.
        share: of the work, as far as its size is known.
        tokens_per_s: generated, over the last seconds; at the end over the whole time.
        hit_rate: of prompt tokens since the start; None before the first prompt, or where nobody counts.
        running, waiting: requests.
        elapsed_s: since the start. eta_s: until the end, None where it cannot be told yet.
    """

    done: int
    total: int
    share: float
    tokens_per_s: float
    hit_rate: float | None
    running: int
    waiting: int
    elapsed_s: float
    eta_s: float | None


class Meter:
    """Looks at running programs.

    Args:
        executors: of the programs.
        backend: what runs them.
        clock: seconds.
    """

    def __init__(
        self, executors: Sequence[Executor], backend: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._left = list(executors)
        self._total = len(self._left)
        self._stats: Callable[[], Any] | None = getattr(backend, "stats", None)
        self._clock = clock
        self._began = clock()
        self._generated = 0  # of programs that are done; for backends that count nothing
        self._start = self._counts()
        self._window: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._first: tuple[int, float] | None = None

    def read(self, *, last: bool = False) -> Reading:
        """How it stands now; the `last` reading is of the whole run."""
        now = self._clock()
        done, share = self._progress()
        generated, cached, prompt, running, waiting = self._counts()
        generated, cached, prompt = (n - s for n, s in zip((generated, cached, prompt), self._start))
        elapsed = now - self._began
        return Reading(
            done=done,
            total=self._total,
            share=share,
            tokens_per_s=generated / elapsed if last and elapsed > 0 else self._rate(now, generated),
            hit_rate=cached / prompt if prompt > 0 else None,
            running=running,
            waiting=waiting,
            elapsed_s=elapsed,
            eta_s=self._eta(done, share, elapsed),
        )

    def _progress(self) -> tuple[int, float]:
        """How many programs are done, and the share of the work, one that runs counted by its values."""
        left, part = [], 0.0
        for executor in self._left:
            if executor.finished:
                self._generated += _generated(executor)
                continue
            left.append(executor)
            part += executor.answered / (len(executor.cells) + 1)
        self._left = left
        done = self._total - len(left)
        return done, (done + part) / self._total if self._total else 1.0

    def _rate(self, now: float, generated: int) -> float:
        self._window.append((now, generated))
        while len(self._window) > 2 and now - self._window[0][0] > _WINDOW_S:
            self._window.popleft()
        (since, before) = self._window[0]
        return (generated - before) / (now - since) if now > since else 0.0

    def _eta(self, done: int, share: float, elapsed: float) -> float | None:
        if self._first is None:
            self._first = done, share  # what an earlier run has done took no time of this one
        gained = share - self._first[1]
        if share >= 1.0:
            return 0.0
        foretold = gained >= _LEAST_SHARE or (gained > 0 and done - self._first[0] >= _LEAST_DONE)
        return elapsed * (1.0 - share) / gained if foretold else None

    def _counts(self) -> tuple[int, int, int, int, int]:
        """Generated, cached and prompt tokens so far; requests that run and that wait."""
        sent = unsent = 0
        for executor in self._left:
            for cell in [] if executor.finished else list(executor.cells.values()):
                sent += cell.sent and not cell.done
                unsent += not (cell.sent or cell.done)
        if self._stats is None:
            return self._generated, 0, 0, sent, unsent
        now = self._stats()  # as of the last step: what was sent in this one is not in it yet
        running = max(now.running, sent - now.waiting)
        return now.generated_tokens, now.cached_tokens, now.prompt_tokens, running, now.waiting + unsent


def _generated(executor: Executor) -> int:
    return sum(sample.meta.completion_tokens for cell in executor.cells.values() for sample in cell.generations)


@contextlib.contextmanager
def progress(
    executors: Sequence[Executor],
    backend: Any,
    *,
    name: str = "",
    console: Console | None = None,
    transient: bool = False,
) -> Iterator[None]:
    """Shows the line while the block runs, where standard error is a terminal.

    Args:
        executors: of the programs; they may begin inside the block.
        backend: what runs them.
        name: of the program.
        console: where to show it.
        transient: whether it goes away at the end.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    meter, ended = Meter(executors, backend), False

    def shown() -> RenderableType:
        return line(meter.read(last=ended), name, console.width, ended=ended)

    redirect = sys.stdout.isatty()  # else what programs print would go to the terminal instead of a file
    live = Live(
        console=console,
        get_renderable=shown,
        refresh_per_second=_PER_SECOND,
        transient=transient,
        redirect_stdout=redirect,
    )
    with live:
        try:
            yield
        finally:
            ended = True


def shown_to_its_end(state: State) -> State:
    """Waits for the end of a run that was begun (`stream=True`) and shows how it gets on; the state.

    Raises:
        what the program failed with. An interrupt cancels it.
    """
    executor = state._stream.executor
    try:
        with progress([executor], executor.backend, name=executor.program, transient=True):
            executor.wait_finished()
    except BaseException:
        state.cancel()
        raise
    error = state.error()
    if error is not None:
        raise_again(error)
    return state


def line(reading: Reading, name: str, width: int, *, ended: bool = False) -> RenderableType:
    """The line, as wide as there is room."""
    what = "program" if reading.total == 1 else "programs"
    facts = [
        Text(f"{reading.done:,} of {reading.total:,} {what}", style="bold"),
        Text(f"{reading.tokens_per_s:,.0f} tokens/s", style="yellow"),
    ]
    if reading.hit_rate is not None:
        facts.append(Text(f"{reading.hit_rate:.0%} cached", style="green"))
    if not ended:
        facts.append(Text(f"{reading.running:,} running  {reading.waiting:,} waiting", style="cyan"))
    facts.append(Text(_clock(reading.elapsed_s)))
    if not ended:
        facts.append(Text(f"ETA {'–' if reading.eta_s is None else _clock(reading.eta_s)}", style="magenta"))
    told = Text("   ").join(facts)
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    columns: list[RenderableType] = []
    if name and width - len(told) > len(name) + 30:
        grid.add_column(no_wrap=True)
        columns.append(Text(name, style="bold blue"))
    if width - len(told) > 14:
        grid.add_column(ratio=1)
        columns.append(_bar(reading.share))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(*columns, told)
    return grid


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=min(1.0, share), complete_style="cyan", finished_style="green")


def _clock(value: float) -> str:
    whole = int(value)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
