"""Counts, over third-party suites, how many rows come out right, and every value accepted that is invalid.

In: the suites (`--suites`, or RADICEL_SUITES), optionally a tokenizer folder. Out: a table in Markdown.

    python examples/bench/constraint_suites.py --suites ../shared/suites [--tokenizer FOLDER] [--engine llguidance]

A row is right when no invalid value is accepted in any spelling and every valid one is in some spelling: the keys in
some order, numbers in some notation (an object's keys come in the schema's order, so a search is made for it). With
`--engine llguidance` the schemas go to llguidance's own reader instead, in its default mode, for comparison.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.runtime.grammar import GrammarCompiler, Matcher
from radicel.testing import accepts

SCHEMA_SUITES = ("json_schema_2020-12", "json_schema_draft7", "jsonschemabench_300")
REGEX_SUITES = ("regex_facts", "regex_bench")

Accepts = Callable[[str], bool]
MOST_STEPS = 50_000


@dataclass
class Count:
    rows: int = 0
    compiled: int = 0
    right: int = 0
    invalid: int = 0
    valid: int = 0
    false_accepts: list[str] = field(default_factory=list)
    false_rejects: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    other_order: int = 0
    by_file: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a suite; format rows that read `format` as an annotation are left out (see the suites' README)."""
    with (folder / f"{name}.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if row.get("file") != "format"]


def spellings(value: Any) -> Iterator[str]:
    """The same value as JSON, spelled in several ways."""
    seen: set[str] = set()
    for ordered, ascii_only, separators in itertools.product(
        (lambda v: v, _sorted, _reversed), (False, True), ((", ", ": "), (",", ":"))
    ):
        text = json.dumps(ordered(value), ensure_ascii=ascii_only, separators=separators)
        if text not in seen:
            seen.add(text)
            yield text
    yield json.dumps(value, indent=2)


def _sorted(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(item) for key, item in reversed(list(value.items()))}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


def count_schemas(
    rows: list[dict[str, Any]],
    documents: dict[str, Any],
    make: Callable[..., Accepts],
    reach: Callable[[Any, dict[str, Any], Any], bool] | None = None,
) -> Count:
    """The rows, each schema made by `make`; `reach` looks for further spellings of a value that seems lost."""
    found = Count(rows=len(rows))
    for row in rows:
        began = time.perf_counter()
        own = found.by_file.setdefault(str(row.get("file", "")), [0, 0, 0])
        own[0] += 1
        try:
            check = make(row["schema"], documents)
        except ConstraintError as error:
            found.refused[error.keyword or "?"] += 1
            continue
        finally:
            found.seconds += time.perf_counter() - began
        found.compiled += 1
        own[1] += 1
        bad = [v for v in row["invalid"] if any(map(check, spellings(v)))]
        lost = [v for v in row["valid"] if not any(map(check, spellings(v)))]
        if reach is not None:
            found.other_order += len(lost)
            lost = [v for v in lost if not reach(row["schema"], documents, v)]
            found.other_order -= len(lost)
        tally(found, row, bad, lost)
        own[2] += not bad and not lost
    return found


def reachable(schema: Any, documents: dict[str, Any], value: Any) -> bool:
    """Whether the value can be generated in some spelling, one byte a token: the keys in some order."""
    made = Constraint.json_schema(schema, documents)
    start = byte_compiler().compile(made).matcher()
    steps = itertools.count()

    def write(matcher: Matcher | None, text: str) -> Matcher | None:
        if matcher is None or next(steps) > MOST_STEPS:
            return None
        later = matcher.fork()
        return later if all(map(later.accept, text.encode())) else None

    def place(name: str) -> int:
        return made.text.find(json.dumps(name) + ":")

    def written(matcher: Matcher | None, value: Any) -> Iterator[Matcher]:
        if matcher is None:
            return
        if isinstance(value, dict):
            yield from fields(write(matcher, "{"), value, sorted(value, key=place))
        elif isinstance(value, list):
            yield from items(write(matcher, "["), value, 0)
        else:
            found = [write(matcher, text) for text in notations(value)]
            yield from (one for one in found if one is not None)

    def items(matcher: Matcher | None, values: list[Any], index: int) -> Iterator[Matcher]:
        if index == len(values):
            end = write(matcher, "]")
            if end is not None:
                yield end
            return
        for later in written(write(matcher, ", ") if index else matcher, values[index]):
            yield from items(later, values, index + 1)

    def fields(matcher: Matcher | None, values: dict[str, Any], left: list[str]) -> Iterator[Matcher]:
        if not left:
            end = write(matcher, "}")
            if end is not None:
                yield end
        for name in left:
            comma = ", " if len(left) < len(values) else ""
            key = write(matcher, f"{comma}{json.dumps(name, ensure_ascii=False)}: ")
            for later in written(key, values[name]):
                yield from fields(later, values, [other for other in left if other != name])

    return any(matcher.is_complete() for matcher in written(start, value))


def notations(value: Any) -> list[str]:
    found = [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, float) and value == value and abs(value) < 1e60:
        found += [str(int(value))] if value == int(value) else [f"{value:.15f}".rstrip("0")]
    return found


@functools.cache
def byte_compiler() -> GrammarCompiler:
    """One byte a token."""
    return GrammarCompiler([bytes([byte]) for byte in range(256)], vocab_size=257, end_ids={256})


def count_regexes(rows: list[dict[str, Any]], tokenizer: Any) -> Count:
    found = Count(rows=len(rows))
    for row in rows:
        try:
            constraint = Constraint.regex(row["pattern"])
            check = _checker(constraint, tokenizer)
        except ConstraintError as error:
            found.refused[_reason(error)] += 1
            continue
        found.compiled += 1
        bad = [text for text in row["reject"] if check(text)]
        lost = [text for text in row["accept"] if not check(text)]
        row = {**row, "invalid": row["reject"], "valid": row["accept"]}
        tally(found, row, bad, lost)
    return found


def _reason(error: ConstraintError) -> str:
    """Why a regex is refused, without the regex itself."""
    said = str(error)
    for reason in ("no text matches", "only the empty text matches", "is invalid"):
        if reason in said:
            return reason
    return error.keyword or "?"


def tally(found: Count, row: dict[str, Any], bad: list[Any], lost: list[Any]) -> None:
    found.invalid += len(row["invalid"])
    found.valid += len(row["valid"])
    found.right += not bad and not lost
    found.false_accepts += [f"{row['id']}: {str(value)[:100]}" for value in bad]
    found.false_rejects += [f"{row['id']}: {str(value)[:100]}" for value in lost]


def _checker(constraint: Constraint, tokenizer: Any) -> Accepts:
    accepts(constraint, "", tokenizer=tokenizer)  # compiles, or raises
    return lambda text: accepts(constraint, text, tokenizer=tokenizer)


def radicel_maker(tokenizer: Any) -> Callable[..., Accepts]:
    return lambda schema, documents: _checker(Constraint.json_schema(schema, documents), tokenizer)


@functools.cache
def byte_tokens() -> Any:
    """One byte a token, for llguidance."""
    from radicel.runtime.grammar import Vocabulary
    from radicel.runtime.grammar.llguidance_engine import LLGuidanceEngine

    return LLGuidanceEngine(Vocabulary([bytes([b]) for b in range(256)], vocab_size=257, end_ids={256})).tokenizer


def llguidance_maker(schema: Any, documents: dict[str, Any]) -> Accepts:
    """llguidance's own reading of a schema, in its default mode, one byte a token."""
    from llguidance import LLMatcher

    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    text = json.dumps(schema if isinstance(schema, dict) else {"allOf": [schema]})
    start = LLMatcher(byte_tokens(), LLMatcher.grammar_from_json_schema(text, overrides=options), log_level=0)
    if start.is_error():
        raise ConstraintError(start.get_error().splitlines()[0], keyword="engine")

    def check(text: str) -> bool:
        matcher, data = start.deep_copy(), list(text.encode())
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

    return check


def remotes(folder: Path) -> dict[str, Any]:
    path = folder / "jsts_remotes.json"
    documents = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {f"http://localhost:1234/{name}": document for name, document in documents.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=os.environ.get("RADICEL_SUITES", "../shared/suites"))
    parser.add_argument("--tokenizer", help="a folder with a tokenizer; default: one byte a token")
    parser.add_argument("--engine", choices=("radicel", "llguidance"), default="radicel")
    parser.add_argument("--keywords", action="store_true", help="a table per keyword (file of the test suites)")
    parser.add_argument("--verbose", action="store_true", help="list every wrong case")
    options = parser.parse_args()
    folder, tokenizer = Path(options.suites), None
    if options.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    make = llguidance_maker if options.engine == "llguidance" else radicel_maker(tokenizer)
    reach = reachable if options.engine == "radicel" else None
    print("| suite | rows | compiled | right | false accepts / invalid | false rejects / valid | compile, mean ms |")
    print("|---|---|---|---|---|---|---|")
    for name in () if options.keywords else SCHEMA_SUITES:
        rows = read(folder, name)
        documents = remotes(folder) if name.startswith("json_schema") else {}
        report(name, count_schemas(rows, documents, make, reach), options.verbose)
    if options.keywords:
        for name in SCHEMA_SUITES[:2]:
            by_keyword(name, count_schemas(read(folder, name), remotes(folder), make, reach))
        return
    if options.engine == "radicel":
        reasons: Counter[str] = Counter()
        for name in REGEX_SUITES:
            counted = count_regexes(read(folder, name), tokenizer)
            report(name, counted, options.verbose)
            reasons += counted.refused
        print("\n| regexes refused because | rows |\n|---|---|")
        print("\n".join(f"| {reason} | {rows} |" for reason, rows in reasons.most_common()))
        must = read(folder, "regex_must_refuse")
        refused = count_regexes([{**row, "accept": [], "reject": []} for row in must], tokenizer).refused
        print(f"\nregex_must_refuse: {sum(refused.values())} of {len(must)} refused")


def by_keyword(name: str, found: Count) -> None:
    print(f"\n| {name} | rows | compiled | right |\n|---|---|---|---|")
    for file, (rows, compiled, right) in sorted(found.by_file.items()):
        print(f"| {file.removeprefix('optional/')} | {rows} | {compiled} | {right} |")


def report(name: str, found: Count, verbose: bool) -> None:
    mean = 1000 * found.seconds / max(1, found.rows)
    print(
        f"| {name} | {found.rows} | {found.compiled} | {found.right} | {len(found.false_accepts)} / {found.invalid} "
        f"| {len(found.false_rejects)} / {found.valid} | {mean:.1f} |"
    )
    if verbose:
        for label, cases in (("accepted", found.false_accepts), ("rejected", found.false_rejects)):
            for case in cases:
                print(f"    {label}: {case}")
        print(f"    valid values in another key order or notation: {found.other_order}")
        print(f"    refused: {dict(found.refused.most_common())}")


if __name__ == "__main__":
    main()
