"""What may be a program's body, and what may be said about sampling where it is called.

In: a function; the `sampling` of a call. Out: the signature, whose first parameter receives the state; checked
`SamplingParams`; or an error that says what is wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ProgramError
from .sampling import SamplingParams

__all__ = ["as_sampling", "checked_signature"]

_TAKEN = frozenset({"backend", "sampling", "stream"})


def checked_signature(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature; raises where the function cannot be a body."""
    if not callable(fn):
        raise TypeError(f"@function takes a Python function, not a {type(fn).__name__}: {fn!r}")
    name = getattr(fn, "__name__", repr(fn))
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"@function: {name} must be a plain `def` without yield; run it with `await {name}.arun(...)`")
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise TypeError(f"@function: {name} needs a first parameter that receives the state: def {name}(s, ...)")
    for taken in sorted(_TAKEN & signature.parameters.keys()):
        raise ProgramError(f"@function: {name} has a parameter {taken!r}, which `run` takes itself; rename it")
    return signature


def as_sampling(sampling: SamplingParams | Mapping[str, Any] | None) -> SamplingParams:
    """The sampling parameters of a call, checked; raises TypeError, SamplingError."""
    if sampling is None:
        return SamplingParams()
    if isinstance(sampling, SamplingParams):
        return SamplingParams.of(**sampling.said())
    if isinstance(sampling, Mapping):
        return SamplingParams.of(**sampling)
    raise TypeError(f"sampling={sampling!r} is a {type(sampling).__name__}; give SamplingParams(...) or a dict")
