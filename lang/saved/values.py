"""What a program made, as JSON and back: values, metas, errors, the text it wrote.

In: values that a state holds. Out: JSON; and from it the same values again. Plain data stands as it is; anything else
is an object with a `"$"` that names its kind. What would not come back equal is refused when it is saved, not when it
is read.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import PosixPath, WindowsPath
from typing import Any, TypeAlias

from pydantic import BaseModel, TypeAdapter, ValidationError

from .. import errors
from ..backend import Meta
from ..prompt import Generated, Prompt, Text, TurnBegin, TurnEnd

__all__ = ["FindType", "Unsaved", "decode", "decode_error", "decode_prompt", "encode", "encode_error", "encode_prompt"]

FindType: TypeAlias = Callable[[str], type | None]
"""`module:qualified name` → the type, or None."""

_STANDARD = (
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, PosixPath,
    WindowsPath,
)  # fmt: skip


_NOTHING_KNOWN = Meta()


class Unsaved:
    """Stands for a value that is no data; reading it says so.

    Attributes:
        reason: why it could not be saved.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def error(self, what: str) -> errors.SavedRunError:
        """What a read of it raises."""
        return errors.SavedRunError(f"{what} was not saved: {self.reason}")


def encode(value: Any) -> Any:
    """A value as JSON.

    Raises:
        TypeError: it is of a type that would not come back.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$": "float", "v": str(value)}
    if type(value) is list:
        return [encode(item) for item in value]
    if type(value) is dict:
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: encode(item) for key, item in value.items()}
        return {"$": "dict", "v": [[encode(key), encode(item)] for key, item in value.items()]}
    if type(value) in (tuple, set, frozenset):
        return {"$": type(value).__name__, "v": [encode(item) for item in value]}
    if type(value) is bytes:
        return {"$": "bytes", "v": value.hex()}
    if isinstance(value, Meta):
        said = {name: own for name, own in vars(value).items() if own != getattr(_NOTHING_KNOWN, name)}
        return {"$": "meta", "v": {name: encode(item) for name, item in said.items()}}
    return _encode_typed(value)


def _encode_typed(value: Any) -> dict[str, Any]:
    kind = type(value)
    if not _is_data(kind):
        raise TypeError(f"a {kind.__qualname__} is no data that can be saved")
    dumped = _adapter(kind).dump_python(value, mode="json", round_trip=True, warnings="none")
    if _adapter(kind).validate_json(json.dumps(dumped)) != value:
        raise TypeError(f"a {kind.__qualname__} does not come back equal from its JSON")
    return {"$": "type", "t": f"{kind.__module__}:{kind.__qualname__}", "v": dumped}


def decode(data: Any, find: FindType) -> Any:
    """The value of `encode`'s JSON; an `Unsaved` for one whose type is not there any more."""
    if isinstance(data, list):
        return _whole([decode(item, find) for item in data])
    if not isinstance(data, dict):
        return data
    if "$" not in data:
        return _whole({key: decode(item, find) for key, item in data.items()})
    kind, inner = data["$"], data.get("v")
    if kind == "type":
        return _decode_typed(data["t"], inner, find)
    if kind == "unsaved":
        return Unsaved(str(inner))
    if kind == "bytes":
        return bytes.fromhex(str(inner))
    if kind == "float":
        return float(str(inner))
    if kind == "meta":
        return Meta(**{name: decode(item, find) for name, item in dict(inner or {}).items()})
    items = _whole([decode(item, find) for item in inner or ()])
    return items if isinstance(items, Unsaved) else _CONTAINERS[kind](items)


_CONTAINERS: dict[str, Callable[[Any], Any]] = {"dict": dict, "tuple": tuple, "set": set, "frozenset": frozenset}


def _whole(items: Any) -> Any:
    """A collection, or the `Unsaved` that is in it."""
    inside = items.values() if isinstance(items, Mapping) else items
    return next((item for item in inside if isinstance(item, Unsaved)), items)


def _decode_typed(name: str, data: Any, find: FindType) -> Any:
    kind = find(name) or _loaded(name)
    if kind is None or not _is_data(kind):
        return Unsaved(f"its type {name.replace(':', '.')} is not there; define it at the top of its module")
    try:
        return _adapter(kind).validate_json(json.dumps(data))
    except ValidationError as error:
        return Unsaved(f"its type {name.replace(':', '.')} takes it no longer: {error.errors()[0]['msg']}")


def _loaded(name: str) -> type | None:
    """A type by its name, among the modules that are loaded; nothing is imported for the sake of a file."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _is_data(kind: type) -> bool:
    return kind in _STANDARD or issubclass(kind, (BaseModel, enum.Enum)) or dataclasses.is_dataclass(kind)


def _adapter(kind: type) -> TypeAdapter[Any]:
    return _kept_adapter(kind)


@functools.lru_cache(maxsize=256)
def _kept_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# ---- errors


def encode_error(error: BaseException) -> dict[str, Any]:
    """An exception by its type, its message and what its type says beside."""
    said = {
        name: value for name in ("text", "name", "keyword", "pointer") if isinstance(value := _own(error, name), str)
    }
    return {"type": type(error).__name__, "message": str(error), **said}


def _own(error: BaseException, name: str) -> Any:
    return getattr(error, name, None) if isinstance(error, errors.RadicelError) else None


def decode_error(data: Mapping[str, Any]) -> Exception:
    """One of our exceptions as it was; another one as a `BackendError` that names its type."""
    kind, message = getattr(errors, str(data["type"]), None), str(data["message"])
    if kind is errors.UnknownVariableError:
        return errors.UnknownVariableError(str(data.get("name", message)))
    if isinstance(kind, type) and issubclass(kind, errors.ResultError):
        return kind(message, text=str(data.get("text", "")), name=data.get("name"))
    if kind is errors.ConstraintError:
        return errors.ConstraintError(message, keyword=data.get("keyword"), pointer=data.get("pointer"))
    if isinstance(kind, type) and issubclass(kind, errors.RadicelError) and kind is not errors.BatchError:
        return kind(message)
    return errors.BackendError(f"{data['type']}: {message}")


# ---- prompts


def encode_prompt(prompt: Prompt, *, ids: bool = False) -> list[Any]:
    """The parts of a prompt: `["text", …]`, `["special", …]`, `["generated", …]`, `["begin", role]`, `["end"]`.

    Args:
        prompt: the prompt.
        ids: whether the token ids of generated text are kept.
    """
    return [_encode_part(part, ids) for part in prompt]


def _encode_part(part: Any, ids: bool) -> list[Any]:
    if isinstance(part, TurnBegin):
        return ["begin", part.role]
    if isinstance(part, TurnEnd):
        return ["end"]
    if isinstance(part, Generated):
        more = [part.finish_reason, list(part.token_ids or ()), list(part.replaced)] if ids else []
        return ["generated", part.text, *more]
    return ["special" if part.special else "text", part.text]


def decode_prompt(data: list[Any]) -> Prompt:
    """The prompt of `encode_prompt`."""
    return tuple(_decode_part(*part) for part in data)


def _decode_part(kind: str, text: str = "", reason: str | None = None, ids: Any = (), replaced: Any = ()) -> Any:
    if kind == "begin":
        return TurnBegin(text)
    if kind == "end":
        return TurnEnd()
    if kind == "generated":
        return Generated(text, tuple(ids) or None, reason, tuple(replaced))
    return Text(text, kind == "special")
