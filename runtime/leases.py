"""What the cache knows of its future: which prefixes the requests of a graph will need again, and in which order.

In: what happens to the sequences of a graph, and what was said of requests that are not there yet (`Keep`).
Out: for a run of tokens, how much of it is needed again and when next (`need`), which eviction asks.

    lease on                  from                          until
    the prompt of one that    submission, preemption        its admission, its end
    waits
    `Keep`: n tokens          submission of its request     per use: its submission or withdrawal
    `Keep`: everything        as one of the whole prompt; from the request's end on also of what it wrote

All end with their graph, at the latest. A lease holds no slot: it can be evicted and computed again.

Times are comparable across graphs: a graph's place p is needed p admissions after the graph began. One thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .demand_tree import Demand, DemandTree, Need

if TYPE_CHECKING:
    from .radix_cache import Namespace
    from .request import Sequence

__all__ = ["Graph", "LeaseBook", "namespace_of"]

Tokens: TypeAlias = NDArray[np.int32]

_serials = itertools.count()
_NO_NEED = Need(0, 0, None)
_MANY = 32


class Graph:
    """The identity of a graph of requests, which its sequences carry.

    Attributes:
        closed: whether it takes no leases any more; set by the book.
    """

    __slots__ = ("closed", "serial")

    def __init__(self) -> None:
        self.serial = next(_serials)
        self.closed = False

    def __repr__(self) -> str:
        return f"<Graph {self.serial}{' closed' if self.closed else ''}>"


class _Entry:
    """The leases of one graph.

    Attributes:
        began: the book's clock when its first sequence came.
        prompts: of its waiting sequences, by id.
        expected: place → what it will need, as far as that was said. Only of places that did not arrive.
        arrived: places that were submitted or withdrawn.
    """

    __slots__ = ("arrived", "began", "expected", "prompts")

    def __init__(self, began: int) -> None:
        self.began = began
        self.prompts: dict[int, Demand] = {}
        self.expected: dict[int, list[Demand]] = {}
        self.arrived: set[int] = set()

    def demands(self) -> list[Demand]:
        return [*self.prompts.values(), *itertools.chain.from_iterable(self.expected.values())]


def namespace_of(seq: Sequence) -> Namespace:
    """The root below which a sequence's prefixes are."""
    return ("user", seq.namespace)


class LeaseBook:
    """The leases of all graphs. Sequences without a graph take none.

    Args:
        released: told of prefixes that are needed less than before, or not at all; None stands for many.
        enabled: whether any leases are taken.
    """

    def __init__(
        self, released: Callable[[Demand | None], None] = lambda demand: None, *, enabled: bool = True
    ) -> None:
        self._released = released
        self._enabled = enabled
        self._clock = 0
        self._trees: dict[Namespace, DemandTree] = {}
        self._graphs: dict[Graph, _Entry] = {}

    def __len__(self) -> int:
        """How many leases there are."""
        return sum(map(len, self._trees.values()))

    @property
    def demanded(self) -> int:
        """Tokens of all leased prefixes, those that several begin with once."""
        return sum(tree.size for tree in self._trees.values())

    def need(self, namespace: Namespace, tokens: Tokens) -> Need:
        """What is needed again of the beginning of `tokens`, and when."""
        tree = self._trees.get(namespace)
        return _NO_NEED if tree is None else tree.need(tokens)

    def submitted(self, sequences: Iterable[Sequence]) -> None:
        """Sequences came, those of one wave together; they wait."""
        came = [(seq, entry) for seq in sequences if (entry := self._entry(seq.graph)) is not None]
        for seq, entry in came:
            self.waits(seq)
            self._arrive(entry, [seq.place])
        for seq, _ in came:
            self._expect(seq)

    def waits(self, seq: Sequence) -> None:
        """A sequence waits for admission."""
        entry = self._entry(seq.graph)
        if entry is not None:
            entry.prompts[seq.id] = self._add(seq, len(seq), entry.began + seq.place)

    def admitted(self, seq: Sequence) -> None:
        """It runs: from here on it holds a lock instead."""
        if seq.graph is not None:
            self._clock += 1
            self._drop_prompt(seq, tell=False)  # whose path is locked: the tree looks again when it is unlocked

    def ended(self, seq: Sequence) -> None:
        """It is over, wherever it stood; what it wrote may be needed."""
        self._drop_prompt(seq, tell=True)
        if any(keep.length is None for keep in seq.keeps) and seq.output_ids:
            self._expect(seq, written=True)

    def withdraw(self, graph: Graph, places: Iterable[int]) -> None:
        """No sequence will come at these places."""
        entry = self._entry(graph)
        if entry is not None:
            self._arrive(entry, places)

    def close(self, graph: Graph) -> None:
        """The graph takes no leases any more, and has none."""
        graph.closed = True
        entry = self._graphs.pop(graph, None)
        if entry is not None:
            self._remove(entry.demands())

    def check(self, waiting: Iterable[Sequence]) -> None:
        """Raises AssertionError where the book is not what its docstring says.

        Args:
            waiting: the sequences that wait for admission.
        """
        if not self._enabled:
            assert not self._graphs, "leases, though they are off"
            return
        prompts = {id_: demand for entry in self._graphs.values() for id_, demand in entry.prompts.items()}
        due = {seq.id: seq for seq in waiting if seq.graph is not None and not seq.graph.closed}
        assert set(prompts) == set(due), "leases of sequences that do not wait, or waiting ones without"
        for id_, seq in due.items():
            leased = prompts[id_].tokens  # what a grammar forced since is not in it
            assert len(leased) >= len(seq.prompt_ids), f"{id_} leases a part of its prompt"
            assert np.array_equal(leased, seq.tokens.view(0, len(leased))), f"{id_} leases another prompt"
        demands = [demand for entry in self._graphs.values() for demand in entry.demands()]
        assert len(set(demands)) == len(demands) == len(self), "a lease that no open graph owns"
        assert all(demand.active for demand in demands), "a lease that is over"
        for graph, entry in self._graphs.items():
            assert not graph.closed, f"{graph} has leases"
            assert not entry.arrived & set(entry.expected), "leases for a place that arrived"
        for tree in self._trees.values():
            tree.check()

    def _entry(self, graph: Graph | None) -> _Entry | None:
        """What is known of an open graph."""
        if graph is None or graph.closed or not self._enabled:
            return None
        if graph not in self._graphs:
            self._graphs[graph] = _Entry(self._clock)
        return self._graphs[graph]

    def _expect(self, seq: Sequence, *, written: bool = False) -> None:
        """Leases what the sequence's keeps say; with `written`, only what they say of its output."""
        entry = self._entry(seq.graph)
        if entry is None:
            return
        for keep in seq.keeps:
            if written and keep.length is not None:
                continue
            known = len(seq) if written else len(seq.prompt_ids)
            length = known if keep.length is None else min(known, keep.length)
            for place in sorted(set(keep.uses) - entry.arrived):
                entry.expected.setdefault(place, []).append(self._add(seq, length, entry.began + place))

    def _arrive(self, entry: _Entry, places: Iterable[int]) -> None:
        for place in places:
            entry.arrived.add(place)
            self._remove(entry.expected.pop(place, []))

    def _drop_prompt(self, seq: Sequence, *, tell: bool) -> None:
        entry = self._entry(seq.graph)
        demand = entry.prompts.pop(seq.id, None) if entry is not None else None
        if demand is not None:
            self._remove([demand], tell=tell)

    def _add(self, seq: Sequence, length: int, time: int) -> Demand:
        namespace = namespace_of(seq)
        demand = Demand(namespace, seq.tokens.view(0, length), time)
        self._trees.setdefault(namespace, DemandTree()).add(demand)
        return demand

    def _remove(self, demands: list[Demand], *, tell: bool = True) -> None:
        for demand in demands:
            tree = self._trees[demand.namespace]
            tree.remove(demand)
            if not tree:
                del self._trees[demand.namespace]
        if tell and len(demands) > _MANY:
            self._released(None)
        elif tell:
            for demand in demands:
                self._released(demand)
