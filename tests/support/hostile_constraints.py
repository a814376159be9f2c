"""Constraints made to break a runtime, each run on one, in a process of its own with a limit on memory.

In: the folder of a tiny model. Out: a line of JSON for each case: what came of it, CPU seconds of the whole process,
peak memory, and whether a plain request still gives the same text after it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import resource
import sys
import time
from typing import Any

NAMES = {
    "exponential allOf": "runs",
    "exponential anyOf": "anyOf",
    "exponential oneOf": "anyOf",
    "exponential if": "anyOf",
    "exponential dependent": "dependentRequired",
    "doubling references": "runs",
    "shortest text doubles": "max_tokens",
    "deep dict": "no keyword",
    "deep text": "no keyword",
    "deep not": "no keyword",
    "deep const": "no keyword",
    "deep references": "max_tokens",
    "deep regex": "regex",
    "deep grammar": "grammar",
    "maxLength 10**9": "runs",
    "minLength 10**9": "max_tokens",
    "maxItems 10**9": "runs",
    "minItems 10**9": "max_tokens",
    "minProperties 10**9": "minProperties",
    "minContains 10**6": "contains",
    "maximum 10**400": "maximum",
    "multipleOf 10**9 + 7": "multipleOf",
    "regex repeats 10**9": "regex",
    "regex repeats 10**6": "max_tokens",
    "grammar repeats 10**9": "grammar",
    "grammar repeats nested": "runs",
    "nested stars": "runs",
    "ambiguous stars": "runs",
    "many states": "max_tokens",
    "many states and a length": "runs",
    "twenty look-aheads": "engine",
    "squared repeats": "runs",
    "long regex": "regex",
    "long alternation": "runs",
    "enum of 50,000 texts": "runs",
    "enum of 50,000 texts and more": "runs",
    "enum of 50,000 numbers": "runs",
    "enum of 50,000 objects": "enum",
    "anyOf of 50,000": "anyOf",
    "choices of 50,000": "runs",
    "50,000 optional keys": "properties",
    "50,000 required keys": "required",
    "40 key patterns": "patternProperties",
    "schema of five megabytes": "schema",
    "long grammar": "grammar",
    "chain of rules": "max_tokens",
    "no base case: schema": "$ref",
    "no base case: GBNF": "root",
    "no base case: two rules": "root",
    "no base case: Lark": "start",
    "refers to itself": "$ref",
    "empty rules": "runs",
    "NUL in a regex": "runs",
    "NUL in a choice": "runs",
    "NUL in an enum": "runs",
    "NUL in a key": "runs",
    "NUL in a grammar": "runs",
    "NUL in schema text": "no keyword",
    "surrogate in a regex": "regex",
    "surrogate in a choice": "choices",
    "surrogate in an enum": "no keyword",
    "surrogate in a key": "no keyword",
    "surrogate in a grammar": "grammar",
    "surrogate in a prefix": "prefixed",
}
"""Case → `"runs"` (a text comes, whole or cut), or the keyword that the ConstraintError names."""


def arguments(name: str) -> dict[str, Any]:
    """What `generate` is given."""
    kind, value = _given(name)
    return {kind: value}


def _given(name: str) -> tuple[str, Any]:
    found = _schema(name)
    if found is not None:
        return "schema", found
    if name in _REGEXES:
        return "regex", _REGEXES[name]()
    if name in _GRAMMARS:
        return "grammar", _GRAMMARS[name]()
    if name == "surrogate in a prefix":
        from radicel import Constraint

        return "schema", Constraint.regex("a").prefixed("\ud800")
    return "choices", {
        "choices of 50,000": lambda: [f"value-{i * 7919}" for i in range(50_000)],
        "NUL in a choice": lambda: ["a\0b"],
        "surrogate in a choice": lambda: ["ok", "\ud800"],
    }[name]()


_REGEXES: dict[str, Any] = {
    "deep regex": lambda: "(" * 10_000 + "a" + ")" * 10_000,
    "regex repeats 10**9": lambda: "a{1000000000}",
    "regex repeats 10**6": lambda: "a{1000000}",
    "nested stars": lambda: "(a+)+b",
    "ambiguous stars": lambda: "(a|a|aa)*b(.*a){20}",
    "many states": lambda: "[ab]*a[ab]{2000}b",
    "twenty look-aheads": lambda: "".join(f"(?=.*{c})" for c in "abcdefghijklmnopqrst") + ".*",
    "squared repeats": lambda: "((x{0,100}){0,100}){0,100}(x{1000}){1000}|z",
    "long regex": lambda: "x" * 2_000_000,
    "long alternation": lambda: "ab|" * 50_000 + "c",
    "NUL in a regex": lambda: "a\0b",
    "surrogate in a regex": lambda: "\ud800",
}
_GRAMMARS: dict[str, Any] = {
    "deep grammar": lambda: "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000,
    "grammar repeats 10**9": lambda: 'root ::= "a"{1000000000}',
    "grammar repeats nested": lambda: 'root ::= (("a"{0,1000}){0,1000}){0,1000}',
    "long grammar": lambda: "root ::= " + " | ".join(f'"value-{i}"' for i in range(50_000)),
    "chain of rules": lambda: (
        "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(900)) + 'r900 ::= "b"'
    ),
    "no base case: GBNF": lambda: 'root ::= "a" root',
    "no base case: two rules": lambda: "root ::= a\na ::= b\nb ::= a",
    "no base case: Lark": lambda: 'start: "a" start',
    "empty rules": lambda: 'root ::= a a a\na ::= "" | b\nb ::= a | "x"',
    "NUL in a grammar": lambda: 'root ::= "a\0b"',
    "surrogate in a grammar": lambda: 'root ::= "\ud800"',
}


def _schema(name: str) -> Any:
    make: Any = {
        "exponential allOf": lambda: _chain(40, lambda ref: {"allOf": [ref, ref]}),
        "exponential anyOf": lambda: _both_of_many("anyOf"),
        "exponential oneOf": lambda: _both_of_many("oneOf"),
        "exponential if": lambda: {
            "allOf": [{"if": {"required": [f"k{i}"]}, "then": {"required": [f"l{i}"]}} for i in range(40)]
        },
        "exponential dependent": lambda: {"dependentRequired": {f"k{i}": [f"k{i + 1}"] for i in range(200)}},
        "doubling references": lambda: _chain(60, lambda ref: {"type": "array", "prefixItems": [ref, ref]}),
        "shortest text doubles": lambda: _chain(
            60, lambda ref: {"type": "array", "prefixItems": [ref, ref], "minItems": 2, "items": False}
        ),
        "deep dict": lambda: _deep(10_000),
        "deep text": lambda: '{"type": "array", "items": ' * 10_000 + "{}" + "}" * 10_000,
        "deep not": lambda: '{"not": ' * 10_000 + "{}" + "}" * 10_000,
        "deep const": lambda: '{"const": ' + "[" * 10_000 + "]" * 10_000 + "}",
        "deep references": lambda: _chain(
            1_000, lambda ref: {"type": "object", "properties": {"a": ref}, "required": ["a"]}
        ),
        "maxLength 10**9": lambda: {"type": "string", "maxLength": 10**9, "pattern": "^a+b"},
        "minLength 10**9": lambda: {"type": "string", "minLength": 10**9},
        "maxItems 10**9": lambda: {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
        "minItems 10**9": lambda: {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
        "minProperties 10**9": lambda: {"type": "object", "minProperties": 10**9},
        "minContains 10**6": lambda: {"type": "array", "contains": {"const": 1}, "minContains": 10**6},
        "maximum 10**400": lambda: {"type": "integer", "maximum": 10**400},
        "multipleOf 10**9 + 7": lambda: {"type": "integer", "multipleOf": 10**9 + 7},
        "many states and a length": lambda: {"type": "string", "pattern": "^(.*a){20}.{50}$", "maxLength": 10**9},
        "enum of 50,000 texts": lambda: {"enum": _texts()},
        "enum of 50,000 texts and more": lambda: {"type": "string", "minLength": 3, "enum": _texts()},
        "enum of 50,000 numbers": lambda: {"enum": list(range(50_000))},
        "enum of 50,000 objects": lambda: {"enum": [{"a": i} for i in range(50_000)]},
        "anyOf of 50,000": lambda: {"anyOf": [{"const": i} for i in range(50_000)]},
        "50,000 optional keys": lambda: {"type": "object", "properties": _keys()},
        "50,000 required keys": lambda: {"type": "object", "properties": _keys(), "required": list(_keys())},
        "40 key patterns": lambda: {"patternProperties": {f"a.*{i}.*b": {"minimum": i} for i in range(40)}},
        "schema of five megabytes": lambda: {"enum": ["x" * 5_000_000]},
        "no base case: schema": lambda: {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "refers to itself": lambda: {"allOf": [{"$ref": "#"}], "type": "integer"},
        "NUL in an enum": lambda: {"enum": ["a\0b"]},
        "NUL in a key": lambda: {"type": "object", "properties": {"a\0": {"const": "\0"}}, "required": ["a\0"]},
        "NUL in schema text": lambda: '{"const": "\0"}',
        "surrogate in an enum": lambda: {"enum": ["\ud800", "ok"]},
        "surrogate in a key": lambda: {"properties": {"\udfff": {}}, "required": ["\udfff"]},
    }.get(name)
    return None if make is None else make()


def _chain(size: int, one: Any) -> dict[str, Any]:
    defs = {f"d{i}": one({"$ref": f"#/$defs/d{i + 1}"}) for i in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{size}": {"type": "integer"}}}


def _both_of_many(keyword: str) -> dict[str, Any]:
    return {"allOf": [{keyword: [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(40)]}


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def _texts() -> list[str]:
    return [f"value-{i * 7919}" for i in range(50_000)]


def _keys() -> dict[str, Any]:
    return {f"p{i}": {"type": "integer"} for i in range(50_000)}


def peak_megabytes() -> int:
    """The most memory of this program so far; `ru_maxrss` would count that of the process which started it, too."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    faulthandler.dump_traceback_later(300, exit=True)
    import torch
    from radicel.runtime import LocalRuntime

    torch.set_num_threads(1)
    with LocalRuntime(sys.argv[1], device="cpu", kv_tokens=600, context_length=512, seed=1) as rt:
        plain = rt.generate("All is well", temperature=0, max_tokens=4).text
        rt.generate("x", grammar='root ::= "a"', max_tokens=4)  # the engines are loaded
        rt.generate("x", regex="a", max_tokens=4)
        for name in NAMES:
            began = time.process_time()
            outcome, came = outcome_of(name, rt)
            spent = time.process_time() - began
            again = rt.generate("All is well", temperature=0, max_tokens=4).text
            rt.check()
            stats = rt.stats()
            unharmed = again == plain and (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)
            peak = peak_megabytes()
            found = {"name": name, "outcome": outcome, "came": came, "seconds": spent, "peak": peak}
            print(json.dumps({**found, "unharmed": unharmed}), flush=True)


def outcome_of(name: str, rt: Any) -> tuple[str, str]:
    """What comes of a request; where its budget is refused, the grammar is compiled all the same."""
    from radicel import errors
    from radicel.testing import accepts

    try:
        given = arguments(name)
        reason = rt.generate("x", max_tokens=60, **given).meta.finish_reason
    except errors.IncompleteOutputError:
        return "runs", "cut"
    except errors.ConstraintError as error:
        if error.keyword == "max_tokens":
            with contextlib.suppress(errors.ConstraintError):
                accepts(text="x", **given)
        return error.keyword or "no keyword", str(error)[:200]
    except BaseException as error:
        return "another error", f"{type(error).__name__}: {error}"[:200]
    return "runs", reason


if __name__ == "__main__":
    main()
