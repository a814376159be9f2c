"""`gen`: the model writes here. `gen_int` and `gen_string` are `gen` with a `dtype`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from typing_extensions import override

from ..choices import ChoicesMethod
from ..constraint import Constraint
from ..errors import InvalidValueError
from ..ir import GenCall, Op
from ..sampling import SamplingParams, sampling_field_names
from .expr import Expr, Recorder
from .select import select

__all__ = ["Gen", "checked_name", "gen", "gen_int", "gen_string"]

_CONSTRAINTS = (
    "schema", "regex", "json_schema", "choices", "dtype", "strict", "whitespace",
    "any_order", "validate", "on_budget", "thinking", "tools",
)  # fmt: skip
_SAMPLING = sampling_field_names()


class Gen(Expr):
    """Text by the model. Lowers to one GEN node and binds its name."""

    __slots__ = ("constraint", "name", "sampling")

    def __init__(self, name: str | None, sampling: SamplingParams, constraint: Constraint | None) -> None:
        self.name = name
        self.sampling = sampling
        self.constraint = constraint

    @override
    def record(self, to: Recorder) -> None:
        name = to.name_for(self.name)
        to.bind(name, to.ask(Op.GEN, GenCall(name, to.merged(self.sampling), self.constraint)))


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: int | Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    keep_stop: bool | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    ignore_eos: bool | None = None,
    logprobs: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    priority: int | None = None,
    timeout: float | None = None,
    token_healing: bool | None = None,
    schema: Any = None,
    regex: str | Constraint | None = None,
    json_schema: Mapping[str, Any] | bool | str | Constraint | None = None,
    grammar: str | Constraint | None = None,
    ebnf: str | Constraint | None = None,
    choices: Iterable[str] | Constraint | None = None,
    choices_method: ChoicesMethod | None = None,
    dtype: type | str | None = None,
    strict: bool | None = None,
    any_order: bool | None = None,
    validate: Literal["after"] | None = None,
    on_budget: Literal["close", "truncate"] | None = None,
    thinking: bool | None = None,
    whitespace: Literal["fixed", "flexible"] | None = None,
    tools: Sequence[Any] | None = None,
) -> Expr:
    """The model continues the text here; the value is read by `s[name]`.

    `None` takes the default: the call's, then the program's, then the model's. The sampling parameters are those of
    `SamplingParams` (which has their ranges); `return_logprob` and `top_logprobs_num` are other names of `logprobs`
    and `top_logprobs`, `ebnf` of `grammar`. At most one of `schema`, `regex`, `json_schema`, `grammar`, `choices`
    and `dtype` says what the text must be; a value cut short by `max_tokens` then raises `IncompleteOutputError`.

    Args:
        name: the variable. Without one the value cannot be read, and stands in the text only.
        n: how many samples; with more than one the value and `meta` are lists, and the first continues the text.
        schema: the text is JSON and the value of this type: a pydantic model, dataclass, TypedDict, Enum, Literal,
            int, float, bool, str, None, list, dict, tuple or Union of these; or a JSON schema (plain data).
        regex: the whole text matches this pattern.
        json_schema: the text is valid under this schema; the value stays text.
        grammar: the text derives from this grammar.
        choices: the text is one of these strings; with `choices_method` it is chosen by likelihood (`select`).
        choices_method: a scoring rule, such as `token_length_normalized`.
        dtype: int, float, bool or str: the text is one, and the value is converted.
        strict: whether objects of a schema that do not say so are closed.
        whitespace: `"flexible"` allows bounded white space between JSON tokens.
        any_order: whether the keys of objects may come in any order, instead of the schema's.
        validate: `"after"` checks what no mask enforces on the finished value, which is generated again where it fails
            (`meta.retries`).
        on_budget: near `max_tokens`, `"close"` lets the model write only what can still be finished (the default of
            typed values), `"truncate"` lets the value be cut.
        thinking: the model reasons freely up to `</think>` first; the value is that of what follows.
        tools: functions, pydantic models or JSON schemas; the value is a list of `ToolCall`.

    Raises:
        SamplingError: a sampling parameter out of its range.
        ConstraintError: two constraints, or one that cannot be enforced.
    """
    given = dict(locals())
    checked_name(name, "gen")
    sampling = SamplingParams.of(**{k: v for k, v in given.items() if k in _SAMPLING})
    if grammar is not None and ebnf is not None:
        raise InvalidValueError("grammar is given twice, as 'grammar' and under its other name 'ebnf'; give it once")
    constraint = Constraint.from_gen(
        grammar=ebnf if grammar is None else grammar,  # type: ignore[arg-type]
        **{key: given[key] for key in _CONSTRAINTS},
    )
    if choices_method is None:
        return Gen(name, sampling, constraint)
    if choices is None or constraint is None:
        raise InvalidValueError(f"choices_method={choices_method!r} needs choices=[...]")
    return select(name, constraint.options, temperature=temperature or 0.0, choices_method=choices_method, seed=seed)


def gen_int(name: str | None = None, max_tokens: int | None = None, **kwargs: Any) -> Expr:
    """`gen(..., dtype=int)`: the value is an int."""
    return gen(name, max_tokens, dtype=int, **kwargs)


def gen_string(name: str | None = None, max_tokens: int | None = None, **kwargs: Any) -> Expr:
    """`gen(..., dtype=str)`: the text is a quoted string, the value what it spells."""
    return gen(name, max_tokens, dtype=str, **kwargs)


def checked_name(name: object, function: str) -> None:
    """Raises where `name` cannot be a variable's."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{function}: name={name!r} is a {type(name).__name__}; a variable's name is a str")
    if name == "":
        raise InvalidValueError(f"{function}: name is empty; leave it out for a value that is not read")
