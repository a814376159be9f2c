"""Where all tokens of a vocabulary lead from a place, followed together.

In: the places of an outline, a place. Out: the tokens that may stand there and where each leads.

A tree of all tokens is gone through layer by layer, only where a text may go on. Where almost any character leads on
in the same way (a string's), tokens of such characters differ by their length alone and are not followed; where a few
of their first characters lead elsewhere (the names of declared keys), what begins with those is followed, up to where
it is as if it had not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .kinds import sets_of, within
from .matcher import Mask, mask_words
from .ordinary import FREE, Flags, Ordinary, ordinary_of
from .outline import Outline
from .places import DEAD, Places, TooMuchWork
from .tries import Ints, Trie
from .vocabulary import Vocabulary

__all__ = ["Alike", "Spread"]

_FEWEST_ORDINARY = 2_000
_MOST_STREAMS = 4
_ROOT: Ints = np.zeros(1, np.int32)


class _Stream:
    """What one grammar has to know of some ordinary tokens.

    Args:
        ordinary: these.
        kinds: the kind of each of the vocabulary's characters.
        firsts: how many tokens begin with each of them.
    """

    def __init__(self, ordinary: Ordinary, kinds: Ints, firsts: Ints) -> None:
        flags = ordinary.flags
        self.ordinary = weakref.ref(ordinary)  # None once it was forgotten for others: all is followed then
        self.kinds: Ints = np.unique(kinds[flags]).astype(np.int32)
        self.weights = np.bincount(kinds[flags], firsts[flags])[self.kinds]
        self.next: dict[int, int | None] = {}  # place → where every ordinary character leads; None: not to one place


@dataclass(frozen=True)
class Alike:
    """Tokens that differ by their length alone.

    Attributes:
        ordinary: these.
        chain: the places after 0, 1, 2 … characters.
        apart: a mask of those that lead elsewhere.
    """

    ordinary: Ordinary
    chain: Ints
    apart: Mask | None


class Spread(Places):
    """The places of one outline, and where all tokens lead from them."""

    def __init__(self, outline: Outline, vocabulary: Vocabulary, pause: Callable[[], None]) -> None:
        self._streams: list[_Stream] = []
        super().__init__(outline, vocabulary, pause)
        trie = self._texts.trie
        self._begins, _ = trie.children(_ROOT)
        self._begin_kinds: Ints = self._kinds[trie.symbols[self._begins]]
        for ordinary in self._ordinary(outline, pause):
            self._streams.append(_Stream(ordinary, self._kinds, self._texts.firsts))
            pause()

    def _ordinary(self, outline: Outline, pause: Callable[[], None]) -> list[Ordinary]:
        """The characters of free strings, and what the grammar itself takes together; those of most tokens first."""
        codes, firsts = self._texts.codes, self._texts.firsts
        found: dict[bytes, tuple[int, Flags]] = {}
        for chars in (FREE, *sets_of(outline.rules.values(), pause)):
            flags = within(codes, chars).astype(np.bool_)
            begin = int(firsts[flags].sum())
            if begin >= _FEWEST_ORDINARY:
                found.setdefault(flags.tobytes(), (begin, flags))
        most_first = sorted(found.values(), key=lambda one: -one[0])[:_MOST_STREAMS]
        made = [ordinary_of(self._vocabulary, flags, pause) for _, flags in most_first]
        return [one for one in made if one is not None]

    def _forget(self) -> None:
        super()._forget()
        for stream in self._streams:
            stream.next.clear()

    def leads(self, number: int) -> tuple[Ints, Ints, Alike | None]:
        """The tokens (places in `TokenTexts.ids`) that may come at a place, and where each leads, but those alike.

        Raises:
            TooMuchWork: it is not known yet; asked again, it goes on.
            OutlineError: too many readings.
        """
        every = np.arange(self._count, dtype=np.int32)
        row = self._fill(np.full(self._count, number, np.int32), every)
        for stream in self._streams:
            ordinary = stream.ordinary()
            alike = None if ordinary is None else self._alike(stream, ordinary, number, row)
            if ordinary is not None and alike is not None:
                return self._beside(ordinary, *alike, row)
        states = row[self._begin_kinds]
        live = states >= 0
        nodes, states = self._followed_on(self._texts.trie, self._begins[live], states[live])
        nodes = np.concatenate([_ROOT, nodes])  # tokens without a whole character
        states = np.concatenate([np.array([number], np.int32), states])
        chosen, owners = self._texts.trie.texts_at(nodes)
        return chosen, states[owners], None

    def _followed_on(self, trie: Trie, nodes: Ints, states: Ints) -> tuple[Ints, Ints]:
        """These nodes of a tree and all below them that the text may come to; where each leads."""
        all_nodes, all_states = [nodes], [states]
        while len(nodes):
            nodes, owners = trie.children(nodes)
            states = self._fill(states[owners], self._kinds[trie.symbols[nodes]])
            live = states >= 0
            nodes, states = nodes[live], states[live]
            all_nodes.append(nodes)
            all_states.append(states)
        return np.concatenate(all_nodes), np.concatenate(all_states)

    def _alike(self, stream: _Stream, ordinary: Ordinary, number: int, row: Ints) -> tuple[Ints, int] | None:
        """The places after 0, 1, 2 … ordinary characters; None where these lead to several, or few to the same one."""
        targets = row[stream.kinds]
        first = int(targets[0])
        if (targets != first).any():
            places, own = np.unique(targets, return_inverse=True)
            weights = np.bincount(own.reshape(-1), stream.weights)
            weights[places < 0] = 0
            best = int(weights.argmax())
            first, begin = int(places[best]), weights[best]
        else:
            begin = stream.weights.sum()
        if first < 0 or begin < _FEWEST_ORDINARY:
            return None
        longest = ordinary.longest
        chain = np.full(longest + 1, DEAD, np.int32)
        chain[0] = number
        at = first
        for size in range(1, longest + 1):
            chain[size] = at
            later = self._next_ordinary(at, stream)
            if later is None:
                return None
            if later == at:
                chain[size:] = at
                break
            at = later
            if at < 0:
                break
        alive = ordinary.counts[chain[ordinary.sizes] >= 0].sum()
        return (chain, first) if alive >= _FEWEST_ORDINARY else None

    def _next_ordinary(self, number: int, stream: _Stream) -> int | None:
        """Where every ordinary character leads from a place; None: not all to the same one."""
        if number not in stream.next:
            found = set()
            for kind in self._told_apart(number).among(stream.kinds, id(stream)):
                if self._worked_enough:
                    raise TooMuchWork
                found.add(self._stepped(number, kind))
            stream.next[number] = found.pop() if len(found) == 1 else None
        return stream.next[number]

    def _beside(self, ordinary: Ordinary, chain: Ints, first: int, row: Ints) -> tuple[Ints, Ints, Alike]:
        """The tokens that are not alike: with other characters, or with a first one that leads elsewhere."""
        states = chain[ordinary.run_sizes]
        live = states >= 0
        nodes, states = self._followed_on(ordinary.trie, ordinary.runs[live], states[live])
        which, owners = ordinary.trie.texts_at(nodes)
        chosen, finals = ordinary.others[which], states[owners]
        begins = self._texts.trie.symbols[self._begins]
        odd = ordinary.flags[begins] & (row[self._begin_kinds] != first)
        if not odd.any():
            return chosen, finals, Alike(ordinary, chain, None)
        trie = self._texts.trie
        nodes, states, dead = self._elsewhere(ordinary, chain, self._begins[odd], row[self._begin_kinds[odd]])
        own, owners = trie.texts_at(nodes)
        gone = trie.texts_below(dead)
        flags = np.zeros(mask_words(self._vocabulary.size) * 32, np.bool_)
        flags[self._texts.ids[own]] = True
        flags[self._texts.ids[gone]] = True
        kept = ~flags[self._texts.ids[chosen]]
        apart = np.packbits(flags, bitorder="little").view(np.int32)
        return (
            np.concatenate([chosen[kept], own]),
            np.concatenate([finals[kept], states[owners]]),
            Alike(ordinary, chain, apart),
        )

    def _elsewhere(self, ordinary: Ordinary, chain: Ints, nodes: Ints, states: Ints) -> tuple[Ints, Ints, Ints]:
        """What lies below nodes whose ordinary beginning leads elsewhere, as long as it does.

        Returns:
            nodes, where each leads, and the nodes at which a text ends that would go on elsewhere.
        """
        trie = self._texts.trie
        plain = np.ones(len(nodes), np.bool_)
        all_nodes, all_states, dead = [], [], []
        size = 1
        while True:
            live = states >= 0
            dead.append(nodes[~live])
            nodes, states, plain = nodes[live], states[live], plain[live]
            all_nodes.append(nodes)
            all_states.append(states)
            if not len(nodes):
                return np.concatenate(all_nodes), np.concatenate(all_states), np.concatenate(dead)
            nodes, owners = trie.children(nodes)
            symbols = trie.symbols[nodes]
            states = self._fill(states[owners], self._kinds[symbols])
            plain = plain[owners] & ordinary.flags[symbols]
            size += 1
            if size < len(chain):
                apart = ~plain | (states != chain[size])
                nodes, states, plain = nodes[apart], states[apart], plain[apart]
