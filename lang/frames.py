"""The line of a user's program that led to where we are.

In: the stack. Out: the `Site` of its innermost frame that is neither Radicel's nor a library's.
"""

from __future__ import annotations

import sys
from types import FrameType

from .ir import Site

__all__ = ["is_library", "user_site"]

_STANDARD = frozenset(sys.stdlib_module_names)


def user_site() -> Site:
    """Where the user's code is: for `json.loads(value)`, the line that says so, not one inside `json`."""
    fallback: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not (module == "radicel" or module.startswith("radicel.")):
            fallback = fallback or frame
            if not is_library(module, frame.f_code.co_filename):
                return Site(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return Site("?", 0) if fallback is None else Site(fallback.f_code.co_filename, fallback.f_lineno)


def is_library(module: str, file: str) -> bool:
    """Whether code is the standard library's or an installed package's."""
    root = module.partition(".")[0]
    return (root in _STANDARD and root != "__main__") or "site-packages" in file or "dist-packages" in file
