"""Whether a text that no grammar engine watched over is what a constraint asks for.

In: a constraint and a finished text. Out: nothing, or an error that says what is wrong with the text. A type's own
validators are not run: whoever asked for the value runs them (`Constraint.parse`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..errors import ConstraintError, ResultError

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["check_conforms"]


def check_conforms(constraint: Constraint, text: str) -> None:
    """Raises ConstraintError where the text is not what the constraint allows."""
    if constraint.form == "json":
        _check_json(constraint, text)
    elif constraint.form == "grammar":
        from ..testing import accepts

        if not accepts(constraint, text):
            raise ConstraintError(f"the text {text!r} does not derive from the grammar")
    else:
        try:
            constraint.parse(text)
        except ResultError as error:
            raise ConstraintError(str(error)) from error


def _check_json(constraint: Constraint, text: str) -> None:
    import jsonschema  # here, for it takes longer to load than the rest of a mock

    try:
        instance = json.loads(text)
    except ValueError as error:
        raise ConstraintError(f"the text {text!r} is not JSON: {error}") from error
    schema = json.loads(constraint.text)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    problem = jsonschema.exceptions.best_match(validator.iter_errors(instance))
    if problem is not None:
        pointer = "".join(f"/{step}" for step in problem.absolute_path)
        raise ConstraintError(
            f"the text {text!r} does not satisfy the schema: {problem.message}",
            keyword=str(problem.validator),
            pointer=pointer,
        ) from problem
