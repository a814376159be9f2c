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
    ("root ::= root", "1:1", "never ends"),
    ('root ::= "a" root', "1:1", "never ends"),
    ('\n  start: "a" start', "2:3", "never ends"),
    ("root ::= a\na ::= b\nb ::= a", "1:1", "never ends"),
    ('root ::= "a" | root2\n\n   root2 ::= "b" $', "3:18", "'\\$'"),
    ('root ::= "abc', "1:10", "does not belong here"),
    ('root ::= "\\U00110000"', "1:10", "beyond Unicode"),
    ('root ::= "\\ud800"', "1:10", "lone surrogate"),
    ('root ::= "a"{1000000000}', "1:13", "too large"),
    ('start: "a" ]', "1:12", "does not belong here"),
    ('start: "a"\nb: (', "2:4", "not closed"),
    ("start: a b\na: /x/", "1:10", "no rule 'b'"),
    ("start: /a(/", "1:8", "unterminated"),
    ("start: /(a)\\1/", "1:8", "back-reference"),
    ('start: "b".."a"', "1:8", "two characters in order"),
    ('start: "a"~5..3', "1:11", "ends before it begins"),
    ('start: "a"~1000000', "1:11", "too large"),
    ("start: FOO\n%import common.FOO", "2:1", "not known"),
    ('one: "a"', "1:1", "no rule 'start'"),
    ('start: "a"\nstart: "b"', "2:1", "twice"),
    ("a sentence", "1:1", "must stand here"),
    ("", None, "grammar text"),
    ("root ::= " + '"a" ' * 60_000, None, "at most 200000"),
]


@pytest.mark.parametrize(("text", "good", "bad"), GRAMMARS)
def test_grammars(text: str, good: list[str], bad: list[str]) -> None:
    made = Constraint.grammar(text)
    assert [t for t in good if not accepts(made, t)] == []
    assert [t for t in bad if accepts(made, t)] == []


@pytest.mark.parametrize(("text", "pointer", "message"), ERRORS, ids=lambda value: str(value)[:40])
def test_errors_say_where(text: str, pointer: str | None, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        Constraint.grammar(text)
    assert caught.value.pointer == pointer
