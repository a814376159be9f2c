"""An essay judged from several sides at once, then graded: LLM as a judge with branches.

Each side is a branch that shares the instructions and the essay; its remark and its score are written beside those of
the other branches. The join makes lists of them, the summary reads all remarks, and the grade is one of four letters.

    python examples/programs/essay_judge.py [--data articles.jsonl] [--rows N]
"""

from __future__ import annotations

from typing import Any

from common import options, run, show
from radicel import assistant, function, gen, select, system, user

SIDES = {
    "clarity": "Is the essay easy to follow, and is every term explained?",
    "evidence": "Are its claims supported, and are they true?",
    "structure": "Does each paragraph have a task, and is their order a good one?",
}
SCORES = ["1", "2", "3", "4", "5"]
GRADES = ["A", "B", "C", "D"]


@function
def judge(s: Any, essay: str) -> None:
    """Makes `remark` and `score`, lists in the order of `SIDES`, then `summary` and `grade`."""
    s += system("You are a strict but fair teacher. You judge essays in one or two sentences.")
    s += user(f"Here is an essay.\n\n{essay}")
    with s.fork(len(SIDES)) as branches:
        for branch, (side, question) in zip(branches, SIDES.items()):
            branch += user(f"Judge its {side}. {question}") + assistant(gen("remark", max_tokens=48, stop="\n"))
            branch += user(f"How many points of 5 do you give for {side}?") + assistant(select("score", SCORES))
    remarks = "\n".join(f"{side}: {remark}" for side, remark in zip(SIDES, s["remark"]))
    s += user(f"These are your remarks.\n{remarks}\nSum them up in one sentence, for the author.")
    s += assistant(gen("summary", max_tokens=48, stop="\n"))
    s += user("Which grade do you give?") + assistant(select("grade", GRADES))


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "articles.jsonl", argv)
    with said.runtime() as runtime:
        states = run(judge, [{"essay": essay} for essay in said.rows], runtime)
        show(
            ("essay", *SIDES, "grade", "summary"),
            [
                (essay.partition("\n")[0], *state["score"], state["grade"], state["summary"])
                for essay, state in zip(said.rows, states)
                if state.error() is None
            ],
        )


if __name__ == "__main__":
    main()
