"""Which prefixes of a request are needed again by requests that come later: the hints of a graph's session.

In: a `RequestGraph`, and which of its requests are submitted together, as values arrive.
Out: for each of them its `Keep`s.

A lease is named once, by the first submitted of the requests that need it: what is submitted needs no hint, as it is
itself the need for its prompt. What one request writes is kept for those that go on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from .backend import Keep
from .graph import Lease, RequestGraph

__all__ = ["Keeps"]


class Keeps:
    """The hints of one graph; each is given once. Not for several threads at once.

    Args:
        graph: the graph; places are indices of its `order`.
        written: how many tokens a request wrote, by its index; 0 where that is not known.
    """

    def __init__(self, graph: RequestGraph, written: Callable[[int], int]) -> None:
        self._written = written
        self._over: set[int] = set()
        self._leases: dict[int, list[Lease]] = {}
        for lease in graph.leases:
            for place in lease.uses:
                self._leases.setdefault(place, []).append(lease)
        self._named: set[int] = set()
        self._next = _continuations(graph)
        place_of = {index: place for place, index in enumerate(graph.order)}
        self._needed = {place_of[need] for request in graph.requests for need in request.needs}

    def of(self, places: Collection[int]) -> list[tuple[Keep, ...]]:
        """The hints of the requests at these places, which are submitted together."""
        self._over.update(places)
        return [self._of(place) for place in places]

    def continues(self, place: int) -> bool:
        """Whether requests of the graph wait for the one at this place."""
        return place in self._needed

    def withdrawn(self, places: Collection[int]) -> None:
        """No request will come there."""
        self._over.update(places)

    def _of(self, place: int) -> tuple[Keep, ...]:
        keeps = []
        after = tuple(use for use in self._next.pop(place, ()) if use not in self._over)
        if after:
            keeps.append(Keep(None, after))
        for lease in self._leases.pop(place, ()):
            if lease.node not in self._named:
                self._named.add(lease.node)
                uses = tuple(use for use in lease.uses if use not in self._over)
                if uses and uses != after:
                    keeps.append(Keep(lease.known + sum(map(self._written, lease.after)), uses))
        return tuple(keeps)


def _continuations(graph: RequestGraph) -> dict[int, list[int]]:
    """Per place the places of the requests whose prompts begin with its prompt and what it writes."""
    place_of = {index: place for place, index in enumerate(graph.order)}
    tree = graph.tree
    found: dict[int, list[int]] = {}
    for request in graph.requests:
        if not request.needs or request.error is not None:
            continue
        for node in tree.up(request.prompt):
            first = int(tree.edges[node][0])
            writer = graph.marks.get(first) if first < 0 else None
            if writer in request.needs and graph.requests[writer].prompt == tree.parents[node]:
                found.setdefault(place_of[writer], []).append(place_of[request.index])
    for uses in found.values():
        uses.sort()
    return found
