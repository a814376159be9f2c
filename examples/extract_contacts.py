"""E-mails in, typed contacts out, and two questions about each: `make demo`.

Every e-mail is read after the same instructions and worked examples, so that stretch is computed once for all of them;
the two questions about an e-mail fork from it, so it is computed once for both. The answer is forced to be a `Contact`.

    python examples/extract_contacts.py [FILE ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from radicel import LocalRuntime, assistant, function, gen, select, system, user
from rich.console import Console
from rich.table import Table

EMAILS = Path(__file__).parent / "data" / "emails"


class Contact(BaseModel):
    """Who wrote an e-mail; `phone` is null where the e-mail has none."""

    name: str
    email: str
    phone: str | None
    company: str


TASK = "You copy contact details out of e-mails as JSON. A detail that is not in the e-mail is null."
WORKED = [
    (
        "From: Paul Novak <paul@novak-bikes.example>\nSubject: Spare parts\n\nHi,\n\nthe parts are in stock. "
        "My number is 555 0199.\n\nPaul Novak\nNovak Bikes",
        Contact(name="Paul Novak", email="paul@novak-bikes.example", phone="555 0199", company="Novak Bikes"),
    ),
    (
        "From: Ana Silva <ana.silva@portolivros.example>\nSubject: Catalogue\n\nDear all,\n\nthank you for the "
        "catalogue. Please write to me, I cannot be called this week.\n\nAna Silva\nPorto Livros",
        Contact(name="Ana Silva", email="ana.silva@portolivros.example", phone=None, company="Porto Livros"),
    ),
]
KINDS = ["a delivery", "an order", "a repair", "an invoice"]
GOODS = ["printers", "coffee", "bread", "sails"]


def spelled(contact: Contact) -> str:
    """The JSON of a worked example in the spelling that generated JSON has."""
    return json.dumps(contact.model_dump(), ensure_ascii=False)


@function
def read_email(s: Any, mail: str) -> None:
    """One e-mail: its contact, then two questions side by side."""
    s += system(TASK)
    for text, contact in WORKED:
        s += user(text) + assistant(spelled(contact))
    s += user(mail) + assistant(gen("contact", schema=Contact, max_tokens=120))
    with s.fork(2) as (kind, goods):
        kind += user("What kind of e-mail is it?") + assistant("It is " + select("answer", KINDS))
        goods += user("What is the e-mail about?") + assistant("It is about " + select("answer", GOODS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="text files, one e-mail each")
    files = parser.parse_args().files or sorted(EMAILS.glob("*.txt"))
    with LocalRuntime() as runtime:
        states = read_email.run_batch(
            [{"mail": file.read_text(encoding="utf-8").strip()} for file in files], backend=runtime, temperature=0
        )
        report(files, states, runtime)


def report(files: list[Path], states: list[Any], runtime: LocalRuntime) -> None:
    """A row per e-mail, then what the batch cost."""
    console = Console()
    table = Table()
    for heading in ("file", "name", "e-mail", "phone", "company", "kind", "about"):
        table.add_column(heading, overflow="fold")  # nothing is cut off where the terminal is narrow
    failed = {file.name: state.error() for file, state in zip(files, states) if state.error() is not None}
    for file, state in zip(files, states):
        if file.name in failed:
            continue
        contact, (kind, goods) = state["contact"], state["answer"]
        table.add_row(file.name, contact.name, contact.email, contact.phone or "–", contact.company, kind, goods)
    console.print(table)
    for name, error in failed.items():
        console.print(f"{name}: {type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)
    stats = runtime.stats()
    console.print(
        f"{stats.prompt_tokens} prompt tokens: {stats.computed_tokens} computed, {stats.cached_tokens} from the cache; "
        f"{stats.generated_tokens} generated, {stats.forced_tokens} of them forced by the schema"
    )


if __name__ == "__main__":
    main()
