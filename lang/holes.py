"""Prompts in which some text is not known yet, as token ids: what is known ahead, exact to the token, and the holes.

In: the parts of a prompt, `Hole`s among them, and a backend's `encode`. Out: a `Path`: ids, and for each hole one id
below 0 that stands for whatever comes there.

A value that a model will write keeps its ids, so the runs of text around it are encoded as they will be: a filling of
one known token shows them. Other text (a choice, a value inside an f-string) is encoded together with the text around
it; there several fillings are tried, and only the tokens on which all agree count as known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .prefix_tree import TokenArray
from .prompt import Generated, Part, Prompt, Text, TurnBegin

__all__ = ["BORDER", "Encode", "Hole", "HoleEncoder", "Path"]

Encode: TypeAlias = Callable[[Prompt], "Sequence[int] | TokenArray"]

BORDER = 1 << 30
"""Taken from a hole's mark, it marks a stretch beside the hole whose tokens depend on it."""

_ANY_TEXT = ("x", " 7\n")  # fillings as unlike as texts are: a letter, and a space, a digit and a line's end


@dataclass(frozen=True)
class Hole:
    """A text that is not known yet.

    Attributes:
        mark: the id that stands for it, below 0; the same hole has the same one in every prompt.
        kept: whether it enters later prompts by its own ids, as what a model wrote does.
        texts: two or more texts that it may be, where its ids are not kept.
        exact: whether it is one of `texts`; else a token beside it may be another one with another text.
    """

    mark: int
    kept: bool = True
    texts: tuple[str, ...] = _ANY_TEXT
    exact: bool = False


@dataclass(frozen=True)
class Path:
    """A prompt as it is known ahead.

    Attributes:
        tokens: ids (int32), and the marks of holes.
        open_tokens: about how many tokens of known text stand between holes where their borders are not known.
        raw: whether it has no role turn and every hole keeps its ids: what follows is then encoded on its own.
    """

    tokens: TokenArray
    open_tokens: int = 0
    raw: bool = False


class HoleEncoder:
    """Encodes prompts with holes.

    Args:
        encode: the ids of a prompt without holes.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._fillings: tuple[Generated, Generated] | None = None
        self._tails: dict[tuple[Text, ...], TokenArray] = {}

    def ids(self, parts: Prompt) -> TokenArray:
        """The ids of a prompt without holes."""
        ids = self._encode(parts)
        return np.frombuffer(ids, np.uint8).astype(np.int32) if isinstance(ids, bytes) else np.array(ids, np.int32)

    def path(self, parts: Sequence[Part | Hole]) -> Path:
        """The prompt as it is known ahead; raises what `encode` raises."""
        holes = [part for part in parts if isinstance(part, Hole)]
        raw = all(hole.kept for hole in holes) and not any(isinstance(part, TurnBegin) for part in parts)
        first = self.ids(self.filled(parts, 0))
        if not holes:
            return Path(first, raw=raw)
        count = max(2 if hole.kept else len(hole.texts) for hole in holes)
        fillings = [first, *(self.ids(self.filled(parts, which)) for which in range(1, count))]
        if all(np.array_equal(first, other) for other in fillings[1:]):
            return Path(first)  # a template may leave out what stands in the history
        if all(hole.kept for hole in holes):
            marked = self._marked(first, fillings[1], holes)
            if marked is not None:
                return Path(marked, raw=raw)
        return self._agreed(fillings, holes)

    def continued(self, path: TokenArray, parts: Sequence[Part | Hole]) -> TokenArray | None:
        """The ids after the last hole of a prompt that begins with `path` and this hole; None where it does not.

        Args:
            path: ids and marks before the hole.
            parts: the whole prompt; all of its holes keep their ids.
        """
        filling = (self._filling(0).token_ids or (0,))[0]
        expected = np.append(np.where(path < 0, filling, path), filling)
        ids = self.ids(self.filled(parts, 0))
        return ids[len(expected) :] if np.array_equal(ids[: len(expected)], expected) else None

    def tail(self, texts: tuple[Text, ...]) -> TokenArray:
        """The ids of raw texts that follow kept ids."""
        ids = self._tails.get(texts)
        if ids is None:
            if len(self._tails) >= 4096:
                self._tails.clear()
            before = len(self._encode((self._filling(0),)))
            ids = self._tails[texts] = self.ids((self._filling(0), *texts))[before:]
        return ids

    def filled(self, parts: Sequence[Part | Hole], which: int) -> Prompt:
        """The prompt with its holes filled in one of several ways, the first of which is 0."""
        return tuple(self._fill(part, which) if isinstance(part, Hole) else part for part in parts)

    def _fill(self, hole: Hole, which: int) -> Part:
        return self._filling(which) if hole.kept else Generated(hole.texts[which % len(hole.texts)])

    def _filling(self, which: int) -> Generated:
        if self._fillings is None:
            # Texts of different lengths: a template may look at them.
            self._fillings = (self._one_token("x", "x"), self._one_token("y", "Yes, 12."))
        return self._fillings[min(which, 1)]

    def _one_token(self, of: str, text: str) -> Generated:
        return Generated(text, (int(self._encode((Text(of),))[-1]),))

    def _wild(self, first: TokenArray, second: TokenArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Where the one filling's ids have the first kept filling and the other's the second."""
        a, b = (self._filling(which).token_ids or (0,) for which in (0, 1))
        wild: np.ndarray[tuple[int], np.dtype[np.bool_]] = (first == a[0]) & (second == b[0])
        return wild

    def _marked(self, first: TokenArray, second: TokenArray, holes: Sequence[Hole]) -> TokenArray | None:
        """The ids with the marks of kept holes; None where the fillings show more than the holes themselves."""
        if len(first) != len(second):
            return None
        differ = np.flatnonzero(first != second)
        if len(differ) != len(holes) or not self._wild(first, second)[differ].all():
            return None
        first[differ] = [hole.mark for hole in holes]
        return first

    def _agreed(self, fillings: Sequence[TokenArray], holes: Sequence[Hole]) -> Path:
        """What all fillings begin and end with; all between is one hole."""
        size = min(map(len, fillings))
        before = self._agreement([filling[:size] for filling in fillings], holes)
        rest = [hole for hole in holes if hole.mark not in before]
        room = size - len(before)
        behind: TokenArray = self._agreement([f[::-1][:room] for f in fillings], rest[::-1])[::-1]
        inside = [hole for hole in rest if hole.mark not in behind]
        mark = inside[0].mark if inside else (rest or holes)[0].mark - BORDER
        tokens = np.concatenate([before, np.array([mark], np.int32), behind])
        return Path(tokens, open_tokens=max(0, room - len(behind) - len(inside)))

    def _agreement(self, fillings: Sequence[TokenArray], holes: Sequence[Hole]) -> TokenArray:
        """What fillings of one length begin with alike, kept holes marked, up to the first hole of another kind."""
        first, *others = fillings
        wild = self._wild(first, others[0])
        length = min(_first_false((first == other) | self._wild(first, other)) for other in others)
        kept = next((i for i, hole in enumerate(holes) if not hole.kept), len(holes))
        found = np.flatnonzero(wild[:length])
        if len(found) > kept:
            length, found = int(found[kept]), found[:kept]
        ahead = holes[len(found) : len(found) + 1]
        if ahead and not (ahead[0].kept or ahead[0].exact) and length > 0 and not wild[length - 1]:
            length -= 1
        agreed: TokenArray = first[:length].copy()
        agreed[found] = [hole.mark for hole in holes[: len(found)]]
        return agreed


def _first_false(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    return len(flags) if flags.all() else int(flags.argmin())
