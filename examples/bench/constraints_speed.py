"""What constraints cost: compiling and masks, beside llguidance and xgrammar reading the same schemas themselves.

In: the suite of real schemas (`--suites`, or RADICEL_SUITES) and a folder with a tokenizer. Out: a table in Markdown.

    python examples/bench/constraints_speed.py --suites ../shared/suites --tokenizer FOLDER [--schemas 300] [--out FILE]
    python examples/bench/constraints_speed.py --suites ../shared/suites --tokenizer FOLDER [FOLDER …] --tight

Every reader gets each schema in turn, in a process that is stopped after `--limit` seconds, and masks are taken along a
valid value of the suite, spelled as the reader writes JSON. One thread; compile times hold the whole way from the
schema's text to a matcher's first mask. `radicel` compiles as it does while an engine runs (long work in a process of
its own; the processor's time is that of the runtime's process), `in place` as it does without one. The last line is the
share of forced tokens of those values.

`--tight` instead writes random texts within a few tokens of the shortest one, where masks narrow all the time, and
times the masks: what narrowing adds to the engine's, at places that a text comes to for the first time and at all.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import platform
import queue
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENGINES = ("radicel", "in place", "llguidance", "xgrammar")


class InPlace:
    """Our way: normal form, own grammar, llguidance as the engine."""

    def __init__(self, tokenizer: Any) -> None:
        from radicel.accepts import _compiler

        self.compiler = _compiler(tokenizer)
        self.row = self.compiler.vocabulary.empty_mask()
        self.forced = self.tokens = 0

    def matcher(self, schema: Any) -> Any:
        from radicel.constraint import Constraint

        return self.compiler.compile(Constraint.json_schema(schema)).matcher()

    def mask(self, matcher: Any) -> None:
        matcher.fill_mask(self.row)

    def accept(self, matcher: Any, token_id: int) -> bool:
        return bool(matcher.accept(token_id))

    def count_forced(self, schema: Any, ids: list[int]) -> None:
        """How many tokens of a text would have been forced."""
        matcher = self.matcher(schema)
        done = 0
        while done < len(ids) and not matcher.is_terminated():
            forced = matcher.forced_tokens()
            self.forced += len(forced)
            for token_id in forced or [ids[done]]:
                if not matcher.accept(token_id):
                    return
                done += 1
                self.tokens += 1


class Radicel(InPlace):
    """The same as a runtime does it."""

    def __init__(self, tokenizer: Any) -> None:
        from radicel.runtime.engine import SWITCH_S

        super().__init__(tokenizer)
        sys.setswitchinterval(SWITCH_S)  # as an engine does
        keys = {f"key {number}": {"type": "string", "maxLength": 40} for number in range(200)}
        self.matcher({"properties": keys})
        self.matcher({"properties": {**keys, "last": {}}})  # starts what is started once

    def matcher(self, schema: Any) -> Any:
        from radicel.constraint import Constraint

        return self.compiler.submit(Constraint.json_schema(schema)).result().matcher()

    def now(self) -> NDArray[np.float64]:
        """The clock, and the time of this thread and of those that compile; other processes are not in it."""
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("radicel-grammar")]
        clocks = [time.pthread_getcpuclockid(thread.ident or 0) for thread in workers]
        return now() + np.array([0.0, sum(map(time.clock_gettime, clocks))])


class LLGuidance:
    """llguidance's own reading of a schema."""

    def __init__(self, tokenizer: Any) -> None:
        from radicel.accepts import _compiler
        from radicel.runtime.grammar.llguidance_engine import LLGuidanceEngine

        self.vocabulary = _compiler(tokenizer).vocabulary
        self.tokenizer = LLGuidanceEngine(self.vocabulary).tokenizer
        self.row = self.vocabulary.empty_mask()

    def matcher(self, schema: Any) -> Any:
        from llguidance import LLMatcher

        options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        matcher = LLMatcher(
            self.tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options), log_level=0
        )
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def mask(self, matcher: Any) -> None:
        matcher.unsafe_compute_mask_ptr(self.row.ctypes.data, self.row.nbytes)

    def accept(self, matcher: Any, token_id: int) -> bool:
        return bool(matcher.consume_token(token_id))


class XGrammar:
    """xgrammar's own reading of a schema, objects open."""

    def __init__(self, tokenizer: Any) -> None:
        import xgrammar
        from radicel.accepts import _compiler

        vocabulary = _compiler(tokenizer).vocabulary
        info = xgrammar.TokenizerInfo(
            list(vocabulary.text_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=sorted(vocabulary.end_ids),
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.row = vocabulary.empty_mask().reshape(1, -1)

    def matcher(self, schema: Any) -> Any:
        import xgrammar

        made = self.compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(", ", ": "), strict_mode=False
        )
        return xgrammar.GrammarMatcher(made, terminate_without_stop_token=False)

    def mask(self, matcher: Any) -> None:
        matcher.fill_next_token_bitmask(self.row, 0)

    def accept(self, matcher: Any, token_id: int) -> bool:
        return bool(matcher.accept_token(token_id))


def work(engine: str, tokenizer_folder: str, asked: Any, answers: Any) -> None:
    """A process: schemas in, (compile seconds, mask seconds, forced, tokens) or None out."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    kinds: dict[str, Any] = {
        "radicel": Radicel, "in place": InPlace, "llguidance": LLGuidance, "xgrammar": XGrammar,
    }  # fmt: skip
    mine = kinds[engine](tokenizer)
    answers.put("ready")
    while (row := asked.get()) is not None:
        try:
            answers.put(measured(mine, tokenizer, row))
        except Exception:
            answers.put(None)


def now() -> NDArray[np.float64]:
    """The clock, and the processor's time of this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


Times = NDArray[np.float64]


def measured(engine: Any, tokenizer: Any, row: dict[str, Any]) -> tuple[Times, list[Times], int, int]:
    clock = getattr(engine, "now", now)
    began = clock()
    matcher = engine.matcher(row["schema"])
    engine.mask(matcher)
    compiled = clock() - began
    masks: list[Times] = []
    ids: list[int] = []
    for value in row["valid"][:1]:
        ids = tokenizer(json.dumps(value, ensure_ascii=False), add_special_tokens=False)["input_ids"][:300]
        for token_id in ids:
            began = now()
            engine.mask(matcher)
            masks.append(now() - began)
            if not engine.accept(matcher, token_id):
                break
    forced = tokens = 0
    if isinstance(engine, InPlace):
        engine.forced = engine.tokens = 0
        engine.count_forced(row["schema"], ids)
        forced, tokens = engine.forced, engine.tokens
    return compiled, masks, forced, tokens


class Reader:
    """One reader in its process, which a row that takes too long ends."""

    def __init__(self, engine: str, tokenizer: str, limit: float) -> None:
        self.engine, self.tokenizer, self.limit = engine, tokenizer, limit
        self.compiles: list[Times] = []
        self.masks: list[Times] = []
        self.late = self.refused = self.forced = self.tokens = 0
        self.process: Any = None

    def read(self, row: dict[str, Any]) -> None:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.asked, self.answers = context.Queue(), context.Queue()
            self.process = context.Process(target=work, args=(self.engine, self.tokenizer, self.asked, self.answers))
            self.process.start()
            self.answers.get(timeout=100)
        self.asked.put(row)
        try:
            answer = self.answers.get(timeout=self.limit)
        except queue.Empty:
            self.process.kill()
            self.process, self.late = None, self.late + 1
            return
        if answer is None:
            self.refused += 1
            return
        self.compiles.append(answer[0])
        self.masks += answer[1]
        self.forced, self.tokens = self.forced + answer[2], self.tokens + answer[3]

    def end(self) -> None:
        if self.process is not None:
            self.asked.put(None)
            self.process.join(10)


MORE = (2, 8, 20, 45)
"""Tokens that a budget leaves above what the shortest text takes."""


class Tight:
    """Texts near the end of their budgets: the processor's seconds of each mask."""

    def __init__(self, folder: str, *, as_a_runtime: bool) -> None:
        from radicel.accepts import _compiler
        from transformers import AutoTokenizer

        self.compiler = _compiler(AutoTokenizer.from_pretrained(folder))
        self.compile = (lambda made: self.compiler.submit(made).result()) if as_a_runtime else self.compiler.compile
        self.row = self.compiler.vocabulary.empty_mask()
        self.engine: list[float] = []
        self.added: list[float] = []
        self.first: list[float] = []

    def read(self, schema: Any, draw: random.Random) -> None:
        """Two texts of a schema."""
        from radicel.constraint import Constraint
        from radicel.errors import ConstraintError
        from radicel.heap import undisturbed

        try:
            compiled: Any = self.compile(Constraint.json_schema(schema))
        except ConstraintError:
            return
        steering = getattr(compiled, "steering", None)
        reach = None if steering is None else steering.prepare()
        if reach is None:
            return
        least = len(reach.path(reach.number(reach.start)) or ())
        with undisturbed(), contextlib.suppress(ConstraintError):  # an engine may find a text too complex
            for _ in range(2):
                self._write(compiled.matcher(), reach, least + draw.choice(MORE), draw)

    def _write(self, matcher: Any, reach: Any, budget: int, draw: random.Random) -> None:
        ends = self.compiler.vocabulary.end_ids
        while budget > 0 and not matcher.is_terminated():
            ids = matcher.forced_tokens_within(budget)[:budget]
            if not ids:
                bits = np.flatnonzero(np.unpackbits(self._mask(matcher, reach, budget), bitorder="little")).tolist()
                going_on = [i for i in bits if i not in ends]
                if not going_on:
                    return
                # Tokens of low numbers are the frequent ones.
                at = draw.betavariate(0.5, 2.0) if draw.random() < 0.7 else draw.random()
                ids = [going_on[int(at * len(going_on))]]
            for token_id in ids:
                matcher.accept(token_id)
            budget -= len(ids)

    def _mask(self, matcher: Any, reach: Any, budget: int) -> NDArray[np.uint8]:
        began = time.thread_time()
        matcher.fill_mask(self.row)
        between, followed = time.thread_time(), reach.num_followed
        matcher.fill_mask_within(self.row, budget)
        engine = between - began
        self.engine.append(engine)
        self.added.append(time.thread_time() - between - engine)
        if reach.num_followed > followed:
            self.first.append(self.added[-1])
        return self.row.view(np.uint8)


def tight(rows: list[dict[str, Any]], folders: list[str]) -> list[str]:
    lines = [
        "| tokens | | masks | added p50 / p90 / p99 / most | seen first | added p50 / p90 / p99 / most "
        "| the engine's p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for folder, as_a_runtime in itertools.product(folders, (False, True)):
        made = Tight(folder, as_a_runtime=as_a_runtime)
        draw = random.Random(1)
        for row in rows:
            made.read(row["schema"], draw)
        made.compiler.close()

        def at(values: list[float]) -> str:
            return " / ".join(f"{1e3 * seconds:.3g}" for seconds in np.percentile(values, [50, 90, 99, 100]))

        lines.append(
            f"| {made.compiler.vocabulary.size} | {'radicel' if as_a_runtime else 'in place'} | {len(made.added)} "
            f"| {at(made.added)} ms | {len(made.first)} | {at(made.first)} ms "
            f"| {1e3 * np.percentile(made.engine, 99):.3g} ms |"
        )
    return lines


def line(found: Reader) -> str:
    def at(values: list[Times], which: int, unit: float) -> str:
        return " / ".join(f"{number * unit:.3g}" for number in np.percentile(np.array(values)[:, which], [50, 99]))

    compiles, masks = found.compiles, found.masks
    read = len(compiles) + found.refused + found.late
    return (
        f"| {found.engine} | {read} | {len(compiles)} | {found.refused} | {found.late} | {at(compiles, 0, 1e3)} ms "
        f"| {at(compiles, 1, 1e3)} ms | {at(masks, 0, 1e6)} µs | {at(masks, 1, 1e6)} µs |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=os.environ.get("RADICEL_SUITES", "../shared/suites"))
    parser.add_argument("--tokenizer", required=True, nargs="+", help="a folder with a tokenizer; several for --tight")
    parser.add_argument("--tight", action="store_true", help="masks near the end of budgets instead")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for one schema")
    parser.add_argument("--slow", type=int, default=5, help="xgrammar reads one of so many schemas")
    parser.add_argument("--out", help="a file for the table")
    options = parser.parse_args()
    with (Path(options.suites) / "jsonschemabench_300.jsonl").open(encoding="utf-8") as text:
        rows = [json.loads(one) for one in text]
    rows = rows[:: max(1, len(rows) // options.schemas)][: options.schemas]
    if options.tight:
        print("\n".join(tight(rows, options.tokenizer)))
        return
    readers = [Reader(engine, options.tokenizer[0], options.limit) for engine in options.engines]
    for index, row in enumerate(rows):
        for reader in readers:
            if reader.engine != "xgrammar" or index % options.slow == 0:
                reader.read(row)
    for reader in readers:
        reader.end()
    lines = [
        f"{len(rows)} real schemas, {platform.machine()}, Python {platform.python_version()}, one thread",
        "",
        "| reader | schemas | compiled | refused | over the limit | compile p50 / p99 | of the processor "
        "| one mask p50 / p99 | of the processor |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(line, readers),
    ]
    for reader in readers:
        if reader.tokens:
            share = 100 * reader.forced / reader.tokens
            lines += ["", f"Forced: {reader.forced} of {reader.tokens} tokens of valid values ({share:.0f} %)."]
            break
    text_out = "\n".join(lines) + "\n"
    print(text_out)
    if options.out:
        Path(options.out).write_text(text_out, encoding="utf-8")


if __name__ == "__main__":
    main()
