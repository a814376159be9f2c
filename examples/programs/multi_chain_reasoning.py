"""Several lines of reasoning about one question, then a vote and a final answer that reads them all (GSM8K).

The chains differ by their seed, so a run can be repeated. They share the question, which is computed once for all.

    python examples/programs/multi_chain_reasoning.py [--data gsm8k_test.jsonl] [--rows N] [--chains 4]
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from common import options, run, show_answers
from few_shot_maths import answer, expected
from radicel import State, assistant, function, gen, system, user

NUMBER = r" -?\d{1,9}\n"


@function
def reason(s: Any, question: str, chains: int) -> None:
    """Makes `chain` and `vote`, one per chain, and `answer`, the number that the merged chains lead to."""
    s += system("You solve questions of maths step by step.") + user(question)
    with s.fork(chains) as branches:
        for seed, branch in enumerate(branches):
            branch += assistant(
                gen("chain", max_tokens=96, stop="\n\n", temperature=0.7, seed=seed)
                + "\nSo the answer is"
                + gen("vote", regex=NUMBER, max_tokens=12)
            )
    solutions = "\n\n".join(f"Solution {i}: {chain}" for i, chain in enumerate(s["chain"], 1))
    s += user(f"Here are {chains} solutions. Some may be wrong.\n\n{solutions}\n\nWhat is the right answer?")
    s += assistant("The right answer is" + gen("answer", regex=NUMBER, max_tokens=12))


def voted(state: State) -> int:
    """The number that most chains came to; of several such the one that came first."""
    return Counter(int(vote) for vote in state["vote"]).most_common(1)[0][0]


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "gsm8k.jsonl", argv, chains=4)
    with said.runtime() as runtime:
        batch = [{"question": row["question"], "chains": said.args.chains} for row in said.rows]
        states = run(reason, batch, runtime)
        show_answers([(row["question"], expected(row), answer(state)) for row, state in zip(said.rows, states)])
        right = [voted(state) == expected(row) for row, state in zip(said.rows, states) if state.error() is None]
        print(f"by vote: {sum(right)} of {len(states)} right")


if __name__ == "__main__":
    main()
