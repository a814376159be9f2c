"""Forced text at batch 1: how much of an extraction is forced, what it saves, and what it changes.

In: a model, the example e-mails and documents. Out: tables in Markdown. Every request runs alone, greedily, in three
ways: with forced runs, with the same ids fed one step at a time (`forced_runs=False`), and by masks only, where the
model chooses each token of the forced text, too, among the spellings that are legal. A second table says how much of
the texts could be appended at most (`forced_bound.py`), and why the rest was not.

    python examples/bench/forced_text.py [--model M] [--device cuda] [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forced_bound import BOUND, CAUSES, counted
from pydantic import BaseModel
from radicel import LocalRuntime
from radicel.runtime.grammar.session import Session

EXAMPLES = Path(__file__).resolve().parent.parent
MOST_TOKENS = 160


class Person(BaseModel):
    """A flat record with two numbers and an enum."""

    first_name: str
    last_name: str
    age_in_years: int
    country_of_birth: str
    is_employed: bool
    favourite_colour: str | None


@dataclass
class Run:
    """One request in one way."""

    ids: tuple[int, ...]
    text: str
    forced: int
    seconds: list[float] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)  # of forced runs: tokens of the text by `CAUSES`
    missed: Counter[str] = field(default_factory=Counter)  # and those of the bound that were not appended


Messages = list[dict[str, str]]


def requests() -> Iterator[tuple[str, Messages, type[BaseModel]]]:
    """(name of the extraction, messages, type) of each, as the example programs ask."""
    for folder in (EXAMPLES, EXAMPLES / "programs"):
        sys.path.insert(0, str(folder))
    from extract_contacts import EMAILS, TASK, WORKED, Contact, spelled
    from json_decoding import City

    for path in sorted(EMAILS.glob("*.txt")):
        worked = [(text, spelled(contact)) for text, contact in WORKED]
        yield "contacts from e-mails", conversation(TASK, worked, path.read_text(encoding="utf-8").strip()), Contact
    task = "You read a text about a city and write down the facts as JSON."
    with (EXAMPLES / "data" / "documents.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            yield "facts about a city", conversation(task, [], json.loads(line)["document"]), City
    task = "You invent people and describe them as JSON."
    for who in ("a baker from Lyon", "a retired pilot", "a student of law in Graz"):
        yield "an invented person", conversation(task, [], f"Invent {who}."), Person


def conversation(task: str, worked: list[tuple[str, str]], last: str) -> Messages:
    """A task, worked examples, and what is asked."""
    turns = [("system", task)]
    for question, answer in worked:
        turns += [("user", question), ("assistant", answer)]
    return [{"role": role, "content": content} for role, content in [*turns, ("user", last)]]


def one(runtime: LocalRuntime, prompt: Messages, type_: type[BaseModel]) -> tuple[Any, float]:
    """The generation and its seconds; the prompt is computed before, so that decoding is what is timed."""
    runtime.generate(prompt, max_tokens=0)
    began = time.perf_counter()
    made = runtime.generate(prompt, schema=type_, max_tokens=MOST_TOKENS, temperature=0)
    return made, time.perf_counter() - began


@contextlib.contextmanager
def masks_only() -> Iterator[None]:
    """Nothing is forced: the model chooses among all legal tokens."""
    kept: Callable[[Session], list[int]] = Session.forced_tokens
    Session.forced_tokens = lambda self: []  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.forced_tokens = kept  # type: ignore[method-assign]


def measured(options: argparse.Namespace) -> tuple[dict[tuple[str, int], dict[str, Run]], str]:
    """Every request in every way, the ways one after the other in each round."""
    given = {"device": options.device, "dtype": options.dtype}
    kept: dict[str, int] = {}
    rows = []
    for row in requests():
        kept[row[0]] = kept.get(row[0], 0) + 1
        if kept[row[0]] <= options.each:
            rows.append(row)
    found: dict[tuple[str, int], dict[str, Run]] = {}
    with (
        LocalRuntime(options.model, **given) as forced,
        LocalRuntime(options.model, forced_runs=False, **given) as steps,
    ):
        ways: list[tuple[str, LocalRuntime, Any]] = [
            ("runs", forced, contextlib.nullcontext),
            ("steps", steps, contextlib.nullcontext),
            ("masks", steps, masks_only),
        ]
        for number in range(options.rounds + 1):  # the first one warms up
            print(f"# round {number} of {options.rounds}", file=sys.stderr, flush=True)
            for index, (name, prompt, type_) in enumerate(rows):
                for way, runtime, around in ways:
                    with around():
                        made, seconds = one(runtime, prompt, type_)
                    run = Run(tuple(made.meta.token_ids), made.text, made.meta.forced_tokens)
                    known = found.setdefault((name, index), {}).setdefault(way, run)
                    assert known.ids == run.ids, "a greedy text changed between rounds"
                    if number:
                        known.seconds.append(seconds)
        for (_, index), by_way in found.items():
            run = by_way["runs"]
            run.causes, run.missed = counted(forced, rows[index][2], run.text, run.ids)
        device = str(forced._runner.device) if hasattr(forced._runner, "device") else options.device
    return found, device


def table(found: dict[tuple[str, int], dict[str, Run]]) -> list[str]:
    """The rows of the report, one for each extraction and one for all."""
    lines = [
        "| extraction | requests | tokens | forced | forced runs | a step a token | masks only | ratio | as by masks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in [*dict.fromkeys(name for name, _ in found), "all"]:
        runs = [ways for (own, _), ways in found.items() if name in (own, "all")]
        tokens = sum(len(ways["runs"].ids) for ways in runs)
        share = sum(ways["runs"].forced for ways in runs) / tokens
        seconds = {
            way: sum(statistics.median(ways[way].seconds) for ways in runs) for way in ("runs", "steps", "masks")
        }
        same = sum(ways["runs"].ids == ways["masks"].ids for ways in runs)
        lines.append(
            f"| {name} | {len(runs)} | {tokens} | {share:.0%} | {seconds['runs']:.3g} s | {seconds['steps']:.3g} s | "
            f"{seconds['masks']:.3g} s | {seconds['runs'] / seconds['steps']:.2f} | {same} of {len(runs)} |"
        )
    return lines


def bounds(found: dict[tuple[str, int], dict[str, Run]]) -> list[str]:
    """What could be appended at most, of the tokens that the tokenizer makes of each text, and by what the rest is."""
    lines = [
        "| extraction | tokens | bound | " + " | ".join(CAUSES) + " | not reached |",
        "|---" * (len(CAUSES) + 4) + "|",
    ]
    for name in [*dict.fromkeys(name for name, _ in found), "all"]:
        runs = [ways["runs"] for (own, _), ways in found.items() if name in (own, "all")]
        causes = sum((run.causes for run in runs), Counter[str]())
        missed = sum((run.missed for run in runs), Counter[str]())
        share = sum(causes[cause] for cause in BOUND) / causes.total()
        texts = ", ".join(f"`{text}` × {count}" for text, count in missed.most_common())
        lines.append(
            f"| {name} | {causes.total()} | {share:.0%} | "
            + " | ".join(str(causes[cause]) for cause in CAUSES)
            + f" | {texts} |"
        )
    return [*lines, "", *(f"- *{cause}*: {meaning}" for cause, meaning in CAUSES.items())]


def differences(found: dict[tuple[str, int], dict[str, Run]]) -> list[str]:
    """What masks alone write otherwise: the same text in other tokens, or another text."""
    lines = []
    for (name, index), ways in found.items():
        runs, masks = ways["runs"], ways["masks"]
        if runs.ids != masks.ids:
            kind = "the same text in other tokens" if runs.text == masks.text else "another text"
            lines.append(f"{name}, request {index}: {kind}\n    forced: {runs.text}\n    masks:  {masks.text}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the embedded model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=4, help="most requests of each extraction")
    options = parser.parse_args()
    found, device = measured(options)
    print(f"{options.model or 'embedded model'}, {device}, {platform.processor() or platform.machine()}\n")
    print("\n".join([*table(found), "", *bounds(found)]))
    others = [
        f"{name}, request {index}" for (name, index), ways in found.items() if ways["runs"].ids != ways["steps"].ids
    ]
    verdict = f"other ids in {'; '.join(others)}" if others else "the same ids everywhere"
    print(f"\nforced runs and single steps: {verdict}\n")
    print("\n".join(differences(found)) or "masks only: the same ids everywhere")
    # In fewer bits, a step of several tokens rounds otherwise than steps of one: texts part where two choices are even.
    if others and (options.dtype == "float32" or (options.dtype == "auto" and options.device == "cpu")):
        raise SystemExit("in float32 they have to be the same")


if __name__ == "__main__":
    main()
