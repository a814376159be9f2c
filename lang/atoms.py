"""What a prompt is before the tokenizer sees it: runs of text, and ids that stay as they were sampled between them.

In: pieces as they stand, or a rendering whose parts are known (`align.py`). Out: the atoms of a `Layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .align import Alignment, Found, Piece, Span, Turn

if TYPE_CHECKING:
    from .chat import Codec

__all__ = ["Atoms", "Kept", "KeptParts", "Run"]


@dataclass(frozen=True)
class Run:
    """Text to be encoded as one run.

    Attributes:
        text: the text.
        genuine: sorted, disjoint stretches of it in which spellings of special tokens mean the tokens.
    """

    text: str
    genuine: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Kept:
    """Ids that stay as they were sampled, and the text that they spell.

    Attributes:
        replaced: ids at the end of the run before that `ids` spell anew, before `text`.
    """

    ids: tuple[int, ...]
    text: str
    replaced: tuple[int, ...] = ()


class Atoms:
    """Collects atoms; adjacent text becomes one run."""

    def __init__(self) -> None:
        self._atoms: list[Run | Kept] = []
        self._parts: list[str] = []
        self._spans: list[Span] = []
        self._length = 0

    def add(self, text: str, *, genuine: bool = False) -> None:
        """Appends text."""
        if not text:
            return
        begin, self._length = self._length, self._length + len(text)
        self._parts.append(text)
        if genuine and self._spans and self._spans[-1][1] == begin:
            begin = self._spans.pop()[0]
        if genuine:
            self._spans.append((begin, self._length))

    def keep(self, kept: Kept) -> None:
        """Appends ids."""
        self.finish()
        self._atoms.append(kept)

    def add_pieces(self, pieces: Sequence[Piece]) -> None:
        """Appends pieces as they stand."""
        for piece in pieces:
            if piece.ids is None:
                self.add(piece.text, genuine=piece.special)
            elif piece.ids:
                self.keep(Kept(piece.ids, piece.text, piece.replaced))

    def finish(self) -> list[Run | Kept]:
        """Ends the run that is being collected; all atoms so far."""
        if self._parts:
            self._atoms.append(Run("".join(self._parts), tuple(self._spans)))
            self._parts, self._spans, self._length = [], [], 0
        return self._atoms


class KeptParts:
    """A rendering, with kept ids where they spell what stands there.

    Attributes:
        lost: whether ids of a generated text could not be kept, at least in part.
    """

    def __init__(self, turns: Sequence[Turn], alignment: Alignment, codec: Codec) -> None:
        self._alignment = alignment
        self._kept: list[tuple[int, int, Kept]] = []
        whole: set[tuple[int, int]] = set()
        for found in alignment.found:
            piece = turns[found.turn].pieces[found.piece]
            if piece.ids is None:
                continue
            kept = _kept_part(piece, found, codec)
            if kept is not None and (not self._kept or self._kept[-1][1] <= kept[0]):
                self._kept.append(kept)
                if kept[2].ids == piece.ids:
                    whole.add((found.turn, found.piece))
        owners = {(t, p) for t, turn in enumerate(turns) for p, piece in enumerate(turn.pieces) if piece.ids}
        self.lost = bool(owners - whole)

    def emit(self, atoms: Atoms, begin: int, end: int) -> int:
        """Appends text[begin:end], or up to the end of kept ids that it goes through; returns where it ended."""
        for start, stop, kept in self._kept:
            if begin <= start < end:
                self._add(atoms, begin, start)
                atoms.keep(kept)
                begin = stop
        self._add(atoms, begin, end)
        return max(begin, end)

    def _add(self, atoms: Atoms, begin: int, end: int) -> None:
        text = self._alignment.text
        for start, stop in _inside(self._alignment.foreign, begin, end):
            atoms.add(text[begin:start], genuine=True)
            atoms.add(text[start:stop])
            begin = stop
        atoms.add(text[begin:end], genuine=True)


def _inside(spans: Sequence[Span], begin: int, end: int) -> Iterator[Span]:
    """The sorted spans, cut to begin..end and made disjoint."""
    for start, stop in spans:
        start, stop = max(start, begin), min(stop, end)
        if start < stop:
            yield start, stop
            begin = stop


def _kept_part(piece: Piece, found: Found, codec: Codec) -> tuple[int, int, Kept] | None:
    """The ids that lie wholly in the found part of a piece, with where they begin and end in the rendering."""
    ids = piece.ids or ()
    if found.hi - found.lo == len(piece.text):
        return found.start, found.stop, Kept(ids, piece.text, piece.replaced)
    data = [codec.token_bytes(i) for i in ids]
    if b"".join(data) != piece.text.encode():
        return None  # special tokens without a text, ill-formed bytes: which id spells what is not known
    low, high = (len(piece.text[:at].encode()) for at in (found.lo, found.hi))
    inside: list[int] = []
    at, begin, end = 0, None, 0
    for token_id, token in zip(ids, data):
        if low <= at and at + len(token) <= high and token:
            inside.append(token_id)
            begin = at if begin is None else begin
            end = at + len(token)
        at += len(token)
    if begin is None:
        return None
    raw = piece.text.encode()
    try:
        before, text = raw[low:begin].decode(), raw[begin:end].decode()
    except UnicodeDecodeError:
        return None
    start = found.start + len(before)
    return start, start + len(text), Kept(tuple(inside), text)
