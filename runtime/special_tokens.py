"""Finds the spellings of added tokens (special ones, and `<think>` or `<tool_call>` without the flag) in a text.

In: the `added_tokens` of a `tokenizer.json`, a text, and the stretches of it where a spelling means the token.
Out: the matches, leftmost and longest first, with the white space that a token swallows on its sides.

Added tokens that are only white space (runs of spaces in some vocabularies) are no markup: they are left to the
tokenizer, in the user's text too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["SpecialMatch", "SpecialTokens", "is_markup"]

Span = tuple[int, int]


class SpecialMatch(NamedTuple):
    """A token in a text: text[start:stop] is swallowed by it, text[begin:end] is its spelling."""

    start: int
    begin: int
    end: int
    stop: int
    token_id: int


def is_markup(content: str) -> bool:
    """Whether an added token with this spelling is markup, not just white space."""
    return bool(content.strip())


class SpecialTokens:
    """The added tokens of one tokenizer.

    Args:
        added_tokens: entries of `tokenizer.json`: `content`, `id`, `lstrip`, `rstrip`, `single_word`.
    """

    def __init__(self, added_tokens: Iterable[Mapping[str, Any]]) -> None:
        self._tokens = {t["content"]: t for t in added_tokens if is_markup(t["content"])}
        # A huge vocabulary of added tokens (some have thousands) must not make an alternation of thousands: candidates
        # are found by their first character, then looked up by length.
        self._lengths: dict[str, list[int]] = {}
        for first in {content[0] for content in self._tokens}:
            lengths = {len(content) for content in self._tokens if content[0] == first}
            self._lengths[first] = sorted(lengths, reverse=True)
        firsts = "".join(map(re.escape, self._lengths))
        self._candidate = re.compile(f"[{firsts}]") if firsts else None

    def spellings(self, text: str) -> list[Span]:
        """Where the text spells an added token, whether it means it or not."""
        return [(m.begin, m.end) for m in self.find(text, [(0, len(text))])]

    def find(self, text: str, genuine: Sequence[Span]) -> list[SpecialMatch]:
        """The tokens that lie wholly in one of the genuine stretches (sorted, disjoint), in order."""
        found: list[SpecialMatch] = []
        floor = 0
        for begin, end in genuine:
            at = begin
            while (spelled := self._next(text, at, end)) is not None:
                match = self._swallow(text, spelled, floor)
                found.append(match)
                at = floor = match.stop
        return found

    def _next(self, text: str, at: int, end: int) -> Span | None:
        if self._candidate is None:
            return None
        while (candidate := self._candidate.search(text, at, end)) is not None:
            begin = candidate.start()
            for length in self._lengths[text[begin]]:
                if begin + length <= end and self._is_token(text, begin, begin + length):
                    return begin, begin + length
            at = begin + 1
        return None

    def _is_token(self, text: str, begin: int, end: int) -> bool:
        token = self._tokens.get(text[begin:end])
        if token is None:
            return False
        return not (token["single_word"] and (_is_word(text[begin - 1 : begin]) or _is_word(text[end : end + 1])))

    def _swallow(self, text: str, spelled: Span, floor: int) -> SpecialMatch:
        begin, end = spelled
        token = self._tokens[text[begin:end]]
        start, stop = begin, end
        while token["lstrip"] and start > floor and text[start - 1].isspace():
            start -= 1
        while token["rstrip"] and stop < len(text) and text[stop].isspace():
            stop += 1
        return SpecialMatch(start, begin, end, stop, token["id"])


def _is_word(char: str) -> bool:
    return bool(char) and re.match(r"\w", char) is not None
