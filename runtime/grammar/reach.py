"""Where each token of a vocabulary leads in an outline, and how many tokens the text then still takes.

In: an `Outline`, a vocabulary, a place. Out: the tokens that finish the text from there; for every token at once, those
that finish it after that token. So which tokens still fit a budget is known exactly, and a budget that is met once is
met to the end: each place keeps the tokens of its own way out.

Places are numbered as they are seen, characters are taken together where no part of the grammar tells them apart, and
what follows is kept in a table [place, kind of character] (`places.py`), through which all tokens are followed
(`spread.py`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from typing_extensions import override

from ...schema.grammar_ast import Foreign
from .kinds import nodes_of
from .matcher import Mask
from .needs import NEVER, Needs
from .outline import Cell, Outline, OutlineError, Place
from .places import TooMuchWork
from .spread import Alike, Spread
from .texts import Ints, whole_characters
from .vocabulary import Vocabulary

__all__ = ["Path", "Reach", "TooMuchWork"]

_MOST_WARM = 48
_MOST_WARM_BYTES = 1024 * 1024
_MOST_LIKELY = 4
_LONG = 256  # characters that are not spelled together with what is before them
_MOST_TRIED = 48
_SPARE = 3
_ZONE = 12

Path = tuple[int, ...]
"""Tokens that finish a text."""


class Reach(Spread):
    """The places of one outline, as far as texts came to them; used by whoever holds its `lock`.

    Args:
        outline: it.
        vocabulary: the tokens.
        pause: called now and then while it is made.
        silent: tokens without text that may be needed from some place.
        exact: see `Places`.
    """

    def __init__(
        self,
        outline: Outline,
        vocabulary: Vocabulary,
        pause: Callable[[], None] = lambda: None,
        *,
        silent: int = 0,
        exact: bool = False,
    ) -> None:
        super().__init__(outline, vocabulary, pause)
        self.exact = exact
        finishes = self._texts.finishes
        self._finishes = np.where(finishes < 0, 0, self._kinds[finishes])
        self.lock = threading.Lock()
        foreign = any(isinstance(node, Foreign) for node in nodes_of(outline.rules.values(), pause))
        self.spare = silent + (_SPARE if foreign else 0)
        """Tokens that may be needed beside these: without text, or where the outline reads more than the engine."""
        most = len(self._spelled(outline.longest) or ())
        self.zone = _ZONE + min(16 * most, 4 * most + 288)
        """So many tokens above what a text needs any token fits: one begins sixteen things at most (a few if large)."""
        pause()

    @override
    def _forget(self) -> None:
        super()._forget()
        self._paths: dict[int, Path | None] = {}
        self._needs: Ints = np.full(len(self._next), -1, np.int32)
        self._rests: dict[int, Path | None] = {}
        self._ways: dict[tuple[str, int], Path | None] = {}
        self._profiles: dict[int, Needs] = {}
        self._sampled: dict[tuple[int, bytes, int], Needs] = {}

    @override
    def _make_room(self) -> None:
        super()._make_room()
        self._needs = np.concatenate([self._needs, np.full_like(self._needs, -1)])

    def warm(self, pause: Callable[[], None], wanted: Callable[[], bool], most: int = _MOST_WARM) -> None:
        """Follows all tokens where most texts will come, so that no step has to.

        That is along the shortest text, and from there where most tokens lead, up to so many places.
        """
        waiting = deque([self.start])
        seen: set[object] = set()
        with self.lock:
            path = deque(self.path(self.number(self.start)) or ())
        while waiting and len(seen) < most and wanted():
            place = waiting.popleft()
            if place.key in seen:
                continue
            seen.add(place.key)
            with self.lock, contextlib.suppress(TooMuchWork, OutlineError):
                number = self.number(place)
                self.after(number)
                if path:
                    along = self.walk(number, whole_characters(self._vocabulary.text_bytes[path.popleft()]))
                    if along >= 0:
                        waiting.appendleft(self._places[along])
                waiting += [self._places[later] for later in self._likely(number)]
                if self._bytes > _MOST_WARM_BYTES:
                    break
            pause()

    def _likely(self, number: int) -> list[int]:
        """Where most of the tokens lead."""
        _, finals, alike = self.leads(number)
        places, counts = np.unique(finals, return_counts=True)
        most_first = places[np.argsort(-counts, kind="stable")[:_MOST_LIKELY]].tolist()
        return [later for later in (*([] if alike is None else alike.chain[1:3].tolist()), *most_first) if later >= 0]

    @property
    def num_followed(self) -> int:
        """Places that all tokens were followed from and that are kept."""
        return len(self._profiles)

    # ---- the way out

    def path(self, number: int, rest: bytes = b"") -> Path | None:
        """The tokens that finish the text from a place, where the first bytes of a character may have come."""
        if rest:
            return self._path_within(number, rest)
        if number not in self._paths:
            self._paths[number] = self._way_out(self._places[number])
        return self._paths[number]

    def need(self, number: int, rest: bytes = b"") -> int:
        """How many these are; `NEVER` where none are known."""
        if rest:
            return min((len(tail) + self.need(later) for tail, later in self._tails(number, rest)), default=NEVER)
        found = int(self._needs[number])
        if found < 0:
            path = self.path(number)
            found = self._needs[number] = NEVER if path is None else len(path)
        return int(found)

    def need_after(self, number: int, data: bytes) -> int:
        """The same after some bytes from a place on; `NEVER` where these lead nowhere."""
        text = whole_characters(data)
        later = self.walk(number, text)
        return NEVER if later < 0 else self.need(later, data[len(text.encode()) :])

    def _way_out(self, place: Place) -> Path | None:
        ending = self._outline.ending(place)
        if ending is None:
            return None
        key = ending[0], id(ending[1])  # cells are kept
        if key not in self._ways:
            self._ways[key] = self._way(*ending)
        return self._ways[key]

    def _way(self, first: str, rest: Cell | None) -> Path | None:
        if rest is None or len(first) + (rest.size or 0) <= _LONG:
            return self._spelled(first + ("" if rest is None else rest.text))
        if id(rest) not in self._rests:
            self._rests[id(rest)] = self._spelled(rest.text)
        begin, end = self._spelled(first), self._rests[id(rest)]
        return None if begin is None or end is None else (*begin, *end)

    def _path_within(self, number: int, rest: bytes) -> Path | None:
        ways = [(len(tail) + self.need(later), tail, later) for tail, later in self._tails(number, rest)]
        if not ways:
            return None
        _, tail, later = min(ways)
        path = self.path(later)
        singles = [token for byte in tail if (token := self._vocabulary.single_bytes[byte]) is not None]
        return None if path is None else (*singles, *path)

    def _tails(self, number: int, rest: bytes) -> Iterator[tuple[bytes, int]]:
        """How the character may end, and where that leads."""
        for char, tail in self._texts.tails(rest).items():
            later = self.walk(number, char)
            if later >= 0:
                yield tail, later

    def _spelled(self, text: str) -> Path | None:
        if not text:
            return ()
        ways = (self._vocabulary.longest_fit(text.encode()), self._vocabulary.encode(text))
        known = [tuple(way) for way in ways if way]
        return min(known, key=len) if known else None

    # ---- all tokens

    def after(self, number: int) -> Needs:
        """What is needed after each token that is allowed at a place.

        Raises:
            TooMuchWork: it is not known yet; asked again, it goes on.
            OutlineError: too many readings.
        """
        found = self._profiles.get(number)
        if found is None:
            self._work = 0
            found = self._profiles[number] = self._followed(number)
            self._bytes += found.size
        return found

    def after_some(self, number: int, rest: bytes, row: Mask) -> Needs:
        """What is needed after some tokens of a mask, as far as it takes not too long; a text may end in a character.

        Raises:
            OutlineError: too many readings.
        """
        key = number, rest, hash(row.tobytes())
        found = self._sampled.get(key)
        if found is None:
            self._work = 0
            if rest:
                late = self._texts.late
                bits = late[row[late >> 5] >> (late & 31) & 1 != 0]
            else:
                bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: self._vocabulary.size])
                if len(bits) > _MOST_TRIED:
                    bits = bits[np.linspace(0, len(bits) - 1, _MOST_TRIED).astype(np.int64)]
            ids: list[int] = []
            needs: list[int] = []
            for token_id in bits.tolist():
                need = self.need_after(number, rest + self._vocabulary.text_bytes[token_id])
                if need < NEVER:
                    ids.append(token_id)
                    needs.append(need)
                if self._worked_enough:
                    break
            found = Needs(NEVER, [], np.array(ids, np.int32), np.array(needs, np.int32))
            self._sampled[key] = found
            self._bytes += found.size + 100
        return found

    def _followed(self, number: int) -> Needs:
        chosen, finals, alike = self.leads(number)
        needs = self._needs_of(finals)
        begun = self._texts.begun[chosen]
        cut = np.flatnonzero(begun >= 0)
        if len(cut):
            needs[cut] = self._needs_of_begun(finals[cut], begun[cut])
        known = needs < NEVER
        by_size = [] if alike is None else self._by_size(alike)
        every = [int(needs[known].max(initial=0)), *(need for need, _ in by_size)]
        most = max(every) if by_size or known.any() else NEVER
        return Needs(most, by_size, self._texts.ids[chosen[known]], needs[known])

    def _by_size(self, alike: Alike) -> list[tuple[int, Mask]]:
        """What is needed after tokens that differ by their length alone, with the tokens."""
        ordinary = alike.ordinary
        places = alike.chain[ordinary.sizes]
        live = int((places >= 0).sum())  # once it is over, it stays over
        needs = self._needs_of(places[:live])
        ends = [*np.flatnonzero(needs[1:] != needs[:-1]).tolist(), live - 1] if live else []
        found, first = [], 0
        for last in ends:
            mask = ordinary.mask(first, last)
            if needs[last] < NEVER:
                found.append((int(needs[last]), mask if alike.apart is None else mask & ~alike.apart))
            first = last + 1
        return found

    def _needs_of(self, numbers: Ints) -> Ints:
        """What each of these places needs."""
        needs: Ints = self._needs[numbers]
        unknown = needs < 0
        if unknown.any():
            for number in sorted(set(numbers[unknown].tolist())):
                self.need(number)
            needs = self._needs[numbers]
        return needs

    def _needs_of_begun(self, numbers: Ints, begun: Ints) -> Ints:
        """The same inside of a character: by the ways to end that."""
        kinds = self._finishes[begun]
        later = self._fill(np.repeat(numbers, kinds.shape[1]), kinds.reshape(-1)).reshape(kinds.shape)
        works = (later >= 0) & (self._texts.finishes[begun] >= 0)
        needs = np.full(kinds.shape, NEVER, np.int32)
        needs[works] = self._needs_of(later[works]) + self._texts.finish_sizes[begun][works]
        best: Ints = needs.min(axis=1)
        return best
