"""Patterns: Python's meaning for `regex=`, ECMAScript's for `pattern`, the rest refused by name."""

from __future__ import annotations

import random
import re

import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.schema.patterns import other_names, searches
from radicel.schema.regex_run import matches
from radicel.testing import accepts

PATTERNS: list[tuple[str, list[str], list[str]]] = [
    (r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)", ["8.8.8.8"], ["256.1.1.1"]),
    (r"/\*(\*+[^*/]|[^*])*\*+/", ["/* */", "/**/", "/* * */"], ["/* */ */", "/*/"]),
    ("[à-ÿ]", ["é"], ["e"]),
    ("[é]", ["é"], ["e"]),
    (r"([a-z_]+:\s(?:[^,\n]+,)*[^,\n]*)", ["a: x,y"], ["a:x"]),
    (r"\Aabc\Z", ["abc"], ["AabcZ"]),
    ("^abc$", ["abc"], ["^abc$", "abc\n"]),
    (".", ["a", "é", "😀"], ["\n", ""]),
    ("(?s:.)", ["\n"], [""]),
    (r"\d", ["1", "٣"], ["a"]),
    (r"(?a)\d", ["1"], ["٣"]),
    (r"\w", ["é", "_", "9"], ["-"]),
    (r"\s", ["\u3000", "\t"], ["a"]),
    (r"\bword\b", ["word"], ["wor"]),
    ("(?i)straße", ["STRAßE", "straße"], ["strase"]),
    ("(?i)k", ["k", "K", "\u212a"], ["x"]),
    ("(?x) a  b # c", ["ab"], ["a b"]),
    (r"(?P<n>a)b", ["ab"], ["b"]),
    ("[]a]", ["]", "a"], ["b"]),
    ("a{,3}b", ["b", "aab"], ["aaaab"]),
    ("a*?b", ["aab"], ["a"]),
    ("(a|)", ["a", ""], ["b"]),
    ("[😀-🙏]+", ["😀🙏"], ["a"]),
    ("在线|离线", ["在线"], ["在"]),
    (r"\x41\u00e9\U0001F600", ["Aé😀"], ["A"]),
    (r"[^\W\d]", ["a", "é"], ["1", "-"]),
    ("(?i:a)b", ["Ab"], ["aB"]),
    ("(?!x)[a-z]", ["a"], ["x"]),
    ("(?!ab)...", ["cd?", "aaa"], ["ab?", "ab"]),
    ("(?=a)(b|ac)", ["ac"], ["b"]),
    ("a(?=b).c|x", ["abc", "x"], ["adc"]),
    ("[ab]*(?<!aa)c", ["abc", "c", "bac"], ["aac", "baac"]),
    ("((?=ab)...)*", ["", "abcabd"], ["bbb", "ab"]),
    (r"^(?!@@)[\w@]+$", ["a@", "@a"], ["@@", "@@a"]),
    (r"a.\b.b", ["a1-b", "a-1b"], ["a11b", "a--b"]),
    (r"\b.\b", ["a"], ["-", ""]),
    ("(a|)^b", ["b"], ["ab"]),
    (r"(\/?([a-z]*)($|\/))*", ["a/b", "//", "abc/"], ["A", "a/B"]),
    (r"(?m)(^a$\n)+", ["a\n", "a\na\n"], ["a", "aa\n"]),
    (r".*?(?=\n)\n", ["x\n"], ["x"]),
]

REFUSED: list[tuple[str, str]] = [
    ("((?!ab).)*", "look-around"),
    ("(x(?<=a.))*", "look-around"),
    ("(?<=a)b", "regex"),
    (r"(a)\1", "back-reference"),
    ("(a)?(?(1)b|c)", "conditional"),
    ("a^b", "regex"),
    (r"[^\s\S]", "regex"),
    ("^", "regex"),
    ("", "regex"),
    ("a**", "regex"),
    ("(", "regex"),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_a_regex_means_what_python_means(pattern: str, good: list[str], bad: list[str]) -> None:
    assert [t for t in good if not re.fullmatch(pattern, t)] == []
    assert [t for t in bad if re.fullmatch(pattern, t)] == []
    assert [t for t in good if not accepts(regex=pattern, text=t)] == []
    assert [t for t in bad if accepts(regex=pattern, text=t)] == []


@pytest.mark.parametrize(("pattern", "keyword"), REFUSED)
def test_what_is_not_regular_is_refused_by_name(pattern: str, keyword: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraint.regex(pattern)
    assert keyword in str(caught.value.keyword)


def test_flags_of_a_compiled_pattern_count() -> None:
    assert accepts(Constraint.regex(re.compile("a.", re.I | re.S)), "A\n")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d$", ["1"], ["٣"]),
        (r"^\cC$", ["\x03"], ["C"]),
        (r"^\p{Lu}\/$", ["É/"], ["é/"]),
        (r"^[^]$", ["\n"], [""]),
        (r"^(?<y>\d{4})$", ["2024"], ["24"]),
        (r"^\ud83d\udc32$", ["🐲"], ["x"]),
        (r"^a$|b", ["a", "xbx"], ["aa"]),
        (r"x(^|y)z", ["xyz"], ["xz"]),
        (r"^[a[b]$", ["["], ["c"]),
    ],
)
def test_a_schema_pattern_means_what_ecmascript_means(pattern: str, good: list[str], bad: list[str]) -> None:
    assert [t for t in good if not searches(pattern, t)] == []
    assert [t for t in bad if searches(pattern, t)] == []


def test_other_names_are_all_texts_but_these() -> None:
    names = ["a", "ab", "abc", "b", 'q"', ""]
    node = other_names(names)
    assert [text for text in ["x", "aa", "abcd", "ba", "q", 'q"r', "é"] if not matches(node, text)] == []
    assert [text for text in names if matches(node, text)] == []


def test_random_look_around_agrees_with_python() -> None:
    draw = random.Random(9)
    atoms = [
        "a",
        "b",
        "[ab]",
        ".",
        "(?=a)",
        "(?!b)",
        "(?<=a)",
        "(?<!b)",
        r"\b",
        "^",
        "$",
        "(?=.b)",
        "(a|(?!a)b)",
        "(?!a$)",
    ]
    texts = ["".join(draw.choices("ab-\n", k=draw.randrange(5))) for _ in range(40)]
    checked = 0
    for _ in range(120):
        pattern = "".join(draw.choice(atoms) for _ in range(draw.randrange(1, 6)))
        try:
            made = Constraint.regex(pattern)
        except ConstraintError:
            assert not [text for text in texts if text and re.fullmatch(pattern, text)], pattern
            continue
        checked += 1
        for text in texts:
            assert accepts(made, text) == bool(re.fullmatch(pattern, text)), (pattern, text)
    assert checked > 40


def test_random_patterns_agree_with_python() -> None:
    draw = random.Random(7)
    atoms = ["a", "b", "[ab]", "[^a]", ".", r"\w", "é", "(?:ab|c)", "(a|)"]
    repeats = ["", "*", "+", "?", "{2}", "{1,2}"]
    texts = ["".join(draw.choices("abcé\n-", k=draw.randrange(6))) for _ in range(60)]
    for _ in range(60):
        pattern = "".join(draw.choice(atoms) + draw.choice(repeats) for _ in range(draw.randrange(1, 5)))
        made = Constraint.regex(pattern)
        for text in texts:
            assert accepts(made, text) == bool(re.fullmatch(pattern, text)), (pattern, text)
