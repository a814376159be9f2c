"""Names of the public surface that other front ends spell differently, loaded when they are used.

In: `radicel.Engine`, `radicel.Runtime`, `radicel.RuntimeEndpoint`. Out: our runtime, or a clear refusal.
"""

from __future__ import annotations

from typing import Any, NoReturn

from typing_extensions import override

from .errors import InvalidValueError, UnsupportedError
from .runtime import LocalRuntime

__all__ = ["Engine", "RuntimeEndpoint"]


class Engine(LocalRuntime):
    """`LocalRuntime`, whose model may also be given as `model_path=`."""

    def __init__(self, model: str | None = None, *, model_path: str | None = None, **kwargs: Any) -> None:
        if model is not None and model_path is not None:
            raise InvalidValueError(f"model={model!r} and model_path={model_path!r} are the same; give one")
        super().__init__(model if model_path is None else model_path, **kwargs)


class RuntimeEndpoint:
    """A Radicel server elsewhere. There is no such server in this version.

    Raises:
        UnsupportedError: always.
    """

    @override
    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(
            "RuntimeEndpoint: the Radicel server does not exist yet; use LocalRuntime(...) in this process, or "
            "OpenAIBackend(model, base_url=...) for a server of the OpenAI protocol"
        )
