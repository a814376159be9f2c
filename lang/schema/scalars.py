"""Numbers and strings of a case: bounds, multiples, lengths, patterns and formats of all its sub-schemas together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .documents import Sub
from .formats import LENGTHS, format_pattern
from .negation import FULL_MATCH, NOT_FULL_MATCH, NOT_WHOLE
from .patterns import full_match, pattern_widths, search
from .regex_ast import Node, both, negation
from .regex_run import is_empty
from .regex_text import is_ordinary, read_node, spell_node
from .shapes import Scalar

__all__ = ["number_shape", "string_shape"]

Note = Callable[[Sub, str], None]


def number_shape(subs: Sequence[Sub], whole: bool, note: Note) -> Scalar | None:
    """The numbers that obey all of `subs`; None where there is none."""
    low: tuple[float, bool] | None = None  # (bound, exclusive); a larger tuple is tighter
    high: tuple[float, bool] | None = None
    step: Fraction | None = None
    for sub in subs:
        for bound in _bounds(sub, "minimum", "exclusiveMinimum"):
            low = bound if low is None else max(low, bound)
        for bound in _bounds(sub, "maximum", "exclusiveMaximum"):
            high = bound if high is None else min(high, bound, key=lambda b: (b[0], not b[1]))
        if "multipleOf" in sub.schema:
            step = _common(step, _fraction(sub.schema["multipleOf"]))
    if step is not None and step.denominator == 1 and step > 0:
        whole = True
    broken = next((sub for sub in subs if NOT_WHOLE in sub.schema), None)
    if broken is not None and whole:
        return None
    schema: dict[str, Any] = {"type": "integer" if whole else "number"}
    if low is not None and high is not None and _no_number(low, high, whole):
        last = next(sub for sub in reversed(subs) if any("imum" in keyword for keyword in sub.schema))
        note(last, next(k for k in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if k in last.schema))
        return None
    if low is not None:
        schema["exclusiveMinimum" if low[1] else "minimum"] = low[0]
    if high is not None:
        schema["exclusiveMaximum" if high[1] else "maximum"] = high[0]
    if step is not None and step != 1:
        if broken is not None:
            raise broken.error("multiples that are no integers cannot be told apart by a mask", "not")
        schema["multipleOf"] = _checked_step(step, subs)
        for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if abs(schema.get(name, 0)) > 2**53:
                raise subs[0].error(f"the bound {schema[name]!r} of a multiple has too many digits to compare", name)
    elif broken is not None:
        schema["not"] = {"type": "integer"}
    return Scalar(schema)


def _bounds(sub: Sub, plain: str, exclusive: str) -> list[tuple[float, bool]]:
    schema = sub.schema
    strict = schema.get(exclusive)
    found: list[tuple[float, bool]] = []
    if plain in schema:
        found.append((schema[plain], strict is True))
    if strict is not None and not isinstance(strict, bool):
        found.append((strict, True))
    for keyword in (plain, exclusive):
        bound = schema.get(keyword, 0)
        if isinstance(bound, bool):
            continue
        if abs(bound) > _GREATEST or -Decimal(str(bound)).as_tuple().exponent > _PLACES:  # type: ignore[operator]
            raise sub.error(f"the bound {str(bound)[:40]} has more digits than numbers are given", keyword)
    return found


_GREATEST = 10**59
_PLACES = 60


def _no_number(low: tuple[float, bool], high: tuple[float, bool], whole: bool) -> bool:
    if whole:
        first = math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
        last = math.ceil(high[0]) - 1 if high[1] else math.floor(high[0])
        return first > last
    return low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))


def _fraction(number: float) -> Fraction:
    return Fraction(repr(number) if isinstance(number, float) else number)


def _common(a: Fraction | None, b: Fraction) -> Fraction:
    """The least common multiple."""
    if a is None:
        return b
    denominator = math.lcm(a.denominator, b.denominator)
    scaled = (a * denominator, b * denominator)
    return Fraction(math.lcm(int(scaled[0]), int(scaled[1])), denominator)


def _checked_step(step: Fraction, subs: Sequence[Sub]) -> float:
    value = int(step) if step.denominator == 1 else float(step)
    if step.numerator > 10**6 or step.denominator > 10**9 or _fraction(value) != step:
        sub = next(sub for sub in subs if "multipleOf" in sub.schema)
        raise sub.error(f"multiples of {step} are beyond what a mask can count", "multipleOf")
    return value


def string_shape(subs: Sequence[Sub], note: Note) -> Scalar | None:
    """The strings that obey all of `subs`; None where there is none."""
    low = max((int(sub.get("minLength", 0)) for sub in subs), default=0)
    highs = [int(sub.schema["maxLength"]) for sub in subs if "maxLength" in sub.schema]
    highs += [LENGTHS[sub.schema["format"]] for sub in subs if sub.get("format") in LENGTHS]
    high = min(highs) if highs else None
    if high is not None and low > high:
        note(next(sub for sub in subs if "minLength" in sub.schema), "minLength")
        return None
    nodes: list[Node] = []
    last: tuple[Sub, str] | None = None
    for sub in subs:
        for keyword, node in _patterns(sub, low, high):
            if node is None:
                note(sub, keyword)
                return None
            if node not in nodes:
                nodes.append(node)
                last = (sub, keyword)
    if last is not None and len(nodes) > 1 and is_empty(both(*nodes)):
        note(*last)
        return None
    schema: dict[str, Any] = {"type": "string"}
    if low:
        schema["minLength"] = low
    if high is not None:
        schema["maxLength"] = high
    texts = [spell_node(node) for node in nodes]
    ordinary = [text for text in texts if is_ordinary(text)]
    if ordinary:
        schema["pattern"] = ordinary[0]
    if len(texts) > bool(ordinary):
        schema["x-patterns"] = [text for text in texts if text not in ordinary[:1]]
    return Scalar(schema)


_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


def _patterns(sub: Sub, low: int, high: int | None) -> list[tuple[str, Node | None]]:
    found: list[tuple[str, Node | None]] = []
    if sub.draft.asserts_content:
        if sub.get("contentMediaType") == "application/json":
            raise sub.error("JSON inside a string cannot be enforced by a mask", "contentMediaType")
        if sub.get("contentEncoding") == "base64":
            found.append(("contentEncoding", full_match(_BASE64)))
    if "pattern" in sub.schema:
        pattern = sub.schema["pattern"]
        try:
            node = search(pattern)
            shortest, longest = pattern_widths(pattern)
        except ValueError as error:
            raise sub.error(f"the pattern {pattern!r} cannot be enforced: {error}", "pattern") from error
        if (high is not None and shortest > high) or (longest is not None and longest < low):
            node = None
        found.append(("pattern", node))
    if FULL_MATCH in sub.schema:
        found.append(("enum", read_node(sub.schema[FULL_MATCH])))
    if NOT_FULL_MATCH in sub.schema:
        found.append(("not", negation(read_node(sub.schema[NOT_FULL_MATCH]))))
    if isinstance(sub.get("format"), str):
        format_ = format_pattern(sub.schema["format"])
        if format_ is False:
            raise sub.error(f"the format {sub.schema['format']!r} cannot be enforced by a mask", "format")
        if isinstance(format_, str):
            found.append(("format", full_match(format_)))
    return found
