"""How long it takes to make one graph of many calls, and how much memory; is it linear?

    python examples/bench/lower.py                     a table for 100, 1,000 and 10,000 calls of each program
    python examples/bench/lower.py --markdown FILE     the same, written to a file
    python examples/bench/lower.py --calls 100,1000

Two programs of ten nodes, raw text with five values and a conversation with one, and a longer conversation with
three. The prompts of all calls share their first 1,000 tokens and differ after them. Each size runs in a process of
its own, so that memory is its own.
The tokenizer is the embedded model's (`radicel pull`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radicel import Program, assistant, function, gen, system, user
from radicel.encode import PromptEncoder
from radicel.lower import lower
from radicel.prompt import EncodedPrompt, Prompt, Text
from radicel.runtime import hub
from radicel.runtime.tokenizer import Tokenizer
from radicel.tracer import trace_call

SHARED_TOKENS = 1000
SENTENCE = "Read the notes of the committee, weigh what speaks for the plan and what against it, then judge. "


class Counting:
    """The embedded model's tokenizer as a backend that only encodes."""

    def __init__(self) -> None:
        tokenizer = Tokenizer.load(hub.resolve())
        self.tokenizer = tokenizer.hf
        self._encoder = PromptEncoder(tokenizer)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The ids of a prompt."""
        return self._encoder.encode(prompt)

    def shared_text(self) -> str:
        """A text of at least 1,000 tokens."""
        text = ""
        while len(self.encode((Text(text or "x"),)).token_ids) < SHARED_TOKENS:
            text += SENTENCE
        return text


def programs(shared: str) -> dict[str, Program]:
    """By name."""

    @function
    def raw(s: Any, question: str) -> None:
        s += shared + question
        s += gen("a", max_tokens=32)
        for name in ("b", "c", "d"):
            s += f"\n\nNow {name}, in short: "
            s += gen(name, max_tokens=32)
        s += "\n\nAll in all: " + gen("e", max_tokens=32)

    @function
    def chat(s: Any, question: str) -> None:
        with s.system():
            s += shared
            s += question
        s += user("Go on.") + assistant(gen("a", max_tokens=32))

    @function
    def longer(s: Any, question: str) -> None:
        s += system(shared)
        for name in ("a", "b", "c"):
            s += user(question) + assistant(gen(name, max_tokens=32))

    return {"raw text, 5 values": raw, "role turns, 1 value": chat, "role turns, 3 values": longer}


def measure(name: str, calls: int) -> dict[str, Any]:
    """One size of one program, in this process."""
    backend = Counting()
    program = programs(backend.shared_text())[name]
    lower(trace_call(program, (), {"question": "Which? "}).generating, backend)  # type: ignore[arg-type]
    before = _peak_mb()
    began = time.perf_counter()
    nodes, items = [], []
    for number in range(calls):
        trace = trace_call(program, (), {"question": f"Item {number} of the list: what about number {number * 7919}? "})
        nodes += trace.generating
        items += [number] * len(trace.generating)
    size = len(trace.nodes)
    traced, cpu = time.perf_counter(), time.process_time()
    graph = lower(nodes, backend, items=items)  # type: ignore[arg-type]
    done = time.perf_counter()
    return {
        "program": name,
        "nodes": size,
        "calls": calls,
        "trace_s": traced - began,
        "lower_s": done - traced,
        "lower_cpu_s": time.process_time() - cpu,
        "peak_mb": _peak_mb(),
        "added_mb": _peak_mb() - before,
        "total": graph.total_tokens,
        "unique": graph.unique_tokens,
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown; the last column compares the CPU time per call with that of the smallest batch."""
    head = ("program", "calls", "trace s", "lower s", "CPU ms/call", "peak RSS MB", "of it added", "tokens", "unique")
    lines = ["| " + " | ".join((*head, "per call, ratio")) + " |", "|" + " --- |" * (len(head) + 1)]
    first: dict[str, float] = {}
    for row in rows:
        each = row["lower_cpu_s"] / row["calls"]
        ratio = each / first.setdefault(row["program"], each)
        cells = (
            f"{row['program']} ({row['nodes']} nodes)",
            f"{row['calls']:,}",
            f"{row['trace_s']:.2f}",
            f"{row['lower_s']:.2f}",
            f"{each * 1e3:.3f}",
            f"{row['peak_mb']:,.0f}",
            f"{row['added_mb']:,.0f}",
            f"{row['total']:,}",
            f"{row['unique']:,}",
            f"{ratio:.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", default="100,1000,10000", help="sizes of the batch")
    parser.add_argument("--markdown", type=Path, help="write the page to this file")
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "CALLS"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return
    rows = []
    for name in programs(""):
        for calls in args.calls.split(","):
            command = [sys.executable, __file__, "--one", name, calls]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(rows))
    if args.markdown:
        args.markdown.write_text(page(rows), encoding="utf-8")


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The page of the benchmark."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"""# Lowering: many calls become one graph

`python examples/bench/lower.py --markdown docs/benchmarks/lowering.md` on a CPU with {cores} cores
({platform.machine()}, Python {platform.python_version()}), with the embedded model's tokenizer.

Programs whose prompts share their first {SHARED_TOKENS:,} tokens and differ after them. *Trace* runs the
bodies on symbolic values; *lower* encodes their texts and merges them into one graph. Memory is the peak of the
process; most of it is what importing the tokenizer's library takes, and *added* is what calls and graph take on top.
*Ratio* compares the CPU time per call of lowering with that of the smallest batch: about 1 is linear growth.

{table(rows)}
"""


if __name__ == "__main__":
    main()
