"""Numbers in a range as a regex, digit by digit.

In: `type`, bounds and what else the normal form says of a number. Out: a node of its decimal spellings. Digits are
bounded, so that a number ends: 60 before the point and 15 behind it. With an exclusive bound there are fewer behind
the point, so that a number above the bound is above it as a double, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from . import charsets
from .regex_ast import EMPTY, NOTHING, Chars, Node, alt, both, negation, repeat, seq

__all__ = ["number_node"]

_WHOLE_DIGITS = 60
_PLACES = 15


def _digits(low: int, high: int) -> Node:
    return Chars(charsets.of_ranges([(48 + low, 48 + high)])) if low <= high else NOTHING


def _char(char: str) -> Node:
    return Chars(charsets.of_ranges([(ord(char), ord(char))]))


_DIGIT = _digits(0, 9)
_WHOLE = alt(_char("0"), seq(_digits(1, 9), repeat(_DIGIT, 0, _WHOLE_DIGITS - 1)))
_MINUS = _char("-")
_POINT = _char(".")
_EXPONENT = seq(
    Chars(charsets.of_ranges([(69, 69), (101, 101)])),
    repeat(Chars(charsets.of_ranges([(43, 43), (45, 45)])), 0, 1),
    alt(repeat(_DIGIT, 1, 2), seq(_digits(0, 1), _DIGIT, _DIGIT)),
)
_FRACTION = seq(_POINT, repeat(_DIGIT, 1, _PLACES + 15))
_ANY_WHOLE = seq(repeat(_MINUS, 0, 1), _WHOLE)
_ANY_NUMBER = seq(_ANY_WHOLE, repeat(_FRACTION, 0, 1), repeat(_EXPONENT, 0, 1))
_ZEROS = repeat(_char("0"), 0, None)
# With so few digits a number that is not whole is not whole as a double, either.
_BROKEN = alt(
    *(
        seq(repeat(_MINUS, 0, 1), repeat(_DIGIT, 1, size), _POINT, repeat(_DIGIT, 1, _PLACES - size))
        for size in range(1, _PLACES)
    )
)


def number_node(schema: Mapping[str, Any]) -> Node:
    """The decimal spellings of a number in normal form (`multipleOf` is not looked at)."""
    whole = schema["type"] == "integer"
    low, low_open = _bound(schema, "minimum", "exclusiveMinimum")
    high, high_open = _bound(schema, "maximum", "exclusiveMaximum")
    bounded = low is not None or high is not None
    if not bounded and "not" not in schema:
        return _ANY_WHOLE if whole else _ANY_NUMBER
    places = 0 if whole else _places([low if low_open else None, high if high_open else None])
    positive = _between(low, low_open, high, high_open, places)
    negative = _between(_minus(high), high_open, _minus(low), low_open, places)
    if low is not None and low >= 0:
        negative = NOTHING  # not even "-0"
    found = alt(positive, seq(_MINUS, negative))
    if "not" in schema:  # of whole numbers
        found = both(found, negation(seq(_ANY_WHOLE, repeat(seq(_POINT, _ZEROS), 0, 1))), _BROKEN)
    return found


def _bound(schema: Mapping[str, Any], plain: str, exclusive: str) -> tuple[Fraction | None, bool]:
    for keyword in (exclusive, plain):
        if keyword in schema:
            value = schema[keyword]
            return Fraction(repr(value) if isinstance(value, float) else value), keyword == exclusive
    return None, False


def _minus(bound: Fraction | None) -> Fraction | None:
    return None if bound is None else -bound


def _places(open_bounds: list[Fraction | None]) -> int:
    """Digits behind the point, so that no double is rounded onto an exclusive bound."""
    digits = [len(str(int(abs(bound)))) for bound in open_bounds if bound]
    return max(1, _PLACES - max(digits, default=0))


def _between(low: Fraction | None, low_open: bool, high: Fraction | None, high_open: bool, places: int) -> Node:
    """The spellings without sign of the numbers between two bounds; None is no bound."""
    if high is not None and (high < 0 or (high == 0 and high_open)):
        return NOTHING
    spelled = seq(_WHOLE, repeat(seq(_POINT, repeat(_DIGIT, 1, places)), 0, 1)) if places else _WHOLE
    parts = [spelled]
    if low is not None and (low > 0 or (low == 0 and low_open)):
        parts.append(_compared(low, low_open, above=True))
    if high is not None:
        parts.append(_compared(high, high_open, above=False))
    return both(*parts)


def _compared(bound: Fraction, strict: bool, *, above: bool) -> Node:
    """Decimal spellings of any length above (below) a bound ≥ 0."""
    whole = int(bound)
    digits = str(whole)
    rest = bound - whole
    behind = ""
    while rest and len(behind) < 400:
        rest *= 10
        behind += str(int(rest))
        rest -= int(rest)
    fraction = seq(_POINT, repeat(_DIGIT, 1, None))
    others = seq(_whole_compared(digits, above=above), repeat(fraction, 0, 1))
    same = seq(*map(_char, digits), _fraction_compared(behind, strict, above=above))
    return alt(others, same)


def _whole_compared(digits: str, *, above: bool) -> Node:
    """Whole numbers strictly above (below) one, by length and then digit by digit."""
    ways: list[Node] = []
    size = len(digits)
    if above:
        ways.append(seq(_digits(1, 9), repeat(_DIGIT, size, None)))
    elif size > 1:
        ways.append(alt(_char("0"), seq(_digits(1, 9), repeat(_DIGIT, 0, size - 2))))
    for index, char in enumerate(digits):
        first = int(index == 0 and size > 1)
        step = _digits(int(char) + 1, 9) if above else _digits(first, int(char) - 1)
        ways.append(seq(*map(_char, digits[:index]), step, repeat(_DIGIT, size - index - 1, size - index - 1)))
    return alt(*(way for way in ways if way != NOTHING))


def _fraction_compared(behind: str, strict: bool, *, above: bool) -> Node:
    """What may follow equal whole digits: `behind` are the digits of the bound."""
    rest = repeat(_DIGIT, 0, None)
    if above:
        if not behind:
            found = seq(_POINT, _ZEROS, _digits(1, 9), rest) if strict else seq(_POINT, _DIGIT, rest)
            return found if strict else alt(EMPTY, found)
        node: Node = seq(_ZEROS, _digits(1, 9), rest) if strict else rest
        for char in reversed(behind):
            node = alt(seq(_digits(int(char) + 1, 9), rest), seq(_char(char), node))
        return seq(_POINT, node)
    if not behind:
        return NOTHING if strict else repeat(seq(_POINT, repeat(_char("0"), 1, None)), 0, 1)
    node = NOTHING if strict else _ZEROS
    for index in range(len(behind) - 1, -1, -1):
        digit = int(behind[index])
        ended = [EMPTY] if index else []  # a beginning of the bound's digits is below it: they do not end in zero
        node = alt(*ended, seq(_digits(0, digit - 1), rest), seq(_char(behind[index]), node))
    return alt(EMPTY, seq(_POINT, node))
