"""Triton's interpreter, made to look through its language once a launch.

In: nothing. Out: nothing; `look_once` changes the interpreter of this process. At every call of a function inside of a
kernel (`tl.sum` is one) the interpreter goes through all names of `triton.language`, to replace what its launch has
replaced before: two fifths of the time of a kernel that calls many. What is computed stays the same.
"""

from __future__ import annotations

from typing import Any

__all__ = ["look_once"]


def look_once() -> None:
    """Leaves out what the same launch has done; a Triton that does it in another way stays as it is."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch: Any = getattr(interpreter, "_patch_lang", None)
    executor: Any = getattr(interpreter, "GridExecutor", None)
    if patch is None or executor is None or hasattr(patch, "before"):
        return
    launch = executor.__call__
    replaced: set[int] = set()  # the modules whose names the running launch has replaced

    def once(fn: Any) -> Any:
        modules = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if modules and modules <= replaced:
            return None  # a launch asks first, and gets what undoes it; calls inside of it look at nothing
        replaced.update(modules)
        return patch(fn)

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        replaced.clear()
        try:
            return launch(self, *args, **kwargs)
        finally:
            replaced.clear()

    once.before = patch  # type: ignore[attr-defined]
    interpreter._patch_lang = once
    executor.__call__ = launched
