"""What a constraint allows, as rules over one small algebra, for questions about it (`shortest.py`).

In: the normal form of a `Constraint`. Out: `Rules` (`grammar_ast.py`) of a language that holds every text that the
constraint allows, and for JSON more: patterns of strings, bounds of numbers and counts are widened where they are no
matter of length. So what no text of it does, no text of the constraint does.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import charsets
from .grammar_ast import Ref
from .grammar_parse import parse_grammar
from .regex_ast import EMPTY, NOTHING, Chars, Node, Seq, alt, min_width, repeat, seq
from .regex_parse import RegexParser

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["language_of"]

Rules = Mapping[str, "Node | Ref"]

_CODE = re.compile(r"\\x\{([0-9a-fA-F]+)\}")
_DIGITS = Chars(charsets.of_ranges([(48, 57), *((ord(c), ord(c)) for c in "+-.eE")]))
_SPACE = Chars(charsets.of_ranges((ord(c), ord(c)) for c in " \t\n\r"))
_RAW = Chars(charsets.intersection(charsets.complement(charsets.of_ranges([(34, 34), (92, 92)])), ((32, 0x10FFFF),)))
_CHARACTER = alt(_RAW, Seq((Chars(((92, 92),)), Chars(((32, 126),)))))
_ANY = "any"


@functools.lru_cache(maxsize=256)
def language_of(constraint: Constraint) -> tuple[Rules, str]:
    """The rules, and the name of the first one."""
    if constraint.form == "choices":
        return {"root": alt(*map(literal, constraint.options))}, "root"
    if constraint.form == "grammar":
        return parse_grammar(constraint.text)
    if constraint.form == "regex":
        return {"root": _pattern(constraint.text)}, "root"
    return _Json(json.loads(constraint.text), constraint.whitespace == "flexible").rules, "root"


def literal(text: str) -> Node:
    """Exactly this text."""
    return seq(*(Chars(((ord(c), ord(c)),)) for c in text))


def _pattern(text: str) -> Node:
    return RegexParser(False).parse(_CODE.sub(lambda m: f"\\U{int(m[1], 16):08x}", text))


class _Json:
    """The rules of a JSON schema in normal form."""

    def __init__(self, schema: Any, flexible: bool) -> None:
        self._comma = self._spaced(",") if flexible else literal(", ")
        self._colon = self._spaced(":") if flexible else literal(": ")
        self._pad = repeat(_SPACE, 0, None) if flexible else EMPTY
        self.rules: dict[str, Node | Ref] = {}
        for name, one in (schema.get("$defs", {}) if isinstance(schema, dict) else {}).items():
            self.rules[f"#/$defs/{name}"] = self._value(one)
        self.rules["root"] = self._value(schema)
        self.rules[_ANY] = self._any()

    @staticmethod
    def _spaced(mark: str) -> Node:
        blank = repeat(_SPACE, 0, None)
        return seq(blank, literal(mark), blank)

    def _value(self, schema: Any) -> Any:
        if schema is False:
            return NOTHING
        if schema is True or not schema:
            return Ref(_ANY)
        if "$ref" in schema:
            return Ref(schema["$ref"])
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return alt(*map(self._value, schema[several]))
        if "enum" in schema:
            return alt(*(literal(json.dumps(one, ensure_ascii=False)) for one in schema["enum"]))
        if "const" in schema:
            return literal(json.dumps(schema["const"], ensure_ascii=False))
        kind = schema.get("type")
        if isinstance(kind, list):
            return alt(*(self._typed({**schema, "type": one}) for one in kind))
        return self._typed(schema) if kind else Ref(_ANY)

    def _typed(self, schema: Mapping[str, Any]) -> Any:
        if schema["type"] == "string":
            return self._string(schema)
        if schema["type"] in ("integer", "number"):
            return repeat(_DIGITS, _least_digits(schema), None)
        if schema["type"] == "array":
            return self._array(schema)
        if schema["type"] == "object":
            return self._object(schema)
        return alt(literal("true"), literal("false")) if schema["type"] == "boolean" else literal("null")

    @staticmethod
    def _string(schema: Mapping[str, Any]) -> Node:
        low = int(schema.get("minLength", 0))
        for one in (schema, *schema.get("allOf", ())):
            if "pattern" in one:
                low = max(low, min_width(_pattern(one["pattern"][1:-1])))
        return seq(literal('"'), repeat(_CHARACTER, low, None), literal('"'))

    def _array(self, schema: Mapping[str, Any]) -> Any:
        low = int(schema.get("minItems", 0))
        first = [self._value(one) for one in schema.get("prefixItems", ())]
        rest = self._value(schema.get("items", True))
        needed = [*first[:low], *[rest] * min(low - len(first), 64)]
        return self._between("[", list(self._members(needed, [*first[low:], rest])), "]")

    def _object(self, schema: Mapping[str, Any]) -> Any:
        properties = schema.get("properties", {})
        others = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", True)]
        required = schema.get("required", ())
        needed = [self._field(literal(json.dumps(n, ensure_ascii=False)), properties.get(n, True)) for n in required]
        free = [
            self._field(literal(json.dumps(name, ensure_ascii=False)), one)
            for name, one in properties.items()
            if name not in required
        ]
        free += [self._field(self._string({}), one) for one in others]
        return self._between("{", list(self._members(needed, free)), "}")

    def _field(self, key: Node, schema: Any) -> Any:
        return seq(key, self._colon, self._value(schema))

    def _members(self, needed: Sequence[Any], free: Sequence[Any]) -> Iterator[Any]:
        """The needed ones in order, any number of the free ones between; commas between all."""
        other = alt(*free)
        if not needed:
            yield repeat(seq(other, repeat(seq(self._comma, other), 0, None)), 0, 1)
            return
        for index, one in enumerate(needed):
            yield repeat(seq(other, self._comma), 0, None)
            yield one
            if index < len(needed) - 1:
                yield self._comma
        yield repeat(seq(self._comma, other), 0, None)

    def _between(self, opening: str, members: Sequence[Any], closing: str) -> Any:
        return seq(literal(opening), self._pad, *members, self._pad, literal(closing))

    def _any(self) -> Any:
        item = Ref(_ANY)
        simple = [literal(word) for word in ("true", "false", "null")]
        array = self._between("[", list(self._members([], [item])), "]")
        object_ = self._between("{", list(self._members([], [self._field(self._string({}), True)])), "}")
        return alt(self._string({}), repeat(_DIGITS, 1, None), *simple, array, object_)


def _least_digits(schema: Mapping[str, Any]) -> int:
    """The least number of characters of a number within the bounds, written without an exponent."""
    if schema["type"] != "integer":
        return 1
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None and low > 0:
        return len(str(int(low)))
    return len(str(-int(high))) + 1 if high is not None and high < 0 else 1
