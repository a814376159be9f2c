"""A graph of requests on its way into the engine, and the owner of its leases.

In: the requests of a wave with their places and keeps (`GraphSession.submit`). Out: handles; sequences that carry the
graph, all that can start at once in one call of the engine.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

from ..backend import Handle, PlannedRequest
from ..errors import BackendClosedError, EngineDeadError, ForkedProcessError
from .engine import Engine
from .leases import Graph
from .request import Sequence
from .results import Collector
from .together import Together

__all__ = ["Launch", "LocalGraphSession", "Requests"]

Launch: TypeAlias = Callable[[Collector[Any], list[Sequence]], None]
"""Takes the sequences of one request, once they are made; those of a grammar that compiles come later."""


class Requests(Protocol):
    """What of the runtime a session needs: a request made into sequences, which go to `launch`."""

    def begin(self, planned: PlannedRequest, launch: Launch) -> Handle[Any]:
        """Makes the sequences of a request."""
        ...


class LocalGraphSession:
    """`GraphSession` of a `LocalRuntime`.

    Args:
        requests: makes sequences.
        engine: runs them.
    """

    def __init__(self, requests: Requests, engine: Engine) -> None:
        self._requests = requests
        self._engine = engine
        self._graph = Graph()
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._close = weakref.finalize(self, _close_graph, engine, self._graph, os.getpid())
        self._close.atexit = False

    def submit(self, requests: Seq[PlannedRequest]) -> list[Handle[Any]]:
        """Starts the requests of a wave (`GraphSession.submit`)."""
        if not self._close.alive:
            raise ValueError("this graph's session is closed; open another one for further requests")
        with self._lock:
            self._taken.update(planned.place for planned in requests)
        wave = _Wave(self._engine, self._graph)
        handles = [self._begin(planned, wave) for planned in sorted(requests, key=lambda planned: planned.place)]
        wave.send()
        in_order = dict(zip(sorted(range(len(requests)), key=lambda i: requests[i].place), handles))
        return [in_order[i] for i in range(len(requests))]

    def withdraw(self, places: Iterable[int]) -> None:
        """No request will come at these places (`GraphSession.withdraw`)."""
        with self._lock:
            missing = [place for place in places if place not in self._taken]
        self._engine.withdraw(self._graph, missing)

    def close(self) -> None:
        """Ends the graph's leases (`GraphSession.close`)."""
        self._close()

    def _begin(self, planned: PlannedRequest, wave: _Wave) -> Handle[Any]:
        try:
            handle = self._requests.begin(planned, wave.launch_of(planned))
        except (BackendClosedError, EngineDeadError, ForkedProcessError):
            raise
        except Exception as error:
            handle = Handle()
            handle.future.set_exception(error)
        engine, graph = self._engine, self._graph

        def over(future: Future[Any]) -> None:
            if future.exception() is not None:  # perhaps before it reached the engine
                engine.withdraw(graph, [planned.place])

        handle.future.add_done_callback(over)
        return handle


class _Wave:
    """Collects the sequences of one `submit`, so that the engine gets them together."""

    def __init__(self, engine: Engine, graph: Graph) -> None:
        self._graph = graph
        self._together = Together(engine)

    def launch_of(self, planned: PlannedRequest) -> Launch:
        """What takes the sequences of one request."""

        def launch(collector: Collector[Any], sequences: list[Sequence]) -> None:
            written = tuple(keep for keep in planned.keeps if keep.length is None)
            for i, seq in enumerate(sequences):
                seq.graph, seq.place = self._graph, planned.place
                seq.run, seq.awaited = planned.run, planned.awaited
                seq.keeps = planned.keeps if i == 0 else written  # all have the prompt, each writes its own text
            self._together.launch(collector, sequences)

        return launch

    def send(self) -> None:
        """Gives the engine what came so far; later ones go to it one by one."""
        self._together.send()


def _close_graph(engine: Engine, graph: Graph, pid: int) -> None:
    if os.getpid() == pid:  # in a forked child the engine's locks may be held for ever
        engine.close_graph(graph)
