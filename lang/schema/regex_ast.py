"""A regex as a language: the small algebra that every pattern becomes before it is written for an engine.

    Node = Chars(set) | Seq(items) | Alt(options) | Repeat(item, low, high) | And(parts) | Not(part)
         | Anchor(kind) | Look(ahead, negated, item)

`EMPTY` matches the empty text, `NOTHING` matches no text. Anchors and look-around are resolved away
(`regex_anchors.py`, `regex_look.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from . import charsets
from .charsets import CharSet

__all__ = [
    "ANYTHING", "EMPTY", "NOTHING", "Alt", "Anchor", "And", "Chars", "Leaf", "Look", "Node", "Not", "Repeat", "Seq",
    "alt", "both", "char", "ends", "is_plain", "max_width", "min_width", "negation", "nullable", "repeat", "seq",
    "write",
]  # fmt: skip


class Kept:
    """Nodes are deep and looked up often, so each reckons its hash once (which is of this process, and not pickled)."""

    __slots__ = ("_hash",)
    __dataclass_fields__: ClassVar[dict[str, Any]]
    __match_args__: ClassVar[tuple[str, ...]]
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash((type(self), *(getattr(self, name) for name in self.__dataclass_fields__)))
            object.__setattr__(self, "_hash", found)
            return found

    def __reduce__(self) -> tuple[type[Any], tuple[Any, ...]]:
        """Read back by its constructor, in half the time that a dataclass with slots takes of itself."""
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)


@dataclass(frozen=True, slots=True)
class Chars(Kept):
    """One character of a set."""

    chars: CharSet
    __hash__ = Kept.__hash__


@dataclass(frozen=True, slots=True)
class Seq(Kept):
    """One item after the other."""

    items: tuple[Node, ...]
    __hash__ = Kept.__hash__


@dataclass(frozen=True, slots=True)
class Alt(Kept):
    """One of the options."""

    options: tuple[Node, ...]
    __hash__ = Kept.__hash__


@dataclass(frozen=True, slots=True)
class Repeat(Kept):
    """An item `low` to `high` times; None is without end."""

    item: Node
    low: int
    high: int | None
    __hash__ = Kept.__hash__


@dataclass(frozen=True, slots=True)
class And(Kept):
    """A text of every part."""

    parts: tuple[Node, ...]
    __hash__ = Kept.__hash__


@dataclass(frozen=True, slots=True)
class Not(Kept):
    """A text that is none of the part's."""

    part: Node
    __hash__ = Kept.__hash__


@dataclass(frozen=True, slots=True)
class Look(Kept):
    """A condition on a position: that the item stands, or (`negated`) does not stand, after (`ahead`) or before it."""

    ahead: bool
    negated: bool
    item: Node
    __hash__ = Kept.__hash__


@dataclass(frozen=True, slots=True)
class Anchor(Kept):
    """A condition on a position: `start`, `end`, `end_or_newline` (Python's `$`), `boundary`, `not_boundary`.

    `line_start` and `line_end` are those of `re.MULTILINE`.
    """

    kind: str
    spelled: str
    __hash__ = Kept.__hash__


class Leaf(Kept):
    """What a grammar adds to the algebra (`grammar_ast.py`)."""

    __slots__ = ()


Node: TypeAlias = Chars | Seq | Alt | Repeat | And | Not | Anchor | Look | Leaf

EMPTY: Node = Seq(())
NOTHING: Node = Alt(())
ANYTHING: Node = Repeat(Chars(charsets.ANY), 0, None)


def char(one: str) -> Node:
    """One character."""
    return _one_char(one)


@functools.lru_cache(maxsize=1024)
def _one_char(one: str) -> Node:
    return Chars(charsets.of_ranges([(ord(one), ord(one))]))


def _is_nothing(node: Node) -> bool:
    return (isinstance(node, Chars) and not node.chars) or (isinstance(node, Alt) and not node.options)


def seq(*items: Node) -> Node:
    """The items one after the other, flattened."""
    flat: list[Node] = []
    for item in items:
        if _is_nothing(item):
            return NOTHING
        flat.extend(item.items if isinstance(item, Seq) else (item,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*options: Node) -> Node:
    """One of the options, flattened, without those that match nothing."""
    found: dict[Node, None] = {}
    for option in options:
        for one in option.options if isinstance(option, Alt) else (option,):
            if not _is_nothing(one):
                found[one] = None
    flat = tuple(found)
    return flat[0] if len(flat) == 1 else Alt(flat)


def repeat(item: Node, low: int, high: int | None) -> Node:
    """The item so many times."""
    if item == EMPTY or high == 0:
        return EMPTY
    if _is_nothing(item):
        return EMPTY if low == 0 else NOTHING
    return item if (low, high) == (1, 1) else Repeat(item, low, high)


def both(*parts: Node) -> Node:
    """What every part allows, flattened."""
    flat: list[Node] = []
    for part in parts:
        for one in part.parts if isinstance(part, And) else (part,):
            if _is_nothing(one):
                return NOTHING
            if one != ANYTHING and one not in flat:
                flat.append(one)
    if not flat:
        return ANYTHING
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def negation(part: Node) -> Node:
    """Every text that the part does not allow."""
    if part == NOTHING:
        return ANYTHING
    if part == ANYTHING:
        return NOTHING
    return part.part if isinstance(part, Not) else Not(part)


def is_plain(node: Node) -> bool:
    """Whether the node can be written as an ordinary pattern: without intersections and complements."""
    if isinstance(node, (Seq, Alt)):
        return all(map(is_plain, node.items if isinstance(node, Seq) else node.options))
    return is_plain(node.item) if isinstance(node, Repeat) else isinstance(node, Chars)


def min_width(node: Node) -> int:
    """Characters that every text has at least: the shortest one, where nothing is intersected (anchors are empty)."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, And):
        return max(map(min_width, node.parts))
    if isinstance(node, Not):
        return int(nullable(node.part))
    if isinstance(node, Seq):
        return sum(map(min_width, node.items))
    if isinstance(node, Alt):
        return min(map(min_width, node.options), default=0)
    return min_width(node.item) * node.low if isinstance(node, Repeat) else 0


def max_width(node: Node) -> int | None:
    """Characters that every text has at most; None without end."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Not):
        return None
    if isinstance(node, And):
        return min((w for w in map(max_width, node.parts) if w is not None), default=None)
    if isinstance(node, (Seq, Alt)):
        widths = [max_width(n) for n in (node.items if isinstance(node, Seq) else node.options)]
        known = [w for w in widths if w is not None]
        if len(known) < len(widths):
            return None
        return sum(known) if isinstance(node, Seq) else max(known, default=0)
    if not isinstance(node, Repeat):
        return 0
    inner = max_width(node.item)
    if inner == 0:
        return 0
    return None if inner is None or node.high is None else inner * node.high


def nullable(node: Node) -> bool:
    """Whether the empty text is one of the node's."""
    if isinstance(node, Seq):
        return all(map(nullable, node.items))
    if isinstance(node, Alt):
        return any(map(nullable, node.options))
    if isinstance(node, Repeat):
        return node.low == 0 or nullable(node.item)
    if isinstance(node, And):
        return all(map(nullable, node.parts))
    return isinstance(node, Not) and not nullable(node.part)


def ends(node: Node, first: bool) -> CharSet:
    """The characters that a non-empty text of the language may begin with (`first`) or end with."""
    if isinstance(node, Chars):
        return node.chars
    if isinstance(node, Alt):
        return charsets.union(*(ends(option, first) for option in node.options))
    if isinstance(node, Repeat):
        return ends(node.item, first)
    if isinstance(node, And):
        return functools.reduce(charsets.intersection, (ends(part, first) for part in node.parts))
    if isinstance(node, Not):
        return charsets.ANY
    found: CharSet = ()
    if isinstance(node, Seq):
        for item in node.items if first else reversed(node.items):
            found = charsets.union(found, ends(item, first))
            if min_width(item):
                break
    return found


def write(node: Node, *, engine: bool) -> str:
    """The pattern's text, for the engines (`\\x{1f600}`) or for the `regex` module (`\\U0001f600`)."""
    if isinstance(node, Chars):
        return _write_chars(node.chars, engine)
    if isinstance(node, Seq):
        return "".join(
            _grouped(item, engine) if isinstance(item, Alt) else write(item, engine=engine) for item in node.items
        )
    if isinstance(node, Alt):
        return "|".join(write(option, engine=engine) for option in node.options) if node.options else "[^\\s\\S]"
    if isinstance(node, Repeat):
        return _grouped(node.item, engine) + _times(node)
    raise AssertionError(f"not an ordinary pattern: {node}")


def _grouped(node: Node, engine: bool) -> str:
    text = write(node, engine=engine)
    return text if isinstance(node, Chars) else f"(?:{text})"


def _times(node: Repeat) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    if known:
        return known
    high = "" if node.high is None else str(node.high)
    return f"{{{node.low}}}" if node.low == node.high else f"{{{node.low},{high}}}"


@functools.lru_cache(maxsize=4096)
def _write_chars(chars: CharSet, engine: bool) -> str:
    if chars == charsets.ANY:
        return "(?s:.)"
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return _char(chars[0][0], engine)
    rest = charsets.complement(chars)
    negative = len(rest) < len(chars)
    shown = rest if negative else chars
    body = "".join(_char(a, engine) if a == b else f"{_char(a, engine)}-{_char(b, engine)}" for a, b in shown)
    return f"[{'^' if negative else ''}{body}]"


def _char(code: int, engine: bool) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\x{{{code:x}}}" if engine else f"\\U{code:08x}"
