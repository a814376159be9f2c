"""The command `radicel`: how it begins and ends. Its words are in `words.py`, what each does in a module of its name.

In: words of a command line. Out: text (or, with `--json`, one JSON value) on standard output, messages on standard
error, and an exit code:

    0    done
    1    it failed: one line on standard error says why, and what to do about it
    2    the command line is wrong
    3    the command is known, but this version does not have it
    130  interrupted (Ctrl-C)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..errors import RadicelError
from .output import complain
from .place import place_of
from .words import UnsupportedCommandError, parser

__all__ = ["main", "parser"]

EXIT_FAILED, EXIT_USAGE, EXIT_UNSUPPORTED, EXIT_INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (`sys.argv` by default) and returns its exit code."""
    words = parser()
    args, rest = words.parse_known_args(argv)
    if rest and args.word != "serve":  # whatever is asked of the server, it is not there
        words.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        args.command(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has gone; nothing is left to say, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED
    except UnsupportedCommandError as error:
        complain(str(error))
        return EXIT_UNSUPPORTED
    except Exception as error:
        if args.traceback:
            raise
        own = isinstance(error, RadicelError)
        place = place_of(error) if hasattr(args, "program") else None  # a command that runs code of the user's
        message = str(error) if own else f"{type(error).__name__}: {error} (--traceback shows where)"
        complain(message if place is None else f"{place}: {message}")
        return EXIT_FAILED
    return 0
