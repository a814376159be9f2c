"""The radix tree: matching, splitting, locking, evicting."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from radicel.runtime.kv_pool import SlotPool
from radicel.runtime.radix_cache import Node, RadixCache

NS = ("user", "")


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def slots_from(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


def filled(*runs: tuple[int, ...], namespace=NS) -> RadixCache:
    """A tree with these runs; token t of run r got slot 100 * r + its position."""
    tree = RadixCache()
    for r, run in enumerate(runs, start=1):
        tree.insert(tree.root(namespace), ids(*run), slots_from(100 * r, len(run)))
    return tree


def shape(tree: RadixCache) -> dict[tuple[int, ...], list[int]]:
    return {tuple(tree.path_tokens(node).tolist()): node.slots.tolist() for node in tree.nodes() if len(node)}


def test_insert_splits_where_runs_part():
    tree = filled((1, 2, 3, 4), (1, 2, 9), (1, 2, 3, 4, 5))
    assert shape(tree) == {
        (1, 2): [100, 101],
        (1, 2, 3, 4): [102, 103],
        (1, 2, 9): [202],
        (1, 2, 3, 4, 5): [304],
    }
    assert tree.evictable_size == 6
    tree.check({})


def test_insert_hands_duplicates_back():
    tree = filled((1, 2, 3))
    node, duplicates = tree.insert(tree.root(NS), ids(1, 2, 3, 4), slots_from(50, 4))
    assert duplicates.tolist() == [50, 51, 52]
    assert tree.path_slots(node).tolist() == [100, 101, 102, 53]
    same, duplicates = tree.insert(tree.root(NS), ids(1, 2), slots_from(60, 2))
    assert duplicates.tolist() == [60, 61]
    assert tree.path_tokens(same).tolist() == [1, 2]
    tree.check({})


@pytest.mark.parametrize(
    ("tokens", "length"),
    [((1, 2, 3, 4), 4), ((1, 2, 3, 4, 5), 4), ((1, 2, 7), 2), ((2,), 0), ((), 0), ((1,), 1)],
)
def test_match_and_peek_find_the_longest_prefix(tokens, length):
    tree = filled((1, 2, 3, 4))
    assert tree.peek(NS, ids(*tokens))[0] == length
    nodes = len(list(tree.nodes()))
    assert nodes == 2, "peek changed the tree"
    match = tree.match(tree.root(NS), ids(*tokens))
    assert match.slots.tolist() == list(range(100, 100 + length))
    assert tree.path_slots(match.node).tolist() == match.slots.tolist()


def test_match_goes_on_from_a_node():
    tree = filled((1, 2, 3, 4), (1, 2, 9))
    middle = tree.match(tree.root(NS), ids(1, 2)).node
    assert tree.match(middle, ids(3, 4, 5)).slots.tolist() == [102, 103]


def test_a_partial_match_locks_only_what_it_matched():
    """Lock counting after a split: [1,2] stays, [3,4] goes, and in the end everything is evictable."""
    tree = filled((1, 2, 3, 4))
    node = tree.match(tree.root(NS), ids(1, 2, 9)).node
    tree.lock(node)
    tree.check({node: 1})
    assert (tree.protected_size, tree.evictable_size) == (2, 2)
    assert tree.evict(10).tolist() == [102, 103]
    assert shape(tree) == {(1, 2): [100, 101]}
    tree.unlock(node)
    tree.check({})
    assert (tree.protected_size, tree.evictable_size) == (0, 2)
    assert tree.evict(10).tolist() == [100, 101]
    assert list(tree.nodes()) == []


def test_a_split_keeps_the_holder_of_the_lower_half():
    tree = filled((1, 2, 3, 4))
    whole = tree.match(tree.root(NS), ids(1, 2, 3, 4)).node
    tree.lock(whole)
    upper = tree.match(tree.root(NS), ids(1, 2)).node
    assert upper is not whole
    assert tree.path_tokens(whole).tolist() == [1, 2, 3, 4]
    tree.check({whole: 1})
    tree.lock(upper)
    tree.unlock(whole)
    tree.check({upper: 1})
    assert tree.evict(9).tolist() == [102, 103]


def test_moving_a_lock_down_keeps_the_path_locked():
    tree = filled((1, 2))
    node = tree.match(tree.root(NS), ids(1, 2)).node
    tree.lock(node)
    child = tree.extend(node, ids(3), slots_from(7, 1))
    tree.lock(child)
    tree.unlock(node)
    tree.check({child: 1})
    assert tree.evict(9).tolist() == []
    assert (tree.protected_size, tree.evictable_size) == (3, 0)


def test_a_root_can_be_held():
    tree = RadixCache()
    root = tree.root(NS)
    tree.lock(root)
    tree.check({root: 1})
    assert tree.root(NS) is root
    tree.unlock(root)
    assert list(tree.nodes()) == [], "an empty root nobody holds is dropped"


def test_unlocking_too_often_is_an_error():
    tree = filled((1, 2))
    node = tree.match(tree.root(NS), ids(1, 2)).node
    with pytest.raises(ValueError, match="more often"):
        tree.unlock(node)


def test_extending_over_an_existing_child_is_an_error():
    tree = filled((1, 2))
    with pytest.raises(ValueError, match="match before extending"):
        tree.extend(tree.root(NS), ids(1, 5), slots_from(7, 2))


def test_the_least_recently_used_leaf_goes_first():
    tree = filled((1, 2), (3, 4), (5, 6))
    tree.match(tree.root(NS), ids(1, 2))
    assert tree.evict(2).tolist() == [200, 201]
    assert tree.evict(2).tolist() == [300, 301]
    assert tree.evict(2).tolist() == [100, 101]


def test_unlocking_counts_as_use_of_the_whole_path():
    tree = filled((1, 2, 3), (7, 8))
    held = tree.match(tree.root(NS), ids(1, 2, 3)).node
    tree.lock(held)
    tree.match(tree.root(NS), ids(7, 8))
    tree.unlock(held)
    assert tree.evict(2).tolist() == [200, 201]


def test_a_leaf_is_shortened_from_its_end():
    tree = filled((1, 2, 3, 4))
    assert tree.evict(1).tolist() == [103]
    assert tree.peek(NS, ids(1, 2, 3, 4))[0] == 3
    tree.check({})


def test_a_parent_becomes_a_leaf_and_goes_too():
    tree = filled((1, 2, 3), (1, 2, 4))
    assert sorted(tree.evict(4).tolist()) == [100, 101, 102, 202]
    assert tree.evictable_size == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [(("user", "a"), ("user", "b")), (("user", "x"), ("adapter", "x")), (("user", "a", "b"), ("user", "ab"))],
)
def test_namespaces_share_nothing(one, other):
    tree = filled((1, 2, 3), namespace=one)
    assert tree.peek(one, ids(1, 2, 3))[0] == 3
    assert tree.peek(other, ids(1, 2, 3))[0] == 0
    assert len(tree.match(tree.root(other), ids(1, 2, 3)).slots) == 0


def test_check_sees_damage():
    tree = filled((1, 2, 3), (1, 2, 4))
    node = tree.match(tree.root(NS), ids(1, 2)).node
    with pytest.raises(AssertionError, match="0 holders|1 holders"):
        tree.check({node: 1})
    node.children[9] = node.children.pop(3)
    with pytest.raises(AssertionError, match="its key is 9"):
        tree.check({})


class Model:
    """The tree's contract, slowly: a dictionary from prefix to slot, and a list of held prefixes."""

    def __init__(self) -> None:
        self.slot_of: dict[tuple[int, ...], int] = {}
        self.held: list[tuple[tuple[int, ...], Node]] = []

    def protected(self) -> set[tuple[int, ...]]:
        return {prefix[:n] for prefix, _ in self.held for n in range(1, len(prefix) + 1)}


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_agree_with_a_dictionary(seed):
    rng, tree, pool, model = random.Random(seed), RadixCache(), SlotPool(120), Model()
    for _ in range(400):
        run = tuple(rng.randrange(3) for _ in range(rng.randint(1, 12)))
        roll = rng.random()
        if roll < 0.4:
            if pool.num_free < len(run):
                pool.give_back(evict(tree, model, len(run) - pool.num_free))
            if pool.num_free >= len(run):
                slots = pool.take(len(run))
                _, duplicates = tree.insert(tree.root(NS), ids(*run), slots)
                for n in range(len(duplicates) + 1, len(run) + 1):
                    model.slot_of[run[:n]] = int(slots[n - 1])
                pool.give_back(duplicates)
        elif roll < 0.6:
            node, slots = tree.match(tree.root(NS), ids(*run))
            want = [model.slot_of[run[:n]] for n in range(1, len(run) + 1) if run[:n] in model.slot_of]
            assert slots.tolist() == want
            tree.lock(node)
            model.held.append((run[: len(want)], node))
        elif roll < 0.8 and model.held:
            _, node = model.held.pop(rng.randrange(len(model.held)))
            tree.unlock(node)
        else:
            pool.give_back(evict(tree, model, rng.randint(1, 20)))
        tree.check(dict(Counter(node for _, node in model.held)))
        assert pool.num_free + tree.evictable_size + tree.protected_size == pool.capacity
        assert tree.protected_size == len(model.protected())
        assert tree.protected_size + tree.evictable_size == len(model.slot_of)


def evict(tree: RadixCache, model: Model, count: int) -> np.ndarray:
    possible = tree.evictable_size
    gone = tree.evict(count)
    assert len(gone) == min(count, possible)
    numbers = set(gone.tolist())
    lost = {prefix for prefix, slot in model.slot_of.items() if slot in numbers}
    assert len(lost) == len(gone)
    assert not lost & model.protected(), "a locked prefix was evicted"
    for prefix in lost:
        del model.slot_of[prefix]
    assert all(prefix[:-1] in model.slot_of or len(prefix) == 1 for prefix in model.slot_of), "a hole in a prefix"
    return gone
