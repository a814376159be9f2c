"""Sets of Unicode characters, exactly as Python's `re` or ECMAScript means them.

In: names of classes, ranges of code points. Out: a `CharSet`: sorted disjoint ranges, with the set operations. Lone
surrogates are in no set: no UTF-8 text has them.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator

__all__ = ["ANY", "CharSet", "category", "ecma_space", "fold", "general_category", "of_ranges"]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

CharSet = tuple[tuple[int, int], ...]
"""Sorted, disjoint, non-adjacent inclusive ranges of code points."""


def of_ranges(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The set of these ranges, in any order, overlapping or not; surrogates are left out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high


ANY: CharSet = of_ranges([(0, _LAST)])


def complement(chars: CharSet) -> CharSet:
    """Every character that is not in the set."""
    gaps = []
    start = 0
    for low, high in chars:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= _LAST:
        gaps.append((start, _LAST))
    return of_ranges(gaps)


def union(*sets: CharSet) -> CharSet:
    """Every character that is in one of the sets."""
    return of_ranges(r for chars in sets for r in chars)


def intersection(a: CharSet, b: CharSet) -> CharSet:
    """Every character that is in both sets."""
    return complement(union(complement(a), complement(b)))


def contains(chars: CharSet, code: int) -> bool:
    """Whether a code point is in the set."""
    return any(low <= code <= high for low, high in chars)


# Beyond these no character is assigned but private ones (planes 15 and 16), which are of no class that is asked for.
_ASSIGNED = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))
_CLASSES = {"digit": r"\d+", "space": r"\s+", "word": r"\w+"}


@functools.cache
def category(name: str, ascii_only: bool) -> CharSet:
    """`"digit"`, `"space"` or `"word"` as Python's `re` means it, with or without `re.ASCII`."""
    pattern = re.compile(_CLASSES[name], re.ASCII if ascii_only else 0)
    found: list[tuple[int, int]] = []
    for low, high in ((0, 127),) if ascii_only else _ASSIGNED:
        text = "".join(map(chr, range(low, high + 1)))
        found += [(low + match.start(), low + match.end() - 1) for match in pattern.finditer(text)]
    return of_ranges(found)


@functools.cache
def ecma_space() -> CharSet:
    """White space and line terminators of ECMAScript."""
    separators = [(c, c) for c in range(0x10000) if unicodedata.category(chr(c)) == "Zs"]
    return of_ranges([(0x09, 0x0D), (0x2028, 0x2029), (0xFEFF, 0xFEFF), *separators])


_LONG_NAMES = {
    "Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt", "Other_Letter": "Lo",
    "Modifier_Letter": "Lm", "Mark": "M", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P",
    "punct": "P", "Symbol": "S", "Separator": "Z", "Space_Separator": "Zs", "Other": "C", "Control": "Cc",
}  # fmt: skip


@functools.lru_cache(maxsize=64)
def general_category(name: str) -> CharSet | None:
    """The characters of a general category (`L`, `Lu`, `Letter`, …); None for a name that is none."""
    short = _LONG_NAMES.get(name, name)
    if len(short) not in (1, 2) or short[0] not in "LMNPSZC":
        return None
    return of_ranges(r for own, ranges in _categories().items() if own.startswith(short) for r in ranges) or None


@functools.cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """The general categories: name → runs of characters."""
    found: dict[str, list[tuple[int, int]]] = {"Co": [], "Cn": [(0x40000, 0xDFFFF), (0xE1000, 0xEFFFF)]}
    for low, high in _ASSIGNED:
        code = low
        for name, run in itertools.groupby(map(unicodedata.category, map(chr, range(low, high + 1)))):
            size = sum(1 for _ in run)
            found.setdefault(name, []).append((code, code + size - 1))
            code += size
    for plane in (0xF0000, 0x100000):
        found["Co"].append((plane, plane + 0xFFFD))
        found["Cn"].append((plane + 0xFFFE, plane + 0xFFFF))
    return found


@functools.cache
def _folds() -> tuple[tuple[int, ...], ...]:
    """Groups of characters that differ in case only, as `re.IGNORECASE` compares them."""
    groups: dict[str, set[int]] = {}
    for code in range(0x20000):
        char = chr(code)
        for other in (char.lower(), char.upper()):
            if len(other) == 1 and other != char:
                groups.setdefault(char.upper() if len(char.upper()) == 1 else char, set()).update((code, ord(other)))
    return tuple(tuple(sorted(group)) for group in groups.values())


def fold(chars: CharSet, ascii_only: bool) -> CharSet:
    """The set with every other case of its characters."""
    extra: list[tuple[int, int]] = []
    for group in _folds():
        members = [c for c in group if c < 128] if ascii_only else group
        if any(contains(chars, c) for c in members):
            extra += [(c, c) for c in members]
    return of_ranges([*chars, *extra])
