"""What a text must be, as data: the one type behind the arguments of `gen` that constrain it.

In: a Python type, a JSON schema, a pattern, a grammar text, a list of choices.
Out: a frozen `Constraint` holding a normal form that a grammar engine enforces word by word, and `parse`, which turns
the finished text into the value that was asked for. Everything that needs no tokenizer is checked when it is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from .errors import ConstraintError
from .schema import grammars, patterns, values
from .schema.front import normal_form, relaxed_form
from .schema.tool_calls import Tool, calls_of, tool_of
from .schema.types import is_type, type_schema
from .schema.wraps import Wrap, unwrapped

__all__ = ["Constraint", "ConstraintKind", "JsonSchema", "OnBudget", "Whitespace"]

ConstraintKind = Literal["schema", "json_schema", "regex", "grammar", "choices", "dtype", "tools"]
OnBudget = Literal["close", "truncate"]
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
        on_budget: what happens near `max_tokens`: `"close"` narrows the masks so that the value ends in time,
            `"truncate"` lets it be cut.
        checked: whether what no mask enforces is checked on the finished value instead, with retries.
        documents: those that the schema's references name, as JSON, for checking a finished value.
        wraps: what stands around the value, from the inside out (`schema/wraps.py`).
    """

    kind: ConstraintKind
    text: str
    options: tuple[str, ...] = ()
    whitespace: Whitespace = "fixed"
    type: Any = field(default=None, hash=False)
    source: str = field(default="", repr=False)
    after: str = field(default="", repr=False)
    on_budget: OnBudget = field(default="truncate", repr=False)
    checked: bool = field(default=False, repr=False)
    documents: str = field(default="", repr=False)
    wraps: tuple[Wrap, ...] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        type_or_schema: Any,
        *,
        strict: bool | None = None,
        whitespace: str | None = None,
        any_order: bool | None = None,
        validate: str | None = None,
    ) -> Constraint:
        """The constraint of a Python type, or of a JSON schema (dict, bool or JSON string) whose value is plain data.

        Args:
            type_or_schema: pydantic model, dataclass, TypedDict, Enum, Literal, primitive, a list/dict/tuple/Union of
                these, or a JSON schema. A `Constraint` passes through.
            strict: whether objects that do not say are closed; None closes classes and leaves JSON schemas open.
            whitespace: `"flexible"` allows bounded white space between JSON tokens.
            any_order: whether the keys of an object may come in any order, instead of the schema's.
            validate: `"after"` checks what no mask enforces on the finished value, which is then generated again where
                it fails; None refuses it.

        Raises:
            ConstraintError: what cannot be enforced, by keyword and JSON pointer.
        """
        if isinstance(type_or_schema, Constraint):
            return type_or_schema
        said: dict[str, Any] = {"whitespace": whitespace, "any_order": any_order, "validate": validate}
        if not is_type(type_or_schema):
            return cls._json("schema", type_or_schema, strict=strict, **said)
        closed = True if strict is None else strict
        return cls._json("schema", type_schema(type_or_schema), strict=closed, type_=type_or_schema, **said)

    @classmethod
    def json_schema(
        cls,
        schema: JsonSchema,
        documents: Mapping[str, Any] | None = None,
        strict: bool | None = None,
        *,
        whitespace: str | None = None,
        any_order: bool | None = None,
        validate: str | None = None,
    ) -> Constraint:
        """The constraint of a JSON schema; `parse` leaves the text as it is.

        Args:
            schema: a dict, a bool or a JSON string.
            documents: the documents that a remote `$ref` may name: URI → schema. Nothing is ever fetched.
            strict: whether objects that do not say are closed; None leaves them open.
            whitespace: `"flexible"` allows bounded white space between JSON tokens.
            any_order: as of `of`.
            validate: as of `of`.

        Raises:
            ConstraintError: what cannot be enforced, by keyword and JSON pointer.
        """
        said: dict[str, Any] = {"whitespace": whitespace, "any_order": any_order, "validate": validate}
        return cls._json("json_schema", schema, documents=documents, strict=strict, **said)

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
        return cls("dtype", pattern, type=type_, source=pattern, on_budget="close")

    @classmethod
    def tools(cls, tools: Iterable[Any], *, strict: bool | None = None) -> Constraint:
        """One or more calls of these tools, in the format of the model; the value is a list of `ToolCall`.

        Args:
            tools: functions (called by keyword), pydantic models (named as their class), or JSON schemas with a `name`
                (also as OpenAI writes them, and with `parameters` or `input_schema`).
            strict: as of `of`; None closes the arguments.

        Raises:
            ConstraintError: no tool, two of one name, arguments that cannot be enforced.
        """
        known = tuple(map(tool_of, tools))
        names = [tool.name for tool in known]
        twice = next((name for name in names if names.count(name) > 1), None)
        if not known or twice is not None:
            problem = "is empty; give at least one" if twice is None else f"has two of the name {twice!r}"
            raise ConstraintError(f"tools {problem}", keyword="tools")
        closed = True if strict is None else strict
        forms = [[tool.name, json.loads(normal_form(json.dumps(tool.schema), strict=closed))] for tool in known]
        return cls("tools", json.dumps(forms), type=known, on_budget="close")

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
        any_order: bool | None = None,
        validate: str | None = None,
        on_budget: str | None = None,
        thinking: bool | None = None,
        tools: Iterable[Any] | None = None,
    ) -> Constraint | None:
        """What `gen`'s arguments ask for; None where they ask for nothing.

        Raises:
            ConstraintError: two kinds at once, both named; a constraint that cannot be enforced; a wrong option.
        """
        _check_options(strict, whitespace)
        given = {
            "schema": schema, "regex": regex, "json_schema": json_schema,
            "grammar": grammar, "choices": choices, "dtype": dtype, "tools": tools,
        }  # fmt: skip
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ConstraintError(f"{' and '.join(named)} are given together; give one of them", keyword=named[1])
        if on_budget not in (None, "close", "truncate"):
            raise ConstraintError(f"on_budget={on_budget!r}: must be 'close' or 'truncate'", keyword="on_budget")
        if not named:
            wanting = {"thinking": thinking, "validate": validate, "on_budget": on_budget, "any_order": any_order}
            for wish, said in wanting.items():
                if said:
                    raise ConstraintError(f"{wish}={said!r} needs a constraint, such as schema=…", keyword=wish)
            return None
        (name,) = named
        options: dict[str, Any] = {"strict": strict} if name == "tools" else {}
        if name in ("schema", "json_schema"):
            options = {"strict": strict, "whitespace": whitespace, "any_order": any_order, "validate": validate}
        value = given[name]
        make = getattr(cls, "of" if name == "schema" else name)
        made = cast("Constraint", value if isinstance(value, Constraint) else make(value, **options))
        if on_budget is not None:
            made = replace(made, on_budget=cast("OnBudget", on_budget))
        return made.thinking() if thinking else made

    def thinking(self) -> Constraint:
        """This constraint after free reasoning that ends with `</think>`; the value is that of what follows."""
        return replace(self, wraps=(*self.wraps, ("thinking",)))

    def prefixed(self, text: str) -> Constraint:
        """This constraint after a fixed text; the value is that of what follows."""
        values.check_text(text, "prefixed")
        return replace(self, wraps=(*self.wraps, ("prefix", text))) if text else self

    def listed(self, separator: str, *, least: int = 1, most: int | None = None) -> Constraint:
        """`least` to `most` values of this constraint with a separator between them; the value is their list.

        Raises:
            ConstraintError: no separator, bounds that contradict each other.
        """
        values.check_text(separator, "listed")
        if not separator or least < 0 or (most is not None and most < max(1, least)):
            raise ConstraintError(f"listed({separator!r}, least={least}, most={most}): no such list", keyword="listed")
        return replace(self, wraps=(*self.wraps, ("list", separator, least, most)))

    @property
    def form(self) -> str:
        """What an engine compiles: `"json"`, `"regex"`, `"grammar"`, `"choices"` or `"tools"`."""
        if self.kind == "dtype" and self.type is str:
            return "json"
        return _ENGINE_FORM.get(self.kind, self.kind)

    @property
    def key(self) -> str:
        """Equal for constraints that compile to the same grammar, whatever their value's type is."""
        parts = json.dumps([self.form, self.text, self.options, self.whitespace, self.after, self.wraps])
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()

    def parse(self, text: str) -> Any:
        """The value that a finished text stands for.

        Raises:
            IncompleteOutputError: the text is the beginning of a value.
            OutputValidationError: the text is no such value, or the type's own validator refused it.
        """
        return self._parse(text, len(self.wraps))

    def _parse(self, text: str, wraps: int) -> Any:
        """The value inside the innermost `wraps` wraps."""
        if wraps:
            return unwrapped(text, self.wraps[wraps - 1], lambda inner: self._parse(inner, wraps - 1))
        if self.kind == "tools":
            return calls_of(text, cast("tuple[Tool, ...]", self.type))
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
        any_order: bool | None = None,
        validate: str | None = None,
        type_: Any = None,
    ) -> Constraint:
        if validate not in (None, "after"):
            raise ConstraintError(f"validate={validate!r}: must be 'after'", keyword="validate")
        _check_options(strict, whitespace)
        source = values.schema_text(schema)
        form = relaxed_form if validate else normal_form
        text = form(source, documents=documents, strict=bool(strict), any_order=bool(any_order))
        spacing: Whitespace = "flexible" if whitespace == "flexible" else "fixed"
        checked = validate is not None
        given = json.dumps(dict(documents), sort_keys=True) if documents else ""
        return cls(
            kind,
            text,
            whitespace=spacing,
            type=type_,
            source=source,
            on_budget="close",
            checked=checked,
            documents=given,
        )


def _check_options(strict: object, whitespace: object) -> None:
    if whitespace not in (None, "fixed", "flexible"):
        raise ConstraintError(f"whitespace={whitespace!r}: must be 'fixed' or 'flexible'", keyword="whitespace")
    if strict is not None and not isinstance(strict, bool):
        raise ConstraintError(f"strict={strict!r}: must be True or False", keyword="strict")
