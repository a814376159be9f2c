"""From a finished text to the value that was asked for.

In: a `Constraint` and the text. Out: the typed value, or an error that says whether the text is only the beginning of
a value (`IncompleteOutputError`) or not a value at all (`OutputValidationError`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pydantic
import regex

from ..errors import ConstraintError, IncompleteOutputError, OutputValidationError
from .documents import Sub, admits, root_sub
from .patterns import full_match
from .regex_run import matches
from .types import adapter

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["check_text", "checked_choices", "parse", "schema_text"]

_MOST_SECONDS = 1.0


def schema_text(schema: Any) -> str:
    """A JSON schema given as dict, bool or JSON string, as JSON text.

    Raises:
        ConstraintError: it is none of these, or the string is not JSON.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConstraintError(f"the JSON schema given as a string is not JSON: {error}", pointer="") from error
    if not isinstance(schema, bool) and not isinstance(schema, Mapping):
        shown = repr(schema)[:80]
        raise ConstraintError(f"{shown} is no type and no JSON schema (a dict, a bool or a JSON string)", pointer="")
    try:
        text = json.dumps(schema if isinstance(schema, bool) else dict(schema), allow_nan=False)
        if _LONE.search(text):
            json.dumps(schema, ensure_ascii=False).encode()
        return text
    except UnicodeEncodeError as error:
        raise ConstraintError("the schema has a lone surrogate, which no UTF-8 text has", pointer="") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema cannot be written as JSON: {error}", pointer="") from error


_LONE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def checked_choices(choices: Iterable[str]) -> tuple[str, ...]:
    """The choices as a tuple.

    Raises:
        ConstraintError: none, a repeated one, or one that no text can be.
    """
    if isinstance(choices, str):
        raise ConstraintError(f"choices={choices!r} is one string; give a list of strings", keyword="choices")
    options = tuple(choices)
    if not options:
        raise ConstraintError("choices is empty; give at least one string", keyword="choices")
    seen: set[str] = set()
    for index, option in enumerate(options):
        problem = _problem(option, seen)
        if problem:
            raise ConstraintError(f"choices[{index}]={option!r} {problem}", keyword="choices", pointer=f"/{index}")
        seen.add(option)
    return options


def check_text(text: Any, keyword: str) -> None:
    """Raises where a text that stands around a value is none.

    Raises:
        ConstraintError: not a string, or with a lone surrogate.
    """
    problem = _problem(text, set())
    if problem:
        raise ConstraintError(f"{keyword}({text!r:.60}) {problem}", keyword=keyword)


def _problem(option: Any, seen: set[str]) -> str | None:
    if not isinstance(option, str):
        return "is not a string"
    if option in seen:
        return "is repeated"
    alone = any("\ud800" <= character <= "\udfff" for character in option)
    return "has a lone surrogate, which no UTF-8 text has" if alone else None


def parse(constraint: Constraint, text: str) -> Any:
    """The value of `text` under `constraint`; see `Constraint.parse`."""
    if constraint.form == "json":
        return _parse_json(constraint, text)
    if constraint.kind == "dtype":
        return _parse_dtype(constraint, text)
    if constraint.form == "choices":
        _check_choice(constraint.options, text)
    elif constraint.form == "regex":
        _check_pattern(constraint.source, text)
    return text


def _parse_json(constraint: Constraint, text: str) -> Any:
    value = _loads(text)
    if constraint.type is not None:
        return _typed(constraint.type, text)
    if not _obeys(constraint, value):
        source = _shown(constraint.source)
        raise OutputValidationError(f"{_shown(text)} does not obey the schema {source}", text=text)
    return text if constraint.kind == "json_schema" else value


def _obeys(constraint: Constraint, value: Any) -> bool:
    """Whether a value is valid, by an independent validator.

    Where that cannot say (it takes too long), the masks have enforced all but what is checked afterwards.
    """
    try:
        return admits(_root(constraint.source, constraint.documents), value)
    except ConstraintError:
        return not constraint.checked


@functools.lru_cache(maxsize=64)
def _root(source: str, documents: str) -> Sub:
    return root_sub(source, json.loads(documents) if documents else None)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if _is_beginning(text):
            _incomplete(text, error)
        raise OutputValidationError(f"{_shown(text)} is not JSON: {error}", text=text) from error


def _is_beginning(text: str) -> bool:
    """Whether JSON ends too early in `text`, by a reader that says so."""
    try:
        pydantic.TypeAdapter(Any).validate_json(text)
    except pydantic.ValidationError as error:
        return "EOF while parsing" in str(error.errors()[0]["ctx"].get("error", ""))
    return False


def _typed(type_: Any, text: str) -> Any:
    try:
        return adapter(type_).validate_json(text)
    except pydantic.ValidationError as error:
        name = getattr(type_, "__name__", None) or str(type_)
        first = error.errors()[0]
        where = "/".join(map(str, first["loc"])) or "the value"
        raise OutputValidationError(
            f"{name} refused the finished text {_shown(text)}: {where}: {first['msg']}", text=text
        ) from error


def _parse_dtype(constraint: Constraint, text: str) -> Any:
    stripped = text.strip()
    _check_pattern(constraint.source, stripped)
    return stripped == "True" if constraint.type is bool else constraint.type(stripped)


def _check_choice(options: tuple[str, ...], text: str) -> None:
    if text in options:
        return
    if any(option.startswith(text) for option in options):
        _incomplete(text)
    raise OutputValidationError(f"{_shown(text)} is none of the {len(options)} choices", text=text)


def _check_pattern(pattern: str, text: str) -> None:
    try:
        match = regex.fullmatch(pattern, text, flags=regex.VERSION0, partial=True, timeout=_MOST_SECONDS)
    except TimeoutError:  # it tries too many ways; an automaton tries them all at once
        if not matches(full_match(pattern), text):
            raise OutputValidationError(f"{_shown(text)} does not match the pattern {pattern!r}", text=text) from None
        return
    if match is None:
        raise OutputValidationError(f"{_shown(text)} does not match the pattern {pattern!r}", text=text)
    if match.partial:
        _incomplete(text)


def _incomplete(text: str, cause: Exception | None = None) -> NoReturn:
    message = f"the text {_shown(text)} is only the beginning of a value: raise max_tokens or shorten what is asked"
    raise IncompleteOutputError(message, text=text) from cause


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:40]!r} … {text[-15:]!r} ({len(text)} characters)"
