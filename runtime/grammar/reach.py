"""Where each token of a vocabulary leads in an outline, and how many tokens the text then still takes.

In: an `Outline`, a vocabulary, a place. Out: the tokens that finish the text from there; for every token at once, those
that finish it after that token. So which tokens still fit a budget is known exactly, and a budget that is met once is
met to the end: each place keeps the tokens of its own way out.

Places are numbered as they are seen, characters are taken together where no part of the grammar tells them apart, and
what follows is kept in a table [place, kind of character]: all tokens are followed through it side by side. Those of
one string's ordinary characters differ by their length alone, and are not followed one by one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ...schema.grammar_ast import Foreign
from .kinds import nodes_of
from .matcher import Mask, mask_words
from .needs import NEVER, Needs
from .outline import Outline, OutlineError, Place
from .places import DEAD, UNKNOWN, Places, TooMuchWork
from .texts import Ints, whole_characters
from .vocabulary import Vocabulary

__all__ = ["Path", "Reach", "TooMuchWork"]

_MOST_WARM = 500
_LONG = 256  # characters that are not spelled together with what is before them
_FEWEST_ORDINARY = 2_000
_FEW = 16  # tokens that are followed one by one
_MOST_TRIED = 48
_SPARE = 3
_ZONE = 12

Flags = NDArray[np.bool_]
Path = tuple[int, ...]
"""Tokens that finish a text."""


@dataclass(frozen=True)
class _Ordinary:
    """The tokens made of some kinds of characters alone, and the others."""

    kinds: Ints  # of the ordinary characters
    longest: int  # characters of the longest token
    masks: dict[int, Mask]  # characters → the tokens of so many ordinary ones
    others: Ints  # places in `TokenTexts.ids`
    runs: Ints  # how many ordinary characters each of these begins with
    next: dict[int, int] = field(default_factory=dict)  # place → where any of the characters leads


class Reach(Places):
    """The places of one outline, as far as texts came to them; used by whoever holds its `lock`.

    Args:
        outline: it.
        vocabulary: the tokens.
        pause: called now and then while it is made.
        silent: tokens without text that may be needed from some place.
    """

    def __init__(
        self,
        outline: Outline,
        vocabulary: Vocabulary,
        pause: Callable[[], None] = lambda: None,
        *,
        silent: int = 0,
    ) -> None:
        super().__init__(outline, vocabulary, pause)
        count = self._count
        self._flat: Ints = self._kinds[self._texts.flat] if len(self._texts.flat) else self._texts.flat
        self._weights = np.bincount(self._flat, minlength=count)
        pause()
        firsts = np.full(len(self._texts.ids), count, np.int32)  # those without a whole character come last
        some = self._texts.sizes > 0
        firsts[some] = self._flat[self._texts.starts[some]]
        self._order = np.argsort(firsts, kind="stable").astype(np.int32)
        self._bounds = np.searchsorted(firsts[self._order], np.arange(count + 2))
        self._finishes = np.where(self._texts.finishes < 0, 0, self._kinds[self._texts.finishes])
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
        self._profiles: dict[int, Needs] = {}
        self._ordinary: dict[bytes, _Ordinary | None] = {}
        self._sampled: dict[tuple[int, bytes, int], Needs] = {}

    @override
    def _make_room(self) -> None:
        super()._make_room()
        self._needs = np.concatenate([self._needs, np.full_like(self._needs, -1)])

    def warm(self, pause: Callable[[], None], wanted: Callable[[], bool]) -> None:
        """Follows all tokens from the places of the shortest text, so that no step has to: most texts come there."""
        if not wanted():
            return
        with self.lock:
            place, path = self.start, self.path(self.number(self.start)) or ()
        for token_id in path:
            pause()
            with self.lock, contextlib.suppress(TooMuchWork, OutlineError):
                number = self.number(place)
                self.after(number)
                later = self.walk(number, whole_characters(self._vocabulary.text_bytes[token_id]))
                if later >= 0 and len(self._places) < _MOST_WARM and wanted():
                    place = self._places[later]
                    continue
            break

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
        first, rest = ending
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
            bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: self._vocabulary.size])
            if rest:
                bits = bits[np.isin(bits, self._texts.late)]
            elif len(bits) > _MOST_TRIED:
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
        chain, ordinary = self._chain(number)
        if ordinary is None:
            chosen = self._beginning_at(number)
            finals = self._finals(np.full(len(chosen), number, np.int32), chosen, np.zeros(len(chosen), np.int32))
        else:
            chosen = ordinary.others
            finals = self._finals(np.array(chain, np.int32)[ordinary.runs], chosen, ordinary.runs)
        live = finals >= 0
        chosen, finals = chosen[live], finals[live]
        needs = self._needs_of(finals)
        begun = self._texts.begun[chosen]
        cut = np.flatnonzero(begun >= 0)
        if len(cut):
            needs[cut] = self._needs_of_begun(finals[cut], begun[cut])
        known = needs < NEVER
        by_size = []
        if ordinary is not None:
            for size, mask in ordinary.masks.items():
                if chain[size] >= 0:
                    by_size.append((self.need(chain[size]), mask))
        every = [int(needs[known].max(initial=0)), *(need for need, _ in by_size)]
        most = max(every) if by_size or known.any() else NEVER
        return Needs(most, by_size, self._texts.ids[chosen[known]], needs[known])

    def _beginning_at(self, number: int) -> Ints:
        """The tokens whose first character may stand at a place, and those without a whole one."""
        row = self._fill(np.full(self._count, number, np.int32), np.arange(self._count, dtype=np.int32))
        kinds = [*np.flatnonzero(row >= 0).tolist(), self._count]
        return np.concatenate([self._order[self._bounds[kind] : self._bounds[kind + 1]] for kind in kinds])

    def _needs_of(self, numbers: Ints) -> Ints:
        """What each of these places needs."""
        needs: Ints = self._needs[numbers]
        unknown = needs < 0
        if unknown.any():
            for number in np.unique(numbers[unknown]).tolist():
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

    def _finals(self, states: Ints, chosen: Ints, at: Ints) -> Ints:
        """Where each of these tokens leads, whose first `at` characters led to `states`; -1: nowhere."""
        finals = np.full(len(chosen), DEAD, np.int32)
        alive = np.flatnonzero(states >= 0)
        chosen, states = chosen[alive], states[alive]
        at = self._texts.starts[chosen] + at[alive]
        ends = self._texts.starts[chosen] + self._texts.sizes[chosen]
        while len(alive) > _FEW:
            over = at == ends
            if over.any():
                finals[alive[over]] = states[over]
                going = ~over
                alive, states, at, ends = alive[going], states[going], at[going], ends[going]
            states = self._fill(states, self._flat[at])
            going = states >= 0
            alive, states, at, ends = alive[going], states[going], at[going] + 1, ends[going]
        for which, state, start, end in zip(alive.tolist(), states.tolist(), at.tolist(), ends.tolist()):
            finals[which] = self._followed_alone(state, self._flat[start:end].tolist())
        return finals

    def _followed_alone(self, number: int, kinds: list[int]) -> int:
        for kind in kinds:
            later = self._next.item(number, kind)
            number = self._stepped(number, kind) if later == UNKNOWN else later
            if number < 0:
                break
        return number

    def _chain(self, number: int) -> tuple[list[int], _Ordinary | None]:
        """The places after 0, 1, 2 … ordinary characters, where any of these lead to the same one."""
        every = np.arange(self._count, dtype=np.int32)
        row = self._fill(np.full(self._count, number, np.int32), every)
        targets, own = np.unique(row, return_inverse=True)
        weights = np.bincount(own.reshape(-1), self._weights)
        weights[targets < 0] = -1
        best = int(np.argmax(weights))
        if targets[best] < 0:
            return [], None
        kinds = own.reshape(-1) == best
        begin = (self._bounds[1:] - self._bounds[:-1])[: self._count][kinds].sum()
        ordinary = self._made_of(kinds) if begin >= _FEWEST_ORDINARY else None
        if ordinary is None:
            return [], None
        chain = [number]
        while len(chain) <= ordinary.longest:
            later = self._next_ordinary(chain[-1], ordinary)
            if later is None:
                return [], None
            chain.append(later)
        return chain, ordinary

    def _next_ordinary(self, number: int, ordinary: _Ordinary) -> int | None:
        """Where every ordinary character leads from a place; None: not all to the same one."""
        if number < 0:
            return DEAD
        found = ordinary.next.get(number)
        if found is None:
            later = self._fill(np.full(len(ordinary.kinds), number, np.int32), ordinary.kinds)
            found = int(later[0]) if (later == later[0]).all() else UNKNOWN
            ordinary.next[number] = found
        return None if found == UNKNOWN else found

    def _made_of(self, kinds: Flags) -> _Ordinary | None:
        """The tokens made of some kinds of characters; None where there are few."""
        key = kinds.tobytes()
        if key not in self._ordinary:
            if len(self._ordinary) > 64:
                self._ordinary.clear()
            self._ordinary[key] = self._split(kinds)
        return self._ordinary[key]

    def _split(self, kinds: Flags) -> _Ordinary | None:
        texts = self._texts
        some = np.flatnonzero(texts.sizes > 0)
        if not len(some):
            return None
        # What begins where the next one does adds up to nothing, so only tokens with characters are summed.
        whole = np.minimum.reduceat(kinds[self._flat].astype(np.int8), texts.starts[some]).astype(np.bool_)
        plain = np.zeros(len(texts.ids), np.bool_)
        plain[some] = whole
        plain &= texts.begun < 0
        if 2 * plain.sum() < len(plain):  # following them all takes less
            return None
        masks = {}
        for size in np.unique(texts.sizes[plain]).tolist():
            flags = np.zeros(mask_words(self._vocabulary.size) * 32, np.bool_)
            flags[texts.ids[plain & (texts.sizes == size)]] = True
            masks[size] = np.packbits(flags, bitorder="little").view(np.int32)
        others = np.flatnonzero(~plain).astype(np.int32)
        own = np.flatnonzero(kinds).astype(np.int32)
        return _Ordinary(own, int(texts.sizes.max()), masks, others, self._runs(kinds, others))

    def _runs(self, kinds: Flags, chosen: Ints) -> Ints:
        """How many characters of these kinds each token begins with."""
        at = self._texts.starts[chosen]
        sizes = self._texts.sizes[chosen]
        runs = np.zeros(len(chosen), np.int32)
        going = np.flatnonzero(sizes > 0)
        while len(going):
            going = going[kinds[self._flat[at[going] + runs[going]]]]
            runs[going] += 1
            going = going[runs[going] < sizes[going]]
        return runs
