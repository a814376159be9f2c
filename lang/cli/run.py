"""`radicel run`: a program in a file, run once with arguments from the command line, or for each row of a file.

In: `FILE[:PROGRAM]`, key=value pairs, a file of rows. Out: the variables, printed one after the other, or JSON: a dict,
or a list of one for each row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from ..backend import Backend, Meta
from ..default_backend import get_default_backend
from ..errors import ProgramError
from ..program import Program
from ..seeing.progress import shown_to_its_end
from ..state import State
from .output import complain, print_json, prints_aside
from .program_file import load_program, read_arguments, read_rows

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    """Runs a program and prints what it made.

    Raises:
        ProgramError: no such file or program, an argument that it cannot take, or rows that failed.
    """
    with prints_aside(args.json):
        program = load_program(args.program)
        sampling = {"temperature": args.temperature, "max_tokens": args.max_tokens, "seed": args.seed}
        if args.save is not None and args.rows is None:
            raise ProgramError("--save keeps the rows of --rows FILE that are done; give that, too")
        result = _once(program, args, sampling) if args.rows is None else _each_row(program, args, sampling)
    if isinstance(result, list):
        _show_rows(result, args)
    elif args.json:
        print_json(result)
    else:
        _show(result)


def _once(program: Program, args: argparse.Namespace, sampling: Mapping[str, Any]) -> dict[str, Any]:
    arguments = read_arguments(program, args.arguments)
    with _backend(args.model) as backend:
        state = program.run(backend=backend, sampling=sampling, stream=True, **arguments)
        return _result(shown_to_its_end(state))


def _each_row(program: Program, args: argparse.Namespace, sampling: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = read_arguments(program, args.arguments, all_needed=False)
    batch = [{**given, **row} for row in read_rows(Path(args.rows))]
    with _backend(args.model) as backend:
        states = program.run_batch(batch, backend=backend, sampling=sampling, progress_bar=True, save=args.save)
        return [_row_result(state) for state in states]


def _show_rows(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Prints all of them; rows that failed are told, and fail the command."""
    if args.json:
        print_json(results)
    else:
        for number, result in enumerate(results):
            print(f"--- row {number}")
            _show(result)
    failed = {number: result["error"] for number, result in enumerate(results) if "error" in result}
    if failed:
        number, error = next(iter(failed.items()))
        again = "; run again to try these rows again" if args.save is not None else ""
        raise ProgramError(f"{len(failed)} of {len(results)} rows failed, first row {number}: {error}{again}")


def _row_result(state: State) -> dict[str, Any]:
    error = state.error()
    return {"error": f"{type(error).__name__}: {error}"} if error is not None else _result(state)


# ---- what runs it, and what comes out


@contextlib.contextmanager
def _backend(model: str | None) -> Iterator[Backend]:
    default = get_default_backend()
    if model is None and default is not None:
        yield default
        return
    from ..runtime.local import LocalRuntime

    with LocalRuntime(model) as runtime:
        yield runtime


_META = ("finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "forced_tokens")


def _result(state: State) -> dict[str, Any]:
    """What the program made, as plain data."""
    values: dict[str, Any] = {}
    metas: dict[str, Any] = {}
    for name in (name for name in state._stream.names() if not name.startswith("_gen_")):  # not of unnamed gens
        values[name] = to_jsonable_python(state[name], fallback=str)
        metas[name] = _plain_meta(state.meta(name))
    returned = to_jsonable_python(state.ret_value, fallback=str)
    return {
        "variables": values,
        "returned": returned,
        "text": state.text(),
        "messages": state.messages(),
        "meta": metas,
    }


def _plain_meta(meta: Any) -> Any:
    if isinstance(meta, list):
        return [_plain_meta(one) for one in meta]
    return {key: meta[key] for key in _META} if isinstance(meta, Meta) else None


def _show(result: Mapping[str, Any]) -> None:
    if "error" in result:
        print(f"(failed): {result['error']}")
        return
    shown = dict(result["variables"])
    if result["returned"] is not None:
        shown["(returned)"] = result["returned"]
    if not shown and not result["text"]:
        complain("the program wrote nothing: its body appends with `s += …`")
    elif not shown:
        print(result["text"])
    for name, value in shown.items():
        print(f"{name}: {_lines(value)}")


def _lines(value: Any) -> str:
    """A value as text; the lines after the first are indented, so that names stand out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.strip().replace("\n", "\n    ")
