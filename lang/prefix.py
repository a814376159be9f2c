"""The text that every run of a program begins with, found by running its body on placeholders.

In: a body and the arguments that are bound. Out: the `Prompt` before the first node that depends on an argument or on
a model.

A placeholder may be appended, added to text and formatted (an f-string keeps its text up to there); anything else a
body does with it ends the run. A body that decides by a placeholder's formatted text may take a way that no call
takes: then the prefix helps nobody, and harms nobody.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, cast

from .backend import Backend
from .executor import Executor
from .ir import Node
from .primitives.expr import Expr, Recorder, Sum, as_expr
from .prompt import Part, Prompt, Text
from .state import State
from .stream import Defaults, Stream

__all__ = ["constant_prefix"]

_MARK = "\ue000\uf8ff\ue000"  # private use: text that contains it came from a placeholder


class _Reached(BaseException):
    """The end of the constant prefix. No `except Exception` of a body stops it."""


def constant_prefix(
    fn: Callable[..., Any], parameters: Sequence[inspect.Parameter], bound: Mapping[str, Any]
) -> Prompt:
    """The prompt that the body writes before anything that can differ between calls.

    Args:
        fn: the body.
        parameters: of the body, without the state.
        bound: arguments that are the same in every call.
    """
    executor = _Probe(cast("Backend", _NoBackend()))
    stream = Stream(executor, Defaults())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    free = [p for p in parameters if p.kind not in variadic and p.name not in bound]
    args = [_Placeholder() for p in free if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    kwargs = {p.name: _Placeholder() for p in free if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
    executor.open()
    executor.run_body(partial(fn, State(stream), *args, **{**bound, **kwargs}))
    if isinstance(executor.body_error, (KeyboardInterrupt, SystemExit)):
        raise executor.body_error
    return _before_mark(executor.prompt(stream.tip))


def _before_mark(prompt: Prompt) -> Prompt:
    kept: list[Part] = []
    for part in prompt:
        if isinstance(part, Text) and _MARK in part.text:
            before = part.text.partition(_MARK)[0]
            return tuple(kept) + ((Text(before, part.special),) if before else ())
        kept.append(part)
    return tuple(kept)


def _reached(*args: Any, **kwargs: Any) -> NoReturn:
    raise _Reached


class _NoBackend:
    def __getattr__(self, name: str) -> NoReturn:
        raise _Reached


class _Probe(Executor):
    """Takes text and turns; a generating node, a wait or a program started inside ends the body."""

    def add(self, node: Node) -> NoReturn:
        raise _Reached

    def adopt(self, child: Executor) -> NoReturn:
        raise _Reached

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> None:
        with self.changed:
            if not until():
                raise _Reached


class _Unknown(Expr):
    __slots__ = ()

    def record(self, to: Recorder) -> None:
        raise _Reached


class _Placeholder:
    """An argument that nobody gave."""

    def _as_expr(self) -> Expr:
        return _Unknown()

    def __add__(self, other: object) -> Sum:
        return Sum(_Unknown(), as_expr(other))

    def __radd__(self, other: object) -> Sum:
        return Sum(as_expr(other), _Unknown())

    def __format__(self, spec: str) -> str:
        return _MARK

    def __str__(self) -> str:
        return _MARK

    def __getattr__(self, name: str) -> NoReturn:
        raise _Reached

    __repr__ = __str__
    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _reached
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _reached
    __int__ = __float__ = __index__ = __neg__ = __abs__ = __mul__ = __rmul__ = __sub__ = __rsub__ = _reached
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __rmod__ = __enter__ = __exit__ = _reached
