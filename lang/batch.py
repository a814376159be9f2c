"""Many runs of one program at the same time.

In: the items, and what makes a run of one of them.
Out: their states in input order, each with its own success or error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from .errors import BatchError, InvalidValueError
from .executor import Executor
from .heap import undisturbed
from .launch import Launch, cancel
from .pool import BodyPool, bodies, settle
from .saved import SavedRun
from .state import State
from .waves import Waves

__all__ = ["Batch", "BatchItem"]

BatchItem: TypeAlias = Mapping[str, Any] | tuple[Any, ...]


class Batch:
    """A batch that has not begun.

    Args:
        launch: makes the run of an item from its positional and keyword arguments; never raises.
        items: dicts or tuples.
        num_threads: most bodies at a time, or "auto".
        on_error: "return" or "raise".
        save: where finished items are kept, and taken from.
    """

    def __init__(
        self,
        launch: Callable[[tuple[Any, ...], Mapping[str, Any]], Launch],
        items: Iterable[BatchItem],
        *,
        num_threads: int | str,
        on_error: str,
        save: SavedRun | None,
    ) -> None:
        if on_error not in ("return", "raise"):
            raise InvalidValueError(f"on_error={on_error!r}: must be 'return' or 'raise'")
        self._on_error = on_error
        self._pool = _pool(num_threads)
        if isinstance(items, (str, bytes, Mapping)):
            raise TypeError(f"a batch is a list of dicts or tuples, not a {type(items).__name__}")
        arguments = [_arguments(index, item) for index, item in enumerate(items)]
        self._launches = [launch(*given) for given in arguments]
        self._save = save
        if save is not None:
            save.expect(arguments)
        self._waves = _shared_waves([launch.executor for launch in self._launches])

    def run(self, progress_bar: bool) -> list[State]:
        """All states, when all have ended. An interrupt cancels everything."""
        return list(self.iterate(progress_bar))

    def iterate(self, progress_bar: bool) -> Iterator[State]:
        """The states in input order, each as soon as it has ended. Closing the iterator cancels the rest."""
        with self._begun(progress_bar):
            for launch in self._launches:
                launch.executor.wait_finished()
                yield launch.state
        self._raise_failures()

    async def arun(self, progress_bar: bool) -> list[State]:
        """All states, awaited. Cancelling the task cancels everything."""
        with self._begun(progress_bar, wait=False):
            for launch in self._launches:
                await launch.wait()
        self._raise_failures()
        return [launch.state for launch in self._launches]

    @contextlib.contextmanager
    def _begun(self, progress_bar: bool, wait: bool = True) -> Iterator[None]:
        saving = contextlib.nullcontext() if self._save is None else self._save.writing(self._launches)
        with undisturbed(), saving, self._progress() if progress_bar else contextlib.nullcontext():
            started: list[Launch] = []
            try:
                with self._waves.starting(wait) if self._waves is not None else contextlib.nullcontext():
                    for launch in self._launches:
                        started.append(launch)
                        launch.start(self._pool)
                yield
            except BaseException:
                cancel(started, wait)
                raise
            finally:
                if wait:
                    settle(self._pool)

    def _progress(self) -> contextlib.AbstractContextManager[None]:
        from .seeing.progress import progress  # rich comes with it

        executors = [launch.executor for launch in self._launches]
        first = executors[0] if executors else None
        backend, name = (None, "") if first is None else (first.backend, first.program)
        return progress(executors, backend, name=name)

    def _raise_failures(self) -> None:
        if self._on_error == "return":
            return
        states = [launch.state for launch in self._launches]
        failures = {index: error for index, state in enumerate(states) if (error := state.error()) is not None}
        if failures:
            raise BatchError(states, failures) from next(iter(failures.values()))


def _arguments(index: int, item: object) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, (tuple, list)):
        return tuple(item), {}
    raise TypeError(f"batch[{index}] is a {type(item).__name__}; give a dict or a tuple of arguments")


def _pool(num_threads: int | str) -> BodyPool:
    if num_threads == "auto":
        return bodies
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise InvalidValueError(f"num_threads={num_threads!r}: must be 'auto' or an integer ≥ 1")
    return BodyPool(limit=num_threads, eager=num_threads)


def _shared_waves(executors: Sequence[Executor]) -> Waves | None:
    """Numbers the items; their nodes are compiled together, also with those of the program that runs the batch."""
    if not executors:
        return None
    waves = executors[0].waves
    for index, executor in enumerate(executors):
        executor.item, executor.waves = index, waves
    return waves
