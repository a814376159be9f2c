"""`radicel chat`: a talk with a model, line by line.

In: lines on standard input (a prompt is shown on a terminal). Out: each answer as it appears.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

__all__ = ["chat"]

_HELP = "/reset starts anew, /exit (or Ctrl-D) ends, Ctrl-C stops an answer"


def chat(args: argparse.Namespace) -> None:
    """Talks until the input ends. What was said stays in the model's cache, so only new text is computed."""
    from ..runtime.local import LocalRuntime

    with LocalRuntime(args.model) as runtime:
        on_terminal = sys.stdin.isatty()
        if on_terminal:
            _use_line_editing()
            print(_HELP)
        opening = [{"role": "system", "content": args.system}] if args.system is not None else []
        messages = list(opening)
        while (line := _read(on_terminal)) is not None:
            if line == "/exit":
                return
            if line == "/reset":
                messages = list(opening)
            elif line:
                messages.append({"role": "user", "content": line})
                answer = _answer(runtime, messages, args.temperature, args.max_tokens)
                messages.append({"role": "assistant", "content": answer})


def _read(on_terminal: bool) -> str | None:
    try:
        return input("> " if on_terminal else "").strip()
    except EOFError:
        if on_terminal:
            print()
        return None


def _answer(runtime: Any, messages: list[dict[str, str]], temperature: float | None, max_tokens: int) -> str:
    """Prints the answer as it comes and returns it; an interrupt keeps what has come."""
    pieces: list[str] = []
    stream = runtime.generate(messages, stream=True, temperature=temperature, max_tokens=max_tokens)
    try:
        for piece in stream:
            pieces.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        stream.close()  # cancels the request
    print(flush=True)
    return "".join(pieces)


def _use_line_editing() -> None:
    """Arrow keys and history in `input`, where this Python was built with readline."""
    try:
        import readline
    except ImportError:
        return
    readline.parse_and_bind("set enable-bracketed-paste on")
