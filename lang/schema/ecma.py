"""ECMAScript's regex syntax → Python's, where they differ.

In: a JSON schema `pattern`. Out: the same pattern in Python's syntax, to be read in ECMAScript's meaning
(`regex_parse.py`); what ECMAScript does not have is refused.
"""

from __future__ import annotations

import re

from ..errors import ConstraintError
from . import charsets
from .regex_ast import Chars, write

__all__ = ["to_python"]

_TOKEN = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u\{(?P<code>[0-9a-fA-F]{1,6})\}"
    r"|\\c(?P<control>[A-Za-z])"
    r"|\\(?P<sign>[pP])\{(?P<name>[^}]*)\}"
    r"|\\k<(?P<back>\w+)>"
    r"|\(\?<(?P<group>[A-Za-z_$][\w$]*)>"
    r"|\\(?P<python>[AZa])"
    r"|\\(?P<plain>[^\w\s]|_)"
    r"|\\."
    r"|(?P<open>\[\^?)(?P<bracket>\]?)"
    r"|\]"
    r"|(?P<inner>\[)",
    re.DOTALL,
)


def to_python(pattern: str) -> str:
    """The pattern in Python's syntax.

    Raises:
        ConstraintError: an escape that ECMAScript does not have, an unknown property of `\\p{…}`.
    """
    out: list[str] = []
    position, in_class = 0, False
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            out.append(pattern[position])
            position += 1
            continue
        text = match.group()
        position = match.end()
        if match["open"] and in_class:
            # Inside a class a bracket is a character.
            position = match.start() + 1
            out.append("\\[")
        elif match["open"]:
            text, in_class = _class_start(match)
            out.append(text)
        elif text == "]" and in_class:
            in_class = False
            out.append("]")
        else:
            out.append("\\]" if text == "]" else _rewritten(match, in_class))
    return "".join(out)


def _class_start(match: re.Match[str]) -> tuple[str, bool]:
    """`[]` matches nothing and `[^]` everything, where Python reads a bracket as the first member."""
    if match["bracket"]:
        return (r"[\s\S]" if match["open"] == "[^" else r"[^\s\S]"), False
    return match["open"], True


def _rewritten(match: re.Match[str], in_class: bool) -> str:
    if match["high"]:
        code = 0x10000 + ((int(match["high"], 16) & 0x3FF) << 10) + (int(match["low"], 16) & 0x3FF)
        return f"\\U{code:08x}"
    if match["code"]:
        return f"\\U{int(match['code'], 16):08x}"
    if match["control"]:
        return f"\\x{ord(match['control']) & 31:02x}"
    if match["sign"]:
        return _property(match["sign"] == "P", match["name"], in_class)
    if match["back"]:
        return f"(?P={match['back']})"
    if match["group"]:
        return f"(?P<{match['group'].replace('$', '_')}>"
    if match["python"]:
        raise ConstraintError(
            f"the pattern uses \\{match['python']}, which ECMAScript does not have", keyword="pattern"
        )
    if match["plain"]:
        return re.escape(match["plain"])
    return match.group()


def _property(negated: bool, name: str, in_class: bool) -> str:
    value = name.split("=")[-1]
    chars = charsets.general_category(value)
    if chars is None:
        raise ConstraintError(
            f"the pattern uses \\p{{{name}}}, which is no general category of Unicode", keyword="pattern"
        )
    if negated:
        chars = charsets.complement(chars)
    text = write(Chars(chars), engine=False)
    if not in_class:
        return text
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in chars)
