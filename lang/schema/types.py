"""A Python type → its JSON schema, and the adapter that parses its values.

In: what `schema=` may be: pydantic models, dataclasses, TypedDicts (of `typing` too, on every supported Python),
NamedTuples, Enums, Literals, primitives, None, and list/dict/tuple/Union/Optional/Annotated of these.
Out: a JSON schema of what a model should write (narrower than what pydantic would read, where that is looser), and a
pydantic `TypeAdapter` that turns the JSON text into a value of exactly that type.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pydantic
import typing_extensions

from ..errors import ConstraintError
from .type_schemas import SchemaForWriting

__all__ = ["adapter", "is_type", "type_schema"]


def is_type(thing: Any) -> bool:
    """Whether `schema=thing` means a Python type; otherwise it is a JSON schema (dict, bool or JSON string)."""
    return not isinstance(thing, (bool, str, bytes, int, float, list, tuple, Mapping))


def type_schema(type_: Any) -> dict[str, Any]:
    """The JSON schema of a type.

    Raises:
        ConstraintError: a type for which there is none.
    """
    try:
        return adapter(type_).json_schema(schema_generator=SchemaForWriting, mode="validation")
    except (pydantic.errors.PydanticUserError, TypeError, NameError) as error:
        raise ConstraintError(f"schema={type_!r} has no JSON schema: {error}", keyword="schema") from error


def adapter(type_: Any) -> pydantic.TypeAdapter[Any]:
    """The adapter whose `validate_json` gives values of the type.

    Raises:
        ConstraintError: not a type that pydantic can read.
    """
    try:
        return _cached_adapter(type_)
    except TypeError:  # unhashable, such as Annotated[int, {...}]
        return _new_adapter(type_)


@functools.lru_cache(maxsize=512)
def _cached_adapter(type_: Any) -> pydantic.TypeAdapter[Any]:
    return _new_adapter(type_)


def _new_adapter(type_: Any) -> pydantic.TypeAdapter[Any]:
    if inspect.isroutine(type_):  # pydantic would take a function for the type of its arguments
        raise ConstraintError(f"schema={type_!r} is a function, not a type or a JSON schema", keyword="schema")
    try:
        return pydantic.TypeAdapter(readable(type_))
    except (pydantic.errors.PydanticUserError, NameError, ImportError) as error:
        raise ConstraintError(
            f"schema={type_!r} is not a type with a JSON schema: {error}", keyword="schema"
        ) from error


def readable(type_: Any) -> Any:
    """The type in a form that pydantic reads on every Python: `typing.TypedDict`s exchanged for equal ones."""
    if type_ is None:
        return type(None)
    return _Exchange().of(type_)


class _Exchange:
    """Walks a type and rebuilds what holds a `typing.TypedDict`, which pydantic refuses before Python 3.12."""

    def __init__(self) -> None:
        self.made: dict[type, Any] = {}

    def of(self, type_: Any) -> Any:
        if typing_extensions.is_typeddict(type_) and _holds_old(type_):
            return self._typed_dict(type_)
        if _is_dataclass(type_) and _holds_old(type_):
            return self._dataclass(type_)
        args = get_args(type_)
        if not args or get_origin(type_) is typing.Literal:
            return type_
        new = tuple(self.of(a) if not isinstance(a, list) else a for a in args)
        if all(a is b for a, b in zip(args, new)):
            return type_
        return _rebuilt(type_, new)

    def _typed_dict(self, type_: Any) -> Any:
        if type_ not in self.made:
            fields: dict[str, Any] = {}
            for name, hint in get_type_hints(type_, include_extras=True).items():
                inner = self.of(hint)
                plain = get_origin(hint) not in (typing_extensions.Required, typing_extensions.NotRequired)
                required = name in type_.__required_keys__
                wrap: Any = typing_extensions.Required if required else typing_extensions.NotRequired
                fields[name] = wrap[inner] if plain else inner
            self.made[type_] = _typed_dict(type_.__name__, fields)
        return self.made[type_]

    def _dataclass(self, type_: type) -> Any:
        hints = get_type_hints(type_, include_extras=True)
        fields: dict[str, Any] = {}
        for item in dataclasses.fields(type_):
            if not item.init:
                continue
            given = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
            wrap: Any = typing_extensions.Required if given else typing_extensions.NotRequired
            fields[item.name] = wrap[self.of(hints[item.name])]
        shape = _typed_dict(type_.__name__, fields)
        build: Callable[[dict[str, Any]], Any] = lambda values: type_(**values)
        return Annotated[shape, pydantic.AfterValidator(build)]


_typed_dict: Any = typing_extensions.TypedDict
"""The functional form, with a name and fields that are only known here."""


def _is_old_typed_dict(type_: Any) -> bool:
    old = type(type_).__module__ == "typing" and type(type_) is not type(typing_extensions.TypedDict)
    return isinstance(type_, type) and typing_extensions.is_typeddict(type_) and old


def _is_dataclass(type_: Any) -> bool:
    # On Python 3.10 a generic alias passes for a class.
    return get_origin(type_) is None and isinstance(type_, type) and dataclasses.is_dataclass(type_)


def _holds_old(type_: Any, seen: frozenset[Any] = frozenset()) -> bool:
    if _is_old_typed_dict(type_):
        return True
    if (_is_dataclass(type_) or typing_extensions.is_typeddict(type_)) and type_ not in seen:
        try:
            hints = get_type_hints(type_, include_extras=True)
        except NameError:
            return False
        return any(_holds_old(hint, seen | {type_}) for hint in hints.values())
    return any(_holds_old(arg, seen) for arg in get_args(type_))


def _rebuilt(type_: Any, args: tuple[Any, ...]) -> Any:
    origin = get_origin(type_)
    if origin in (Union, types.UnionType):
        return Union[args]  # noqa: UP007
    if origin is Annotated:
        return Annotated[args]
    return origin[args if len(args) > 1 else args[0]]
