"""`radicel.testing.accepts`: the arguments of `gen`, tokens given or found, and its errors."""

from __future__ import annotations

from typing import Any

import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.testing import accepts


@pytest.mark.parametrize(
    ("arguments", "good", "bad"),
    [
        ({"schema": int}, "12", "1.5"),
        ({"constraint": Constraint.regex("a+")}, "aa", "ab"),
        ({"constraint": {"type": "null"}}, "null", "nul"),
        ({"regex": "[ab]{2}"}, "ab", "abc"),
        ({"grammar": 'root ::= "x" root?'}, "xx", ""),
        ({"choices": ["yes", "yes no"]}, "yes", "yes n"),
        ({"json_schema": '{"type": "boolean"}'}, "true", "True"),
        ({"schema": list[int]}, "[1, 2]", "[1,2]"),
        ({"schema": list[int], "whitespace": "flexible"}, "[1,\n  2]", "[1 2]"),
    ],
)
def test_every_kind(arguments: dict[str, Any], good: str, bad: str) -> None:
    assert accepts(text=good, **arguments)
    assert not accepts(text=bad, **arguments)


def test_tokens_may_be_given() -> None:
    assert accepts(regex="ab", token_ids=[97, 98])
    assert not accepts(regex="ab", token_ids=[97])
    assert not accepts(regex="ab", token_ids=[97, 98, 256])
    assert not accepts(regex="ab", token_ids=[97, 9999])


def test_half_a_character_and_a_lone_surrogate_are_no_text() -> None:
    assert not accepts(regex="é", token_ids=[0xC3])
    assert not accepts(regex=".", text="\ud800")


def test_it_raises_what_gen_would_raise() -> None:
    with pytest.raises(ConstraintError, match="needs a constraint"):
        accepts(text="x")
    with pytest.raises(ConstraintError, match="schema and regex"):
        accepts(schema=int, regex="a")
    with pytest.raises(ConstraintError, match="look-around"):
        accepts(regex="((?!ab).)*", text="a")


@pytest.mark.model
def test_canonical_tokens_of_a_tokenizer(model_dir: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert accepts(dict[str, int], '{"naïve key": 12}', tokenizer=tokenizer)
    assert not accepts(dict[str, int], '{"naïve key": "12"}', tokenizer=tokenizer)
    assert accepts(regex="[😀-🙏]+", text="😀🙏", tokenizer=tokenizer)
    assert accepts(grammar='root ::= "(" root ")" | "x"', text="((x))", tokenizer=tokenizer)
    # A special token's spelling inside a string is text, not the token.
    assert accepts(str, '"<|im_end|>"', tokenizer=tokenizer)
