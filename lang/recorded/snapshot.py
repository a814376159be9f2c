"""A plan, a trace or any text, compared with a file that is kept beside the test.

In: what a test has now; a file. Out: nothing, or an AssertionError with the lines that differ. Line numbers and paths
are left out, so that a program may move; what it asks for may not change unseen.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trace import Trace

if TYPE_CHECKING:
    from ..graph import RequestGraph

__all__ = ["check_snapshot"]

_VARIABLE = "RADICEL_UPDATE_SNAPSHOTS"
_PLACE = re.compile(r" at \S+?:\d+")


def check_snapshot(path: str | os.PathLike[str], found: Any) -> None:
    """Compares a plan (`prog.plan(…)`), a trace (`prog.trace(…)`) or a text with the file.

    Run the tests with `RADICEL_UPDATE_SNAPSHOTS=1` to write the files, and look at what changed before they are kept.

    Args:
        path: the file.
        found: what there is now.

    Raises:
        AssertionError: it differs, or there is no file yet.
        TypeError: something that is none of these.
    """
    file = Path(os.fspath(path))
    now = _text(found).rstrip("\n") + "\n"
    if os.environ.get(_VARIABLE):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(now, encoding="utf-8")
        return
    if not file.is_file():
        raise AssertionError(f"no snapshot {file}; run the test once with {_VARIABLE}=1 to write it")
    kept = file.read_text(encoding="utf-8")
    if kept != now:
        lines = difflib.unified_diff(kept.splitlines(), now.splitlines(), str(file), "now", lineterm="")
        raise AssertionError(
            f"{file} differs from what there is now (with {_VARIABLE}=1 it is written anew):\n" + "\n".join(lines)
        )


def _text(found: Any) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, Trace):
        return _PLACE.sub("", str(found))
    from ..graph import RequestGraph  # numpy comes with it

    if isinstance(found, RequestGraph):
        return "\n".join(_plan_lines(found))
    raise TypeError(f"check_snapshot compares a plan, a trace or a text, not a {type(found).__name__}")


def _plan_lines(graph: RequestGraph) -> Iterator[str]:
    from ..plan_report import outline, totals
    from ..shown import plain

    for line in totals(graph):
        yield _PLACE.sub("", line)
    yield ""
    rows: dict[str, list[Any]] = {}
    for request in graph.requests:
        rows.setdefault(f"{request.node.op.value} {request.name}", []).append(request)
    for label, requests in rows.items():
        waves = sorted({request.wave + 1 for request in requests})
        prompt, new = (sum(getattr(r, of) for r in requests) for of in ("prompt_tokens", "new_tokens"))
        yield f"{label}: requests {len(requests)}, waves {waves}, prompt {prompt}, computed {new}"
    yield ""
    yield plain(outline(graph, 60), 110)
