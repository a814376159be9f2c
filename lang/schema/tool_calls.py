"""Tool calls: what a model writes to call functions, in the formats that models were trained on.

In: functions, pydantic models or JSON schemas. Out: their names and schemas; the grammar of one or more calls; from the
finished text the list of `ToolCall`.

    hermes (Qwen)  <tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>, one after the other
    llama3         {"name": "f", "parameters": {…}}, with "; " between them
    mistral        [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …], the space or none
    mistral11      [TOOL_CALLS]f[ARGS]{…}, one after the other (since version 11 of its tokenizer)

Where Mistral's markers are special tokens of a vocabulary, they are those tokens and leave no text; else they are text.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import pydantic

from ..errors import ConstraintError, OutputValidationError
from .grammar_ast import Bag, Ref, Special, Token
from .patterns import one_of
from .regex_ast import EMPTY, Alt, Node, Repeat, Seq, alt, repeat, seq
from .types import type_schema

__all__ = ["FORMATS", "Tool", "ToolCall", "calls_of", "calls_rules", "tool_of"]

FORMATS = ("hermes", "llama3", "mistral", "mistral11")

_MARKERS = ("[TOOL_CALLS]", "[ARGS]")


@dataclass(frozen=True)
class ToolCall:
    """One call that a model asked for.

    Attributes:
        name: the tool's name.
        arguments: its arguments, plain data.
        value: the arguments as the tool takes them: an instance of the pydantic model, or converted keyword arguments
            of a function; plain data for a JSON schema.
    """

    name: str
    arguments: dict[str, Any]
    value: Any = None

    def call(self, tool: Callable[..., Any]) -> Any:
        """Calls a function with the arguments."""
        return tool(**self.value)


@dataclass(frozen=True)
class Tool:
    """A tool: its name, the JSON schema of its arguments, and what reads them."""

    name: str
    schema: dict[str, Any]
    read: Callable[[Any], Any]
    description: str = ""


def tool_of(given: Any) -> Tool:
    """A tool from a function, a pydantic model or a JSON schema.

    Raises:
        ConstraintError: none of these, or one without a name.
    """
    if isinstance(given, type) and issubclass(given, pydantic.BaseModel):
        return Tool(given.__name__, type_schema(given), given.model_validate, inspect.getdoc(given) or "")
    if isinstance(given, Mapping):
        return _described(given)
    if not callable(given) or isinstance(given, type):
        raise ConstraintError(f"tools: {given!r} is no function, pydantic model or JSON schema", keyword="tools")
    return _function(given)


def _described(given: Mapping[str, Any]) -> Tool:
    inner = given.get("function", given)
    name = inner.get("name", inner.get("title"))
    if not isinstance(name, str) or not name:
        raise ConstraintError("tools: a JSON schema needs a 'name' (or 'title')", keyword="tools")
    schema = inner.get("parameters", inner.get("input_schema"))
    if schema is None:
        schema = {k: v for k, v in inner.items() if k not in ("name", "description")} if "type" in inner else {}
    return Tool(name, {"type": "object", **schema}, lambda value: value, str(inner.get("description", "")))


def _function(function: Callable[..., Any]) -> Tool:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConstraintError(
                f"tools: {function.__name__}() has the parameter {parameter}; a model gives arguments by name only",
                keyword="tools",
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    model: Any = pydantic.create_model(function.__name__, **fields)

    def read(value: Any) -> dict[str, Any]:
        made = model.model_validate(value)
        return {name: getattr(made, name) for name in made.model_fields_set}

    return Tool(function.__name__, type_schema(model), read, inspect.getdoc(function) or "")


def calls_rules(tools: Sequence[tuple[str, dict[str, Node], str]], form: str) -> tuple[dict[str, Node], str]:
    """The grammar of one or more calls.

    Args:
        tools: (name, rules of the arguments, their root) of each.
        form: one of `FORMATS`, with the ids of Mistral's markers after it (`"mistral:5"`, `"mistral11:9:32"`), with
            `":text"` where they are text, with neither where only the text around them counts.
    """
    form, *ids = form.split(":")
    marks = [EMPTY, EMPTY] if not ids else [*map(_marker, _MARKERS, ids * 2 if ids == ["text"] else ids)]
    rules: dict[str, Node] = {}
    calls: list[Node] = []
    word = "parameters" if form == "llama3" else "arguments"
    for number, (name, own, root) in enumerate(tools):
        rules |= {f"{number}.{rule}": _renamed(node, number) for rule, node in own.items()}
        arguments = Ref(f"{number}.{root}")
        if form == "mistral11":
            calls.append(seq(marks[0], Token(one_of([name])), marks[1], arguments))
        else:
            head = Token(one_of([f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{word}": ']))
            calls.append(seq(head, arguments, Token(one_of(["}"]))))
    call = alt(*calls)
    if form == "hermes":
        call = seq(Token(one_of(["<tool_call>\n"])), call, Token(one_of(["\n</tool_call>"])))
    rules["call"] = call
    between = {"hermes": "\n", "llama3": "; ", "mistral": ", ", "mistral11": ""}[form]
    more = Ref("call") if form == "mistral11" else seq(Token(one_of([between])), Ref("call"))
    calls_ = seq(Ref("call"), repeat(more, 0, None))
    if form == "mistral":
        calls_ = seq(marks[0], Token(one_of(["[", " ["])), calls_, Token(one_of(["]"])))
    rules["calls"] = calls_
    return rules, "calls"


def _marker(name: str, given: str) -> Node:
    return Token(one_of([name])) if given == "text" else Special(int(given))


def _renamed(node: Node, number: int) -> Node:
    if isinstance(node, Ref):
        return Ref(f"{number}.{node.name}")
    if isinstance(node, Seq):
        return Seq(tuple(_renamed(item, number) for item in node.items))
    if isinstance(node, Alt):
        return Alt(tuple(_renamed(option, number) for option in node.options))
    if isinstance(node, Repeat):
        return Repeat(_renamed(node.item, number), node.low, node.high)
    return _renamed_bag(node, number)


def _renamed_bag(node: Node, number: int) -> Node:
    if not isinstance(node, Bag):
        return node
    return dataclasses.replace(
        node,
        first=tuple(_renamed(one, number) for one in node.first),
        later=tuple(_renamed(one, number) for one in node.later),
        other_first=_renamed(node.other_first, number),
        other_later=_renamed(node.other_later, number),
    )


def calls_of(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """The calls of a finished text, in whichever format.

    Raises:
        OutputValidationError: it is none; or a tool's own validator refused the arguments.
    """
    found: list[ToolCall] = []
    known = {tool.name: tool for tool in tools}
    for data in _objects(text, known):
        tool = known.get(data.get("name", "")) if isinstance(data, dict) else None
        arguments = data.get("arguments", data.get("parameters")) if tool is not None else None
        if tool is None or not isinstance(arguments, dict):
            raise OutputValidationError(f"{str(data)[:80]} calls no tool that was given", text=text)
        try:
            found.append(ToolCall(tool.name, arguments, tool.read(arguments)))
        except pydantic.ValidationError as error:
            raise OutputValidationError(
                f"the arguments of {tool.name}: {error.errors()[0]['msg']}", text=text
            ) from error
    return found


def _objects(text: str, names: Collection[str]) -> list[Any]:
    """The calls as data. A name may stand before its arguments, alone (`mistral11`)."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    position = 0
    named: str | None = None
    while position < len(text):
        skipped = next((s for s in _BETWEEN if text.startswith(s, position)), None)
        if skipped is not None:
            position += len(skipped)
            continue
        if text[position] not in "[{":
            starts = [n for n in names if text.startswith((n + "{", n + _MARKERS[1]), position)]
            if not starts or named is not None:
                raise OutputValidationError(f"{text[position : position + 40]!r} is no tool call", text=text)
            named = max(starts, key=len)
            position += len(named)
            continue
        try:
            data, position = decoder.raw_decode(text, position)
        except ValueError as error:
            raise OutputValidationError(f"{text[:60]!r} is no tool call: {error}", text=text) from error
        if named is not None:
            data, named = {"name": named, "arguments": data}, None
        found += data if isinstance(data, list) else [data]
    return found


_BETWEEN = ("<tool_call>", "</tool_call>", "<|python_tag|>", *_MARKERS, ";", "\n", " ")
