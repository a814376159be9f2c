"""GBNF and Lark texts → rules.

In: a grammar text in either dialect (`::=` makes it GBNF). Out: its rules in order, as `regex_ast` nodes with `Ref`s.
Errors give line and column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import ConstraintError
from . import charsets
from .grammar_ast import Ref
from .regex_anchors import EDGE, has_anchor, resolve
from .regex_ast import Chars, Node, alt, repeat, seq
from .regex_look import has_look
from .regex_parse import RegexParser

__all__ = ["parse_grammar"]

_COMMON = {
    "DIGIT": "[0-9]", "HEXDIGIT": "[a-fA-F0-9]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+", "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", "LETTER": "[a-zA-Z]",
    "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]", "WORD": "[a-zA-Z]+", "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"', "WS": r"[ \t\f\r\n]+", "WS_INLINE": r"[ \t]+", "NEWLINE": r"(?:\r?\n)+",
}  # fmt: skip

_MOST_REPEATS = 100_000

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*|//[^\n]*)
    |(?P<define>::=)
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<class>\[\^?(?:\\.|[^\]\\\n])+\])
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
    |(?P<count>\{\s*\d*\s*,?\s*\d*\s*\})
    |(?P<tilde>~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<dots>\.\.)
    |(?P<directive>%[a-z]+[^\n]*)
    |(?P<alias>->\s*\w+)
    |(?P<name>[?!]*[A-Za-z_][A-Za-z0-9_-]*(?:\.\d+(?=\s*:))?)
    |(?P<sign>[|()*+?.:\[\]])""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse_grammar(text: str) -> tuple[dict[str, Node | Ref], str]:
    """The rules of a grammar, and the name of the rule to start from.

    Raises:
        ConstraintError: a syntax error (line and column in `.pointer`), a rule that is missing or given twice.
    """
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._gbnf = "::=" in text
        self._tokens = self._scan()
        self._at = 0
        self._rules: dict[str, Any] = {}
        self._places: dict[str, int] = {}

    def parse(self) -> tuple[dict[str, Node | Ref], str]:
        while self._peek().kind != "end":
            if self._peek().kind == "directive":
                self._directive(self._next())
            else:
                self._rule()
        root = "root" if self._gbnf else "start"
        if root not in self._rules:
            self._fail(f"there is no rule {root!r} to start from", 0, "grammar")
        for name, place in self._places.items():
            if name not in self._rules:
                self._fail(f"there is no rule {name!r}", place, name)
        return self._rules, root

    def _scan(self) -> list[_Token]:
        tokens: list[_Token] = []
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                self._fail(f"{self._text[position]!r} does not belong here", position, "grammar")
            kind = str(match.lastgroup)
            if kind == "class" and not self._gbnf:
                kind, match = "sign", re.compile(r"\[").match(self._text, position) or match
            if kind != "space":
                tokens.append(_Token(match.group() if kind == "sign" else kind, match.group(), position))
            position = match.end()
        return [*tokens, _Token("end", "", len(self._text))]

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _fail(self, message: str, offset: int, keyword: str) -> NoReturn:
        line = self._text.count("\n", 0, offset) + 1
        column = offset - (self._text.rfind("\n", 0, offset) + 1) + 1
        raise ConstraintError(
            f"the grammar, line {line}, column {column}: {message}", keyword=keyword, pointer=f"{line}:{column}"
        )

    def _rule(self) -> None:
        name = self._next()
        define = self._next()
        if name.kind != "name" or define.text != ("::=" if self._gbnf else ":"):
            want = "name ::= …" if self._gbnf else "name: …"
            self._fail(f"a rule ({want}) must stand here, not {name.text!r}", name.offset, "grammar")
        key = name.text.lstrip("?!").split(".")[0]
        if key in self._rules:
            self._fail(f"the rule {key!r} is given twice", name.offset, key)
        self._rules[key] = self._options()
        if self._peek().kind not in ("end", "directive") and not self._starts_rule():
            self._fail(f"{self._peek().text!r} does not belong here", self._peek().offset, "grammar")

    def _starts_rule(self) -> bool:
        return self._peek().kind == "name" and self._peek(1).text in ("::=", ":")

    def _options(self) -> Any:
        options = [self._items()]
        while self._peek().kind == "|":
            self._next()
            options.append(self._items())
        return alt(*options)

    def _items(self) -> Any:
        items: list[Any] = []
        while True:
            token = self._peek()
            if token.kind == "alias":
                self._next()
            elif token.kind in ("end", "|", ")", "]", "directive") or self._starts_rule():
                return seq(*items)
            else:
                items.append(self._repeated(self._item()))

    def _repeated(self, item: Any) -> Any:
        while True:
            token = self._peek()
            if token.kind in ("*", "+", "?"):
                item = repeat(item, int(token.kind == "+"), 1 if token.kind == "?" else None)
            elif token.kind in ("count", "tilde"):
                item = repeat(item, *self._bounds(token))
            else:
                return item
            self._next()

    def _bounds(self, token: _Token) -> tuple[int, int | None]:
        numbers = [int(n) for n in re.findall(r"\d+", token.text)]
        high: int | None
        if token.kind == "tilde" or "," not in token.text:
            if not numbers:
                self._fail("a repeat without a number", token.offset, "grammar")
            low, high = numbers[0], numbers[-1]
        else:
            before, after = token.text[1:-1].split(",")
            low, high = int(before.strip() or 0), int(after) if after.strip() else None
        if high is not None and low > high:
            self._fail(f"the repeat {token.text} ends before it begins", token.offset, "grammar")
        if max(low, high or 0) > _MOST_REPEATS:
            self._fail(f"the repeat {token.text} is too large; at most {_MOST_REPEATS}", token.offset, "grammar")
        return low, high

    def _item(self) -> Any:
        token = self._next()
        if token.kind == "string":
            return self._string(token)
        if token.kind in ("class", "regex"):
            return self._pattern(token)
        if token.kind == "." and self._gbnf:
            return Chars(charsets.ANY)
        if token.kind in ("(", "["):
            inner = self._options()
            close = self._next()
            if close.kind != (")" if token.kind == "(" else "]"):
                self._fail(f"{token.text!r} is not closed", token.offset, "grammar")
            return inner if token.kind == "(" else repeat(inner, 0, 1)
        if token.kind == "name":
            self._places.setdefault(token.text, token.offset)
            return Ref(token.text)
        return self._fail(f"{token.text!r} does not belong here", token.offset, "grammar")

    def _string(self, token: _Token) -> Any:
        text = self._unescaped(token)
        if self._peek().kind == "dots":
            self._next()
            end = self._next()
            last = self._unescaped(end) if end.kind == "string" else ""
            if len(text) != 1 or len(last) != 1 or text > last:
                self._fail("a range needs two characters in order", token.offset, "grammar")
            return Chars(charsets.of_ranges([(ord(text), ord(last))]))
        folded = token.text.endswith("i")
        sets = [charsets.of_ranges([(ord(c), ord(c))]) for c in text]
        return seq(*(Chars(charsets.fold(s, False) if folded else s) for s in sets))

    def _unescaped(self, token: _Token) -> str:
        body = token.text.removesuffix("i")[1:-1]
        known = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}

        def one(match: re.Match[str]) -> str:
            code = match[1] or match[2] or match[3]
            return chr(int(code, 16)) if code else known.get(match[4], match[4])

        try:
            text = re.sub(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", one, body)
        except (ValueError, OverflowError):
            self._fail(f"{token.text} has a character beyond Unicode", token.offset, "grammar")
        if any("\ud800" <= c <= "\udfff" for c in text):
            self._fail("a lone surrogate is in no text", token.offset, "grammar")
        return text

    def _pattern(self, token: _Token) -> Any:
        pattern = token.text
        if token.kind == "regex":
            body, _, flags = pattern[1:].rpartition("/")
            flags = "".join(flag for flag in flags if flag in "imsx")
            pattern = f"(?{flags}:{body})" if flags else body
        else:
            pattern = re.sub(r"(?<!\\)\[(?!\^?$)", r"\\[", pattern[1:])
            pattern = "[" + pattern
        try:
            node = RegexParser(ecma=False).parse(pattern)
            node = resolve(node, EDGE, EDGE, charsets.category("word", False)) if has_anchor(node) else node
            if has_look(node):
                self._fail("look-around in a grammar's pattern is not supported", token.offset, "look-around")
            return node
        except ConstraintError as error:
            self._fail(str(error), token.offset, error.keyword or "regex")

    def _directive(self, token: _Token) -> None:
        match = re.fullmatch(r"%import\s+common\.(?:(\w+)(?:\s*->\s*(\w+))?|\(([\w,\s]+)\))\s*", token.text)
        if match is None:
            name = token.text.split()[0]
            self._fail(f"{name} is not supported here; spell it in the rules", token.offset, name)
        names = [match[1]] if match[1] else re.split(r"\s*,\s*", match[3].strip())
        for name in names:
            if name not in _COMMON:
                self._fail(f"common.{name} is not known; known: {', '.join(sorted(_COMMON))}", token.offset, "%import")
            self._rules[match[2] or name] = RegexParser(ecma=False).parse(_COMMON[name])
