"""Generates values of third-party schemas with a model that knows nothing, and checks each with `jsonschema`.

In: the suites (`--suites`, or RADICEL_SUITES). Out: a table in Markdown; every invalid value is listed.

    python examples/bench/constraint_samples.py --suites ../shared/suites [--samples 20] [--every 1]

The "model" draws uniformly among the tokens that the mask allows, of a vocabulary of single bytes and pieces of JSON
(whole keys, several strings in one token, halves of characters), within a random budget that the masks close in time.
A value is wrong where the validator refuses it, formats included, or where a declared key stands twice. The validator
reads patterns as Python does, where ECMAScript's are meant: what it cannot read, or reads otherwise, is not checked.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.runtime.grammar import GrammarCompiler
from radicel.schema.shortest import shortest_bytes
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

SUITES = {
    "json_schema_2020-12": jsonschema.Draft202012Validator,
    "json_schema_draft7": jsonschema.Draft7Validator,
    "jsonschemabench_300": None,  # as each schema says
}
BUDGETS = (24, 48, 96, 192)
_PIECES = (
    '", "', '": "', '": ', '{"', '": {"', '"}', '"]', ", ", "[{", "}, {", '["', "true", "false", "null", '"a": 1',
    "10", "00", "-1", "0.5", "1e5", ".0", "\\n", "\\u0", "\\\\", '\\"', "foo", "bar", "name", "type", "id", '"id": ',
    '"foo": "', "the", " of", "ing", "aaaaaaaa", "2024-", "-01", "T12:", ":00Z", "http://", "@a.de", "::1", "127.0.0",
    "é", "日本", "😀", '", "foo": ', '": [', "]]", "}}", "  ", "0000000000000000", "abcdefghijklmnopqrstuvwxyz", "/",
    "#/", "P1D", "urn:",
)  # fmt: skip


@dataclass
class Drawn:
    schemas: int = 0
    samples: int = 0
    unfinished: int = 0
    unchecked: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


@functools.cache
def compiler() -> GrammarCompiler:
    """A small vocabulary whose tokens cross the borders of JSON's own."""
    halves = [text.encode()[:2] for text in ("日", "😀")] + ["é".encode()[1:] + b'"']
    tokens = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in _PIECES), *halves]
    return GrammarCompiler(tokens, vocab_size=len(tokens) + 1, end_ids={len(tokens)})


def generated(made: Constraint, draw: random.Random) -> str | None:
    """One text that uniform choices make; None where it did not end within its budget."""
    vocabulary = compiler().vocabulary
    matcher = compiler().compile(made).matcher()
    row = vocabulary.empty_mask()
    remaining = draw.choice(BUDGETS) + shortest_bytes(made)
    end = vocabulary.size - 1
    out: list[int] = []
    while remaining > 0:
        within = getattr(matcher, "fill_mask_within", None)
        if within is None:
            matcher.fill_mask(row)
        else:
            within(row, remaining)
        ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(ids[draw.randrange(len(ids))])
        if token == end:
            return b"".join(vocabulary.text_bytes[i] for i in out).decode()
        if not matcher.accept(token):
            raise AssertionError(f"the mask allows {vocabulary.text_bytes[token]!r}, the matcher does not")
        out.append(token)
        remaining -= 1
    return b"".join(vocabulary.text_bytes[i] for i in out).decode() if matcher.is_complete() else None


def checker(schema: Any, kind: Any, documents: dict[str, Any]) -> Any:
    """A validator that has nothing to do with ours; formats are assertions."""
    if (isinstance(schema, dict) and "$schema" in schema) or kind is None:
        kind = jsonschema.validators.validator_for(schema, kind or jsonschema.Draft202012Validator)
    registry: Any = Registry().with_resources(
        (uri, Resource.from_contents(document, default_specification=DRAFT202012))
        for uri, document in documents.items()
    )
    exact = jsonschema.validators.extend(kind, {"multipleOf": _multiple})
    return exact(schema, format_checker=formats(kind.FORMAT_CHECKER), registry=registry)


def formats(given: jsonschema.FormatChecker) -> jsonschema.FormatChecker:
    """The validator's formats, two of which it reads more narrowly than their specifications (and the suites) do."""
    made = jsonschema.FormatChecker(())
    made.checkers = {**given.checkers}
    for name in ("iri", "iri-reference"):  # it knows no character beyond the first plane
        made.checks(name)(lambda text, name=name: given.conforms(_first_plane(text), name))
    made.checks("relative-json-pointer")(_relative_pointer)  # it takes a zero inside of a number for a leading one
    return made


def _first_plane(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    return "".join(c if c <= "\uffff" else "é" if c < "\U000f0000" else "\ue000" for c in text)


def _relative_pointer(text: Any) -> bool:
    pattern = r"(0|[1-9][0-9]*)(#|(/([^~/]|~[01])*)*)"
    return not isinstance(text, str) or re.fullmatch(pattern, text, re.DOTALL) is not None


def _multiple(_: Any, step: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """`multipleOf` as the numbers are written or as doubles: 0.5618 is a multiple of 0.0001, and not so in doubles."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if Fraction(str(value)) % Fraction(str(step)) and (value / step) % 1:
        yield jsonschema.ValidationError(f"{value} is no multiple of {step}")


def problem(text: str, schema: Any, validator: Any) -> str | None:
    """What is wrong with a generated text; None where nothing is."""
    last: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        last[:] = [name for name, _ in items]  # of the outermost object, which is read last
        return dict(items)

    value = json.loads(text, object_pairs_hook=pairs)
    declared = schema.get("properties", ()) if isinstance(schema, dict) and isinstance(value, dict) else ()
    twice = next((name for name in last if name in declared and last.count(name) > 1), None)
    if twice is not None:
        return f"{twice!r} stands twice"
    error = next(validator.iter_errors(value), None)
    return None if error is None else str(error.message)[:120]


def count(name: str, rows: list[dict[str, Any]], documents: dict[str, Any], samples: int, seed: int = 5) -> Drawn:
    """Draws `samples` values of every schema that compiles, and checks them."""
    found, began = Drawn(), time.perf_counter()
    for index, row in enumerate(rows):
        try:
            made = Constraint.of(row["schema"]) if not documents else _with(row["schema"], documents)
            compiler().compile(made)
        except ConstraintError:
            continue
        found.schemas += 1
        if row.get("file", "").endswith("ecmascript-regex"):
            found.unchecked += samples
            continue
        validator = checker(row["schema"], SUITES[name], documents)
        draw = random.Random(seed * 100_003 + index)
        for _ in range(samples):
            text = generated(made, draw)
            if text is None:
                found.unfinished += 1
                continue
            try:
                wrong = problem(text, row["schema"], validator)
            except re.error:
                found.unchecked += 1
                continue
            found.samples += 1
            if wrong is not None:
                found.wrong.append(f"{row['id']}: {text[:200]}: {wrong}")
    found.seconds = time.perf_counter() - began
    return found


def _with(schema: Any, documents: dict[str, Any]) -> Constraint:
    return Constraint.json_schema(schema, documents)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=os.environ.get("RADICEL_SUITES", "../shared/suites"))
    parser.add_argument("--samples", type=int, default=20, help="values of each schema")
    parser.add_argument("--every", type=int, default=1, help="every so many-th schema")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--names", nargs="*", default=list(SUITES), choices=list(SUITES))
    options = parser.parse_args()
    folder = Path(options.suites)
    remotes = json.loads((folder / "jsts_remotes.json").read_text(encoding="utf-8"))
    documents = {f"http://localhost:1234/{name}": document for name, document in remotes.items()}
    print("| suite | schemas | values | wrong | not ended in their budget | not checked | seconds |")
    print("|---|---|---|---|---|---|---|")
    wrong: list[str] = []
    for name in options.names:
        with (folder / f"{name}.jsonl").open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines][:: options.every]
        rows = [row for row in rows if row.get("file") != "format"]
        found = count(name, rows, documents if name.startswith("json_schema") else {}, options.samples, options.seed)
        print(
            f"| {name} | {found.schemas} | {found.samples} | {len(found.wrong)} | {found.unfinished} "
            f"| {found.unchecked} | {found.seconds:.0f} |",
            flush=True,
        )
        wrong += found.wrong
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
