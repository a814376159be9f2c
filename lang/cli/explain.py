"""`radicel explain`: what a program would compute, before it runs.

In: `FILE[:PROGRAM]`, arguments or a file of rows; a tokenizer, where there is one. Out: the plan of these calls, the
program's open ends and problems; no model is loaded or asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..backend import Backend
from ..default_backend import get_default_backend
from ..errors import ModelNotFoundError, ProgramError
from ..program import Program
from .output import complain, print_json, prints_aside
from .program_file import load_program, read_arguments, read_rows

if TYPE_CHECKING:
    from ..graph import Request, RequestGraph
    from ..problems import Problem
    from ..trace import OpenEnd, Trace

__all__ = ["explain"]


def explain(args: argparse.Namespace) -> None:
    """Prints the plan, and what is wrong.

    Raises:
        ProgramError: with `--check`, if a run would fail.
    """
    with prints_aside(args.json):
        program = load_program(args.program)
        calls = _calls(program, args)
        backend = _counter(args)
        graph = program.plan(calls, backend)
        traces = [program.trace(**call) for call in calls[:1]]
        problems = [problem for trace in traces for problem in trace.check(backend)]
    if args.json:
        print_json(_as_json(program, graph, traces, problems))
    else:
        _show(graph, traces, problems)
    wrong = [problem for problem in problems if problem.severity == "error"]
    if args.check and wrong:
        raise ProgramError(f"{program.name} would fail: {wrong[0]}")


def _calls(program: Program, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The arguments of each call; what is not given stays open."""
    given = read_arguments(program, args.arguments, all_needed=False)
    if args.rows is None:
        return [given]
    return [{**given, **row} for row in read_rows(Path(args.rows))]


def _counter(args: argparse.Namespace) -> Backend | None:
    """What counts tokens; None for bytes."""
    default = get_default_backend()
    if args.bytes:
        return None
    if args.model is None and default is not None:
        return default
    from ..runtime.token_counter import TokenCounter

    try:
        return TokenCounter(args.model)
    except ModelNotFoundError as error:
        if args.model is not None:
            raise
        complain(f"bytes are counted: {error}")
        return None


# ---- what is shown


def _show(graph: RequestGraph, traces: list[Trace], problems: list[Problem]) -> None:
    console = Console()
    console.print(graph.explain())
    opens = _opens(graph, traces)
    if opens or problems:
        console.print()
    for end in opens:
        console.print(str(end), markup=False, highlight=False, soft_wrap=True)
    for problem in problems:
        style = "red" if problem.severity == "error" else "yellow"
        console.print(str(problem), style=style, markup=False, highlight=False, soft_wrap=True)


def _opens(graph: RequestGraph, traces: list[Trace]) -> list[OpenEnd]:
    """Each line at which some call's plan ends, once."""
    every = [*(end for trace in traces for end in trace.opens), *(end for _, end in graph.opens)]
    return list({(end.file, end.line, end.variable): end for end in every}.values())


def _as_json(program: Program, graph: RequestGraph, traces: list[Trace], problems: list[Problem]) -> dict[str, Any]:
    return {
        "program": program.name,
        "calls": graph.items,
        "unit": graph.unit,
        "requests": len(graph.requests),
        "total_tokens": graph.total_tokens,
        "unique_tokens": graph.unique_tokens,
        "shared_tokens": graph.shared_tokens,
        "open_tokens": graph.open_tokens,
        "max_generated_tokens": graph.max_generated_tokens,
        "unlimited_requests": graph.unlimited,
        "critical_path": graph.critical_path,
        "kv_tokens": graph.kv_tokens,
        "kv_bytes": graph.kv_bytes,
        "values": _values(graph),
        "opens": [vars(end) for end in _opens(graph, traces)],
        "problems": [vars(problem) for problem in problems],
        "errors": [{"value": r.name, "item": r.item, "error": str(r.error)} for r in graph.errors()],
    }


def _values(graph: RequestGraph) -> list[Mapping[str, Any]]:
    """What is asked for, by the variable and the line that asks."""
    rows: dict[tuple[str, str, int | None], list[Request]] = {}
    for request in graph.requests:
        site = request.node.site
        key = (request.node.op.value, request.name, site.line if site is not None else None)
        rows.setdefault(key, []).append(request)
    return [
        {
            "op": op,
            "name": name,
            "line": line,
            "requests": len(requests),
            "waves": sorted({request.wave + 1 for request in requests}),
            "prompt_tokens": sum(request.prompt_tokens for request in requests),
            "computed_tokens": sum(request.new_tokens for request in requests),
            "max_tokens": None
            if any(request.max_tokens is None for request in requests)
            else sum(request.max_tokens or 0 for request in requests),
        }
        for (op, name, line), requests in rows.items()
    ]
