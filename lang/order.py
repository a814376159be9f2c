"""In which order the requests of a graph are best sent, and which prefixes are needed again, by whom and when.

In: requests with their places in the prefix tree and what they need. Out: their waves, the order, leases, and what
each of them shares; written into the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from .graph import Lease, Request, RequestGraph
from .prefix_tree import PrefixTree

__all__ = ["plan_order"]

_FAR = 1 << 60


def plan_order(graph: RequestGraph) -> None:
    """Fills in `order`, `leases`, `known`, and the requests' `wave`, `later`, `next_wave`, `new_tokens`."""
    tree, requests = graph.tree, graph.requests
    graph.known = [int(np.count_nonzero(edge >= 0)) for edge in tree.edges]
    walk = tree.depth_first()
    _number_waves(requests)
    graph.order = _depth_first_order(requests, walk)
    _look_ahead(graph, walk)
    _lease(graph, walk)


def _number_waves(requests: Sequence[Request]) -> None:
    for index in _topological(requests, range(len(requests))):
        request = requests[index]
        request.wave = max((requests[need].wave + 1 for need in request.needs), default=0)


def _topological(requests: Sequence[Request], ranks: Sequence[int]) -> list[int]:
    """Indices, each after what it needs; of those that can come next, the one of lowest rank does."""
    missing = [len(request.needs) for request in requests]
    dependents: dict[int, list[int]] = {}
    for request in requests:
        for need in request.needs:
            dependents.setdefault(need, []).append(request.index)
    ready = [(ranks[i], i) for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(index)
        for dependent in dependents.get(index, ()):
            missing[dependent] -= 1
            if not missing[dependent]:
                heapq.heappush(ready, (ranks[dependent], dependent))
    return order


def _depth_first_order(requests: Sequence[Request], walk: Sequence[int]) -> list[int]:
    rank = {node: place for place, node in enumerate(walk)}
    by_place = sorted(requests, key=lambda request: (rank[request.prompt], request.index))
    ranks = [0] * len(requests)
    for place, request in enumerate(by_place):
        ranks[request.index] = place
    return _topological(requests, ranks)


def _look_ahead(graph: RequestGraph, walk: Sequence[int]) -> None:
    """How many requests go on from what each one writes, and how far away the first of them is."""
    tree, requests = graph.tree, graph.requests
    below, nearest = [0] * len(tree), [_FAR] * len(tree)
    for request in requests:
        if request.error is None:
            below[request.prompt] += 1
            nearest[request.prompt] = min(nearest[request.prompt], request.wave)
    for node in reversed(walk[1:]):
        parent = tree.parents[node]
        below[parent] += below[node]
        nearest[parent] = min(nearest[parent], nearest[node])
    first = [_FAR] * len(requests)
    for node, edge in enumerate(tree.edges):
        for mark in edge[edge < 0].tolist():
            writer = graph.marks.get(mark)
            if writer is not None:
                requests[writer].later += below[node]
                first[writer] = min(first[writer], nearest[node])
    for request, wave in zip(requests, first):
        request.next_wave = None if wave == _FAR else wave - request.wave


def _lease(graph: RequestGraph, walk: Sequence[int]) -> None:
    """The prefixes that more than one request needs; and what is new in each request."""
    tree, requests = graph.tree, graph.requests
    uses: list[list[int]] = [[] for _ in range(len(tree))]
    for place, index in enumerate(graph.order):
        request = requests[index]
        if request.error is not None:
            continue
        for node in _needed(tree, request):
            if not uses[node]:
                request.new_tokens += graph.known[node]
            uses[node].append(place)
    lease_of: dict[int, int] = {}
    known, writers = [0] * len(tree), _writers(graph)
    after: dict[int, tuple[int, ...]] = {0: ()}
    for node in walk[1:]:
        parent = tree.parents[node]
        known[node] = known[parent] + graph.known[node]
        if len(uses[node]) > 1:
            after[node] = after[parent] + writers.get(node, ())
            lease_of[node] = len(graph.leases)
            graph.leases.append(Lease(node, lease_of.get(parent), known[node], after[node], tuple(uses[node])))


def _needed(tree: PrefixTree, request: Request) -> list[int]:
    """The tree's nodes on the request's paths, each once."""
    if not request.ends:
        return list(tree.up(request.prompt))
    return list(dict.fromkeys(node for end in request.ends for node in tree.up(end)))


def _writers(graph: RequestGraph) -> dict[int, tuple[int, ...]]:
    """Per node of the tree, the requests whose text is on its edge."""
    found: dict[int, tuple[int, ...]] = {}
    for node, edge in enumerate(graph.tree.edges):
        marks = edge[edge < 0].tolist()
        if marks:
            found[node] = tuple(graph.marks[mark] for mark in marks if mark in graph.marks)
    return found
