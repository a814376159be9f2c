"""The command `radicel`: what its words mean, and how it ends.

In: words of a command line. Out: text (or, with `--json`, one JSON value) on standard output, messages on standard
error, and an exit code:

    0    done
    1    it failed: one line on standard error says why
    2    the command line is wrong
    3    the command is known, but this version does not have it
    130  interrupted (Ctrl-C)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import RadicelError, UnsupportedError

__all__ = ["main", "parser"]

EXIT_FAILED, EXIT_USAGE, EXIT_UNSUPPORTED, EXIT_INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (`sys.argv` by default) and returns its exit code."""
    args = parser().parse_args(argv)
    try:
        args.command(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has gone; nothing is left to say, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except UnsupportedCommandError as error:
        _complain(str(error))
        return EXIT_UNSUPPORTED
    except Exception as error:
        if args.traceback:
            raise
        own = isinstance(error, RadicelError)
        _complain(str(error) if own else f"{type(error).__name__}: {error} (--traceback shows where)")
        return EXIT_FAILED
    return 0


class UnsupportedCommandError(UnsupportedError):
    """A command that this version knows by name only."""


def _complain(message: str) -> None:
    print("radicel: " + " ".join(message.split()), file=sys.stderr)


# ---- the words


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(prog="radicel", description="Structured LLM programs on your own machine.")
    top.add_argument("--version", action="version", version=f"radicel {_version()}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--traceback", action="store_true", help="show where an error came from")
    machine = argparse.ArgumentParser(add_help=False)
    machine.add_argument("--json", action="store_true", help="print one JSON value")
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--model", metavar="M", help="known name, local folder or hub id (default: the embedded model)")
    words = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def word(
        name: str, command: Callable[[argparse.Namespace], None], about: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        sub = words.add_parser(name, help=about, description=about, parents=[common, *parents])
        sub.set_defaults(command=command, word=name)
        return sub

    pull = word("pull", _pull, "Fetch a model (the embedded one, unless named).", machine)
    pull.add_argument("model", nargs="?", metavar="MODEL", help="known name or hub id")
    word("models", _models, "List the models that are known by name, and where they are.", machine)
    run = word("run", _run, "Run a program and print its variables.", machine, model)
    _add_program(run)
    chat = word("chat", _chat, "Talk with a model.", model)
    chat.add_argument("--system", metavar="TEXT", help="the system message")
    chat.add_argument("--temperature", type=float, metavar="T", help="0 for always the likeliest token")
    chat.add_argument("--max-tokens", type=int, default=512, metavar="N", help="most tokens of an answer (512)")
    word("env", _env, "Show versions, devices and folders, for a bug report.", machine)
    _add_program(word("explain", _later, "Show what a program would compute, before it runs.", machine, model))
    word("bench", _later, "Measure this machine.", machine, model)
    word("new", _later, "Start a project.").add_argument("name", metavar="NAME")
    word("serve", _later, "Serve a model over HTTP.", model)
    return top


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="FILE[:PROGRAM]", help="a Python file and the @function in it")
    parser.add_argument(
        "-a",
        "--arg",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        dest="arguments",
        help="an argument of the program, read by its annotation; VALUE of the form @FILE is the text of that file",
    )


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def _version() -> str:
    from importlib.metadata import version

    return version("radicel")


# ---- the commands


def _pull(args: argparse.Namespace) -> None:
    from ..runtime import hub

    folder = hub.pull(args.model)
    if args.json:
        _print_json({"model": args.model or hub.DEFAULT_MODEL, "folder": str(folder)})
    else:
        print(folder)


def _models(args: argparse.Namespace) -> None:
    from ..runtime import hub

    rows = [
        {
            "name": known.name,
            "pulled": pulled,
            "folder": str(folder),
            "license": known.license,
            "source": known.requirement,
            "default": known.name == hub.DEFAULT_MODEL,
        }
        for known, folder, pulled in hub.models()
    ]
    if args.json:
        _print_json(rows)
        return
    lines = [("name", "here", "licence", "folder")]
    for row in rows:
        name = f"{row['name']} (default)" if row["default"] else str(row["name"])
        lines.append((name, "yes" if row["pulled"] else "no", str(row["license"]), str(row["folder"])))
    _print_columns(lines)


def _run(args: argparse.Namespace) -> None:
    from .run import run_program

    result = run_program(args.program, args.arguments, model=args.model, as_json=args.json)
    if args.json:
        _print_json(result)


def _chat(args: argparse.Namespace) -> None:
    from .chat import chat

    chat(args.model, system=args.system, temperature=args.temperature, max_tokens=args.max_tokens)


def _env(args: argparse.Namespace) -> None:
    from ..runtime.environment import environment

    facts = environment()
    if args.json:
        _print_json(facts)
        return
    shown = {name: ", ".join(value) or "none" if isinstance(value, list) else value for name, value in facts.items()}
    _print_columns([(name, str(value)) for name, value in shown.items()])


def _later(args: argparse.Namespace) -> None:
    raise UnsupportedCommandError(
        f"`radicel {args.word}` comes with a later version; this is {_version()}, see `radicel --help` for what it does"
    )


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows with their columns aligned; the last one as long as it is, so that a path can be copied."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row[:-1], widths)), row[-1], sep="  ")


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))
