"""A question whose answer needs several documents: each is read in a branch, then the notes are merged (HotpotQA).

All documents stand before the fork, so they are computed once for all the branches, and the answer continues from
there too. The documents are what the searches of a row's recorded steps found.

    python examples/programs/multi_document_qa.py [--data hotpotqa_100.jsonl] [--rows N]
"""

from __future__ import annotations

from typing import Any

from common import Row, options, run, show_answers
from radicel import State, assistant, function, gen, system, user


@function
def answer_question(s: Any, question: str, documents: list[str]) -> None:
    """Makes `note`, one per document, and `answer`."""
    s += system("You answer questions from documents, in a few words.")
    listed = "\n\n".join(f"Document {number}: {text}" for number, text in enumerate(documents, 1))
    s += user(f"{listed}\n\nQuestion: {question}")
    with s.fork(len(documents)) as readers:
        for number, reader in enumerate(readers, 1):
            reader += user(f"What does document {number} say that helps to answer the question?")
            reader += assistant(gen("note", max_tokens=40, stop="\n"))
    s += user("Notes: " + " ".join(s["note"]) + f"\nSo, in a few words: {question}")
    s += assistant("Answer:" + gen("answer", max_tokens=16, stop=["\n", "."]))


def question_of(row: Row) -> str:
    """A row is an object of one key, the question."""
    (question,) = row
    return str(question).removeprefix("Question: ")


def steps_of(row: Row) -> list[dict[str, str]]:
    """The recorded steps: thought, action, observation."""
    (steps,) = row.values()
    return list(steps)


def documents_of(row: Row) -> list[str]:
    """What the searches found, each text once."""
    found = [step["observation"].strip() for step in steps_of(row) if step["action"].startswith("Search[")]
    return list(dict.fromkeys(text for text in found if not text.startswith("Could not find")))


def expected(row: Row) -> str:
    """What the recorded steps end with: the text of `Finish[…]`; empty where they end without an answer."""
    last = steps_of(row)[-1]["action"]
    return last[len("Finish[") : -1] if last.startswith("Finish[") else ""


def answer(state: State) -> str | None:
    """The answer; None where the program failed."""
    return None if state.error() is not None else str(state["answer"]).strip()


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "hotpotqa.jsonl", argv)
    rows = [row for row in said.rows if documents_of(row)]
    if len(rows) < len(said.rows):
        print(f"rows left out, because their searches found no document: {len(said.rows) - len(rows)}")
    with said.runtime() as runtime:
        batch = [{"question": question_of(row), "documents": documents_of(row)} for row in rows]
        states = run(answer_question, batch, runtime)
        show_answers([(question_of(row), expected(row), answer(state)) for row, state in zip(rows, states)])


if __name__ == "__main__":
    main()
