"""The automaton of one token of a grammar, its states made when they are first seen.

In: a token's regex. Out: its states by number: what follows each by a character, whether it may end there, the shortest
rest. Equal tokens of all grammars share one. No torch here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ...schema.charsets import ANY, CharSet
from ...schema.quoted import json_string
from ...schema.regex_ast import NOTHING, Chars, Node, Repeat, Seq, is_plain, nullable, seq
from ...schema.regex_run import after, completion, first_sets

__all__ = ["Automata", "Automaton"]

_MOST_SHARED = 512
_MOST_STATES = 20_000


class Automaton:
    """A token's automaton; may be used from many threads.

    Attributes:
        text: the token's only text, where it has but one; its states are the characters that were read then.
        is_plain: whether none but the characters of a state's sets can stand there (what is not to match takes any).
        is_free_string: whether it is a JSON string of any characters, its length apart.
    """

    def __init__(self, node: Node) -> None:
        self._lock = threading.Lock()
        self._nodes = [node]
        self._numbers = {node: 0}
        self._next: dict[tuple[int, str], int] = {}
        self._rest: dict[int, str | None] = {}
        self._sets: dict[int, tuple[CharSet, ...]] = {}
        self._ends: dict[int, bool] = {}
        self.text = _only_text(node)
        self.is_plain = is_plain(node)
        self.is_free_string = isinstance(node, Seq) and _is_free_string(node)

    @property
    def num_states(self) -> int:
        """How many were seen."""
        return len(self._nodes)

    def node(self, state: int) -> Node:
        """What may follow there."""
        if self.text is None:
            return self._nodes[state]
        whole = self._nodes[0]
        return seq(*(whole.items[state:] if isinstance(whole, Seq) else (whole,)[state:]))

    def step(self, state: int, char: str) -> int:
        """The state after a character; -1 where it cannot stand there."""
        if self.text is not None:
            return state + 1 if self.text[state : state + 1] == char else -1
        found = self._next.get((state, char))
        if found is None:
            node = after(self._nodes[state], ord(char))
            found = -1 if node == NOTHING else self._number(node)
            self._next[state, char] = found
        return found

    def _number(self, node: Node) -> int:
        with self._lock:
            found = self._numbers.get(node)
            if found is None:
                found = len(self._nodes)
                self._nodes.append(node)
                self._numbers[node] = found
            return found

    def may_end(self, state: int) -> bool:
        """Whether the token may be over there."""
        if self.text is not None:
            return state == len(self.text)
        found = self._ends.get(state)
        if found is None:
            found = self._ends[state] = nullable(self._nodes[state])
        return found

    def sets(self, state: int) -> tuple[CharSet, ...]:
        """The sets of characters that it asks of there."""
        found = self._sets.get(state)
        if found is None:
            found = self._sets[state] = tuple(self._first_sets(state))
        return found

    def _first_sets(self, state: int) -> Iterator[CharSet]:
        whole = self._nodes[0]
        if self.text is not None and isinstance(whole, Seq):  # its parts are one character each
            return first_sets(whole.items[state]) if state < len(whole.items) else iter(())
        return first_sets(self.node(state))

    def rest(self, state: int) -> str | None:
        """The shortest rest of the token, as far as one is found."""
        if self.text is not None:
            return self.text[state:]
        if state not in self._rest:
            self._rest[state] = completion(self._nodes[state])
        return self._rest[state]


def _only_text(node: Node) -> str | None:
    """The text of a node that has but one and is written so."""
    codes = []
    for part in node.items if isinstance(node, Seq) else (node,):
        if not isinstance(part, Chars) or len(part.chars) != 1 or part.chars[0][0] != part.chars[0][1]:
            return None
        codes.append(part.chars[0][0])
    return "".join(map(chr, codes))


def _is_free_string(node: Seq) -> bool:
    """Whether a token is a JSON string of any characters, its length apart."""
    middle = node.items[1] if len(node.items) == 3 else None
    return isinstance(middle, Repeat) and json_string(Repeat(Chars(ANY), middle.low, middle.high)) == node


class Automata:
    """Those of one grammar; what other grammars have too, they share."""

    def __init__(self) -> None:
        self._own: dict[Node, Automaton] = {}
        _shared.make_room()

    def of(self, node: Node) -> Automaton:
        """The automaton of a token."""
        found = self._own.get(node)
        if found is None:
            found = self._own[node] = _shared.of(node)
        return found


class _Shared:
    """Those that were asked for last: many grammars have the same strings and numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Node, Automaton] = {}

    def of(self, node: Node) -> Automaton:
        with self._lock:
            found = self._known.pop(node, None) or Automaton(node)
            self._known[node] = found  # the last one to be forgotten
            return found

    def make_room(self) -> None:
        """Forgets the first ones where they have become too many."""
        with self._lock:
            states = sum(one.num_states for one in self._known.values())
            while self._known and (len(self._known) >= _MOST_SHARED or states > _MOST_STATES):
                states -= self._known.pop(next(iter(self._known))).num_states


_shared = _Shared()
