"""What the requests of a run share: the tree of their prefixes, and where equal texts have unequal tokens.

In: calls in the order in which they began, as token ids. Out: `Stretch`es; per call the tokens lost at a boundary.

A token is lost at a boundary where its text stands, behind the same text, in an earlier call, in other tokens: the
cache is exact to the token, so it cannot serve it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..prefix_tree import PrefixTree
from .model import Stretch
from .tokens import Tokens

__all__ = ["Call", "Sharing"]


class Call(NamedTuple):
    """One request.

    Attributes:
        number: its node.
        prompt: the ids before its text.
        written: the ids of its text.
        cached: how many of the prompt were not computed for it; None where the backend does not say.
    """

    number: int
    prompt: Sequence[int]
    written: Sequence[int]
    cached: int | None


class Sharing:
    """The calls added so far.

    Attributes:
        boundary: call → how many tokens of its prompt were lost at a boundary.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.boundary: dict[int, int] = {}
        self._tokens = tokens
        self._tree = PrefixTree()
        self._calls: list[tuple[Call, int, int]] = []  # with the nodes where prompt and text end
        self._texts: list[bytes] = []  # of all calls, sorted

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """The next call."""
        lost = self._lost(call)
        if lost:
            self.boundary[call.number] = lost
        prompt = self._tree.insert(np.array(call.prompt, np.int32))
        self._calls.append((call, prompt, self._tree.insert(np.array(call.written, np.int32), prompt)))

    def _lost(self, call: Call) -> int:
        """The tokens of its prompt that are spelled otherwise in an earlier call, behind the same text."""
        parts = self._tokens.bytes_of([*call.prompt, *call.written])
        text = b"".join(parts)
        at = bisect_left(self._texts, text)
        same = max((_common(text, other) for other in self._texts[max(0, at - 1) : at + 1]), default=0)
        self._texts.insert(at, text)
        ends = list(accumulate(map(len, parts[: len(call.prompt)])))
        whole = sum(end <= same for end in ends)  # tokens of the text that was there
        return max(0, whole - max(call.cached or 0, self._known(call.prompt)))

    def _known(self, ids: Sequence[int]) -> int:
        """How many tokens an earlier call begins with alike."""
        tokens, at, done = np.array(ids, np.int32), 0, 0
        while done < len(tokens):
            child = next((c for c in self._tree.children(at) if self._tree.edges[c][0] == tokens[done]), None)
            if child is None:
                break
            edge = self._tree.edges[child]
            size = min(len(edge), len(tokens) - done)
            differ = edge[:size] != tokens[done : done + size]
            same = int(differ.argmax()) if differ.any() else size
            done += same
            if same < len(edge):
                break
            at = child
        return done

    def stretches(self) -> tuple[Stretch, ...]:
        """The tree, the root first, each stretch before those behind it."""
        tree = self._tree
        calls: list[list[int]] = [[] for _ in range(len(tree))]
        computed: list[int | None] = [0] * len(tree)
        for call, prompt, end in self._calls:
            for node in tree.up(end):
                calls[node].append(call.number)
            for node in tree.up(prompt):
                computed[node] = _plus(computed[node], tree.ends[node] - len(tree.edges[node]), tree.ends[node], call)
        order = tree.depth_first()
        wrote = self._written()
        place = {node: at for at, node in enumerate(order)}
        return tuple(
            Stretch(
                parent=None if node == 0 else place[tree.parents[node]],
                begin=tree.ends[node] - len(tree.edges[node]),
                length=len(tree.edges[node]),
                text=self._tokens.text(tree.edges[node].tolist()),
                calls=tuple(calls[node]),
                written=node in wrote,
                computed=computed[node],
                children=tuple(place[child] for child in tree.children(node)),
            )
            for node in order
        )

    def _written(self) -> set[int]:
        """The nodes whose tokens were first there because a model wrote them."""
        first: dict[int, bool] = {}
        for _, prompt, end in self._calls:
            before = set(self._tree.up(prompt))
            for node in self._tree.up(end):
                first.setdefault(node, node not in before)
        return {node for node, wrote in first.items() if wrote}


def _plus(so_far: int | None, begin: int, end: int, call: Call) -> int | None:
    """With those of [begin, end) that were computed for the call."""
    if so_far is None or call.cached is None:
        return None
    return so_far + max(0, end - max(begin, call.cached))


def _common(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    differ = np.frombuffer(a, np.uint8, size) != np.frombuffer(b, np.uint8, size)
    return int(differ.argmax())
