"""What a text must be, as data: the one type behind the arguments of `gen` that constrain it.

In: a Python type, a JSON schema, a pattern, a grammar text, a list of choices.
Out: a frozen `Constraint` holding a normal form that a grammar engine enforces word by word, and `parse`, which turns
the finished text into the value that was asked for. Everything that needs no tokenizer is checked when it is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from .errors import ConstraintError
from .schema import grammars, patterns, values
from .schema.front import normal_form
from .schema.types import is_type, type_schema

__all__ = ["Constraint", "ConstraintKind", "JsonSchema", "Whitespace"]

ConstraintKind = Literal["schema", "json_schema", "regex", "grammar", "choices", "dtype"]
Whitespace = Literal["fixed", "flexible"]
JsonSchema = bool | Mapping[str, Any] | str

_ENGINE_FORM: dict[str, str] = {"schema": "json", "json_schema": "json", "dtype": "regex"}
_DTYPES: dict[str, tuple[type, str]] = {
    "int": (int, r"-?(0|[1-9][0-9]{0,17})"),
    "float": (float, r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?"),
    "bool": (bool, "True|False"),
    "str": (str, ""),
}


@dataclass(frozen=True)
class Constraint:
    """A constraint on a generated text. Make one with the class methods; equal ones compile once.

    Attributes:
        kind: which argument of `gen` it came from.
        text: the normal form that an engine is given: a JSON schema of enforced keywords only, a pattern, a grammar.
        options: the choices of a `choices` constraint, else empty.
        whitespace: `"fixed"` (`", "` and `": "`, nothing else) or `"flexible"` (bounded) between JSON tokens.
        type: the Python type of the value, where one was given.
        source: what was given, as text, for messages and for checking a finished value.
        after: text that an engine expects before the value and that is no part of it: the end of a prompt that is
            spelled anew together with the value (token healing).
    """

    kind: ConstraintKind
    text: str
    options: tuple[str, ...] = ()
    whitespace: Whitespace = "fixed"
    type: Any = field(default=None, hash=False)
    source: str = field(default="", repr=False)
    after: str = field(default="", repr=False)

    @classmethod
    def of(cls, type_or_schema: Any, *, strict: bool | None = None, whitespace: str | None = None) -> Constraint:
        """The constraint of a Python type, or of a JSON schema (dict, bool or JSON string) whose value is plain data.

        Args:
            type_or_schema: pydantic model, dataclass, TypedDict, Enum, Literal, primitive, a list/dict/tuple/Union of
                these, or a JSON schema. A `Constraint` passes through.
            strict: whether objects that do not say are closed; None closes classes and leaves JSON schemas open.
            whitespace: `"flexible"` allows bounded white space between JSON tokens.

        Raises:
            ConstraintError: what cannot be enforced, by keyword and JSON pointer.
        """
        if isinstance(type_or_schema, Constraint):
            return type_or_schema
        if not is_type(type_or_schema):
            return cls._json("schema", type_or_schema, strict=strict, whitespace=whitespace)
        schema = type_schema(type_or_schema)
        closed = True if strict is None else strict
        return cls._json("schema", schema, strict=closed, whitespace=whitespace, type_=type_or_schema)

    @classmethod
    def json_schema(
        cls,
        schema: JsonSchema,
        documents: Mapping[str, Any] | None = None,
        strict: bool | None = None,
        *,
        whitespace: str | None = None,
    ) -> Constraint:
        """The constraint of a JSON schema; `parse` leaves the text as it is.

        Args:
            schema: a dict, a bool or a JSON string.
            documents: the documents that a remote `$ref` may name: URI → schema. Nothing is ever fetched.
            strict: whether objects that do not say are closed; None leaves them open.
            whitespace: `"flexible"` allows bounded white space between JSON tokens.

        Raises:
            ConstraintError: what cannot be enforced, by keyword and JSON pointer.
        """
        return cls._json("json_schema", schema, documents=documents, strict=strict, whitespace=whitespace)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """The whole text must match `pattern` (Python's `re.fullmatch`).

        Raises:
            ConstraintError: an invalid pattern, one that nothing matches, or what no mask can enforce (by name).
        """
        source = patterns.pattern_text(pattern)
        return cls("regex", patterns.translate(source), source=source)

    @classmethod
    def grammar(cls, text: str) -> Constraint:
        """The whole text must derive from a grammar in GBNF style (`root ::= …`) or Lark style (`start: …`).

        Raises:
            ConstraintError: with line and column in `.pointer`.
        """
        return cls("grammar", grammars.checked(text), source=text)

    @classmethod
    def choices(cls, choices: Iterable[str]) -> Constraint:
        """The text must be one of these strings, byte for byte; one may be a prefix of another.

        Raises:
            ConstraintError: no choice, a repeated one, one that is not a string or has a lone surrogate.
        """
        options = values.checked_choices(choices)
        return cls("choices", "", options)

    @classmethod
    def dtype(cls, dtype: Any) -> Constraint:
        """The text is an `int`, `float`, `bool` (`True`/`False`) or quoted `str`, and the value is converted."""
        name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", repr(dtype))
        if name not in _DTYPES:
            raise ConstraintError(f"dtype={dtype!r}: must be int, float, bool or str", keyword="dtype")
        type_, pattern = _DTYPES[name]
        if type_ is str:
            return cls._json("dtype", {"type": "string"}, type_=str)
        return cls("dtype", pattern, type=type_, source=pattern)

    @classmethod
    def from_gen(
        cls,
        *,
        schema: Any = None,
        regex: Any = None,
        json_schema: Any = None,
        grammar: str | None = None,
        choices: Iterable[str] | None = None,
        dtype: Any = None,
        strict: bool | None = None,
        whitespace: str | None = None,
    ) -> Constraint | None:
        """What `gen`'s arguments ask for; None where they ask for nothing.

        Raises:
            ConstraintError: two kinds at once, both named; a constraint that cannot be enforced; a wrong option.
        """
        _check_options(strict, whitespace)
        given = {
            "schema": schema, "regex": regex, "json_schema": json_schema,
            "grammar": grammar, "choices": choices, "dtype": dtype,
        }  # fmt: skip
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ConstraintError(f"{' and '.join(named)} are given together; give one of them", keyword=named[1])
        if not named:
            return None
        (name,) = named
        if isinstance(given[name], Constraint):
            return cast("Constraint", given[name])
        if name == "schema":
            return cls.of(schema, strict=strict, whitespace=whitespace)
        if name == "json_schema":
            return cls.json_schema(json_schema, strict=strict, whitespace=whitespace)
        return cast("Constraint", getattr(cls, name)(given[name]))

    @property
    def form(self) -> str:
        """What an engine compiles: `"json"`, `"regex"`, `"grammar"` or `"choices"`."""
        if self.kind == "dtype" and self.type is str:
            return "json"
        return _ENGINE_FORM.get(self.kind, self.kind)

    @property
    def key(self) -> str:
        """Equal for constraints that compile to the same grammar, whatever their value's type is."""
        parts = json.dumps([self.form, self.text, self.options, self.whitespace, self.after])
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()

    def parse(self, text: str) -> Any:
        """The value that a finished text stands for.

        Raises:
            IncompleteOutputError: the text is the beginning of a value.
            OutputValidationError: the text is no such value, or the type's own validator refused it.
        """
        return values.parse(self, text)

    @classmethod
    def _json(
        cls,
        kind: ConstraintKind,
        schema: JsonSchema,
        *,
        documents: Mapping[str, Any] | None = None,
        strict: bool | None = None,
        whitespace: str | None = None,
        type_: Any = None,
    ) -> Constraint:
        _check_options(strict, whitespace)
        source = values.schema_text(schema)
        text = normal_form(source, documents=documents, strict=bool(strict))
        spacing: Whitespace = "flexible" if whitespace == "flexible" else "fixed"
        return cls(kind, text, whitespace=spacing, type=type_, source=source)


def _check_options(strict: object, whitespace: object) -> None:
    if whitespace not in (None, "fixed", "flexible"):
        raise ConstraintError(f"whitespace={whitespace!r}: must be 'fixed' or 'flexible'", keyword="whitespace")
    if strict is not None and not isinstance(strict, bool):
        raise ConstraintError(f"strict={strict!r}: must be True or False", keyword="strict")
