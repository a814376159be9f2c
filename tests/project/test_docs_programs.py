"""Every block of Python in a page runs, and prints what the page says (`tests/support/pages.py` has the rules)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pages
import pytest

PAGES = pages.pages()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pages.Printed]:
    """What a page's Python blocks print: of all pages of its `pages.group`, at the first question."""

    @functools.cache
    def of_all(group: str) -> dict[str, pages.Printed]:
        folder = tmp_path_factory.mktemp("pages")
        chosen = {name: page for name, page in PAGES.items() if pages.group(name) == group}
        codes = {name: [code for code, _ in pages.python_steps(page)] for name, page in chosen.items()}
        codes = {name: steps for name, steps in codes.items() if steps}
        for number, name in enumerate(codes):
            pages.write_files(PAGES[name], folder / str(number))
        return pages.run_python(codes, folder)

    return lambda name: of_all(pages.group(name))[name]


@pytest.mark.parametrize("name", pages.params(pages.python_steps))
def test_a_page_s_blocks_print_what_it_says(name: str, printed: Callable[[str], pages.Printed]) -> None:
    steps, found = pages.python_steps(PAGES[name]), printed(name)
    for (code, said), shown in zip(steps, found.texts):
        assert said in (None, shown), f"{name} says that\n{code}prints\n{said}and it prints\n{shown}"
    assert found.error is None, f"{name}\n{found.error}"
    assert len(found.texts) == len(steps)


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
