"""Every command of a page that names a file of the page runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest


@pytest.mark.parametrize("name", pages.params(pages.command_steps))
def test_a_page_s_commands_print_what_it_says(name: str, tmp_path: Path) -> None:
    page = pages.pages()[name]
    pages.write_files(page, tmp_path)
    for words, said in pages.command_steps(page):
        shown = pages.run_words(words, tmp_path)
        assert said in (None, shown), f"{name} says that {words} prints\n{said}and it prints\n{shown}"
