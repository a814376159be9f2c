"""What the pages say is true: their links lead somewhere, their commands exist. `test_docs_programs.py` runs them."""

from __future__ import annotations

import ast
import re
import shlex
import stat
import subprocess

import pages
import pytest
import radicel
import source_tree as src
from radicel import cli

NAMED = pages.pages()


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every shell block."""
    return [(name, line) for name, page in NAMED.items() for line in pages.shell_lines(page)]


@pytest.mark.parametrize("name", NAMED)
def test_links_lead_somewhere(name: str) -> None:
    page = NAMED[name]
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        target = link.partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{name} links to {link}"


@pytest.mark.parametrize("name", NAMED)
def test_files_that_pages_name_exist(name: str) -> None:
    text = NAMED[name].read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:lang|runtime|kernels|tests|examples|docs)/[\w/.-]+\.\w+)`", text))
    assert {path for path in named if not (src.ROOT / path).exists()} == set()


def test_every_part_of_the_language_has_a_place_in_the_architecture() -> None:
    table = NAMED["docs/design.md"].read_text(encoding="utf-8").partition("## Where is what in `lang/`?")[2]
    there = {path.name + "/" * path.is_dir() for path in (src.ROOT / "lang").iterdir()}
    there -= {"__init__.py", "__pycache__/", "py.typed"}
    assert set(re.findall(r"`(\w+(?:\.py|/))`", table)) == there


def test_the_readme_has_commands_and_a_program() -> None:
    assert {line.partition("#")[0].strip() for name, line in commands() if name == "README.md"} >= {
        "make demo",
        "make test",
        "make test-all",
        "radicel pull",
    }
    assert pages.blocks(NAMED["README.md"], "python")


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        dry = ["make", "--dry-run", "--no-print-directory", *words[1:]]
        done = subprocess.run(dry, capture_output=True, text=True, cwd=src.ROOT)
        assert done.returncode == 0, done.stderr
    elif words[0] == "radicel":
        cli.parser().parse_args(words[1:])
    else:
        assert words[0] in ("git", "cd", "pip", "python", "pytest", "."), f"{page}: nobody checks {line!r}"


def test_ci_runs_what_the_readme_says() -> None:
    script = src.ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -eu" in lines
    assert lines[-3:] == ["make docs", "make test", "make test-all"]


@pytest.mark.parametrize("name", NAMED)
def test_python_in_pages_is_python(name: str) -> None:
    for block in pages.blocks(NAMED[name], "python"):
        ast.parse(block.text, name, feature_version=(3, 10))


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(
        page.read_text(encoding="utf-8") for name, page in NAMED.items() if name.startswith("docs/reference/")
    )
    told = set(re.findall(r"^::: radicel(?:\.\w+)*\.(\w+)$", text, re.M))
    said = set(re.findall(r"`(\w+)`", text))
    assert set(radicel.__all__) - told - said == set()


def test_every_page_is_in_the_site() -> None:
    config = (src.ROOT / ".mkdocs.yml").read_text(encoding="utf-8")
    pages_there = {str(page.relative_to(src.ROOT / "docs")) for page in (src.ROOT / "docs").rglob("*.md")}
    assert pages_there == set(  # a new page needs a line in .mkdocs.yml, under nav
        re.findall(r"[\w/-]+\.md", config.partition("\nnav:")[2])
    )


def test_the_makefile_documents_its_main_targets() -> None:
    text = (src.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, re.M))
    assert {"demo", "test", "test-all", "lint", "types", "docs", "clean"} <= targets
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    assert set(phony.split()) == targets
