"""The runtime: request graph → scheduler → radix cache → model step → sampler and grammar → text.

Names are loaded when they are used, so that the tree, the scheduler and the grammars import without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import RuntimeConfig as RuntimeConfig
    from .engine import EngineConfig as EngineConfig
    from .local import LocalRuntime as LocalRuntime
    from .stats import RuntimeStats as RuntimeStats

__all__ = ["EngineConfig", "LocalRuntime", "RuntimeConfig", "RuntimeStats"]

_HOMES = {"EngineConfig": "engine", "LocalRuntime": "local", "RuntimeConfig": "config", "RuntimeStats": "stats"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
