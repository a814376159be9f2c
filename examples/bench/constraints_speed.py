"""What constraints cost: compiling and masks, beside llguidance and xgrammar reading the same schemas themselves.

In: the suite of real schemas (`--suites`, or RADICEL_SUITES) and a folder with a tokenizer. Out: a table in Markdown.

    python examples/bench/constraints_speed.py --suites ../shared/suites --tokenizer FOLDER [--schemas 300] [--out FILE]

Every engine gets the schemas that it compiles, each in a process that is stopped after `--limit` seconds, and masks are
taken along a valid value of the suite, spelled as the engine writes JSON. One thread; compile times hold the whole way
from the schema's text to a matcher's first mask. The last lines are the share of forced tokens of those values.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("radicel", "llguidance", "xgrammar")


class Radicel:
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
    mine: Any = {"radicel": Radicel, "llguidance": LLGuidance, "xgrammar": XGrammar}[engine](tokenizer)
    answers.put("ready")
    while (row := asked.get()) is not None:
        try:
            answers.put(measured(mine, tokenizer, row))
        except Exception:
            answers.put(None)


def measured(engine: Any, tokenizer: Any, row: dict[str, Any]) -> tuple[float, list[float], int, int]:
    began = time.perf_counter()
    matcher = engine.matcher(row["schema"])
    engine.mask(matcher)
    compiled = time.perf_counter() - began
    masks: list[float] = []
    ids: list[int] = []
    for value in row["valid"][:1]:
        ids = tokenizer(json.dumps(value, ensure_ascii=False), add_special_tokens=False)["input_ids"][:300]
        for token_id in ids:
            began = time.perf_counter()
            engine.mask(matcher)
            masks.append(time.perf_counter() - began)
            if not engine.accept(matcher, token_id):
                break
    forced = tokens = 0
    if isinstance(engine, Radicel):
        engine.forced = engine.tokens = 0
        engine.count_forced(row["schema"], ids)
        forced, tokens = engine.forced, engine.tokens
    return compiled, masks, forced, tokens


def run(engine: str, rows: list[dict[str, Any]], tokenizer: str, limit: float) -> dict[str, Any]:
    """All rows through one engine; a row that takes too long ends its process."""
    context = multiprocessing.get_context("spawn")
    compiles: list[float] = []
    masks: list[float] = []
    late = refused = forced = tokens = 0
    process: Any = None
    for row in rows:
        if process is None:
            asked, answers = context.Queue(), context.Queue()
            process = context.Process(target=work, args=(engine, tokenizer, asked, answers), daemon=True)
            process.start()
            answers.get(timeout=120)
        asked.put(row)
        try:
            answer = answers.get(timeout=limit)
        except Exception:
            process.kill()
            process, late = None, late + 1
            continue
        if answer is None:
            refused += 1
            continue
        compiles.append(answer[0])
        masks += answer[1]
        forced, tokens = forced + answer[2], tokens + answer[3]
    if process is not None:
        asked.put(None)
        process.join(10)
    return {
        "compiles": compiles, "masks": masks, "late": late, "refused": refused, "forced": forced, "tokens": tokens,
    }  # fmt: skip


def line(engine: str, found: dict[str, Any]) -> str:
    def at(values: list[float], share: float, unit: float) -> str:
        return f"{np.percentile(np.array(values), share) * unit:.3g}"

    compiles, masks = found["compiles"], found["masks"]
    return (
        f"| {engine} | {len(compiles)} | {found['refused']} | {found['late']} "
        f"| {at(compiles, 50, 1e3)} / {at(compiles, 99, 1e3)} ms | {at(masks, 50, 1e6)} / {at(masks, 99, 1e6)} µs |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=os.environ.get("RADICEL_SUITES", "../shared/suites"))
    parser.add_argument("--tokenizer", required=True, help="a folder with a tokenizer")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for one schema")
    parser.add_argument("--out", help="a file for the table")
    options = parser.parse_args()
    with (Path(options.suites) / "jsonschemabench_300.jsonl").open(encoding="utf-8") as text:
        rows = [json.loads(one) for one in text]
    step = max(1, len(rows) // options.schemas)
    rows = rows[::step][: options.schemas]
    lines = [
        f"{len(rows)} real schemas, {platform.machine()}, Python {platform.python_version()}, one thread",
        "",
        "| reader | compiled | refused | over the limit | compile p50 / p99 | one mask p50 / p99 |",
        "|---|---|---|---|---|---|",
    ]
    for engine in options.engines:
        found = run(engine, rows, options.tokenizer, options.limit)
        lines.append(line(engine, found))
        print(lines[-1], flush=True)
        if found["tokens"]:
            share = 100 * found["forced"] / found["tokens"]
            forced = f"Forced: {found['forced']} of {found['tokens']} tokens of valid values ({share:.0f} %)."
    lines += ["", forced] if "radicel" in options.engines else []
    text_out = "\n".join(lines) + "\n"
    print(text_out)
    if options.out:
        Path(options.out).write_text(text_out, encoding="utf-8")


if __name__ == "__main__":
    main()
