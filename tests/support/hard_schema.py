"""A schema whose reading and compiling take long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["hard_schema"]


def hard_schema(size: int = 400) -> dict[str, Any]:
    """So many keys, each with a pattern, a length and values of its own."""
    kinds: list[Callable[[int], dict[str, Any]]] = [
        lambda i: {"type": "string", "pattern": f"^[a-z]{{{i % 9 + 1},40}}-[0-9]+$", "maxLength": 90 + i % 7},
        lambda i: {"type": "number", "minimum": i * 1.25, "maximum": i * 7.75 + 1},
        lambda i: {"enum": [f"value {i} {j}" for j in range(12)]},
        lambda i: {"type": "array", "items": {"type": "object", "properties": {f"n{i}": {"type": "integer"}}}},
    ]
    return {"type": "object", "properties": {f"key{i}": kinds[i % 4](i) for i in range(size)}}
