"""Grammar texts, checked and brought to one dialect.

In: GBNF or Lark text. Out: GBNF that says the same with nothing but character classes, groups, alternatives and
repeats; the same in llguidance's Lark; whether it is left-recursive (which decides the engine).
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ..errors import ConstraintError
from . import apart, charsets
from .grammar_ast import Ref, finite_rules, is_left_recursive, write_gbnf, write_lark
from .grammar_parse import parse_grammar
from .regex_ast import Alt, Chars, Repeat, Seq

__all__ = ["checked", "following", "free_characters", "left_recursive", "to_lark"]

_MOST_CHARACTERS = 200_000
_FREE = 256


def checked(text: str) -> str:
    """The grammar in normal form.

    Raises:
        ConstraintError: a syntax error with line and column, a missing rule, a recursion that never ends.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConstraintError(f"grammar={text!r}: must be a grammar text", keyword="grammar")
    if len(text) > _MOST_CHARACTERS:
        raise ConstraintError(f"the grammar has {len(text)} characters; at most {_MOST_CHARACTERS}", keyword="grammar")
    try:
        return apart.run(_checked, len(text), text)
    except RecursionError as error:
        raise ConstraintError("the grammar is nested too deeply", keyword="grammar") from error


def _checked(text: str) -> str:
    rules, root = parse_grammar(text)
    if root not in finite_rules(rules):
        raise _endless(text, root)
    return write_gbnf(rules, root)


def _endless(text: str, root: str) -> ConstraintError:
    found = re.search(rf"^[ \t]*[?!]*({root})[ \t]*::?=?", text, re.MULTILINE)
    offset = found.start(1) if found else 0
    line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
    return ConstraintError(
        f"the grammar, line {line}, column {column}: no finite text derives from the rule {root!r}: its recursion "
        "never ends",
        keyword=root,
        pointer=f"{line}:{column}",
    )


@functools.lru_cache(maxsize=128)
def left_recursive(text: str) -> bool:
    """Whether a rule of a grammar in normal form can begin with itself."""
    return apart.run(_left_recursive, len(text), text)


def _left_recursive(text: str) -> bool:
    return is_left_recursive(parse_grammar(text)[0])


@functools.lru_cache(maxsize=128)
def free_characters(text: str) -> int:
    """In how many places a grammar in normal form allows nearly any character."""
    return apart.run(_free_characters, len(text), text)


def _free_characters(text: str) -> int:
    return sum(map(_free, parse_grammar(text)[0].values()))


def _free(node: Any) -> int:
    if isinstance(node, Chars):
        return int(sum(high - low + 1 for low, high in node.chars) > _FREE)
    if isinstance(node, Repeat):
        return _free(node.item)
    return sum(map(_free, node.items if isinstance(node, Seq) else node.options if isinstance(node, Alt) else ()))


def following(before: str, text: str) -> str:
    """A grammar in normal form for the texts of another one, each with `before` in front."""
    rules, root = parse_grammar(text)
    start = "following"
    while start in rules:
        start += "_"
    items: list[Any] = [Chars(charsets.of_ranges([(ord(c), ord(c))])) for c in before]
    items.append(Ref(root))
    return write_gbnf({start: Seq(tuple(items)), **rules}, start)


def to_lark(text: str) -> str:
    """A grammar in normal form, in llguidance's Lark."""
    return apart.run(_to_lark, len(text), text)


def _to_lark(text: str) -> str:
    return write_lark(*parse_grammar(text))
