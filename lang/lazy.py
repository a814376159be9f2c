"""`LocalRuntime` under the names and keywords of other front ends; loaded when such a name is used.

In: `radicel.Engine(model_path=…)`, `radicel.Runtime(…)`. Out: a `LocalRuntime`.
"""

from __future__ import annotations

from typing import Any

from .errors import InvalidValueError
from .runtime import LocalRuntime

__all__ = ["Engine"]


class Engine(LocalRuntime):
    """`LocalRuntime`, whose model may also be given as `model_path=`."""

    def __init__(self, model: str | None = None, *, model_path: str | None = None, **kwargs: Any) -> None:
        if model is not None and model_path is not None:
            raise InvalidValueError(f"model={model!r} and model_path={model_path!r} are the same; give one")
        super().__init__(model if model_path is None else model_path, **kwargs)
