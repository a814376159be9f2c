"""Every program of every page runs, and prints what the page says (`tests/support/pages.py` has the rules)."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest

PAGES = pages.pages()
RUN = [
    pytest.param(name, marks=[pytest.mark.model] if pages.needs_model(page) else [])
    for name, page in PAGES.items()
    if pages.runs(page)
]
ENVIRONMENT = {"PYTHONWARNINGS": "default", "COLUMNS": "120", "NO_COLOR": "1"}


@pytest.mark.parametrize("name", RUN)
def test_the_pages_programs_do_what_it_says(name: str, tmp_path: Path) -> None:
    page = PAGES[name]
    for file, text in pages.files(page).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    steps = pages.python_steps(page)
    if steps:
        printed = pages.run_python([code for code, _ in steps], tmp_path, ENVIRONMENT)
        for said, shown in zip(steps, printed, strict=True):
            assert said[1] in (None, shown), f"{name} says that\n{said[0]}prints\n{said[1]}and it prints\n{shown}"
    for words, expected in pages.command_steps(page):
        shown = pages.run_words(words, tmp_path, ENVIRONMENT)
        assert expected in (None, shown)


@pytest.mark.parametrize("name", PAGES)
def test_a_file_that_a_page_has_written_is_used(name: str) -> None:
    page = PAGES[name]
    used = {word.rpartition("@")[2].partition(":")[0] for words, _ in pages.command_steps(page) for word in words}
    code = "".join(block.text for block in pages.blocks(page, "python"))
    assert [file for file in pages.files(page) if file not in used and file not in code] == []


def test_blocks_are_read_with_their_files_and_what_they_print(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```text title="a.txt"\nhello\n```\n\nRun:\n\n```python\nprint(open("a.txt").read())\n```\n\n'
        "```text\nhello\n\n```\n"
        "\n- Or:\n\n  ```sh\n  python b.py\n  radicel run c.py -a text=@a.txt\n  radicel pull\n  ```\n",
        encoding="utf-8",
    )
    assert pages.files(page) == {"a.txt": "hello\n"}
    assert pages.python_steps(page) == [('print(open("a.txt").read())\n', "hello\n\n")]
    assert pages.command_steps(page) == [(["radicel", "run", "c.py", "-a", "text=@a.txt"], None)]
    assert pages.shell_lines(page) == ["python b.py", "radicel run c.py -a text=@a.txt", "radicel pull"]
    assert pages.needs_model(page)
