"""Finds the pieces of a conversation in what a chat template made of them.

In: turns made of pieces, and a function that renders messages.
Out: the plain rendering, and where each piece stands in it; so which stretches are the program's or the model's text,
whatever the template did to them, and which are the template's own.

The conversation is rendered once plain and once with marks, characters of the private planes that occur nowhere else,
at the borders of the pieces. They stand inside leading and trailing white space, so that templates that strip do the
same to both. If the marked rendering without its marks is the plain one, the marks show exactly where everything
stands. If not (the template looks into the contents), texts are searched in order instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from .errors import ChatTemplateError

__all__ = ["Alignment", "Found", "Message", "Piece", "Span", "Turn", "align", "common_prefix", "common_suffix"]

Message = dict[str, str]
Span = tuple[int, int]

_MARKS = (*range(0x100000, 0x10FFF0), *range(0xF0000, 0xFFFFE))
_MARK = re.compile("[\U000f0000-\U0010ffff]")
_SHORT = 8  # texts below this length are found too easily where they do not stand


@dataclass(frozen=True)
class Piece:
    """A stretch of a turn, or of raw text.

    Attributes:
        text: its text.
        ids: token ids that spell it, to be kept; None where it is to be encoded.
        special: whether spellings of special tokens in it mean the tokens.
        replaced: ids at the end of the text before that `ids` spell anew.
    """

    text: str
    ids: tuple[int, ...] | None = None
    special: bool = False
    replaced: tuple[int, ...] = ()


@dataclass
class Turn:
    """A role turn."""

    role: str
    pieces: list[Piece] = field(default_factory=list)

    @property
    def content(self) -> str:
        """Its text."""
        return "".join(p.text for p in self.pieces)

    def bounds(self) -> list[Span]:
        """Where each piece stands in the content."""
        ends = [0]
        for piece in self.pieces:
            ends.append(ends[-1] + len(piece.text))
        return list(pairwise(ends))


@dataclass(frozen=True)
class Found:
    """A part of a piece, unchanged in the rendering.

    Attributes:
        turn, piece: which.
        lo, hi: the part of the piece's text.
        start: where it stands in the rendering.
    """

    turn: int
    piece: int
    lo: int
    hi: int
    start: int

    @property
    def stop(self) -> int:
        """Where it ends in the rendering."""
        return self.start + self.hi - self.lo


@dataclass
class Alignment:
    """A rendering whose parts are known.

    Attributes:
        text: the plain rendering.
        found: unchanged parts of pieces, in the order of their places in the text.
        foreign: sorted stretches in which a spelling of a special token is not the template's.
        ends: turn → where its content ends in the text, for the turns that could be found.
    """

    text: str
    found: list[Found] = field(default_factory=list)
    foreign: list[Span] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)


class _Mark(NamedTuple):
    turn: int
    piece: int
    at: int  # position in the turn's content
    kind: str  # "begin", "end", or "inside" a spelling of a special token


class _Anchor(NamedTuple):
    """A position in a turn's content, for the sake of a piece, and where it stands in the rendering."""

    turn: int
    piece: int
    at: int
    place: int


Render = Callable[[Sequence[Message]], str]
Spellings = Callable[[str], Sequence[Span]]
Unmeant = Callable[[Piece], Sequence[Span]]
Group = tuple[str, str]  # a role, and a spelling of a special token in texts of that role


def align(
    turns: Sequence[Turn],
    render: Render,
    spellings: Spellings,
    unmeant: Unmeant,
    needed: frozenset[int] = frozenset(),
) -> Alignment:
    """Renders the turns and finds in the result what must be told apart.

    Args:
        turns: the conversation.
        render: what the template makes of messages.
        spellings: where a text spells a special token.
        unmeant: where a piece spells a special token that is not meant.
        needed: turns whose end must be found, beside those that have ids to keep or spell a special token.
    """
    plain = render([{"role": t.role, "content": t.content} for t in turns])
    groups = {group for turn in turns for group in _groups(turn, unmeant)}
    keeping = {i for i, t in enumerate(turns) if any(p.ids is not None for p in t.pieces)}
    spelling = {i for i, t in enumerate(turns) if spellings(t.content)} if groups else set()
    wanted = {i for i in keeping | spelling | needed if turns[i].content}
    if not wanted:
        return Alignment(plain)
    attempts = _Attempts(turns, render, spellings, unmeant, plain, wanted)
    return attempts.marked(groups) or attempts.searched(groups)


def _groups(turn: Turn, unmeant: Unmeant) -> set[Group]:
    return {(turn.role, piece.text[a:b]) for piece in turn.pieces for a, b in unmeant(piece)}


@dataclass
class _Attempts:
    """Ways to align, the best first."""

    turns: Sequence[Turn]
    render: Render
    spellings: Spellings
    unmeant: Unmeant
    plain: str
    wanted: set[int]

    def marked(self, groups: set[Group]) -> Alignment | None:
        """By marks at the borders, and inside spellings of special tokens as far as the template lets them be."""
        full = self._try(True, groups)
        if full is None and groups and self._try(True, set()) is not None:
            full = self._try(True, {g for g in groups if self._try(True, {g}) is not None})
        return full

    def searched(self, groups: set[Group]) -> Alignment:
        """By searching the texts, with marks inside spellings as far as the template lets them be.

        A spelling that it does not let be marked is one that it looks for, and what it then writes is its own.
        """
        alignment = self._try(False, groups) or self._try(False, {g for g in groups if self._try(False, {g})})
        alignment = alignment or Alignment(self.plain)
        search = _Search(self)
        _grow_all(alignment, self.turns, list(search.anchors()))
        alignment.ends = search.ends
        return alignment

    def _try(self, borders: bool, groups: set[Group]) -> Alignment | None:
        marks = _Marks(self, borders, groups)
        messages = marks.messages()
        if messages is None:
            return None
        try:
            rendered = self.render(messages)
        except ChatTemplateError:
            return None
        return marks.read(rendered)


class _Marks:
    """The contents with marks in them, and how to read the rendering of these."""

    def __init__(self, work: _Attempts, borders: bool, groups: set[Group]) -> None:
        self._work = work
        self._borders = borders
        self._groups = groups
        taken = {c for text in (work.plain, *(t.content for t in work.turns)) for c in _MARK.findall(text)}
        self._free = (c for c in map(chr, _MARKS) if c not in taken)
        self._marks: dict[str, _Mark] = {}

    def messages(self) -> list[Message] | None:
        """The marked messages; None where there are more places than marks."""
        messages: list[Message] = []
        for index, turn in enumerate(self._work.turns):
            content = self._marked(index, turn) if index in self._work.wanted else turn.content
            if content is None:
                return None
            messages.append({"role": turn.role, "content": content})
        return messages

    def _marked(self, index: int, turn: Turn) -> str | None:
        content = turn.content
        lead = len(content) - len(content.lstrip())
        tail = max(lead, len(content.rstrip()))
        parts: list[str] = []
        at = 0
        for mark in self._marks_of(index, turn):
            inner = min(max(mark.at, lead), tail)
            char = next(self._free, None)
            if char is None:
                return None
            self._marks[char] = mark._replace(at=inner)
            parts += [content[at:inner], char]
            at = inner
        return "".join([*parts, content[at:]])

    def _marks_of(self, index: int, turn: Turn) -> Iterator[_Mark]:
        for i, (piece, (begin, end)) in enumerate(zip(turn.pieces, turn.bounds())):
            if not piece.text:
                continue
            if self._borders:
                yield _Mark(index, i, begin, "begin")
            for start, stop in self._work.unmeant(piece):
                if (turn.role, piece.text[start:stop]) in self._groups:
                    yield _Mark(index, i, begin + start + 1, "inside")
            if self._borders:
                yield _Mark(index, i, end, "end")

    def read(self, marked: str) -> Alignment | None:
        """What the marks show; None where marking changed what the template did."""
        parts: list[str] = []
        places: list[tuple[_Mark, int]] = []
        at = place = 0
        for match in _MARK.finditer(marked):
            if match[0] in self._marks:
                parts.append(marked[at : match.start()])
                place += len(parts[-1])
                places.append((self._marks[match[0]], place))
                at = match.end()
        if "".join([*parts, marked[at:]]) != self._work.plain:
            return None
        alignment = Alignment(self._work.plain)
        self._note(alignment, places)
        anchors = [_Anchor(m.turn, m.piece, m.at, place) for m, place in places if m.kind != "inside"]
        _grow_all(alignment, self._work.turns, anchors)
        return alignment

    def _note(self, alignment: Alignment, places: Sequence[tuple[_Mark, int]]) -> None:
        begun: dict[tuple[int, int], int] = {}
        for mark, place in places:
            key = (mark.turn, mark.piece)
            if mark.kind == "inside":
                alignment.foreign.append((place - 1, place))
            elif mark.kind == "begin":
                begun[key] = place
            else:
                alignment.ends[mark.turn] = place
                if key in begun and not self._work.turns[mark.turn].pieces[mark.piece].special:
                    alignment.foreign.append((begun.pop(key), place))


def _grow_all(alignment: Alignment, turns: Sequence[Turn], anchors: Sequence[_Anchor]) -> None:
    """From each anchor on, in both directions, as far as content and rendering are the same."""
    grown = {_grow(alignment.text, turns[a.turn], a) for a in anchors}
    for found in sorted((f for f in grown if f is not None), key=lambda f: (f.start, -f.hi)):
        alignment.found.append(found)
        if not turns[found.turn].pieces[found.piece].special:
            alignment.foreign.append((found.start, found.stop))
    alignment.foreign.sort()


def _grow(text: str, turn: Turn, anchor: _Anchor) -> Found | None:
    content = turn.content
    begin, end = turn.bounds()[anchor.piece]
    at, place = anchor.at, anchor.place
    low, high = min(begin, at), max(end, at)
    back = common_suffix(content[low:at], text[max(0, place - (at - low)) : place])
    forth = common_prefix(content[at:high], text[place : place + high - at])
    lo, hi = max(begin, at - back), min(end, at + forth)
    return Found(anchor.turn, anchor.piece, lo - begin, hi - begin, place + lo - at) if lo < hi else None


class _Search:
    """Looks for contents, or for long pieces of them, in order.

    Attributes:
        ends: turn → where its content ends in the rendering.
    """

    def __init__(self, work: _Attempts) -> None:
        self._work = work
        self._cursor = 0
        # A text that begins or ends inside the spelling of a special token was found where it does not stand.
        self._inside = {at for a, b in work.spellings(work.plain) for at in range(a + 1, b)}
        self.ends: dict[int, int] = {}

    def anchors(self) -> Iterator[_Anchor]:
        """An anchor for each piece of the wanted turns that is found."""
        for index, turn in enumerate(self._work.turns):
            content = turn.content
            core = content.strip()
            whole = self._find(index, core)
            if whole is not None:
                lead = len(content) - len(content.lstrip())
                for i, (begin, _) in enumerate(turn.bounds()):
                    at = min(max(begin, lead), lead + len(core))
                    yield _Anchor(index, i, at, whole + at - lead)
            elif index in self._work.wanted:
                for i, (piece, (begin, _)) in enumerate(zip(turn.pieces, turn.bounds())):
                    core = piece.text.strip()
                    place = self._find(index, core) if len(core) >= _SHORT else None
                    if place is not None:
                        yield _Anchor(index, i, begin + piece.text.index(core), place)

    def _find(self, turn: int, text: str) -> int | None:
        """The next place of a text; an earlier one (templates reorder) only for one that is long enough to be sure."""
        place = self._from(self._cursor, text)
        if place is None and len(text) >= _SHORT:
            place = self._from(0, text)
        if place is not None:
            self._cursor = self.ends[turn] = place + len(text)
        return place

    def _from(self, cursor: int, text: str) -> int | None:
        place = self._work.plain.find(text, cursor) if text else -1
        while place >= 0 and (place in self._inside or place + len(text) in self._inside):
            place = self._work.plain.find(text, place + 1)
        return place if place >= 0 else None


def common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix."""
    if a == b:
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def common_suffix(a: str, b: str) -> int:
    """Length of the longest common suffix."""
    return common_prefix(a[::-1], b[::-1])
