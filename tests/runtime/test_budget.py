"""A budget below the shortest text of a constraint is refused; one that may do is not."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
from radicel import Constraint, SamplingParams
from radicel.accepts import _tokenizer_compiler
from radicel.errors import ConstraintError
from radicel.runtime.budget import check_budget
from radicel.runtime.grammar import Vocabulary
from radicel.runtime.tokenizer import Tokenizer

LONG = Constraint.of({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}})
FLAT = Constraint.of(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def vocabulary(*more: bytes) -> Vocabulary:
    tokens = [*(bytes([byte]) for byte in range(256)), *more]
    return Vocabulary(tokens, vocab_size=len(tokens) + 1, end_ids={len(tokens)})


def test_too_few_tokens_are_refused() -> None:
    size = len('{"name": ""}')
    with pytest.raises(ConstraintError, match=rf"max_tokens=2 .*{size} bytes, which is at least 3 tokens") as caught:
        check_budget(SamplingParams(max_tokens=2), LONG, vocabulary(b"abcd"))
    assert caught.value.keyword == "max_tokens"


def test_a_value_that_may_be_cut_may_take_too_few() -> None:
    check_budget(SamplingParams(max_tokens=2), replace(LONG, on_budget="truncate"), vocabulary(b"abcd"))
    with pytest.raises(ConstraintError):  # a regex is cut unless it fits anyway: that says nothing
        check_budget(SamplingParams(max_tokens=1), Constraint.regex("[a-z]{9}"), vocabulary(b"abcd"))


@pytest.mark.parametrize("budget", [0, 12, None])
def test_what_may_do_is_not(budget: int | None) -> None:
    check_budget(SamplingParams(max_tokens=budget), LONG, vocabulary())
    check_budget(SamplingParams(max_tokens=budget), None, vocabulary())


@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize(
    ("constraint", "more", "least", "least_crossing"),
    [
        (FLAT, [], 22, 22),
        (FLAT, [b'{"', b"name", b'":', b' "', b'",', b"age", b": "], 11, 11),
        (FLAT, [b'{"', b"name", b'":', b' "', b'", "', b"age", b"x{", b'x{"na', b"me", b'ab"'], 10, 9),
        (Constraint.regex("[a-z]{3}(x|yy)"), [b"abcd", b"bcx"], 2, 1),
        (Constraint.choices(["yes", "no, never"]), [b"es", b"xye"], 2, 1),
        (Constraint.choices(["客", "单价"]), [b"\xa2", b"\xae\xa2"], 2, 1),
        (Constraint.of(list[int]).prefixed("The numbers: "), [b"The numbers", b": ["], 3, 3),
        (Constraint.grammar('root ::= "(" root ")" | "xyz"'), [b"xy", b"  xy"], 2, 1),
        (Constraint.of({"type": "string", "minLength": 4}), [b'aaaa"', b'"a'], 2, 1),
    ],
    ids=str,
)
def test_the_bound_is_exact(
    constraint: Constraint, more: list[bytes], least: int, least_crossing: int, crossing: bool
) -> None:
    known = vocabulary(*more)
    wanted = least_crossing if crossing else least
    if wanted > 1:
        with pytest.raises(ConstraintError, match=f"at least {wanted} tokens"):
            check_budget(SamplingParams(max_tokens=wanted - 1), constraint, known, crossing=crossing)
    check_budget(SamplingParams(max_tokens=wanted), constraint, known, crossing=crossing)


def test_the_room_of_the_context_is_a_budget() -> None:
    with pytest.raises(ConstraintError, match="room for 11 tokens") as caught:
        check_budget(SamplingParams(), LONG, vocabulary(), room=11)
    assert caught.value.keyword == "max_tokens"
    check_budget(SamplingParams(), LONG, vocabulary(), room=12)


@pytest.mark.model
def test_with_a_real_vocabulary_it_takes_no_long_time(model_dir: Path) -> None:
    known = _tokenizer_compiler(Tokenizer.load(model_dir).hf).vocabulary
    for constraint in (FLAT, Constraint.of({}).listed("; ", least=9), FLAT.thinking(), Constraint.regex("(.*a){20}")):
        for budget in (3, 6):
            began = time.thread_time()
            with contextlib.suppress(ConstraintError):
                check_budget(SamplingParams(max_tokens=budget), constraint, known, crossing=budget == 6)
            assert time.thread_time() - began < 8
    shortest = '{"name": "", "age": 0}'
    spelled = len(known.encode(shortest))
    assert spelled == 10
    with pytest.raises(ConstraintError, match=r"at least \d+ tokens") as caught:
        check_budget(SamplingParams(max_tokens=7), FLAT, known)
    assert int(str(caught.value).split("at least ")[1].split()[0]) >= 8
    check_budget(SamplingParams(max_tokens=spelled), FLAT, known)
