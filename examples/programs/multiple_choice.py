"""Questions with a fixed set of answers, answered by `select` (BIG-Bench-Hard).

The options are read out of the question; a task whose questions list none (true or false) has its targets as options.
The answer is one of them, byte for byte; `state.meta("answer").probabilities` says how sure the model is of each.

    python examples/programs/multiple_choice.py [--data bbh_snarks.json] [--rows N]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from common import Row, options, run, show_answers
from radicel import assistant, function, gen, select, system, user


@function
def choose(s: Any, question: str, choices: list[str]) -> None:
    """Makes `reasoning` and `answer`, one of the choices."""
    s += system("You think about a question in one or two sentences, then you name the right option.")
    s += user(f"{question}\n\nThe answer is one of: {', '.join(choices)}")
    s += assistant(gen("reasoning", max_tokens=60, stop="\n") + "\nThe answer is " + select("answer", choices))


def choices_of(row: Row, rows: Sequence[Row]) -> list[str]:
    """The options that a question lists as `(A) …`, else the targets of its task."""
    return re.findall(r"^(\(\w+\)) ", row["input"], re.MULTILINE) or sorted({other["target"] for other in rows})


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "bbh.json", argv)
    batch = [{"question": row["input"], "choices": choices_of(row, said.rows)} for row in said.rows]
    with said.runtime() as runtime:
        states = run(choose, batch, runtime)
        show_answers(
            [
                (row["input"], row["target"], None if state.error() is not None else state["answer"])
                for row, state in zip(said.rows, states)
            ]
        )


if __name__ == "__main__":
    main()
