"""Both engines behind the matcher contract: the same masks, ends, forks and rollbacks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.runtime.grammar import GrammarCompiler, Mask, Matcher, mask_words
from radicel.runtime.grammar.session import Session

WORDS = [b"ab", b"((", b"))", b"abc", b'":', b'{"', b"yes", b" no", "é".encode(), "😀".encode()]
TOKENS = [*(bytes([byte]) for byte in range(256)), *WORDS, b"<end>", b"<end2>", b"<special>"]
END, END_2, SPECIAL = 266, 267, 268
SIZE = 300  # more columns than tokens
ENGINES = ("llguidance", "xgrammar")


@pytest.fixture(params=ENGINES)
def compiler(request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    made = compiler_of(request.param)
    yield made
    made.close()


def compiler_of(engine: str | None = None, **kwargs: int) -> GrammarCompiler:
    return GrammarCompiler(
        TOKENS, vocab_size=SIZE, end_ids={END, END_2}, special_ids=frozenset({SPECIAL}), engine=engine, **kwargs
    )


def allowed(matcher: Matcher) -> set[int]:
    row: Mask = np.full(mask_words(SIZE), -1, dtype=np.int32)
    matcher.fill_mask(row)
    return {i for i in range(mask_words(SIZE) * 32) if row[i >> 5] >> (i & 31) & 1}


def feed(matcher: Matcher, text: str) -> bool:
    return all(matcher.accept(byte) for byte in text.encode())


GRAMMAR = Constraint.grammar('root ::= "a" "b" "c" | "ab" "d"')
CHOICES = Constraint.choices(["yes", "yes no", "né"])


def test_all_ends_are_allowed_exactly_where_the_text_may_end(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(CHOICES).matcher()
    assert allowed(matcher) == {ord("y"), ord("n"), TOKENS.index(b"yes")}
    assert feed(matcher, "yes")
    assert allowed(matcher) == {ord(" "), TOKENS.index(b" no"), END, END_2}
    assert matcher.is_complete()
    assert not matcher.is_terminated()
    assert not matcher.accept(SPECIAL)
    assert matcher.accept(END_2)
    assert matcher.is_terminated()
    assert allowed(matcher) == set()
    assert not matcher.accept(ord(" "))


def test_a_complete_grammar_that_cannot_go_on_terminates(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(GRAMMAR).matcher()
    assert not matcher.is_complete()
    assert feed(matcher, "abc")
    assert matcher.is_complete()
    assert matcher.is_terminated()
    assert allowed(matcher) == {END, END_2}


def test_rollback_goes_over_end_tokens_and_words(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(CHOICES).matcher()
    before = allowed(matcher)
    assert matcher.accept(TOKENS.index(b"yes"))
    assert matcher.accept(TOKENS.index(b" no"))
    assert matcher.accept(END)
    matcher.rollback(1)
    assert matcher.is_complete()
    matcher.rollback(1)
    assert ord(" ") in allowed(matcher)
    matcher.rollback(1)
    assert allowed(matcher) == before
    with pytest.raises(ValueError, match="only 0 tokens"):
        matcher.rollback(1)


def test_a_refused_token_changes_nothing(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(GRAMMAR).matcher()
    before = allowed(matcher)
    for token_id in (ord("x"), END, SPECIAL, -1, SIZE, 290):
        assert not matcher.accept(token_id)
    assert allowed(matcher) == before
    assert feed(matcher, "abd")


def test_forks_are_independent(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(GRAMMAR).matcher()
    assert matcher.accept(ord("a"))
    other = matcher.fork()
    assert feed(matcher, "bc")
    assert allowed(other) == {ord("b")}
    other.rollback(1)
    assert allowed(other) == {ord("a"), TOKENS.index(b"ab"), TOKENS.index(b"abc")}
    assert matcher.is_terminated()


def test_samples_of_one_grammar_do_not_share_state(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Constraint.grammar("root ::= [a-z] [a-z] [a-z]"))
    matchers = [compiled.matcher() for _ in range(4)]
    for step in range(3):
        for number, matcher in enumerate(matchers):
            assert matcher.accept(ord("a") + number + step)
    assert all(matcher.is_terminated() for matcher in matchers)


@pytest.mark.timeout(60)
def test_five_thousand_levels_of_recursion(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Constraint.grammar('root ::= "(" root ")" | "x"')).matcher()
    for _ in range(2500):
        assert matcher.accept(TOKENS.index(b"(("))
    assert allowed(matcher) == {ord("("), ord("x"), TOKENS.index(b"((")}
    assert matcher.accept(ord("x"))
    assert allowed(matcher) == {ord(")"), TOKENS.index(b"))")}
    assert not matcher.is_complete()


def test_both_engines_have_the_same_masks() -> None:
    grammars = [
        GRAMMAR,
        CHOICES,
        Constraint.grammar('root ::= "(" root ")" | "x"'),
        Constraint.grammar("root ::= [a-zé😀]{2,4} | [^a-z]"),
        Constraint.grammar('root ::= "{" (pair ("," pair)*)? "}"\npair ::= [a-c]+ ":" ("yes" | root)'),
        Constraint.grammar('start: start "a" | "b"'),
    ]
    draw = random.Random(3)
    first, second = (compiler_of(engine) for engine in ENGINES)
    compared = 0
    for grammar in grammars:
        for _ in range(15):
            pair = [c.compile(grammar).matcher() for c in (first, second)]
            for _ in range(10):
                masks = [allowed(matcher) for matcher in pair]
                assert masks[0] == masks[1]
                assert pair[0].is_complete() == pair[1].is_complete()
                assert pair[0].is_terminated() == pair[1].is_terminated()
                compared += 1
                choices = sorted(masks[0] - {END, END_2})
                if not choices:
                    break
                token_id = draw.choice(choices)
                assert [matcher.accept(token_id) for matcher in pair] == [True, True]
    assert compared > 300


def test_characters_of_several_bytes_are_not_cut() -> None:
    matcher = compiler_of().compile(Constraint.regex("[😀-🙏]+")).matcher()
    for byte, wanted in zip("😀".encode(), ({0xF0}, {0x9F}, {0x98, 0x99}, set(range(0x80, 0xC0)))):
        assert allowed(matcher) - {TOKENS.index("😀".encode())} == wanted
        assert not matcher.is_complete()
        assert matcher.accept(byte)
    assert {END, END_2} < allowed(matcher)


def test_white_space_is_none_or_bounded() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    fixed = compiler_of().compile(Constraint.of(schema, strict=True)).matcher()
    assert allowed(fixed) == {ord("{"), TOKENS.index(b'{"')}
    flexible = compiler_of().compile(Constraint.of(schema, strict=True, whitespace="flexible")).matcher()
    spaces = 0
    assert flexible.accept(ord("{"))
    while ord("\n") in allowed(flexible) or ord(" ") in allowed(flexible):
        assert flexible.accept(ord("\n") if ord("\n") in allowed(flexible) else ord(" "))
        spaces += 1
        assert spaces < 50
    assert feed(flexible, '"a":1}')
    assert flexible.is_complete()


class Broken:
    """A core that allows nothing and is not finished, or that says it broke."""

    def __init__(self, said: str | None) -> None:
        self.said = said

    def fill(self, row: Mask) -> None:
        row[:] = 0 if self.said is None else -1

    def consume(self, token_id: int) -> bool:
        return False

    def error(self) -> str | None:
        return self.said


@pytest.mark.parametrize(("said", "message"), [(None, "allows no token"), ("too complex", "too complex")])
def test_an_engine_that_gives_up_is_an_error_of_that_sequence(said: str | None, message: str) -> None:
    vocabulary = compiler_of().vocabulary
    session = Session(Broken(said), vocabulary, [ord("a")])  # type: ignore[arg-type]
    with pytest.raises(ConstraintError, match=f"after 'a': .*{message}"):
        session.fill_mask(vocabulary.empty_mask())
    if said is None:
        assert not session.accept(ord("b"))
    else:
        with pytest.raises(ConstraintError, match=message):
            session.accept(ord("b"))


def test_what_is_too_complex_is_refused_when_it_is_compiled() -> None:
    keys = {"type": "object", "patternProperties": {"[a-z0-9]{1,200}x[a-z0-9]{1,200}y": {"type": "integer"}}}
    compiler = compiler_of()
    with pytest.raises(ConstraintError):
        compiler.compile(Constraint.of({"anyOf": [keys, {"type": "string", "maxLength": 10**30}]}))
    assert compiler.compile(CHOICES).matcher().accept(ord("y"))
