"""Digests of a program and of its arguments: the same as long as they are, in another process too.

In: a function, as the user wrote it; values. Out: `ProgramPrint` (a digest for each part, so that a message can say
what changed) and `digest_of`.

The parts of a program are its own source, and what the source names among the user's own: functions, other programs,
classes, constants. Comments and layout do not count; nor do libraries, or variables that the functions assign.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import decimal
import dis
import enum
import hashlib
import inspect
import json
import re
import textwrap
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

from pydantic import BaseModel

from ..frames import is_users

__all__ = ["ProgramPrint", "canonical", "digest_of", "program_print"]

_AS_TEXT = (PurePath, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal, complex)


@dataclass
class ProgramPrint:
    """What a program is made of.

    Attributes:
        parts: name → digest.
        classes: the user's classes among them, by qualified name.
    """

    parts: dict[str, str] = field(default_factory=dict)
    classes: dict[str, type] = field(default_factory=dict)

    def changed(self, before: Mapping[str, str]) -> list[str]:
        """The parts that differ from those of an earlier print."""
        names = [*self.parts, *(name for name in before if name not in self.parts)]
        return [name for name in names if self.parts.get(name) != before.get(name)]


def program_print(program: Callable[..., Any], **also: Any) -> ProgramPrint:
    """The parts of a program, and of the values that are given by name."""
    found = ProgramPrint()
    _add(found, program)
    for name, value in also.items():
        found.parts[name] = digest_of(value)
    return found


def digest_of(value: Any) -> str:
    """16 hexadecimal digits that tell values apart.

    Raises:
        TypeError: a value whose content cannot be seen.
    """
    return _sha(json.dumps(canonical(value), sort_keys=True, separators=(",", ":")))


def canonical(value: Any) -> Any:
    """The value as JSON, with the name of its type where JSON has none of its kind.

    Raises:
        TypeError: a value whose content cannot be seen.
    """
    if isinstance(value, enum.Enum):
        return {"enum": f"{type(value).__qualname__}.{value.name}"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {"dict": sorted(([canonical(k), canonical(v)] for k, v in value.items()), key=repr)}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((canonical(item) for item in value), key=repr)}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if callable(value) and hasattr(value, "__qualname__"):  # a function, a class or a program
        return {"callable": value.__qualname__}
    return _canonical_object(value)


def _canonical_object(value: Any) -> Any:
    kind = type(value).__qualname__
    if isinstance(value, BaseModel):
        return {"object": kind, "fields": canonical({name: getattr(value, name) for name in type(value).model_fields})}
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
        return {"object": kind, "fields": canonical({name: getattr(value, name) for name in names})}
    if isinstance(value, _AS_TEXT):
        return {"object": kind, "text": str(value)}
    if isinstance(value, re.Pattern):
        return {"object": kind, "text": value.pattern, "flags": value.flags}
    raise TypeError(
        f"a {kind} has no fingerprint: its content cannot be compared in a later run; give plain data, a dataclass, "
        "a pydantic model or a function"
    )


# ---- a program's parts


def _add(found: ProgramPrint, thing: Any) -> None:
    """Adds a function, a program or a class, and what its source names."""
    function = inspect.unwrap(thing) if callable(thing) and not isinstance(thing, type) else thing
    if not isinstance(function, (FunctionType, type)) or not _is_users(function):
        return
    name = function.__qualname__
    if name in found.parts:
        return
    found.parts[name] = _sha(_source(function))
    if isinstance(function, type):
        found.classes[name] = function
        for method in vars(function).values():
            if isinstance(method, FunctionType) and _is_users(method):
                _add_named(found, method)
    else:
        _add_named(found, function)


def _add_named(found: ProgramPrint, function: FunctionType) -> None:
    """Adds what the function's code names among its closure and its module."""
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    counters = set(_assigned(function.__code__))
    for name in dict.fromkeys(_names(function.__code__)):
        if name in counters:
            continue
        if name in closure:
            try:
                value = closure[name].cell_contents
            except ValueError:  # not set yet
                continue
        elif name in function.__globals__:
            value = function.__globals__[name]
        else:
            continue
        if callable(value):
            _add(found, value)
        elif name not in found.parts and not name.startswith("__"):
            digest = _constant(value)
            if digest is not None:
                found.parts[name] = digest


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _assigned(code: CodeType) -> Iterator[str]:
    """The names outside of the function that it assigns (`global`, `nonlocal`): they are no constants."""
    for step in dis.get_instructions(code):
        if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _assigned(constant)


def _constant(value: Any) -> str | None:
    try:
        return digest_of(value)
    except (TypeError, RecursionError):  # a module, a client, a lock: no part of what is asked
        return None


def _is_users(thing: FunctionType | type) -> bool:
    """Whether the user wrote it: neither the standard library, an installed package nor this one did."""
    try:
        file = inspect.getfile(thing)
    except (TypeError, OSError):
        return isinstance(thing, FunctionType)  # typed at a prompt
    return is_users(str(thing.__module__), file)


def _source(thing: FunctionType | type) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return _compiled(thing.__code__) if isinstance(thing, FunctionType) else thing.__qualname__
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:  # a lambda in the middle of a line
        return text


def _compiled(code: CodeType) -> str:
    constants = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
