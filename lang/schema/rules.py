"""Normal form → our own grammar of it: the one form that an engine enforces and that budgets are reckoned with.

In: a JSON schema in normal form (`emission.py`), how white space is written. Out: rules over tokens (`grammar_ast.py`).
A token is what a lexer reads as one: punctuation, a key with its colon, a whole string, a number, the values of an
`enum`. No token is the beginning of another one that may stand in its place, except digits of numbers, so a lexer that
takes the longest token loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import hurry
from .grammar_ast import Bag, Foreign, Ref, Token
from .numbers import number_node
from .patterns import one_of, other_names
from .quoted import json_string
from .regex_ast import ANYTHING, EMPTY, NOTHING, Chars, Node, alt, both, negation, repeat, seq
from .regex_parse import RegexParser
from .regex_text import read_node

__all__ = ["schema_rules", "string_node", "text_node"]

_FEW_FIELDS = 3
_FLEXIBLE = r"[ \t]{0,8}|\n[ \t]{0,32}"


def text_node(text: str) -> Node:
    """Exactly this text."""
    return one_of([text])


class _Spelling:
    """Punctuation, with the white space around it."""

    def __init__(self, flexible: bool) -> None:
        space: Node = RegexParser(ecma=False).parse(_FLEXIBLE) if flexible else EMPTY
        gap = EMPTY if flexible else text_node(" ")
        self.comma = seq(space, text_node(","), space, gap)
        self.colon = seq(space, text_node(":"), space, gap)
        self.opening = {bracket: seq(text_node(bracket), space) for bracket in "[{"}
        self.closing = {bracket: seq(space, text_node(bracket)) for bracket in "]}"}


def schema_rules(schema: Mapping[str, Any], *, flexible: bool = False) -> tuple[dict[str, Node], str]:
    """The rules of a schema in normal form, and the name of the rule to start from."""
    return _Writer(_Spelling(flexible)).write(schema)


class _Writer:
    def __init__(self, spelling: _Spelling) -> None:
        self._spelling = spelling
        self._rules: dict[str, Node] = {}

    def write(self, schema: Mapping[str, Any]) -> tuple[dict[str, Node], str]:
        self._rules["top"] = self._node(schema)
        for name, inner in schema.get("$defs", {}).items():
            self._rules[f"n{name}"] = self._node(inner)
        return self._rules, "top"

    def _node(self, schema: Any) -> Node:
        hurry.check()
        if schema is False:
            return NOTHING
        if schema is True or not schema:
            return self._any()
        if "anyOf" in schema:
            return alt(*(self._node(option) for option in schema["anyOf"]))
        if "$ref" in schema:
            return Ref("n" + schema["$ref"].rsplit("/", 1)[-1])
        if "enum" in schema:
            return self._values(schema["enum"])
        kind = schema["type"]
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        return self._scalar(kind, schema)

    def _scalar(self, kind: str, schema: Mapping[str, Any]) -> Node:
        if kind == "string":
            return Token(json_string(string_node(schema)))
        if kind in ("number", "integer"):
            if "multipleOf" in schema:
                return Foreign(json.dumps(schema), number_node(schema))
            return Token(number_node(schema))
        return Token(one_of(["true", "false"] if kind == "boolean" else ["null"]))

    def _values(self, values: Sequence[Any]) -> Node:
        simple = [json.dumps(v, ensure_ascii=False) for v in values if not isinstance(v, (list, dict))]
        ways: list[Node] = [Token(one_of(simple))] if simple else []
        return alt(*ways, *(self._value(v) for v in values if isinstance(v, (list, dict))))

    def _value(self, value: Any) -> Node:
        """One value, as tokens."""
        if isinstance(value, list):
            return self._listed("[]", [self._value(item) for item in value])
        if isinstance(value, dict):
            fields = [seq(self._key(text_node(name)), self._value(item)) for name, item in value.items()]
            return self._listed("{}", fields)
        return Token(text_node(json.dumps(value, ensure_ascii=False)))

    def _listed(self, brackets: str, items: Sequence[Node]) -> Node:
        comma = Token(self._spelling.comma)
        between: list[Node] = []
        for item in items:
            between += [comma, item] if between else [item]
        return seq(self._open(brackets[0]), *between, self._close(brackets[1]))

    def _open(self, bracket: str) -> Token:
        return Token(self._spelling.opening[bracket])

    def _close(self, bracket: str) -> Token:
        return Token(self._spelling.closing[bracket])

    def _key(self, name: Node, *, first: bool = True) -> Token:
        """A key with its colon, after a comma where it is not the first."""
        comma = EMPTY if first else self._spelling.comma
        return Token(seq(comma, json_string(name), self._spelling.colon))

    def _any(self) -> Ref:
        if "json" not in self._rules:
            self._rules["json"] = Ref("json")
            scalars = [self._scalar(kind, {"type": kind}) for kind in ("null", "boolean", "number", "string")]
            self._rules["json"] = alt(*scalars, self._array({}), self._object({}))
        return Ref("json")

    def _array(self, schema: Mapping[str, Any]) -> Node:
        if schema.get("uniqueItems"):
            return self._set(schema)
        if "x-states" in schema:
            return self._states(schema["x-states"], schema["x-ends"])
        prefix = [self._node(item) for item in schema.get("prefixItems", ())]
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        rest = None if schema.get("items") is False else self._node(schema.get("items", True))
        comma = Token(self._spelling.comma)
        if rest is not None and (high is None or high > len(prefix)):
            more = None if high is None else high - len(prefix)
            least = max(0, low - len(prefix))
            if prefix:
                tail = repeat(seq(comma, rest), least, more)
            else:
                several = seq(rest, repeat(seq(comma, rest), max(0, least - 1), None if more is None else more - 1))
                tail = several if least else repeat(several, 0, 1)
        else:
            tail = EMPTY
        for index in range(len(prefix) - 1, -1, -1):
            tail = seq(comma, prefix[index], tail) if index else seq(prefix[index], tail)
            if index >= low:
                tail = repeat(tail, 0, 1)
        return seq(self._open("["), tail, self._close("]"))

    def _set(self, schema: Mapping[str, Any]) -> Node:
        """A list of known values, each at most once."""
        comma = Token(self._spelling.comma)
        items = [self._values([value]) for value in schema["items"]["enum"]]
        later = [seq(comma, item) for item in items]
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        body = Bag(tuple(items), tuple(later), 0, low, high, NOTHING, NOTHING)
        return seq(self._open("["), body, self._close("]"))

    def _states(self, states: Sequence[Sequence[Sequence[Any]]], ends: Sequence[int]) -> Node:
        """Items as an automaton reads them: in each state (schema of the next item, state after it)."""
        base = f"a{len(self._rules)}"
        for number in range(len(states)):
            self._rules[f"{base}s{number}"] = EMPTY
        comma = Token(self._spelling.comma)

        def ways(number: int, first: bool) -> Node:
            found: list[Node] = [EMPTY] if number in ends else []
            for item, target in states[number]:
                start = [] if first else [comma]
                found.append(seq(*start, self._node(item), Ref(f"{base}s{target}")))
            return alt(*found)

        for number in range(len(states)):
            self._rules[f"{base}s{number}"] = ways(number, first=False)
        return seq(self._open("["), ways(0, first=True), self._close("]"))

    def _object(self, schema: Mapping[str, Any]) -> Node:
        required = set(schema.get("required", ()))
        properties = schema.get("properties", {})
        fields = [
            (name, self._node(value), name in required) for name, value in properties.items() if value is not False
        ]
        keys = self._open_keys(schema)
        low, high = schema.get("minProperties", 0) - len(required), schema.get("maxProperties")
        more = None if high is None else max(0, high - len(required))
        if "x-any-order" in schema:
            body = self._unordered(fields, keys, max(0, low))
        else:
            body = self._ordered(fields, keys, max(0, low), more)
        return seq(self._open("{"), body, self._close("}"))

    def _open_keys(self, schema: Mapping[str, Any]) -> list[tuple[Node, Node]]:
        """(keys, their values) beside the named ones, no key in two of them."""
        named = other_names(schema["properties"]) if schema.get("properties") else ANYTHING
        patterns = [(read_node(text), self._node(value)) for text, value in schema.get("patternProperties", {}).items()]
        patterns += [
            (read_node(text), self._node(value)) for text, value in schema.get("x-patternProperties", {}).items()
        ]
        keys = [(both(node, named), value) for node, value in patterns if value != NOTHING]
        rest = schema.get("additionalProperties", True)
        if rest is not False:
            keys.append((both(named, *(negation(node) for node, _ in patterns)), self._node(rest)))
        return keys

    def _any_open(self, keys: Sequence[tuple[Node, Node]], *, first: bool) -> Node:
        return alt(*(seq(self._key(node, first=first), value) for node, value in keys))

    def _ordered(
        self,
        fields: Sequence[tuple[str, Node, bool]],
        keys: Sequence[tuple[Node, Node]],
        low: int,
        more: int | None,
    ) -> Node:
        """The fields in order, optional ones left out or not, then the open keys."""
        tail: Node = EMPTY
        alone: Node = EMPTY
        if keys and more != 0:
            tail = repeat(self._any_open(keys, first=False), low, more)
            several = seq(
                self._any_open(keys, first=True),
                repeat(self._any_open(keys, first=False), max(0, low - 1), None if more is None else more - 1),
            )
            alone = several if low else repeat(several, 0, 1)
        first = [seq(self._key(text_node(name)), value) for name, value, _ in fields]
        later = [
            repeat(seq(self._key(text_node(name), first=False), value), int(needed), 1)
            for name, value, needed in fields
        ]
        leading = next((i for i, (_, _, needed) in enumerate(fields) if needed), len(fields))
        if leading == len(fields):
            return alt(seq(self._begun(first, later), tail), alone) if fields else alone
        begun = first[leading]
        if leading:
            begun = alt(seq(self._begun(first[:leading], later[:leading]), later[leading]), begun)
        return seq(begun, *later[leading + 1 :], tail)

    def _begun(self, first: Sequence[Node], later: Sequence[Node]) -> Node:
        """One or more of some optional fields in order; halved, since engines follow rules by recursion."""
        if len(first) == 1:
            return first[0]
        middle = len(first) // 2
        rest = seq(*later[middle:])
        if len(first) > _FEW_FIELDS:
            rest = self._shared(f"o{len(self._rules)}", rest)
        return alt(seq(self._begun(first[:middle], later[:middle]), rest), self._begun(first[middle:], later[middle:]))

    def _shared(self, name: str, node: Node) -> Node:
        if node == EMPTY or isinstance(node, Ref):
            return node
        self._rules[name] = node
        return Ref(name)

    def _unordered(self, fields: Sequence[tuple[str, Node, bool]], keys: Sequence[tuple[Node, Node]], low: int) -> Node:
        """The fields in any order, open keys between them."""
        ordered = sorted(fields, key=lambda field: not field[2])
        base = f"u{len(self._rules)}"
        self._rules[base] = EMPTY
        values = [self._shared(f"{base}v{i}", value) for i, (_, value, _) in enumerate(ordered)]
        del self._rules[base]
        names = [text_node(name) for name, _, _ in ordered]

        def written(first: bool) -> tuple[Node, ...]:
            return tuple(seq(self._key(name, first=first), value) for name, value in zip(names, values))

        needed = sum(field[2] for field in fields)
        others = self._any_open(keys, first=True), self._any_open(keys, first=False)
        return Bag(written(True), written(False), needed, 0, None, *others, min(low, 1))


def string_node(schema: Mapping[str, Any]) -> Node:
    """The texts of a string in normal form, unquoted."""
    parts = [read_node(one) for one in [*schema.get("x-patterns", ())]]
    if "pattern" in schema:
        parts.append(read_node(schema["pattern"]))
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if low or high is not None:
        parts.append(repeat(Chars(ANYTHING.item.chars), low, high))  # type: ignore[union-attr]
    return both(*parts)
