"""Where in a user's program an error came from.

In: an exception. Out: `FILE:LINE`, relative to where the command runs if that is shorter, or nothing.
"""

from __future__ import annotations

import os
import re

from ..frames import is_users

__all__ = ["place_of"]

_NODE = re.compile(r" at (\S.*:\d+)(?:, item \d+ of the batch)?$")


def place_of(error: BaseException) -> str | None:
    """The line of the node that failed, where the error says which (`Cells` notes it); else the last line of the user's
    own code on the way to the error."""
    for note in getattr(error, "__notes__", ()):
        if found := _NODE.search(note):
            return _relative(found[1])
    place, trace = None, error.__traceback__
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
        if not code.co_filename.startswith("<") and is_users(module, code.co_filename):
            place = f"{code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return None if place is None else _relative(place)


def _relative(place: str) -> str:
    here = os.getcwd() + os.sep
    return place[len(here) :] if place.startswith(here) else place
