"""Requests answered by calls of functions, their arguments forced to be what the functions take (BFCL).

The file describes functions in a dialect of JSON Schema; `schema_of` turns that into JSON Schema proper, and the answer
is a list of calls under it: a name that is not offered, a missing argument or one of another type cannot be written.
Where the right calls lie beside the file (`NAME.answers.jsonl` for `NAME.jsonl`), they are compared.

    python examples/programs/tool_calls.py [--data BFCL_v4_parallel.jsonl] [--rows N] [--most-calls 4]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Row, options, read_rows, run, show_answers
from radicel import assistant, function, gen, system, user

# What the file calls a type, where JSON Schema calls it otherwise; "any" is no restriction.
TYPES = {"dict": "object", "float": "number", "tuple": "array"}


@function
def call_tools(s: Any, request: str, tools: Sequence[Mapping[str, Any]], most_calls: int) -> None:
    """Makes `calls`, a list of `{"name": …, "arguments": …}`."""
    s += system(
        "You answer a request by calls of functions, written as a JSON list. The functions are:\n"
        + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    )
    s += user(request) + assistant(gen("calls", schema=calls_schema(tools, most_calls), max_tokens=256))


def calls_schema(tools: Sequence[Mapping[str, Any]], most_calls: int) -> dict[str, Any]:
    """The schema of a list of one to `most_calls` calls of these functions."""
    calls = [
        closed({"name": {"const": tool["name"]}, "arguments": schema_of(tool["parameters"])}, ["name", "arguments"])
        for tool in tools
    ]
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most_calls}


def schema_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema for a type as the file describes it; what only explains (descriptions, defaults) is left out."""
    kind = parameters.get("type", "any")
    if kind == "any":
        return {}
    schema: dict[str, Any] = {"type": TYPES.get(kind, kind)}
    if "enum" in parameters:
        schema["enum"] = parameters["enum"]
    if "items" in parameters:
        schema["items"] = schema_of(parameters["items"])
    if "properties" in parameters:
        properties = {name: schema_of(inner) for name, inner in parameters["properties"].items()}
        schema |= closed(properties, [name for name in parameters.get("required", ()) if name in properties])
    return schema


def closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """The schema of an object that has these properties and no others."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def call_of(row: Row, most_calls: int) -> dict[str, Any]:
    """A row as the arguments of `call_tools`; the request is the last thing that the user says."""
    said = [message["content"] for turn in row["question"] for message in turn if message["role"] == "user"]
    return {"request": said[-1], "tools": row["function"], "most_calls": most_calls}


def matches(calls: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the calls are the right ones, in any order."""
    left = list(truth)
    for call in calls:
        found = next((right for right in left if _is_call(call, right)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _is_call(call: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    ((name, allowed),) = right.items()
    return bool(call["name"] == name and _are_arguments(call["arguments"], allowed))


def _are_arguments(given: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> bool:
    """Every argument is one of its allowed values; one that is not given has the empty text among them."""
    if not given.keys() <= allowed.keys():
        return False
    return all(
        any(_same(given[name], value) for value in values) if name in given else "" in values
        for name, values in allowed.items()
    )


def _same(value: Any, right: Any) -> bool:
    if isinstance(value, str) and isinstance(right, str):
        return value.strip().casefold() == right.strip().casefold()
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_same, value, right))
    if isinstance(value, dict) and isinstance(right, dict):
        return _are_arguments(value, right)
    return isinstance(value, bool) == isinstance(right, bool) and bool(value == right)


def answers_beside(data: Path) -> dict[str, list[dict[str, Any]]]:
    """The right calls by the row's id; empty where no file of them lies beside the data."""
    beside = data.with_suffix(".answers.jsonl")
    return {row["id"]: row["ground_truth"] for row in read_rows(beside)} if beside.is_file() else {}


def spelled(calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls for people, one a line."""
    return "\n".join(f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in calls)


def spelled_truth(truth: Sequence[Mapping[str, Any]]) -> str:
    """The right calls, each argument with the values that are allowed."""
    return "\n".join(f"{name}({json.dumps(args, ensure_ascii=False)})" for call in truth for name, args in call.items())


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "bfcl.jsonl", argv, most_calls=4)
    truths = answers_beside(said.args.data)
    with said.runtime() as runtime:
        states = run(call_tools, [call_of(row, said.args.most_calls) for row in said.rows], runtime)
        rows = []
        for row, state in zip(said.rows, states):
            calls = [] if state.error() is not None else state["calls"]
            truth = truths.get(row["id"], [])
            expected = spelled(calls) if matches(calls, truth) else spelled_truth(truth)
            rows.append((call_of(row, 1)["request"], expected, spelled(calls)))
        show_answers(rows)


if __name__ == "__main__":
    main()
