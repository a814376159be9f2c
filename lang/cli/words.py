"""The words of the command: what may be said, and the help that explains it.

In: nothing. Out: an `argparse` parser whose result has `.command`, the function to call with it. A command's module is
imported when it runs, so that `radicel --help` is there at once.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from ..errors import UnsupportedError

__all__ = ["UnsupportedCommandError", "parser"]

_EXIT_CODES = """\
exit codes:
  0 done   1 failed, one line on standard error says why   2 wrong command line
  3 not in this version   130 interrupted

`radicel COMMAND --help` shows examples. With --json, standard output is one JSON value and nothing else.
"""


class UnsupportedCommandError(UnsupportedError):
    """A command that this version knows by name only."""


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="radicel",
        description="Structured LLM programs on your own machine.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"radicel {_version()}")
    words = _Words(top.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    for add in (_pull, _models, _run, _explain, _chat, _bench, _env, _new, _serve):
        add(words)
    return top


class _Words:
    """The commands, and what several of them take."""

    def __init__(self, words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        self._words = words

    def add(self, name: str, about: str, *examples: str, json: str | None = None, model: bool = False) -> _Word:
        """A command.

        Args:
            name: the word; its module in this package has a function of the same name.
            about: what it does.
            *examples: command lines for its help.
            json: what `--json` prints, where it has that.
            model: whether it takes `--model`.
        """
        shown = "\n".join(["examples:", *(f"  {example}" for example in examples)])
        form = argparse.RawDescriptionHelpFormatter
        word: _Word = self._words.add_parser(name, help=about, description=about, epilog=shown, formatter_class=form)
        word.set_defaults(command=_calls(name), word=name)
        word.add_argument("--traceback", action="store_true", help="show where an error came from")
        if json is not None:
            word.add_argument("--json", action="store_true", help=f"print {json} as JSON")
        if model:
            about_model = "known name, local folder or hub id (default: the embedded model)"
            word.add_argument("--model", metavar="M", help=about_model)
        return word


_Word = argparse.ArgumentParser


def _calls(name: str) -> Callable[[argparse.Namespace], None]:
    """The function `name` of the module `name`, imported when it is called."""

    def call(args: argparse.Namespace) -> None:
        getattr(importlib.import_module(f".{name}", __package__), name)(args)

    return call


def _pull(words: _Words) -> None:
    word = words.add(
        "pull",
        "Fetch a model (the embedded one, unless named), and print its folder.",
        "radicel pull",
        "radicel pull Qwen/Qwen2.5-7B-Instruct",
        json="the model and its folder",
    )
    word.add_argument("model", nargs="?", metavar="MODEL", help="known name or hub id")


def _models(words: _Words) -> None:
    words.add(
        "models",
        "List the models on this machine, and those known by name: size, architecture, licence, folder.",
        "radicel models",
        "radicel models --json | jq '.[] | select(.pulled) | .name'",
        json="the list",
    )


def _run(words: _Words) -> None:
    word = words.add(
        "run",
        "Run a program and print its variables.",
        "radicel run review.py -a essay=@essay.txt",
        "radicel run tools.py:extract -a text=@mail.txt --model Qwen/Qwen2.5-7B-Instruct --json",
        "radicel run tools.py:extract --rows mails.jsonl --save done.jsonl   # Ctrl-C, and again: it goes on",
        json="variables, text, messages and what each value cost",
        model=True,
    )
    _takes_program(word)
    word.add_argument("--rows", metavar="FILE", help="run it for each line of FILE, a JSON object of arguments")
    word.add_argument("--save", metavar="FILE", help="with --rows: keep finished rows in FILE, and go on from there")
    word.add_argument("--temperature", type=float, metavar="T", help="0 for always the likeliest token")
    word.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of a value that names no limit itself")
    word.add_argument("--seed", type=int, metavar="S", help="makes what is drawn the same each time")


def _explain(words: _Words) -> None:
    word = words.add(
        "explain",
        "Show what a program would compute, before it runs: what is shared, what it costs, what is wrong with it.",
        "radicel explain review.py -a essay=@essay.txt",
        "radicel explain review.py --rows essays.jsonl --json",
        "radicel explain review.py --bytes --check",
        json="the totals, the values, open ends and problems",
        model=True,
    )
    _takes_program(word)
    word.add_argument("--rows", metavar="FILE", help="a call for each line of FILE, a JSON object of arguments")
    word.add_argument("--bytes", action="store_true", help="count bytes; load no tokenizer")
    word.add_argument("--check", action="store_true", help="fail (exit code 1) where a run would")


def _chat(words: _Words) -> None:
    word = words.add(
        "chat",
        "Talk with a model.",
        "radicel chat",
        "radicel chat --system 'Answer in one sentence.' --temperature 0",
        "echo 'What is the capital of France?' | radicel chat",
        model=True,
    )
    word.add_argument("--system", metavar="TEXT", help="the system message")
    word.add_argument("--temperature", type=float, metavar="T", help="0 for always the likeliest token")
    word.add_argument("--max-tokens", type=int, default=512, metavar="N", help="most tokens of an answer (512)")


def _bench(words: _Words) -> None:
    word = words.add(
        "bench",
        "Measure a model on this machine: reading a prompt, writing alone and in a batch, a shared prefix.",
        "radicel bench",
        "radicel bench --model Qwen/Qwen2.5-7B-Instruct --batch 32 --prompt-tokens 2048 --json",
        json="the numbers and what they were measured on",
        model=True,
    )
    word.add_argument("--batch", type=_positive, default=8, metavar="N", help="sequences at a time (8)")
    word.add_argument("--prompt-tokens", type=_positive, default=256, metavar="N", help="tokens of a prompt (256)")
    word.add_argument("--tokens", type=_positive, default=48, metavar="N", help="tokens that a sequence writes (48)")
    word.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or cuda:<index>")
    word.add_argument("--dtype", default="auto", metavar="T", help="auto, float32, bfloat16 or float16")
    word.add_argument(
        "--dummy", action="store_true", help="random weights of the model's shape: its config and tokenizer are enough"
    )


def _env(words: _Words) -> None:
    words.add(
        "env",
        "Show what will be used here (device, dtype, kernels, memory, model), and what is wrong with the set-up.",
        "radicel env",
        "radicel env --json   # for a bug report",
        json="all of it",
    )


def _new(words: _Words) -> None:
    word = words.add(
        "new",
        "Write a starter program and its unit test, which needs no model.",
        "radicel new letters      # letters/letters.py and letters/test_letters.py",
        "radicel new letters --folder ~/projects",
        json="the files written",
    )
    word.add_argument("name", metavar="NAME", help="of the program, such as letters")
    word.add_argument("--folder", default=".", metavar="DIR", help="where its folder is made (here)")


def _serve(words: _Words) -> None:
    word = words.add("serve", "Serve a model over HTTP (not in this version).", "radicel serve", model=True)
    word.set_defaults(command=_no_server)


def _no_server(args: argparse.Namespace) -> None:
    raise UnsupportedCommandError(
        f"`radicel serve`: the Radicel server does not exist yet (this is {_version()}); use LocalRuntime(...) inside "
        "your process, `radicel run` for a program in a file, or OpenAIBackend(model, base_url=...) for another server"
    )


def _takes_program(word: argparse.ArgumentParser) -> None:
    word.add_argument("program", metavar="FILE[:PROGRAM]", help="a Python file and the @function in it")
    word.add_argument(
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


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


def _version() -> str:
    from importlib.metadata import version

    return version("radicel")
