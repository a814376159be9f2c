"""Grammars in both dialects: what they accept, and errors with line and column."""

from __future__ import annotations

import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.testing import accepts

GRAMMARS: list[tuple[str, list[str], list[str]]] = [
    ('root ::= "a" "b" "c" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
    ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "()"]),
    ('root ::= [a-z]+ "abc"', ["xabc", "abcabc"], ["abc"]),
    ('root ::= [^"\\n]{2,3} | "é" "😀" | [😀-🙏]', ["ab", "日本", "é😀", "🙏"], ["a", 'a"', "abcd", "é"]),
    ('root ::= item ("," item)*\nitem ::= [0-9]+  # digits\n', ["1,22"], ["1,", ",1"]),
    ('root ::= ("a"|"") "b"?', ["a", "ab", "b", ""], ["ba"]),
    ('root ::= . "]" [\\]a\\-]', ["é]]", "a]-"], ["a]b"]),
    ("start: expr\nexpr: expr \"+\" NUMBER | NUMBER\n%import common.NUMBER", ["1", "1+2.5+3"], ["1+", "+1"]),
    ('start: "x"i [ "y" ] /[0-9]{2}/ ("a".."c")~2', ["X12ab", "xy99cc"], ["x12a", "x1ab"]),
    ('?start: a -> b\n  | "z" // rest\na.2: "q"+', ["qq", "z"], [""]),
    ('start: WORD " " WORD\n%import common.WORD', ["a b"], ["ab"]),
]  # fmt: skip

ERRORS: list[tuple[str, str | None, str]] = [
    ('root ::= "a" b', "1:14", "no rule 'b'"),
    ('root = "a"', "1:6", "'='"),
    ('root ::= ("a"', "1:10", "not closed"),
    ('root ::= "a"\nroot ::= "b"', "2:1", "twice"),
    ("root ::= [z-a]", "1:10", "bad character range"),
    ('start: "a"\n%ignore " "', "2:1", "%ignore"),
    ('foo ::= "a"', "1:1", "no rule 'root'"),
    ("start: /(?=a)b/", "1:8", "look-around"),
    ('root ::= "a"{3,1}', "1:13", "ends before it begins"),
    ("root ::= root", None, "never ends"),
    ('root ::= "a" root', None, "never ends"),
    ("", None, "grammar text"),
]


@pytest.mark.parametrize(("text", "good", "bad"), GRAMMARS)
def test_grammars(text: str, good: list[str], bad: list[str]) -> None:
    made = Constraint.grammar(text)
    assert [t for t in good if not accepts(made, t)] == []
    assert [t for t in bad if accepts(made, t)] == []


@pytest.mark.parametrize(("text", "pointer", "message"), ERRORS)
def test_errors_say_where(text: str, pointer: str | None, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        Constraint.grammar(text)
    assert caught.value.pointer == pointer
