"""A budget below the shortest text of a constraint is refused; one that may do is not."""

from __future__ import annotations

import pytest
from radicel import Constraint, SamplingParams
from radicel.errors import ConstraintError
from radicel.runtime.budget import check_budget

VOCABULARY = frozenset([b"abcd", b"a"])
LONG = Constraint.of({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}})


def test_too_few_tokens_are_refused():
    size = len('{"name": ""}')
    with pytest.raises(ConstraintError, match=rf"max_tokens=2 .*{size} bytes, which is at least 3 tokens") as caught:
        check_budget(SamplingParams(max_tokens=2), LONG, lambda: VOCABULARY)
    assert caught.value.keyword == "max_tokens"


@pytest.mark.parametrize("budget", [0, 3, 11, None])
def test_what_may_do_is_not(budget):
    check_budget(SamplingParams(max_tokens=budget), LONG, lambda: VOCABULARY)
    check_budget(SamplingParams(max_tokens=budget), None, lambda: VOCABULARY)


def test_the_vocabulary_is_not_asked_without_need():
    check_budget(SamplingParams(max_tokens=12), LONG, lambda: pytest.fail("asked"))
