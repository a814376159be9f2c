"""Every command of a page that names a file of the page runs, and prints what the page says.

Those that ask the model load it each time: `make test` runs those of the README, `make test-all` the other pages' too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pages
import pytest


def params() -> list[Any]:
    """The pages; one beside the README is slow where it needs the model."""
    found = []
    for param in pages.params(pages.command_steps):
        slow = bool(param.marks) and param.values[0] != "README.md"
        found.append(pytest.param(*param.values, marks=[*param.marks, *([pytest.mark.slow] if slow else [])]))
    return found


@pytest.mark.parametrize("name", params())
def test_a_page_s_commands_print_what_it_says(name: str, tmp_path: Path) -> None:
    page = pages.pages()[name]
    pages.write_files(page, tmp_path)
    for words, said in pages.command_steps(page):
        shown = pages.run_words(words, tmp_path)
        assert said in (None, shown), f"{name} says that {words} prints\n{said}and it prints\n{shown}"
