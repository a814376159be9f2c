"""The backend of programs that are run without one.

In: `set_default_backend`. Out: the backend of a run: the one given, else that of the running program, else the default.
"""

from __future__ import annotations

from typing import Any, cast

from .backend import Backend
from .errors import NoBackendError
from .executor import current

__all__ = ["flush_cache", "get_default_backend", "resolve_backend", "set_default_backend"]

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Makes `backend` the one that programs run on when none is given; None takes the default away.

    Raises:
        TypeError: it is no backend.
    """
    global _default
    _default = None if backend is None else _checked(backend)


def get_default_backend() -> Backend | None:
    """The default backend, or None."""
    return _default


def flush_cache(backend: Backend | None = None) -> None:
    """Drops every cached prefix of the backend (or of the default one) that no live request holds.

    Raises:
        NoBackendError: none given and no default set.
    """
    resolve_backend(backend).flush_cache()


def resolve_backend(backend: Backend | None) -> Backend:
    """The backend to use: `backend`, else that of the program whose body is running here, else the default.

    Raises:
        NoBackendError: there is none of these.
        TypeError: `backend` is no backend.
    """
    if backend is not None:
        return _checked(backend)
    program = current()
    found = program.backend if program is not None else _default
    if found is None:
        raise NoBackendError(
            "no backend: give one (`run(..., backend=LocalRuntime())`) or call `set_default_backend(...)` once"
        )
    return found


def _checked(backend: Any) -> Backend:
    if isinstance(backend, type) or not callable(getattr(backend, "submit", None)):
        shown = backend if isinstance(backend, str) else type(backend).__name__
        raise TypeError(f"{shown!r} is not a backend; give an object such as LocalRuntime(...) or MockBackend([...])")
    return cast("Backend", backend)
