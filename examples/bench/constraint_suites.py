"""Counts, over third-party suites, how many rows come out right, and every value accepted that is invalid.

In: the suites (`--suites`, or RADICEL_SUITES), optionally a tokenizer folder. Out: a table in Markdown.

    python examples/bench/constraint_suites.py --suites ../shared/suites [--tokenizer FOLDER] [--engine llguidance]

A row is right when no invalid value is accepted in any spelling and every valid one is in some spelling. With
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
from radicel.testing import accepts

SCHEMA_SUITES = ("json_schema_2020-12", "json_schema_draft7", "jsonschemabench_300")
REGEX_SUITES = ("regex_facts", "regex_bench")

Accepts = Callable[[str], bool]


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


def count_schemas(rows: list[dict[str, Any]], documents: dict[str, Any], make: Callable[..., Accepts]) -> Count:
    found = Count(rows=len(rows))
    for row in rows:
        began = time.perf_counter()
        try:
            check = make(row["schema"], documents)
        except ConstraintError as error:
            found.refused[error.keyword or "?"] += 1
            continue
        finally:
            found.seconds += time.perf_counter() - began
        found.compiled += 1
        bad = [v for v in row["invalid"] if any(map(check, spellings(v)))]
        lost = [v for v in row["valid"] if not any(map(check, spellings(v)))]
        tally(found, row, bad, lost)
    return found


def count_regexes(rows: list[dict[str, Any]], tokenizer: Any) -> Count:
    found = Count(rows=len(rows))
    for row in rows:
        try:
            constraint = Constraint.regex(row["pattern"])
            check = _checker(constraint, tokenizer)
        except ConstraintError as error:
            found.refused[error.keyword or "?"] += 1
            continue
        found.compiled += 1
        bad = [text for text in row["reject"] if check(text)]
        lost = [text for text in row["accept"] if not check(text)]
        row = {**row, "invalid": row["reject"], "valid": row["accept"]}
        tally(found, row, bad, lost)
    return found


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
    parser.add_argument("--verbose", action="store_true", help="list every wrong case")
    options = parser.parse_args()
    folder, tokenizer = Path(options.suites), None
    if options.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    make = llguidance_maker if options.engine == "llguidance" else radicel_maker(tokenizer)
    print("| suite | rows | compiled | right | false accepts / invalid | false rejects / valid | compile, mean ms |")
    print("|---|---|---|---|---|---|---|")
    for name in SCHEMA_SUITES:
        rows = read(folder, name)
        documents = remotes(folder) if name.startswith("json_schema") else {}
        report(name, count_schemas(rows, documents, make), options.verbose)
    if options.engine == "radicel":
        for name in REGEX_SUITES:
            report(name, count_regexes(read(folder, name), tokenizer), options.verbose)
        must = read(folder, "regex_must_refuse")
        refused = count_regexes([{**row, "accept": [], "reject": []} for row in must], tokenizer).refused
        print(f"\nregex_must_refuse: {sum(refused.values())} of {len(must)} refused")


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
        print(f"    refused: {dict(found.refused.most_common())}")


if __name__ == "__main__":
    main()
