"""Regex text → `Node`, read by Python's own parser.

In: a pattern in Python's syntax, or in ECMAScript's (JSON schema). Out: a node; what no regular language can do
(back-references, conditionals, atomic groups that matter) is refused by name.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from typing import Any

from ..errors import ConstraintError
from . import charsets
from .charsets import CharSet
from .regex_ast import Anchor, Chars, Look, Node, alt, repeat, seq

# Python's own parser has no public name, and moved in 3.11.
_MODULES = ("re._parser", "re._constants") if sys.version_info >= (3, 11) else ("sre_parse", "sre_constants")
sre_parse: Any = importlib.import_module(_MODULES[0])
sre: Any = importlib.import_module(_MODULES[1])

__all__ = ["RegexParser"]

_MAX_REPEAT = 1_000_000
_MOST_CHARACTERS = 200_000
_ANCHORS = {
    "AT_BEGINNING_STRING": ("start", r"\A"),
    "AT_END_STRING": ("end", r"\Z"),
    "AT_BOUNDARY": ("boundary", r"\b"),
    "AT_NON_BOUNDARY": ("not_boundary", r"\B"),
}


class RegexParser:
    """Reads one pattern. `ecma` reads classes and `$` as ECMAScript does."""

    def __init__(self, ecma: bool) -> None:
        self._ecma = ecma

    def parse(self, pattern: str) -> Node:
        """The pattern's node.

        Raises:
            ConstraintError: invalid (`.pointer` is the position), or refused by name (`.keyword`).
        """
        if len(pattern) > _MOST_CHARACTERS:
            raise ConstraintError(
                f"the regex has {len(pattern)} characters; at most {_MOST_CHARACTERS}", keyword="regex"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = sre_parse.parse(pattern, re.ASCII if self._ecma else 0)
        except re.error as error:
            raise ConstraintError(
                f"the regex {_shown(pattern)} is invalid: {error}", keyword="regex", pointer=str(error.pos)
            ) from error
        except (OverflowError, RecursionError) as error:
            raise ConstraintError(f"the regex {_shown(pattern)} is too large: {error}", keyword="regex") from error
        return self._sequence(tree, tree.state.flags)

    def _sequence(self, tree: Any, flags: int) -> Node:
        items = list(tree)
        return seq(*(self._item(op, arg, flags, i == len(items) - 1) for i, (op, arg) in enumerate(items)))

    def _item(self, op: Any, arg: Any, flags: int, last: bool) -> Node:
        name = str(op)
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return Chars(self._chars(name, arg, flags))
        if name == "BRANCH":
            return alt(*(self._sequence(branch, flags) for branch in arg[1]))
        if name == "SUBPATTERN":
            _, add, remove, inner = arg
            return self._sequence(inner, (flags | add) & ~remove)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            return self._repeat(name, arg, flags, last)
        if name == "AT":
            return self._anchor(str(arg), flags)
        if name in ("ASSERT", "ASSERT_NOT"):
            direction, inner = arg
            return Look(direction > 0, name == "ASSERT_NOT", self._sequence(inner, flags))
        raise _refused(name, arg)

    def _repeat(self, name: str, arg: Any, flags: int, last: bool) -> Node:
        low, high, inner = arg
        item = self._sequence(inner, flags)
        most = None if high == sre.MAXREPEAT else int(high)
        if name == "POSSESSIVE_REPEAT" and not (isinstance(item, Chars) and last):
            # At the very end of one class there is nothing to give back, so it is the greedy one.
            raise _refused(name, arg)
        if max(low, most or 0) > _MAX_REPEAT:
            raise ConstraintError(
                f"a regex repeats something {max(low, most or 0)} times; at most {_MAX_REPEAT}", keyword="regex"
            )
        return repeat(item, int(low), most)

    def _anchor(self, name: str, flags: int) -> Anchor:
        multiline = bool(flags & re.MULTILINE)
        if name == "AT_BEGINNING":
            return Anchor("line_start" if multiline else "start", "^")
        if name == "AT_END":
            if multiline:
                return Anchor("line_end", "$")
            return Anchor("end" if self._ecma else "end_or_newline", "$")
        kind, spelled = _ANCHORS[name]
        return Anchor(kind, spelled)

    def _chars(self, name: str, arg: Any, flags: int) -> CharSet:
        if name == "ANY":
            if flags & re.DOTALL:
                return charsets.ANY
            ends = [10, 13, 0x2028, 0x2029] if self._ecma else [10]
            return charsets.complement(charsets.of_ranges((c, c) for c in ends))
        negated = name == "NOT_LITERAL"
        members: list[CharSet] = []
        for op, value in arg if name == "IN" else [(sre.LITERAL, arg)]:
            if str(op) == "NEGATE":
                negated = True
            else:
                members.append(self._member(str(op), value, flags))
        chars = charsets.union(*members)
        if flags & re.IGNORECASE:
            chars = charsets.fold(chars, bool(flags & re.ASCII) and not self._ecma)
        return charsets.complement(chars) if negated else chars

    def _member(self, name: str, value: Any, flags: int) -> CharSet:
        if name == "LITERAL":
            return charsets.of_ranges([(value, value)])
        if name == "RANGE":
            return charsets.of_ranges([value])
        kind = str(value).removeprefix("CATEGORY_").lower()
        plain = kind.removeprefix("not_")
        if self._ecma and plain == "space":
            chars = charsets.ecma_space()
        else:
            chars = charsets.category(plain, self._ecma or bool(flags & re.ASCII))
        return charsets.complement(chars) if kind != plain else chars


def _refused(name: str, arg: Any) -> ConstraintError:
    construct, hint = {
        "GROUPREF": ("back-reference", "repeat the pattern instead"),
        "GROUPREF_EXISTS": ("conditional group (?(…)…)", "spell both cases"),
        "ATOMIC_GROUP": ("atomic group (?>…)", "use an ordinary group"),
        "POSSESSIVE_REPEAT": ("possessive repeat", "use an ordinary repeat"),
    }.get(name, (name.lower(), "spell it otherwise"))
    return ConstraintError(f"the regex uses a {construct}, which no mask can enforce; {hint}", keyword=construct)


def _shown(pattern: str) -> str:
    return repr(pattern) if len(pattern) <= 80 else f"{pattern[:60]!r}… ({len(pattern)} characters)"
