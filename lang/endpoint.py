"""`RuntimeEndpoint`: a Radicel server elsewhere, refused until there is one.

In: its address. Out: an error that says what to use instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

from typing_extensions import override

from .errors import UnsupportedError

__all__ = ["RuntimeEndpoint"]


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
