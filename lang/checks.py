"""Static checks on recorded nodes.

In: nodes, and perhaps a backend to count tokens with. Out: `Problem`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .ir import Node
from .problems import Problem

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["problems_of"]


def problems_of(nodes: Sequence[Node], backend: Backend | None = None) -> list[Problem]:
    """What is wrong with what the nodes ask for."""
    return []
