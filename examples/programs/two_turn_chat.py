"""Conversations of two turns (MT-Bench): the second answer starts where the first one left the cache.

python examples/programs/two_turn_chat.py [--data mtbench_question.jsonl] [--rows N] [--tokens 128]
"""

from __future__ import annotations

from typing import Any

from common import options, run, show
from radicel import assistant, function, gen, system, user


@function
def chat(s: Any, turns: list[str], tokens: int) -> None:
    """Makes `answer_1`, `answer_2` and so on."""
    s += system("You are a helpful assistant.")
    for number, turn in enumerate(turns, 1):
        s += user(turn) + assistant(gen(f"answer_{number}", max_tokens=tokens))


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "mtbench.jsonl", argv, tokens=128)
    with said.runtime() as runtime:
        states = run(chat, [{"turns": row["turns"], "tokens": said.args.tokens} for row in said.rows], runtime)
        show(
            ("category", "asked", "answered", "of its prompt cached"),
            [
                (row["category"], turn, state[f"answer_{number}"], cached(state, number))
                for row, state in zip(said.rows, states)
                if state.error() is None
                for number, turn in enumerate(row["turns"], 1)
            ],
        )


def cached(state: Any, number: int) -> str:
    """How much of an answer's prompt was not computed for it."""
    meta = state.meta(f"answer_{number}")
    return f"{meta.cached_tokens} of {meta.prompt_tokens}"


if __name__ == "__main__":
    main()
