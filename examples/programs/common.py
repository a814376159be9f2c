"""What the programs of this folder share: rows of a file, the arguments of a command, the report before and after.

In: a program and the rows of a `.jsonl` or `.json` file. Out: the plan of the batch, its states, what it cost.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radicel import LocalRuntime, Program, State
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["DATA", "Options", "Row", "options", "read_rows", "run", "show", "show_answers"]

DATA = Path(__file__).resolve().parent.parent / "data"
Row = Any  # what one line of the file holds: an object, or a text


@dataclass(frozen=True)
class Options:
    """The command's arguments.

    Attributes:
        rows: of the file, the first ones if `--rows` says so.
        model: for `LocalRuntime`; None is the embedded model.
        args: every argument by name, those that a program added included.
    """

    rows: list[Row]
    model: str | None
    args: argparse.Namespace

    def runtime(self) -> LocalRuntime:
        """The model that runs the program; to be closed."""
        return LocalRuntime(self.model)


def options(about: str | None, data: str, argv: Sequence[str] | None = None, **numbers: int) -> Options:
    """Reads the command line.

    Args:
        about: the module's docstring; its first line is what `--help` says.
        data: the file in `examples/data` that is read without `--data`.
        argv: the command line; that of this process when None.
        **numbers: further arguments and their defaults, each a positive number: `width=3` is `--width`.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA / data, help=f"rows in the format of the default, {data}")
    parser.add_argument("--rows", type=positive, help="only the first so many rows")
    parser.add_argument("--model", help="a folder, a hub id, or a name known to `radicel pull`; else the embedded one")
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=positive, default=default, help=f"default: {default}")
    args = parser.parse_args(argv)
    try:
        rows = read_rows(args.data)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return Options(rows[: args.rows], args.model, args)


def positive(text: str) -> int:
    """A number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def read_rows(path: Path) -> list[Row]:
    """The rows of a file: one JSON value a line, or (`.json`) a list, also as the `examples` of an object.

    Raises:
        OSError: there is no such file.
        ValueError: what is no JSON, by file and line, or a file without rows.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        document = json.loads(text)
        rows = document["examples"] if isinstance(document, dict) else document
    else:
        rows = [_row(path, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise ValueError(f"{path} has no rows")
    return list(rows)


def _row(path: Path, number: int, line: str) -> Row:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error


def run(program: Program, batch: Sequence[dict[str, Any]], backend: Any, console: Console | None = None) -> list[State]:
    """Runs the batch greedily where a `gen` says nothing else; prints its plan before and its cost after."""
    console = console or Console()
    console.rule("plan", align="left")
    console.print(program.plan(batch, backend=backend).explain())
    before = _counts(backend)
    states: list[State] = program.run_batch(batch, backend=backend, temperature=0, progress_bar=True)
    console.rule("cost", align="left")
    after = _counts(backend)
    if after is not None and before is not None:
        prompt, computed, cached, generated, forced = (now - then for now, then in zip(after, before))
        console.print(
            f"{prompt:,} prompt tokens: {computed:,} computed, {cached:,} from the cache; "
            f"{generated:,} generated, {forced:,} of them forced by a constraint",
            soft_wrap=True,
        )
    for index, state in enumerate(states):
        if (error := state.error()) is not None:
            console.print(f"row {index}: {type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)
    return states


def _counts(backend: Any) -> tuple[int, ...] | None:
    """What the runtime has counted so far; None for a backend that counts nothing, such as a mock."""
    if not hasattr(backend, "stats"):
        return None
    now = backend.stats()
    return now.prompt_tokens, now.computed_tokens, now.cached_tokens, now.generated_tokens, now.forced_tokens


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], console: Console | None = None) -> None:
    """A table of what the programs said; text in it is text, whatever it looks like."""
    table = Table(*columns, title="answers", title_justify="left")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    (console or Console()).print(table)


def show_answers(rows: Sequence[tuple[str, object, object]], console: Console | None = None) -> int:
    """A table of (question, expected, answer) and how many are right, which is also returned.

    Rows whose expected answer is the empty text, as nobody knows it, are shown and not counted.
    """
    console = console or Console()
    show(("question", "expected", "answer"), rows, console)
    known = [(expected, answer) for _, expected, answer in rows if expected != ""]
    right = sum(str(expected).casefold() == str(answer).casefold() for expected, answer in known)
    console.print(f"{right} of {len(known)} right")
    return right
