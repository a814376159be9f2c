"""A `Constraint` in the languages of the engines.

In: a constraint in normal form. Out: the grammar text that each engine compiles. Pure functions, no engine state.
"""

from __future__ import annotations

import json
from typing import Any

from ...constraint import Constraint
from ...errors import ConstraintError
from ...schema.grammars import following, to_lark
from ...schema.patterns import one_of

__all__ = ["llguidance_grammar", "xgrammar_grammar"]

# What may stand between JSON tokens when the white space is flexible: bounded, or a model that likes it never ends.
_FLEXIBLE = r"[ \t]{1,8}|\n[ \t]{0,32}"


# Without forcing, a mask holds every legal token: which spelling of a forced text is taken is decided in `forced.py`.
_HEAD = '%llguidance {"no_forcing": true}\n'


def llguidance_grammar(constraint: Constraint) -> str:
    """What llguidance compiles for this constraint (its dialect of Lark)."""
    if constraint.form == "grammar":
        return _HEAD + to_lark(_gbnf(constraint))
    if not constraint.after:
        return f"{_HEAD}start: {_value(constraint)}"
    return f"{_HEAD}start: /{one_of((constraint.after,))}/ value\nvalue: {_value(constraint)}"


def xgrammar_grammar(constraint: Constraint) -> str:
    """What xgrammar compiles for this constraint (GBNF)."""
    if constraint.form == "grammar":
        return _gbnf(constraint)
    if constraint.form == "choices":
        return "root ::= " + " | ".join(json.dumps(constraint.after + option) for option in constraint.options)
    raise ConstraintError(f"xgrammar is not given a {constraint.kind} constraint", keyword=constraint.kind)


def _gbnf(constraint: Constraint) -> str:
    return following(constraint.after, constraint.text) if constraint.after else constraint.text


def _value(constraint: Constraint) -> str:
    if constraint.form == "json":
        return f"%json {json.dumps(_with_options(constraint))}"
    return f"/{constraint.text if constraint.form == 'regex' else one_of(constraint.options)}/"


def _with_options(constraint: Constraint) -> Any:
    schema: Any = json.loads(constraint.text)
    options: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if constraint.whitespace == "flexible":
        options = {"whitespace_flexible": True, "whitespace_pattern": _FLEXIBLE}
    options.update(schema.pop("x-guidance", {}))
    return {**schema, "x-guidance": options}
