"""Questions about a text too long for one prompt: read page by page, then merged, with the pages cited (map-reduce).

Every page is read in a prompt of its own, all pages side by side; notes are merged `fan_in` at a time until one is
left, so no prompt grows with the text. The pages that the answer cites are chosen among those there are: a citation
of a page that does not exist cannot be written.

    python examples/programs/map_reduce.py [--data FILE.jsonl] [--rows N] [--fan-in 4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import options, run, show
from radicel import State, assistant, function, gen, select, system, user


@function
def answer_from_pages(s: Any, question: str, pages: list[str], fan_in: int) -> None:
    """Makes `note` and `useful` per page, `answer`, and `cited`, the number of the page that supports it best."""
    s += system("You answer a question about a long text. You write one short sentence.")
    with s.fork(len(pages)) as readers:
        for reader, page in zip(readers, pages):
            reader += user(f"Here is a page of the text.\n\n{page}\n\nWhat does it say about this: {question}")
            reader += assistant(gen("note", max_tokens=40, stop="\n"))
            reader += user("Does that help to answer the question?") + assistant(select("useful", ["yes", "no"]))
    notes = [f"Page {number}: {note}" for number, note in enumerate(s["note"], 1)]
    while len(notes) > fan_in:
        notes = merged(s, question, notes, fan_in)
    s += user("Notes on the text:\n" + "\n".join(notes) + f"\n\n{question}")
    s += assistant(gen("answer", max_tokens=48, stop="\n") + " (page " + select("cited", numbers(pages)) + ")")


def merged(s: State, question: str, notes: Sequence[str], fan_in: int) -> list[str]:
    """One note for each `fan_in` notes; the groups are merged side by side."""
    groups = [notes[start : start + fan_in] for start in range(0, len(notes), fan_in)]
    branches = s.fork(len(groups))
    for branch, group in zip(branches, groups):
        branch += user("Merge these notes and keep the numbers of their pages.\n" + "\n".join(group))
        branch += user(f"They are to answer this: {question}") + assistant(gen("merged", max_tokens=64, stop="\n"))
    return list(branches["merged"])


def numbers(pages: Sequence[str]) -> list[str]:
    """The numbers of the pages, as they are cited."""
    return [str(number) for number in range(1, len(pages) + 1)]


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "long_document.jsonl", argv, fan_in=4)
    batch = [
        {"question": question, "pages": row["pages"], "fan_in": said.args.fan_in}
        for row in said.rows
        for question in row["questions"]
    ]
    with said.runtime() as runtime:
        states = run(answer_from_pages, batch, runtime)
        show(
            ("question", "answer", "page", "useful pages"),
            [
                (call["question"], state["answer"], state["cited"], useful(state))
                for call, state in zip(batch, states)
                if state.error() is None
            ],
        )


def useful(state: State) -> str:
    """The pages that the model found useful."""
    return ", ".join(str(number) for number, said in enumerate(state["useful"], 1) if said == "yes")


if __name__ == "__main__":
    main()
