"""Questions of grade-school maths after worked examples (GSM8K).

Every question follows the same worked examples, which are computed once for the whole file. The model reasons freely,
then the answer is asked for as a number: nothing has to be fished out of a text. The body reads no value, so a batch
of any size is two rounds of requests.

    python examples/programs/few_shot_maths.py [--data gsm8k_test.jsonl] [--rows N]
"""

from __future__ import annotations

from typing import Any

from common import Row, options, run, show_answers
from radicel import State, function, gen

WORKED = [
    (
        "A baker fills 6 trays with 12 rolls each. 15 rolls are burnt. How many rolls can be sold?",
        "6 trays of 12 rolls are 6 * 12 = 72 rolls. Without the burnt ones there are 72 - 15 = 57 rolls.",
        57,
    ),
    (
        "Ines has 40 euros. She buys 3 books at 9 euros each and a pen for 2 euros. How many euros are left?",
        "The books cost 3 * 9 = 27 euros. With the pen that is 27 + 2 = 29 euros. So 40 - 29 = 11 euros are left.",
        11,
    ),
    (
        "A tank holds 90 litres and is one third full. A pump adds 5 litres a minute. "
        "After how many minutes is the tank full?",
        "One third of 90 litres is 90 / 3 = 30 litres. So 90 - 30 = 60 litres are missing. "
        "That takes 60 / 5 = 12 minutes.",
        12,
    ),
    (
        "A class of 28 pupils has 4 more girls than boys. How many girls are there?",
        "Without the 4 more girls there would be 28 - 4 = 24 pupils, 24 / 2 = 12 of them girls. "
        "So there are 12 + 4 = 16 girls.",
        16,
    ),
]


@function
def solve(s: Any, question: str) -> None:
    """One question: free reasoning, then a whole number."""
    for worked, reasoning, answer in WORKED:
        s += f"Question: {worked}\nAnswer: {reasoning}\n#### {answer}\n\n"
    s += f"Question: {question}\nAnswer:"
    s += gen("reasoning", max_tokens=160, stop=["\n####", "\n\n", "Question:"])
    # The line's end belongs to the pattern: it is how the model says that the number is complete.
    s += "\n####" + gen("answer", regex=r" -?\d{1,9}\n", max_tokens=12)


def expected(row: Row) -> int:
    """The number after `####`, with which an answer of GSM8K ends."""
    return int(row["answer"].rpartition("####")[2].replace(",", ""))


def answer(state: State) -> int | None:
    """The number; None where the program failed."""
    return None if state.error() is not None else int(state["answer"])


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "gsm8k.jsonl", argv)
    with said.runtime() as runtime:
        states = run(solve, [{"question": row["question"]} for row in said.rows], runtime)
        show_answers([(row["question"], expected(row), answer(state)) for row, state in zip(said.rows, states)])


if __name__ == "__main__":
    main()
