"""A budget that no text of a constraint can keep is refused before anything runs.

In: what a request asks for, and the bytes of the model's tokens. Out: nothing, or `ConstraintError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..constraint import Constraint
from ..errors import ConstraintError
from ..sampling import SamplingParams
from ..schema.shortest import shortest_bytes

__all__ = ["check_budget"]


def check_budget(
    sampling: SamplingParams, constraint: Constraint | None, vocabulary: Callable[[], Collection[bytes]]
) -> None:
    """Raises where `max_tokens` is below the shortest text's bytes over those of the longest token.

    Args:
        sampling: of the request; `max_tokens=0` generates nothing, and is not looked at.
        constraint: of the request.
        vocabulary: gives the bytes of every token; asked only where the bytes alone do not show that it may fit.

    Raises:
        ConstraintError: the constraint allows no text of so few tokens.
    """
    budget = sampling.max_tokens
    if constraint is None or not budget:
        return
    size = shortest_bytes(constraint)
    if budget >= size:  # a token has a byte at least
        return
    least = -(-size // max(map(len, vocabulary())))
    if budget < least:
        raise ConstraintError(
            f"max_tokens={budget} is too few: the shortest text of this {constraint.kind} has {size} bytes, which is "
            f"at least {least} tokens; give it max_tokens={least} or more",
            keyword="max_tokens",
        )
