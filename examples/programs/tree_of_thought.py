"""A maths question solved by a search over steps of reasoning: tree of thought (GSM8K).

At each level every kept line of thought is continued in `width` ways, the model says of each whether it is right, and
the `keep` likeliest go on. Which ones those are is only known while it runs: the body reads values, so its plan ends
with an open end at that line. A line of thought is computed once, however many continue it.

    python examples/programs/tree_of_thought.py [--data gsm8k_test.jsonl] [--rows N] [--depth 3] [--width 3] [--keep 2]
"""

from __future__ import annotations

from typing import Any

from common import options, run, show_answers
from few_shot_maths import answer, expected
from radicel import State, assistant, assistant_begin, assistant_end, function, gen, select, system, user


@function
def think(s: Any, question: str, depth: int, width: int, keep: int) -> None:
    """Makes `answer`, the number's line, and `steps`, the line of thought that led to it."""
    s += system("You solve questions of maths in short steps, one step a line.") + user(question) + assistant_begin()
    kept = [s]
    for level in range(depth):
        thoughts = [thought for state in kept for thought in continued(state, level, width)]
        kept = sorted(thoughts, key=confidence, reverse=True)[:keep]
    best = kept[0]
    best += "So the answer is" + gen("answer", regex=r" -?\d{1,9}\n", max_tokens=12) + assistant_end()
    s["steps"] = [best[f"step_{level}"] for level in range(depth)]
    s["answer"] = best["answer"]


def continued(state: State, level: int, width: int) -> list[State]:
    """`width` next steps, each with the model's verdict on it; nothing waits here, so all are written side by side."""
    thoughts = list(state.fork(width))
    for index, thought in enumerate(thoughts):
        thought += f"Step {level + 1}:"
        thought += gen(f"step_{level}", max_tokens=40, stop="\n", temperature=0.8, seed=index) + "\n"
        with thought.copy() as judge:  # what is asked here does not become part of the line of thought
            judge += assistant_end() + user("Are these steps right, and do they lead to the answer?")
            judge += assistant(select("verdict", ["yes", "no"]))
    return thoughts


def confidence(thought: State) -> float:
    """How likely the model finds it that a line of thought is right."""
    return float(thought.meta("verdict").probabilities["yes"])


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "gsm8k.jsonl", argv, depth=3, width=3, keep=2)
    search = {name: getattr(said.args, name) for name in ("depth", "width", "keep")}
    with said.runtime() as runtime:
        states = run(think, [{"question": row["question"], **search} for row in said.rows], runtime)
        show_answers([(row["question"], expected(row), answer(state)) for row, state in zip(said.rows, states)])


if __name__ == "__main__":
    main()
