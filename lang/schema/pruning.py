"""Impossible parts taken out of a graph of shapes.

In: the shapes of every node. Out: the same without alternatives that no finite value has (a required key whose value
is impossible, recursion without a base case), and without optional parts that could never be finished.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .shapes import ArrayShape, NodeId, ObjectShape, Shape

__all__ = ["pruned"]


def pruned(shapes: Mapping[NodeId, list[Shape]]) -> dict[NodeId, list[Shape]]:
    """The shapes that have a finite value; a node without one has an empty list."""
    possible: set[NodeId] = set()
    grew = True
    while grew:
        more = {
            node
            for node, options in shapes.items()
            if node not in possible and any(_finite(option, possible) for option in options)
        }
        possible |= more
        grew = bool(more)
    return {
        node: [_trimmed(option, possible) for option in options if _finite(option, possible)]
        for node, options in shapes.items()
    }


def _finite(shape: Shape, possible: set[NodeId]) -> bool:
    if isinstance(shape, ArrayShape):
        return 0 in _ending(shape, possible) if shape.states else shape.low <= _places(shape, possible)
    if isinstance(shape, ObjectShape):
        if any(required and node not in possible for _, node, required in shape.fields):
            return False
        spare = shape.low - sum(required for _, _, required in shape.fields)
        return spare <= 0 or shape.rest in possible or any(node in possible for _, node in shape.patterns)
    return True


def _ending(shape: ArrayShape, possible: set[NodeId]) -> set[int]:
    """The states of an array's automaton from which it can end."""
    good = set(shape.ends)
    grew = True
    while grew:
        more = {
            number
            for number, ways in enumerate(shape.states)
            if number not in good and any(node in possible and target in good for node, target in ways)
        }
        good |= more
        grew = bool(more)
    return good


def _places(shape: ArrayShape, possible: set[NodeId]) -> float:
    """How many items can be written."""
    for index, node in enumerate(shape.prefix):
        if node not in possible:
            return index
    return float("inf") if shape.rest in possible else len(shape.prefix)


def _trimmed(shape: Shape, possible: set[NodeId]) -> Shape:
    if isinstance(shape, ArrayShape) and shape.states:
        good = _ending(shape, possible)
        states = tuple(tuple(way for way in ways if way[0] in possible and way[1] in good) for ways in shape.states)
        return dataclasses.replace(shape, states=states)
    if isinstance(shape, ArrayShape):
        places = _places(shape, possible)
        if places == float("inf"):
            return shape
        most = int(places) if shape.high is None else min(int(places), shape.high)
        return dataclasses.replace(shape, prefix=shape.prefix[:most], rest=None, high=most)
    if isinstance(shape, ObjectShape):
        fields = tuple(field for field in shape.fields if field[1] in possible)
        absent = shape.absent | {name for name, node, _ in shape.fields if node not in possible}
        patterns = shape.patterns
        rest = shape.rest if shape.rest in possible else None
        return ObjectShape(fields, patterns, rest, frozenset(absent), shape.low, shape.high)
    return shape
