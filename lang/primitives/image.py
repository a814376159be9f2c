"""`image`: refused until models that see are supported."""

from __future__ import annotations

from typing import NoReturn

from ..errors import UnsupportedError

__all__ = ["image"]


def image(path: object) -> NoReturn:
    """An image in a turn. No model that Radicel runs can see yet.

    Raises:
        UnsupportedError: always, at the call.
    """
    raise UnsupportedError(
        f"image({path!r}): images are not in this version, because no supported model can see; "
        "describe the image as text"
    )
