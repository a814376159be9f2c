"""Our own form of a grammar, run beside the engine: where a text stands in it, and the shortest way to its end.

In: a `Constraint`'s rules (`lang/schema`), then the text's characters. Out: the shortest completion from here. All
readings of the text are followed at once, each a stack of what is still to come; the number of readings is bounded, and
a grammar that needs more (a left-recursive one, thousands of keys) has no outline.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...schema.charsets import CharSet
from ...schema.grammar_ast import Bag, Foreign, Ref, Rules, Token
from ...schema.regex_ast import NOTHING, Alt, Chars, Node, Repeat, Seq
from .automata import Automata, Automaton

__all__ = ["Cell", "Outline", "OutlineError", "Place"]

_MOST_READINGS = 400
_MOST_CHARACTERS = 20_000
_MOST_CELLS = 100_000
_MOST_ROUNDS = 200
_MOST_RULES = 2_000
_LOOK = 8  # readings of fixed texts take as much time as one of another token


class OutlineError(Exception):
    """The grammar has too many readings, or no finite completion is known."""


@dataclass(frozen=True)
class _Seen:
    """A bag of which some elements have occurred (a bit each)."""

    bag: Bag
    seen: int


@dataclass(eq=False)
class Cell:
    """What is still to come: an item, then the rest. Equal ones are one object."""

    item: Node | _Seen
    rest: Cell | None
    own: str = field(default="", repr=False)
    """The shortest text of the item."""
    size: int | None = None
    """Characters of the shortest text of all of it; None: none is known."""

    @property
    def text(self) -> str:
        """The shortest text of all of it, where its size is known."""
        parts: list[str] = []
        cell: Cell | None = self
        while cell is not None:
            parts.append(cell.own)
            cell = cell.rest
        return "".join(parts)


_Reading = tuple["Automaton | None", int, "Cell | None"]
"""(token being read, its state, what comes after it); no token and nothing after it: the text is over."""


@dataclass(frozen=True)
class Place:
    """Where a text stands: its readings."""

    readings: tuple[_Reading, ...]

    @functools.cached_property
    def key(self) -> tuple[tuple[int, int, int], ...]:
        """Equal for equal places of one outline."""
        return tuple((id(token), state, id(rest)) for token, state, rest in self.readings)

    @property
    def may_end(self) -> bool:
        """Whether the text is a whole one."""
        return any(token is None for token, _, _ in self.readings)

    @property
    def sets(self) -> tuple[CharSet, ...]:
        """The sets of characters that its readings ask of: those in the same ones lead to the same place."""
        if len(self.readings) == 1 and (token := self.readings[0][0]) is not None:
            return token.sets(self.readings[0][1])
        return tuple(chars for token, state, _ in self.readings if token is not None for chars in token.sets(state))

    @property
    def is_plain(self) -> bool:
        """Whether a character that is in none of these sets cannot stand here."""
        return all(token is None or token.is_plain for token, _, _ in self.readings)

    @property
    def in_free_string(self) -> bool:
        """Whether it stands in a string of any characters: more of them make nothing that follows longer."""
        return bool(self.readings) and all(
            token is not None and token.is_free_string and state > 0 for token, state, _ in self.readings
        )


class Outline:
    """The outline of one grammar; shared by its sequences, used by one thread at a time (the step loop's).

    Raises:
        OutlineError: no finite text is known.
    """

    def __init__(self, rules: Rules, root: str, pause: Callable[[], None] = lambda: None) -> None:
        self._pause = pause
        self.rules = rules
        self.work = 0
        """Goes up with what was looked at."""
        self._automata = Automata()
        self._cells: dict[tuple[int, int], Cell] = {}
        self._texts: dict[str, str] = {}
        self._afters: dict[int, tuple[tuple[tuple[int, int, int], _Reading], ...]] = {}  # by cells, which are kept
        self._settled = False  # whether the rules' texts are final
        if len(rules) > _MOST_RULES:
            raise OutlineError("too many rules")
        self._known: dict[int, str | None] = {}
        self._shortest_rules()
        self._settled = True
        if root not in self._texts:
            raise OutlineError("no finite text is known")
        self.start = self._place([(Ref(root), None)])
        self.longest = max((rest for node in rules.values() for rest in self._rests(node)), key=len, default="")
        """The longest text that may become necessary by beginning something."""
        self._pause = lambda: None

    def step(self, place: Place, char: str) -> Place:
        """The place after a character; one without readings where it cannot stand there.

        Raises:
            OutlineError: too many readings.
        """
        found: dict[tuple[int, int, int], _Reading] = {}
        looked_at = 0
        for token, state, rest in place.readings:
            if token is None:
                continue
            looked_at += 1 if token.text is not None else _LOOK
            later = token.step(state, char)
            if later < 0:
                continue
            found.setdefault((id(token), later, id(rest)), (token, later, rest))
            if token.may_end(later):
                for key, reading in self._after(rest):
                    found.setdefault(key, reading)
        self.work += 4 + looked_at // _LOOK
        if len(found) > _MOST_READINGS:
            raise OutlineError("too many readings")
        return Place(tuple(found.values()))

    def walk(self, place: Place, text: str) -> Place:
        """The place after some characters.

        Raises:
            OutlineError: too many readings.
        """
        for char in text:
            place = self.step(place, char)
            if not place.readings:
                break
        return place

    def completion(self, place: Place) -> str | None:
        """The shortest text known that ends what stands here."""
        ending = self.ending(place)
        return None if ending is None else ending[0] + ("" if ending[1] is None else ending[1].text)

    def ending(self, place: Place) -> tuple[str, Cell | None] | None:
        """The same in two parts: the rest of what is being read, and what comes after it."""
        best: tuple[str, Cell | None] | None = None
        least = 0
        for token, state, rest in place.readings:
            if token is None:
                return "", None
            first = token.rest(state)
            if first is None or (rest is not None and rest.size is None):
                continue
            size = len(first) + (0 if rest is None else rest.size or 0)
            if best is None or size < least:
                best, least = (first, rest), size
        return best

    def _after(self, rest: Cell | None) -> tuple[tuple[tuple[int, int, int], _Reading], ...]:
        """What may be read once a token is over, each with its mark."""
        found = self._afters.get(id(rest))
        if found is None:
            place = self._place([] if rest is None else [(rest.item, rest.rest)], over=rest is None)
            found = self._afters[id(rest)] = tuple(zip(place.key, place.readings))
        return found

    def _place(self, waiting: list[tuple[Node | _Seen, Cell | None]], over: bool = False) -> Place:
        """Every token that may be read next."""
        found: dict[tuple[int, int], _Reading] = {(0, 0): (None, 0, None)} if over else {}
        visited: set[tuple[int, int]] = set()
        while waiting:
            item, rest = waiting.pop()
            mark = (id(item), id(rest))
            if isinstance(item, (Ref, Repeat)) and mark in visited:
                continue
            visited.add(mark)
            if len(found) + len(waiting) > _MOST_READINGS or len(visited) > 20 * _MOST_READINGS:
                raise OutlineError("too many readings")
            if isinstance(item, (Token, Foreign, Chars)):
                token = self._automata.of(item if isinstance(item, Chars) else item.node)
                found.setdefault((id(token), id(rest)), (token, 0, rest))
                if not token.may_end(0):
                    continue
                waiting += [] if rest is None else [(rest.item, rest.rest)]
                over = over or rest is None
            else:
                over = self._opened(item, rest, waiting) or over
        if over:
            found[0, 0] = (None, 0, None)
        return Place(tuple(found.values()))

    def _opened(self, item: Node | _Seen, rest: Cell | None, waiting: list[tuple[Node | _Seen, Cell | None]]) -> bool:
        """Puts what an item consists of in its place; whether the text may be over after it."""
        empty = False
        if isinstance(item, Ref):
            waiting.append((self.rules[item.name], rest))
        elif isinstance(item, Alt):
            waiting += [(option, rest) for option in item.options]
        elif isinstance(item, Seq):
            for part in reversed(item.items[1:]):
                rest = self._cell(part, rest)
            empty = not item.items
            if item.items:
                waiting.append((item.items[0], rest))
        elif isinstance(item, Repeat):
            empty = item.low == 0
            if item.high != 0:
                high = None if item.high is None else item.high - 1
                more = item if (item.low == 0 and high is None) else Repeat(item.item, max(0, item.low - 1), high)
                waiting.append((item.item, rest if high == 0 else self._cell(self._kept(more), rest)))
        elif isinstance(item, (Bag, _Seen)):
            seen = item if isinstance(item, _Seen) else _Seen(item, 0)
            empty = seen.bag.may_end(seen.seen)
            for node, bits in _elements(seen, first=isinstance(item, Bag)):
                waiting.append((node, self._cell(self._kept(_Seen(seen.bag, bits)), rest)))
        else:
            raise OutlineError(f"{item} has no outline")
        if empty and rest is not None:
            waiting.append((rest.item, rest.rest))
        return empty and rest is None

    def _kept(self, item: Node | _Seen) -> Node | _Seen:
        """The one object for equal items, so that cells can be told apart by identity."""
        return self._items.setdefault(item, item)

    @functools.cached_property
    def _items(self) -> dict[Node | _Seen, Node | _Seen]:
        return {}

    def _cell(self, item: Node | _Seen, rest: Cell | None) -> Cell:
        key = (id(item), id(rest))
        cell = self._cells.get(key)
        if cell is None:
            own = self._shortest(item)
            after_it = 0 if rest is None else rest.size
            size = None if own is None or after_it is None else len(own) + after_it
            if len(self._cells) > _MOST_CELLS:
                raise OutlineError("too much to remember")
            cell = self._cells[key] = Cell(item, rest, own or "", size)
        return cell

    def _shortest_rules(self) -> None:
        for _ in range(_MOST_ROUNDS):
            grew = False
            for name, node in reversed(list(self.rules.items())):
                text = self._shortest(node)
                if text is not None and (name not in self._texts or len(text) < len(self._texts[name])):
                    self._texts[name] = text
                    grew = True
            if not grew:
                return
        raise OutlineError("its rules lean on each other too deeply")

    def _rests(self, node: Node) -> Iterator[str]:
        """The shortest texts of what follows the beginning of a part."""
        self._pause()
        if isinstance(node, (Token, Foreign)):
            yield self._shortest(node) or ""
        elif isinstance(node, Seq):
            yield _joined([self._shortest(part) or "" for part in node.items[1:]]) or ""
            for part in node.items:
                yield from self._rests(part)
        elif isinstance(node, Alt):
            for option in node.options:
                yield from self._rests(option)
        elif isinstance(node, Repeat):
            yield from self._rests(node.item)
        elif isinstance(node, Bag):
            yield self._shortest(node) or ""
            for part in (*node.first, *node.later):
                yield from self._rests(part)

    def _shortest(self, item: Node | _Seen) -> str | None:
        """The shortest text of an item, as far as those of the rules are known."""
        if not self._settled or not isinstance(item, (Seq, Alt, Bag)):
            return self._found(item)
        if id(item) not in self._known:
            self._known[id(item)] = self._found(item)
        return self._known[id(item)]

    def _found(self, item: Node | _Seen) -> str | None:
        if isinstance(item, Ref):
            return self._texts.get(item.name)
        if isinstance(item, (Token, Foreign, Chars)):
            self._pause()
            return self._automata.of(item if isinstance(item, Chars) else item.node).rest(0)
        if isinstance(item, Seq):
            return _joined([self._shortest(part) for part in item.items])
        if isinstance(item, Alt):
            known = [text for text in map(self._shortest, item.options) if text is not None]
            return min(known, key=len, default=None)
        if isinstance(item, Repeat):
            if item.low == 0:
                return ""
            one = self._shortest(item.item)
            return None if one is None or len(one) * item.low > _MOST_CHARACTERS else one * item.low
        if isinstance(item, (Bag, _Seen)):
            return self._shortest_bag(item)
        return None

    def _shortest_bag(self, item: Bag | _Seen) -> str | None:
        """The needed elements in their order, then as many as it takes."""
        seen, first = (item, False) if isinstance(item, _Seen) else (_Seen(item, 0), True)
        parts: list[str | None] = []
        while not seen.bag.may_end(seen.seen):
            ways = [(node, bits) for node, bits in _elements(seen, first=first) if bits != seen.seen]
            if not ways:
                return None
            node, bits = ways[0]
            parts.append(self._shortest(node))
            seen, first = _Seen(seen.bag, bits), False
        return _joined(parts)


def _elements(seen: _Seen, *, first: bool) -> list[tuple[Node, int]]:
    """What may come next in a bag, and its bits after that."""
    bag = seen.bag
    size = len(bag.first)
    ways = bag.first if first else bag.later
    found = [(ways[i], seen.seen | 1 << i) for i in range(size) if bag.may_take(seen.seen, i)]
    other = bag.other_first if first else bag.other_later
    return found if other == NOTHING else [*found, (other, seen.seen | 1 << size)]


def _joined(parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or sum(map(len, known)) > _MOST_CHARACTERS:
        return None
    return "".join(known)
