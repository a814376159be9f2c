"""What was in the cache once and is not any more: so that a run can say why it computed tokens again.

In: the ends of paths, as eviction cuts them off the tree. Out: how far a sequence goes on along what was cut off.

A stretch of dropped tokens is found by a fingerprint of all tokens up to and including its first one, so a lookup costs
one hash of the prefix and no second tree is kept. Stretches that lie behind each other are put together again. The
oldest are forgotten first, and then count as never seen. Nothing here changes what is computed. No torch.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple

import numpy as np

from .radix_node import Namespace, Tokens

__all__ = ["DroppedStretches"]


class _Stretch(NamedTuple):
    begin: int
    tokens: Tokens


class DroppedStretches:
    """The stretches that were dropped last.

    Args:
        most_tokens: how many tokens of them are remembered.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._tokens = 0
        self._stretches: OrderedDict[int, _Stretch] = OrderedDict()
        self._firsts: Counter[tuple[int, int]] = Counter()  # how many begin at a position with a token

    def __len__(self) -> int:
        """How many tokens are remembered."""
        return self._tokens

    def add(self, namespace: Namespace, path: Tokens, begin: int, behind: int | None) -> int:
        """`path[begin:]` was dropped.

        Args:
            path: all tokens from the root on.
            behind: the key of a stretch that was dropped before and followed the end of `path` directly.

        Returns:
            the key of the stretch.
        """
        tokens = path[begin:].copy()  # a view would keep all of the path
        following = self._stretches.get(behind) if behind is not None else None
        if behind is not None and following is not None and following.begin == len(path):
            self._forget(behind)
            tokens = np.concatenate([tokens, following.tokens])
        key = _key(namespace, path, begin)
        self._put(key, _Stretch(begin, tokens))
        while self._tokens > self._most_tokens and len(self._stretches) > 1:
            self._forget(next(iter(self._stretches)))
        return key

    def take(self, namespace: Namespace, tokens: Tokens, begin: int) -> int:
        """Up to where `tokens`, whose first `begin` are cached, are tokens that were dropped; `begin` where none are.

        They are forgotten, as they are computed again now; what was dropped behind them is remembered.
        """
        at = begin
        while at < len(tokens) and (at, int(tokens[at])) in self._firsts:  # else no hash of all before it is needed
            key = _key(namespace, tokens, at)
            stretch = self._stretches.get(key)
            same = 0 if stretch is None or stretch.begin != at else _common(stretch.tokens, tokens[at:])
            if stretch is None or not same:
                break
            self._forget(key)
            at += same
            if same < len(stretch.tokens):  # another one may go on here
                rest = stretch.tokens[same:]
                whole = np.concatenate([tokens[:at], rest[:1]])
                self._put(_key(namespace, whole, at), _Stretch(at, rest))
        return at

    def _put(self, key: int, stretch: _Stretch) -> None:
        self._forget(key)
        self._stretches[key] = stretch
        self._firsts[stretch.begin, int(stretch.tokens[0])] += 1
        self._tokens += len(stretch.tokens)

    def _forget(self, key: int) -> None:
        stretch = self._stretches.pop(key, None)
        if stretch is not None:
            first = (stretch.begin, int(stretch.tokens[0]))
            self._firsts[first] -= 1
            if not self._firsts[first]:
                del self._firsts[first]
            self._tokens -= len(stretch.tokens)


def _key(namespace: Namespace, tokens: Tokens, begin: int) -> int:
    return hash((namespace, tokens[: begin + 1].tobytes()))


def _common(edge: Tokens, tokens: Tokens) -> int:
    length = min(len(edge), len(tokens))
    differs = edge[:length] != tokens[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
