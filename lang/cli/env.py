"""`radicel env`: what will be used on this machine, and what is wrong with its set-up.

In: the machine. Out: facts in columns, then each problem with what to do about it.
"""

from __future__ import annotations

import argparse

from .output import print_columns, print_json

__all__ = ["env"]


def env(args: argparse.Namespace) -> None:
    """Prints the facts and the problems."""
    from ..runtime.diagnosis import choices, problems
    from ..runtime.environment import environment

    facts, used, wrong = environment(), choices(), problems()
    if args.json:
        print_json({**facts, "use": used, "problems": [{"problem": p.what, "fix": p.fix} for p in wrong]})
        return
    shown = {**{f"use {name}": value for name, value in used.items()}, **facts}
    print_columns([(name, _shown(value)) for name, value in shown.items()])
    print()
    for problem in wrong:
        print(f"problem: {problem.what}\n    fix: {problem.fix}")
    if not wrong:
        print("No problem was found.")


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
