"""A budget that no text of a constraint can keep is refused before anything runs.

In: what a request asks for, and the tokens of the model. Out: nothing, or `ConstraintError`.
"""

from __future__ import annotations

import functools

from ..constraint import Constraint
from ..errors import ConstraintError
from ..sampling import SamplingParams
from ..schema.constraint_rules import constraint_rules
from ..schema.shortest import shortest_bytes
from .grammar.least import TooMuchWork, more_than
from .grammar.outline import Outline, OutlineError
from .grammar.vocabulary import Vocabulary

__all__ = ["check_budget"]


def check_budget(
    sampling: SamplingParams,
    constraint: Constraint | None,
    vocabulary: Vocabulary,
    *,
    room: int | None = None,
    crossing: bool = False,
) -> None:
    """Raises where every text of the constraint takes more tokens than there are.

    Args:
        sampling: of the request; `max_tokens=0` generates nothing, and is not looked at.
        constraint: of the request, without what token healing puts before it. One with `on_budget="truncate"`, where
            "close" is the default, may take too few: its value is cut, as was said.
        vocabulary: the model's tokens.
        room: what the context leaves for the text; None: enough. Nothing at all is refused elsewhere.
        crossing: whether the first token may begin before the text (token healing).

    Raises:
        ConstraintError: the constraint allows no text of so few tokens.
    """
    said = sampling.max_tokens
    budgets = [budget for budget in (said, room) if budget is not None and budget > 0]
    if constraint is None or said == 0 or not budgets or _may_be_cut(constraint):
        return
    budget = min(budgets)
    size = shortest_bytes(constraint)
    if budget >= size:  # a token has a byte at least
        return
    longest = max(map(len, vocabulary.spelled), default=1)
    least = -(-(size - (longest - 1 if crossing else 0)) // longest)
    if budget >= least:
        found = _certain(constraint, vocabulary, budget, crossing)
        if found is None:
            return
        least = found
    if said is not None and said <= budget:
        problem, hint = f"max_tokens={said} is too few", f"give it max_tokens={least} or more"
    else:
        problem, hint = f"the context has room for {budget} tokens after the prompt, too few", "shorten the prompt"
    raise ConstraintError(
        f"{problem}: the shortest text of this {constraint.kind} has {size} bytes, which is at least {least} tokens; "
        f"{hint}",
        keyword="max_tokens",
    )


def _may_be_cut(constraint: Constraint) -> bool:
    """Whether somebody said that values may be cut, where they would end in time otherwise."""
    return constraint.on_budget == "truncate" and constraint.kind in ("schema", "json_schema", "dtype", "tools")


@functools.lru_cache(maxsize=512)
def _certain(constraint: Constraint, vocabulary: Vocabulary, budget: int, crossing: bool) -> int | None:
    """The fewest tokens of a text where they are more than the budget and that is certain."""
    try:
        outline = Outline(*constraint_rules(constraint, vocabulary.tool_text_format))
        known = outline.completion(outline.start)
        ids = [] if known is None else vocabulary.encode(known)
        if 0 < len(ids) <= budget:
            return None  # as nearly always: no search is needed to see it
        return more_than(budget, outline, vocabulary, crossing=crossing)
    except (OutlineError, TooMuchWork, RecursionError):
        return None
