"""Whose code is it, and which line of a user's program led to where we are?

In: the stack, or the module and the file of code. Out: the `Site` of the innermost frame that is the user's, or whether
the code is.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

from .ir import Site

__all__ = ["is_library", "is_ours", "is_users", "user_site"]

_STANDARD = frozenset(sys.stdlib_module_names)
_LIBRARIES = (
    "<frozen ",
    *{sysconfig.get_path(key) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")},
)


def user_site() -> Site:
    """Where the user's code is: for `json.loads(value)`, the line that says so, not one inside `json`."""
    fallback: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not is_ours(module):
            fallback = fallback or frame
            if is_users(module, frame.f_code.co_filename):
                return Site(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return Site("?", 0) if fallback is None else Site(fallback.f_code.co_filename, fallback.f_lineno)


def is_ours(module: str) -> bool:
    """Whether code is Radicel's own."""
    return module == "radicel" or module.startswith("radicel.")


def is_library(module: str, file: str) -> bool:
    """Whether code is the standard library's or an installed package's; a user's file may be called as one of its."""
    if file.startswith(_LIBRARIES) or "site-packages" in file or "dist-packages" in file:
        return True
    return not os.path.isabs(file) and module.partition(".")[0] in _STANDARD  # compiled elsewhere


def is_users(module: str, file: str) -> bool:
    """Whether the user wrote the code."""
    return not is_ours(module) and not is_library(module, file)
