"""What a traced body does with values is watched: calls, formatting and `in` that would read one without asking it.

In: the body, or a function that it calls. Out: its twin (`rewrite.py`), whose hooks are here.

Text that holds values stays a `Var` whatever made it: an f-string, `format`, `join`, a function. Functions of the
user's own are watched when they are called. A library function that is handed a value may look inside it, so the trace
opens there, unless the function is known to pass values on (`_PASS`).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import itertools
import logging
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol, cast

from .executor import current
from .frames import is_ours, is_users
from .harmless import is_harmless
from .marks import Marks
from .rewrite import Rewriter
from .var import Arg, Opener, Typed, Var, formatted_by_percent

__all__ = ["is_watchable", "watched"]


class _Tracing(Protocol):
    tracer: Opener


_PASS: frozenset[Any] = frozenset({
    str, repr, format, print, isinstance, issubclass, id, type, callable, getattr, hasattr, setattr, len, bool, int,
    float, hash, iter, next, sum, any, all, abs, round, ord, list, tuple, dict, set, frozenset, enumerate,
    zip, reversed, slice, range, staticmethod, property, object,
    itertools.chain, itertools.chain.from_iterable, itertools.zip_longest, itertools.islice, itertools.repeat,
    itertools.product, itertools.cycle, itertools.count, itertools.pairwise, itertools.accumulate,
    collections.deque, collections.OrderedDict, collections.defaultdict, functools.partial, copy.copy, copy.deepcopy,
})  # fmt: skip
"""What hands values on, or asks them itself."""

_APPLY: frozenset[Any] = frozenset({map, filter, sorted, min, max, functools.reduce})
"""What calls a function on values: the function is watched."""

_CONTAINERS = (list, dict, tuple, set, frozenset, collections.deque)
_OF_TEXT = {"join", "format", "format_map"}


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is to be called in a trace: its twin, where it is the user's own and has a source."""
    if isinstance(function, types.MethodType):
        inner = watched(function.__func__)
        return function if inner is function.__func__ else types.MethodType(inner, function.__self__)
    if not isinstance(function, types.FunctionType) or _is_foreign(function):
        return function
    return _REWRITER.twin(function) or function


def is_watchable(function: Callable[..., Any]) -> bool:
    """Whether all that a body does with values is seen: it has a twin, or does nothing that needs one."""
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return False
    return _REWRITER.twin(function) is not None or is_harmless(function)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if function is ascii and args:
        return _ascii(args[0])
    if _holds_value(args) or (kwargs and _holds_value(kwargs.values())):
        function, args = _allowed(function, args, kwargs)
    elif type(function) is types.FunctionType or type(function) is types.MethodType:
        function = watched(function)
    return _text(function(*args, **kwargs))


def _text(value: Any) -> Any:
    """Text that holds values becomes one."""
    if type(value) is str and not value.isascii() and Marks.touched(value):
        opener = _opener()
        return value if opener is None else Var.over(value, opener)
    return value


def _percent(left: Any, right: Any) -> Any:
    value = _first_value((right,)) if type(left) is str else None
    return _text(left % right) if value is None else formatted_by_percent(left, right, value)


def _sought(value: Any) -> Any:
    """What is looked for in something: a text would be searched for the mark."""
    if issubclass(type(value), Var):
        known = value._known()
        return value._look("looks for it in something") if known is None else known
    return value


def _ascii(value: Any) -> Any:
    return value._shaped("a", "") if issubclass(type(value), (Var, Typed)) else ascii(value)


def _evaluated(value: Any) -> Any:
    return value._look("evaluates it as Python") if issubclass(type(value), (Var, Typed)) else value


_REWRITER = Rewriter(
    {
        "text": _text,
        "call": _call,
        "percent": _percent,
        "sought": _sought,
        "ascii": _ascii,
        "evaluated": _evaluated,
    }
)


def _opener() -> Opener | None:
    executor = current()
    return cast("_Tracing", executor).tracer if executor is not None and executor.launcher is not None else None


def _allowed(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The call that may be made with values among its arguments; opens where none may."""
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    if isinstance(plain, types.FunctionType) and not _is_foreign(plain):
        if is_watchable(plain):
            return watched(function), args
    elif _passes(function, args):
        return function, args
    elif _is_named(function) and function in _APPLY:
        return function, tuple(watched(arg) if callable(arg) else arg for arg in args)
    return _refuse(function, args, kwargs)


def _passes(function: Any, args: tuple[Any, ...]) -> bool:
    if function is isinstance:
        return type(args[0]) is not Arg
    if _is_radicel(function) or (_is_named(function) and function in _PASS):
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, str):
        name = function.__name__
        return isinstance(owner, Var) or name in _OF_TEXT or (name == "replace" and not _holds_value(args[:1]))
    if isinstance(owner, logging.Logger):
        return True
    if isinstance(owner, _CONTAINERS):
        return isinstance(function, types.BuiltinMethodType)
    if isinstance(function, functools.partial):
        return _passes(function.func, args)
    return isinstance(function, type) and _only_keeps(function)


def _only_keeps(cls: type) -> bool:
    """Whether making an object of the class only stores what it is given."""
    if issubclass(cls, BaseException) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return True
    made = vars(cls).get("__init__")
    return (
        dataclasses.is_dataclass(cls)
        and not hasattr(cls, "__post_init__")
        and getattr(getattr(made, "__code__", None), "co_filename", "<string>").startswith("<")
    )


def _refuse(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    value = _first_value((*args, *kwargs.values()))
    assert value is not None
    module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__name__
    name = getattr(function, "__qualname__", None) or type(function).__name__
    shown = name if module in ("builtins", "NoneType", "__main__") else f"{module}.{name}"
    value._look(f"passes it to {shown}, which may look inside")


def _is_foreign(function: types.FunctionType) -> bool:
    """Whether the function is Radicel's or a library's."""
    module = str(function.__globals__.get("__name__", ""))
    return not is_users(module, function.__code__.co_filename)


def _is_radicel(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    named = function if isinstance(function, (type, types.FunctionType, types.MethodType)) else type(function)
    return is_ours(str(getattr(named, "__module__", ""))) or (
        owner is not None
        and not isinstance(owner, types.ModuleType)
        and is_ours(type(owner).__module__)
        and not issubclass(type(owner), (Var, Typed))
    )


def _is_named(value: Any) -> bool:
    return isinstance(value, (type, types.BuiltinFunctionType, types.FunctionType, types.MethodType))


def _holds_value(values: Iterable[Any]) -> bool:
    return _first_value(values) is not None


def _first_value(values: Iterable[Any], depth: int = 3) -> Var | Typed | None:
    """A symbolic value among them, or in lists, tuples and dicts among them."""
    for value in values:
        if issubclass(type(value), (Var, Typed)):
            return cast("Var | Typed", value)
        if depth and type(value) in (list, tuple, dict):
            found = _first_value(value.values() if type(value) is dict else value, depth - 1)
            if found is not None:
                return found
    return None
