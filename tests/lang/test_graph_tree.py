"""Sequences merged where they begin alike, and the order and leases that follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from radicel.graph import Request, RequestGraph
from radicel.ir import GenCall, Node, Op
from radicel.order import plan_order
from radicel.prefix_tree import PrefixTree, common_prefix
from radicel.sampling import SamplingParams

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=12)


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@given(SEQUENCES)
def test_a_tree_has_each_prefix_once(sequences: list[list[int]]) -> None:
    tree = PrefixTree()
    ends = [tree.insert(ids(sequence)) for sequence in sequences]
    prefixes = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert sum(len(edge) for edge in tree.edges) == len(prefixes)
    for sequence, end in zip(sequences, ends):
        assert tree.sequence(end).tolist() == sequence
        assert tree.ends[end] == len(sequence)


@given(SEQUENCES, st.data())
def test_going_on_from_an_end_is_the_whole_sequence(sequences: list[list[int]], data: st.DataObject) -> None:
    whole, parts = PrefixTree(), PrefixTree()
    for sequence in sequences:
        whole.insert(ids(sequence))
        cut = data.draw(st.integers(0, len(sequence)))
        end = parts.insert(ids(sequence[cut:]), parts.insert(ids(sequence[:cut])))
        assert parts.sequence(end).tolist() == sequence
    assert sum(map(len, whole.edges)) == sum(map(len, parts.edges))


@given(SEQUENCES)
def test_depth_first_visits_every_node_below_its_parent_without_a_gap(sequences: list[list[int]]) -> None:
    tree = PrefixTree()
    for sequence in sequences:
        tree.insert(ids(sequence))
    order = tree.depth_first()
    assert sorted(order) == list(range(len(tree)))
    place = {node: i for i, node in enumerate(order)}
    below = [1] * len(tree)
    for node in reversed(order[1:]):
        assert place[tree.parents[node]] < place[node]
        below[tree.parents[node]] += below[node]
    for node in order[1:]:
        parent = tree.parents[node]
        assert place[node] + below[node] <= place[parent] + below[parent]


@pytest.mark.parametrize(
    ("a", "b", "length"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 3], 1), ([1], [2], 0)]
)
def test_common_prefix(a: list[int], b: list[int], length: int) -> None:
    assert common_prefix(ids(a), ids(b)) == common_prefix(ids(b), ids(a)) == length


def request(index: int, tree: PrefixTree, sequence: list[int], needs: tuple[int, ...] = ()) -> Request:
    node = Node(Op.GEN, GenCall(f"v{index}", SamplingParams(max_tokens=1)))
    tokens = ids(sequence)
    return Request(
        index, node, 0, tree.insert(tokens), prompt_tokens=int((tokens >= 0).sum()), needs=needs, max_tokens=1
    )


def graph_of(*sequences: list[int], needs: dict[int, tuple[int, ...]] | None = None) -> RequestGraph:
    """Requests with these prompts; -1 - i is what request i writes."""
    tree = PrefixTree()
    requests = [request(i, tree, sequence, (needs or {}).get(i, ())) for i, sequence in enumerate(sequences)]
    graph = RequestGraph(requests, tree, marks={-1 - i: i for i in range(len(requests))})
    plan_order(graph)
    return graph


def test_siblings_come_together_whatever_order_they_are_given_in() -> None:
    graph = graph_of([1, 2, 3], [7, 8], [1, 2, 4], [7, 9], [1, 2])
    assert graph.order == [4, 0, 2, 1, 3]
    assert (graph.total_tokens, graph.unique_tokens, graph.shared_tokens) == (12, 7, 5)


def test_one_that_needs_another_waits_for_it_though_it_stands_before() -> None:
    graph = graph_of([1, 2], [1], [5], needs={1: (2,)})
    assert graph.order == [0, 2, 1]
    assert [r.wave for r in graph.requests] == [0, 1, 0]
    assert graph.critical_path == 2


def test_what_goes_on_from_a_value_is_counted_with_its_distance() -> None:
    graph = graph_of([1], [1, -1, 2], [1, -1, 2, -2], [1, -1, 3], needs={1: (0,), 2: (1,), 3: (0,)})
    assert [(r.later, r.next_wave) for r in graph.requests] == [(3, 1), (1, 1), (0, None), (0, None)]
    assert graph.order == [0, 1, 2, 3]
    assert [r.new_tokens for r in graph.requests] == [1, 1, 0, 1]


def test_a_lease_says_which_places_of_the_order_need_it() -> None:
    graph = graph_of([1, 2, 3], [1, 2, 4], [9], [1, 5])
    shown = [(graph.tree.sequence(lease.node).tolist(), lease.parent, lease.uses) for lease in graph.leases]
    assert graph.order == [0, 1, 3, 2]
    assert shown == [([1], None, (0, 1, 2)), ([1, 2], 0, (0, 1))]
    assert [lease.count for lease in graph.leases] == [2, 1]


def test_a_lease_through_a_value_names_who_writes_it() -> None:
    graph = graph_of([1], [1, -1, 2, 3], [1, -1, 2, 4], needs={1: (0,), 2: (0,)})
    assert [(lease.known, lease.after) for lease in graph.leases] == [(1, ()), (2, (0,))]


def test_a_chain_of_thousands_is_no_recursion() -> None:
    chain = [[*(x for i in range(n) for x in (1, -1 - i)), 1] for n in range(1500)]
    graph = graph_of(*chain, needs={n: (n - 1,) for n in range(1, 1500)})
    assert graph.critical_path == 1500
    assert graph.unique_tokens == 1500
    assert "1,500 requests" in str(graph)
