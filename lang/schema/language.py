"""What a constraint allows, as rules over one small algebra, for questions about it (`shortest.py`).

In: a `Constraint`. Out: `Rules` (`grammar_ast.py`) of ordinary patterns, whose language holds every text that the
constraint allows, and more where an intersection or a complement is widened. So what no text of it does, no text of the
constraint does.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from .constraint_rules import constraint_rules
from .grammar_ast import Bag, Foreign, Rules, Token
from .regex_ast import ANYTHING, Alt, And, Node, Not, Repeat, Seq, alt, min_width, repeat, seq

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["language_of"]


@functools.lru_cache(maxsize=256)
def language_of(constraint: Constraint) -> tuple[Rules, str]:
    """The rules, and the name of the one to start from; of the value only, without what stands before it."""
    rules, root = constraint_rules(dataclasses.replace(constraint, after=""), "mistral11")  # no calls are shorter
    return {name: _widened(node) for name, node in rules.items()}, root


def _widened(node: Node) -> Any:
    if isinstance(node, (Token, Foreign)):
        return _widened(node.node)
    if isinstance(node, Bag):
        return _some(node)
    if isinstance(node, Seq):
        return seq(*map(_widened, node.items))
    if isinstance(node, Alt):
        return alt(*map(_widened, node.options)) if node.options else node
    if isinstance(node, Repeat):
        return repeat(_widened(node.item), node.low, node.high)
    if isinstance(node, And):
        # The part with the longest shortest text says most.
        return max(map(_widened, node.parts), key=min_width)
    return ANYTHING if isinstance(node, Not) else node


def _some(bag: Bag) -> Any:
    """At least so many elements as the bag needs, in any order, as often as one likes."""
    first, later = (
        alt(*map(_widened, ways)) for ways in ((*bag.first, bag.other_first), (*bag.later, bag.other_later))
    )
    least = max(bag.needed, bag.low, bag.least_others)
    several = seq(first, repeat(later, max(0, least - 1), None))
    return several if least else repeat(several, 0, 1)
