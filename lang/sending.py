"""Sends the nodes of a wave to a backend: in the order of their graph, with its hints, as the text before them comes.

In: nodes that were recorded together (`waves.py`), each with the executor whose it is. Out: requests in flight.

    release    a wave closes: its nodes are lowered together, those that can start are sent
    send       nodes whose text before them is known now: those of one graph are submitted together

Where the backend takes no hints, requests go out in the order of the graph all the same, which serves any cache of
prefixes. Where no graph is made, they go out by item, then as they were recorded; so they do to a mock, whose queue of
replies was written in that order.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .backend import Backend, GenerateRequest, GraphSession, Handle, OnText, PlannedRequest, ScoreRequest
from .backends.mock import MockBackend
from .bindings import Cell
from .graph import RequestGraph
from .ir import Node
from .keeps import Keeps
from .lower import lower
from .prompt import Generated
from .requests import request_of, submit
from .retries import is_checked, retrying

if TYPE_CHECKING:
    from .cells import Cells

__all__ = ["Place", "Ready", "SentGraph", "release", "send"]

_log = logging.getLogger("radicel")


class Ready(NamedTuple):
    """A node to be sent, and whose it is."""

    executor: Cells
    cell: Cell


class Place(NamedTuple):
    """Where a node stands: the number is its place in the graph's order."""

    graph: SentGraph
    number: int


def release(wave: Sequence[Ready], backend: Backend, *, planned: bool = True, run: object | None = None) -> None:
    """Closes a wave: gives each node its place, and sends those that need no text that is still to come.

    Args:
        wave: in the order of recording.
        backend: of all of them.
        planned: whether a graph is made of them.
        run: identity of the run whose wave it is.
    """
    live = sorted((ready for ready in wave if not ready.cell.done), key=_item)
    planned = planned and len(live) > 1 and not isinstance(backend, MockBackend)
    graph = _lowered(live, backend) if planned else None
    sent = SentGraph(backend, graph, [ready.cell for ready in live], run)
    able, over = [], []
    for number, index in enumerate(range(len(live)) if graph is None else graph.order):
        executor, cell = live[index]
        with executor.changed:
            cell.place = Place(sent, number)
            if cell.done:
                over.append(cell)
            elif cell.blockers == 0:
                able.append(live[index])
    sent.over(over)
    send(able)


def send(ready: Iterable[Ready]) -> None:
    """Submits nodes, and those that become ready because a request ended on the spot."""
    todo = list(ready)
    while todo:
        parts: dict[SentGraph, list[Ready]] = {}
        for one in todo:
            assert one.cell.place is not None
            parts.setdefault(one.cell.place.graph, []).append(one)
        todo = [more for graph, part in parts.items() for more in graph.submit(part)]


class SentGraph:
    """One graph under way: what of it was sent, and the backend's session for it.

    Args:
        backend: of all its nodes.
        graph: None where its nodes have no order but that of recording.
        cells: its nodes; by their index in the graph.
        run: identity of the run that it is part of.
    """

    def __init__(
        self, backend: Backend, graph: RequestGraph | None, cells: Sequence[Cell], run: object | None = None
    ) -> None:
        self._backend = backend
        self._run = run
        self._lock = threading.Lock()
        self._left = len(cells)
        self._hinted: tuple[GraphSession, Keeps] | None = None  # until all nodes are done
        session = None if graph is None else _session(backend)
        if graph is not None and session is not None:
            self._hinted = session, Keeps(graph, lambda index: _length(cells[index].written))

    def submit(self, part: list[Ready]) -> list[Ready]:
        """Submits nodes of this graph; returns those that can be submitted after it."""
        if len(part) > 1:
            part.sort(key=_number)
        more: list[Ready] = []
        asked = self._asked(part, more)
        hinted = self._hinted
        for ready, handle in self._plain(asked) if hinted is None else self._planned(list(asked), *hinted):
            try:
                if isinstance(handle, Exception):
                    raise handle
                more += ready.executor.take(ready.cell, handle)
            except Exception as error:  # also of a backend that returns no handle
                more += ready.executor.settle(ready.cell, error)
        return more

    def over(self, cells: Iterable[Cell]) -> None:
        """These cells are done, by an answer or without one."""
        done = list(cells)
        if not done:
            return
        with self._lock:
            self._left -= len(done)
            last = self._left == 0
            dropped = [cell.place.number for cell in done if cell.place is not None and not cell.sent]
            if self._hinted is None:
                return
            session, keeps = self._hinted
            keeps.withdrawn(dropped)
            if last:
                self._hinted = None  # it knows the nodes of others, whose states may be gone
        with _harmless():
            if last:
                session.close()
            elif dropped:
                session.withdraw(dropped)

    def _asked(self, part: Iterable[Ready], more: list[Ready]) -> Iterator[tuple[Ready, Any]]:
        """The nodes with what they ask for; those that cannot ask are settled, what they set free is in `more`."""
        for ready in part:
            executor, cell = ready
            if not executor.claim(cell):
                continue
            failure = next((need.failure for need in cell.needs if need.failure is not None), None)
            if failure is None:
                try:
                    yield ready, request_of(cell.node, executor.prompt(cell.node.prefix))
                    continue
                except Exception as error:
                    failure = error
            more += executor.settle(cell, failure)

    def _plain(self, asked: Iterable[tuple[Ready, Any]]) -> Iterator[tuple[Ready, Handle[Any] | Exception]]:
        for ready, request in asked:
            try:
                yield ready, self._retrying(submit(self._backend, request, _on_text(ready, request)), ready, request)
            except Exception as error:
                yield ready, error

    def _planned(
        self, asked: list[tuple[Ready, Any]], session: GraphSession, keeps: Keeps
    ) -> Iterable[tuple[Ready, Handle[Any] | Exception]]:
        places = [_number(ready) for ready, _ in asked]
        with self._lock:
            hints = keeps.of(places)
        planned = [
            PlannedRequest(
                request,
                place,
                keep,
                _on_text(ready, request),
                run=self._run,
                awaited=keeps.continues(place) or ready.executor.may_go_on(),
            )
            for (ready, request), place, keep in zip(asked, places, hints)
        ]
        try:
            handles: Sequence[Handle[Any] | Exception] = session.submit(planned) if planned else []
        except Exception as error:
            handles = [error] * len(planned)
        return (
            (ready, handle if isinstance(handle, Exception) else self._retrying(handle, ready, request))
            for (ready, request), handle in zip(asked, handles)
        )

    def _retrying(self, handle: Handle[Any], ready: Ready, request: Any) -> Handle[Any]:
        if not is_checked(request):
            return handle
        return retrying(handle, request, self._backend.submit, ready.executor.on_text(ready.cell))


def _item(ready: Ready) -> int:
    return ready.executor.item or 0


def _number(ready: Ready) -> int:
    place = ready.cell.place
    assert place is not None
    return place.number


def _on_text(ready: Ready, request: GenerateRequest | ScoreRequest) -> OnText | None:
    streams = isinstance(request, GenerateRequest) and not is_checked(request)
    return ready.executor.on_text(ready.cell) if streams else None


def _length(written: Generated | None) -> int:
    return len(written.token_ids or ()) if written is not None else 0


def _lowered(wave: Sequence[Ready], backend: Backend) -> RequestGraph | None:
    cells: dict[Node, Cell] = {}
    for executor in dict.fromkeys(ready.executor for ready in wave):
        with executor.changed:
            cells.update(executor.cells)
    try:
        return lower(
            [ready.cell.node for ready in wave],
            backend,
            written=lambda node: cells[node].written,
            items=[_item(ready) for ready in wave],
        )
    except Exception:  # what is wrong with a request is said when it is submitted
        _log.warning("no graph can be made of %d requests; they go out as recorded", len(wave), exc_info=True)
        return None


def _session(backend: Any) -> GraphSession | None:
    """The backend's session for a graph, where it has such a thing."""
    opened = getattr(backend, "open_graph", None)
    if opened is None:
        return None
    try:
        session: GraphSession = opened()
    except Exception:  # a closed backend: it says so when the requests are submitted
        _log.debug("the backend opens no graph", exc_info=True)
        return None
    return session


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Around hints: a backend that was closed meanwhile needs none."""
    try:
        yield
    except Exception:
        _log.debug("a graph's session raised", exc_info=True)
