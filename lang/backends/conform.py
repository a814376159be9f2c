"""Whether a text that no grammar engine watched over is what a constraint asks for.

In: a constraint and a finished text. Out: nothing, or an error that says what is wrong with the text. A type's own
validators are not run: whoever asked for the value runs them (`Constraint.parse`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import regex

from ..errors import ConstraintError, ResultError

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["check_conforms", "plain_pattern", "plain_schema"]

_CODE = regex.compile(r"\\x\{([0-9a-fA-F]+)\}")


def check_conforms(constraint: Constraint, text: str) -> None:
    """Raises ConstraintError where the text is not what the constraint allows."""
    if constraint.form == "json" and not constraint.wraps:
        _check_json(constraint, text)
    elif constraint.form == "grammar" and not constraint.wraps:
        from ..accepts import accepts

        if not accepts(constraint, text):
            raise ConstraintError(f"the text {text!r} does not derive from the grammar")
    else:
        try:
            constraint.parse(text)
        except ResultError as error:
            raise ConstraintError(str(error)) from error


def plain_schema(constraint: Constraint) -> Any:
    """The JSON schema of a constraint whose form is `"json"`, spelled for readers other than our engines.

    Its patterns escape characters as Python and ECMAScript both read them, and what only an engine reads is left out.
    """
    return _plain(json.loads(constraint.text), _escaped)


def plain_pattern(constraint: Constraint) -> str:
    """The pattern of a constraint whose form is `"regex"`, spelled for readers other than our engines."""
    return _escaped(constraint.text)


def _check_json(constraint: Constraint, text: str) -> None:
    import jsonschema  # here, for it takes longer to load than the rest of a mock

    try:
        instance = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        raise ConstraintError(f"the text {text!r} is not JSON: {error}") from error
    # Python's `$` would also match before a last line feed.
    if constraint.checked:
        return  # checked with the value, which is then generated again
    schema = _plain(json.loads(constraint.text), lambda pattern: regex.sub(r"\$$", r"\\Z", _escaped(pattern)))
    validator = jsonschema.Draft202012Validator(schema)
    problem = jsonschema.exceptions.best_match(validator.iter_errors(instance))
    if problem is not None:
        pointer = "".join(f"/{step}" for step in problem.absolute_path)
        raise ConstraintError(
            f"the text {text!r} does not satisfy the schema: {problem.message}",
            keyword=str(problem.validator),
            pointer=pointer,
        ) from problem


def _plain(schema: Any, spell: Callable[[str], str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "pattern":
            found[keyword] = spell(value)
        elif keyword == "patternProperties":
            found[keyword] = {spell(pattern): _plain(one, spell) for pattern, one in value.items()}
        elif keyword in ("properties", "$defs"):
            found[keyword] = {name: _plain(one, spell) for name, one in value.items()}
        elif keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
            found[keyword] = [_plain(one, spell) for one in value]
        elif keyword in ("enum", "const"):
            found[keyword] = value
        elif not keyword.startswith("x-"):
            found[keyword] = _plain(value, spell)
    return found


def _escaped(pattern: str) -> str:
    """An engine's pattern with the escapes and the any-character that Python and ECMAScript share.

    A character whose code does not fit into four digits stands as it is.
    """
    text = _CODE.sub(lambda m: f"\\u{int(m[1], 16):04x}" if len(m[1]) <= 4 else chr(int(m[1], 16)), pattern)
    return text.replace("(?s:.)", r"[\s\S]")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
