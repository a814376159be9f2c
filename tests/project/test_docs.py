"""What the pages say is true: their links lead somewhere, their commands exist, the README's programs run."""

from __future__ import annotations

import ast
import os
import re
import shlex
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import source_tree as src
from radicel import cli

PAGES = sorted([*src.ROOT.glob("*.md"), *(src.ROOT / "docs").rglob("*.md"), *(src.ROOT / "examples").rglob("*.md")])
NAMED = {str(page.relative_to(src.ROOT)): page for page in PAGES}


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks in a language."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.M | re.S)
    return [textwrap.dedent(text) for _, text in found]


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every shell block."""
    lines = []
    for name, page in NAMED.items():
        for block in blocks(page, "sh"):
            lines += [(name, line) for line in block.splitlines() if line.strip() and not line.startswith("#")]
    return lines


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


def test_the_readme_has_commands_and_a_program() -> None:
    assert {line.partition("#")[0].strip() for name, line in commands() if name == "README.md"} >= {
        "make demo",
        "make test",
        "make test-all",
        "radicel pull",
    }
    assert blocks(NAMED["README.md"], "python")


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
        assert words[0] in ("git", "cd", "pip", "python", "pytest"), f"{page}: nobody checks {line!r}"


def test_ci_runs_what_the_readme_says() -> None:
    script = src.ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -eu" in lines
    assert lines[-2:] == ["make test", "make test-all"]


@pytest.mark.parametrize("name", NAMED)
def test_python_in_pages_is_python(name: str) -> None:
    for block in blocks(NAMED[name], "python"):
        ast.parse(block, name, feature_version=(3, 10))


PROGRAMS = [
    (name, i) for name in ("README.md", "docs/token-boundaries.md") for i in range(len(blocks(NAMED[name], "python")))
]


@pytest.mark.model
@pytest.mark.parametrize(("name", "number"), PROGRAMS)
def test_the_pages_programs_run(name: str, number: int, model_dir: Path, tmp_path: Path) -> None:
    """As a new user would: typed into a file, run in another folder."""
    (tmp_path / "quickstart.py").write_text(blocks(NAMED[name], "python")[number], encoding="utf-8")
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, "quickstart.py"], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()


def test_the_makefile_documents_its_main_targets() -> None:
    text = (src.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, re.M))
    assert {"demo", "test", "test-all", "lint", "types", "clean"} <= targets
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    assert set(phony.split()) == targets
