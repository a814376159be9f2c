"""Finds the stop strings and stop patterns of a `gen` in text that arrives in pieces.

In: the pieces, in order. Out: the pieces that are safe to show, and which stop matched.

The text ends after its first character with which a stop is complete, wherever the borders of the pieces lie; of the
stops that are complete there, the one that began first counts, and the text is cut where it began (`keep`: where it
ends). A pattern is searched in the text so far, so its `$`, `\\b` and look-ahead take the end of the text so far for
the end. Held back is only what may still become a stop; strings cost linear time, a pattern one search of the text
held back per piece.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import regex

from .errors import SamplingError

__all__ = ["StopMatcher"]


class StopMatcher:
    """Cuts one text at its first stop.

    Args:
        stops: strings that end the text.
        patterns: patterns in the syntax of the `regex` package that end the text.
        keep: whether the stop stays in the text.

    Attributes:
        matched: the stop that ended the text, as it stood there, else None.
        num_chars: how many characters `feed`, `skip` and `finish` have given out.

    Raises:
        SamplingError: an empty stop, a pattern that does not compile or that matches the empty text.
    """

    def __init__(self, stops: Sequence[str] = (), patterns: Sequence[str] = (), keep: bool = False) -> None:
        self._strings = _strings(tuple(stops))
        self._patterns = [_PatternSearch(*_pattern(p)) for p in patterns]
        self._has_careful = any(p.careful for p in self._patterns)
        self._has_stops = bool(stops or patterns)
        self._keep = keep
        # `_buffer` is the text from `_base` on: what was given out and a pattern may still look back at, then what
        # is held back. `_state` is the automaton's state at its end, `_floor` where the text given by `skip` ends.
        self._buffer = ""
        self._base = 0
        self._state = 0
        self._floor = 0
        self._finished = False
        self.num_chars = 0
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Takes the next piece and returns the text that is now safe to show; "" for ever once a stop matched."""
        if self.matched is not None or self._finished or not text:
            return ""
        if not self._has_stops:
            self.num_chars += len(text)
            return text
        old = len(self._buffer)
        self._buffer += text
        hit = self._find(old)
        if hit is not None:
            begin, end = hit.begin, hit.end
            self.matched = self._buffer[begin:end]
            return self._give(end if self._keep else begin)
        held = self._held()
        piece = self._give(len(self._buffer) if self._keep and not self._has_careful else held)
        self._forget(held)
        return piece

    def skip(self, text: str) -> str:
        """Takes a piece in which no stop begins or ends (`min_tokens`); returns it after what was held back."""
        if self.matched is not None or self._finished:
            return ""
        if not self._has_stops:
            return self.feed(text)
        self._buffer += text
        self._state = 0
        self._floor = self._base + len(self._buffer)
        piece = self._give(len(self._buffer))
        self._forget(len(self._buffer))
        return piece

    def finish(self) -> str:
        """No more text comes: returns what was held back, which no longer can become a stop."""
        if self._finished or self.matched is not None:
            return ""
        self._finished = True
        return self._give(len(self._buffer))

    def _find(self, old: int) -> _Hit | None:
        """The stop that is complete first, among those that the characters from `old` on complete."""
        best: _Hit | None = None
        limit = len(self._buffer)
        self._state, complete, length = self._strings.scan(self._state, self._buffer, old)
        if length:
            best, limit = _Hit(complete, complete - length, complete), complete
        for pattern in self._patterns:
            hit = pattern.find(self._buffer, self._base, self._floor, old, limit)
            if hit is not None and (best is None or (hit.complete, hit.begin) < (best.complete, best.begin)):
                best, limit = hit, hit.complete
        return best

    def _held(self) -> int:
        """Where the part of the buffer begins that may still become a stop."""
        held = len(self._buffer) - self._strings.depth[self._state]
        return min([held, *(p.hold(self._buffer, self._base, self._floor) for p in self._patterns)])

    def _give(self, end: int) -> str:
        """The buffer up to `end`, without what was given out before."""
        piece = self._buffer[self.num_chars - self._base : end]
        self.num_chars += len(piece)
        return piece

    def _forget(self, held: int) -> None:
        """Drops what no stop can reach: one character stays before the place where a search may start, for `^`."""
        if held > 1 and not self._has_careful:
            self._buffer = self._buffer[held - 1 :]
            self._base += held - 1


class _Hit(NamedTuple):
    complete: int  # the text up to here is the first in which the stop is found
    begin: int
    end: int  # before `complete` only where a pattern looks ahead


class _Strings:
    """An automaton over the stop strings (Aho and Corasick 1975); state 0 is the root.

    `depth[state]` is the length of the longest end of the text that begins a stop.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.longest = [0]  # length of the longest stop that ends in this state, 0 for none
        self.fail = [0]
        for stop in stops:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self.edges[state]:
                self.edges[state][char] = len(self.edges)
                self.edges.append({})
                self.depth.append(self.depth[state] + 1)
                self.longest.append(0)
                self.fail.append(0)
            state = self.edges[state][char]
        self.longest[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self.edges[0].values())
        while queue:
            state = queue.popleft()
            self.longest[state] = self.longest[state] or self.longest[self.fail[state]]
            for char, child in self.edges[state].items():
                self.fail[child] = self.step(self.fail[state], char)
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self.edges[state]:
            state = self.fail[state]
        return self.edges[state].get(char, 0)

    def scan(self, state: int, text: str, begin: int) -> tuple[int, int, int]:
        """The state after text[begin:] or after its first stop, where that is, and the stop's length (0: none)."""
        if len(self.edges) == 1:
            return 0, len(text), 0
        for at in range(begin, len(text)):
            state = self.step(state, text[at])
            if self.longest[state]:
                return state, at + 1, self.longest[state]
        return state, len(text), 0


class _PatternSearch:
    """The search for one pattern in one text.

    Attributes:
        careful: whether more text can undo a match, so that every prefix of the text is searched by itself.
        start: the position in the whole text before which no match can begin any more.
    """

    def __init__(self, compiled: regex.Pattern[str], careful: bool) -> None:
        self._compiled = compiled
        self.careful = careful
        self.start = 0

    def find(self, buffer: str, base: int, floor: int, old: int, limit: int) -> _Hit | None:
        """The first match that buffer[old:limit] completes; positions in the result are those of the buffer."""
        begin = max(self.start, floor) - base
        if self.careful:
            for complete in range(max(old, begin) + 1, limit + 1):
                match = self._compiled.search(buffer, begin, complete)
                if match:
                    return _Hit(complete, match.start(), match.end())
                begin = self._partial_start(buffer, begin, complete)
            self.start = begin + base
            return None
        match = self._compiled.search(buffer, begin, limit)
        if match is None:
            return None
        low, high = max(old, begin) + 1, match.end()
        while low < high:  # a match in a prefix is a match in every longer one
            middle = (low + high) // 2
            earlier = self._compiled.search(buffer, begin, middle)
            match, low, high = (earlier, low, earlier.end()) if earlier else (match, middle + 1, high)
        return _Hit(match.end(), match.start(), match.end())

    def hold(self, buffer: str, base: int, floor: int) -> int:
        """Where the earliest match could begin that more text may complete (advances `start` to it)."""
        begin = self._partial_start(buffer, max(self.start, floor) - base, len(buffer))
        self.start = base + begin
        return begin

    def _partial_start(self, buffer: str, begin: int, end: int) -> int:
        partial = self._compiled.search(buffer, begin, end, partial=True)
        return partial.start() if partial else end


@lru_cache(maxsize=256)
def _strings(stops: tuple[str, ...]) -> _Strings:
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise SamplingError(f"stop contains {stop!r}: must be non-empty strings")
    return _Strings(stops)


# Constructs with which a longer text can have no match where its prefix had one: what looks at the end, looks around,
# gives up alternatives or counts errors. Naming too many here costs time, naming too few costs exactness.
_CAREFUL = regex.compile(r"\$ | \\[ZzbBmMXGR] | \(\?[=!<>(&|P] | \(\* | [*+?}]\+ | \{[^}]*[<eids]", regex.VERBOSE)

# `\K` moves the beginning of a match, also of a partial one, so that what is held back could not be known.
_KEEPS_OUT = regex.compile(r"(?<!\\)(?:\\\\)*\\K")


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> tuple[Any, bool]:
    try:
        compiled = regex.compile(pattern)
    except (regex.error, TypeError) as error:
        raise SamplingError(f"stop_regex contains {pattern!r}: no `regex` pattern: {error}") from error
    for construct, uses in (("(?r)", compiled.flags & regex.REVERSE), (r"\K", _KEEPS_OUT.search(pattern))):
        if uses:
            raise SamplingError(f"stop_regex contains {pattern!r}: {construct} cannot be used in a stop")
    if compiled.match(""):
        raise SamplingError(f"stop_regex contains {pattern!r}: it matches the empty text, so it would end every text")
    return compiled, _CAREFUL.search(pattern) is not None
