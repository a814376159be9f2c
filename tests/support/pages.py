"""Reading the pages: their fenced blocks, and running them as a reader would.

What a block is for, by its first line:

    ```python                   run, in the order of the page, in one process
    ```python title="F"         written to the file F beside the others
    ```text title="F"           the same, for a text file
    ```text                     right after a block that runs: exactly what it prints
    ```sh                       commands that exist; those that name a file of the page are run, each by itself
    ```console                  what a model wrote, for the eye: not compared
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import source_tree as src

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$", re.M | re.S
)


# What is printed does not depend on where the tests run.
ENVIRONMENT = {"PYTHONWARNINGS": "default", "COLUMNS": "120", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it names, its text, and whether only white space is between it and the
    block before it."""

    language: str
    title: str | None
    text: str
    follows: bool


def pages() -> dict[str, Path]:
    """Every page of the repository, by its path in it."""
    found = [*src.ROOT.glob("*.md"), *(src.ROOT / "docs").rglob("*.md"), *(src.ROOT / "examples").rglob("*.md")]
    return {str(page.relative_to(src.ROOT)): page for page in sorted(found)}


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The page's fenced blocks, of one language or all."""
    text = page.read_text(encoding="utf-8")
    found, end = [], 0
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        lines = [line[indent:] if not line[:indent].strip() else line for line in match["text"].splitlines(True)]
        follows = bool(found) and not text[end : match.start()].strip()
        found.append(Block(match["language"], match["title"], "".join(lines), follows))
        end = match.end()
    return [block for block in found if language in (None, block.language)]


def shell_lines(page: Path) -> list[str]:
    """The command lines of the page's shell blocks."""
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def expected_after(found: Sequence[Block], index: int) -> str | None:
    """What the page says that a block prints, or None where it does not say."""
    after = found[index + 1] if index + 1 < len(found) else None
    return after.text if after and after.language == "text" and after.follows and after.title is None else None


def files(page: Path) -> dict[str, str]:
    """The files that the page has its reader write."""
    return {block.title: block.text for block in blocks(page) if block.title}


def needs_model(page: Path) -> bool:
    """Whether the page's programs ask the embedded model."""
    run = [block.text for block in blocks(page) if block.language in ("python", "sh")]
    return any("LocalRuntime(" in text or "radicel run" in text or "radicel explain" in text for text in run)


def python_steps(page: Path) -> list[tuple[str, str | None]]:
    """(code, what it prints) of the blocks that are run in one process."""
    found = blocks(page)
    return [
        (block.text, expected_after(found, i))
        for i, block in enumerate(found)
        if block.language == "python" and not block.title
    ]


def command_steps(page: Path) -> list[tuple[list[str], str | None]]:
    """(words, what it prints) of the commands that name a file of the page."""
    named, steps = files(page), []
    found = blocks(page)
    for i, block in enumerate(found):
        lines = block.text.splitlines() if block.language == "sh" else []
        for line in lines:
            words = shlex.split(line, comments=True)
            if any(word.rpartition("@")[2].partition(":")[0] in named for word in words):
                steps.append((words, expected_after(found, i) if len(lines) == 1 else None))
    return steps


def params(steps: Callable[[Path], object]) -> list[Any]:
    """The pages that have some of these steps, as the parameters of a test; marked where they need the model.

    Each loads it, so `make test` runs those of the README, `make test-all` the other pages' too.
    """
    import pytest

    marks = {"no": [], "README": [pytest.mark.model], "yes": [pytest.mark.model, pytest.mark.slow]}
    return [pytest.param(name, marks=marks[group(name)]) for name, page in pages().items() if steps(page)]


def group(name: str) -> str:
    """Whether a page needs the model; the README is a group of its own."""
    if not needs_model(pages()[name]):
        return "no"
    return "README" if name == "README.md" else "yes"


def run_python(codes: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Printed]:
    """Runs the codes of pages in one new process and returns what each code printed, by page.

    Every page has a folder below this one, which is where its codes run, one after another in one namespace. Pages
    share the process, so that what they import is loaded once.
    """
    for number, page in enumerate(codes):
        for step, code in enumerate(codes[page]):
            (folder / str(number) / f"block{step}").mkdir(parents=True)
            (folder / str(number) / f"block{step}" / "program.py").write_text(code, encoding="utf-8")
    run_words([sys.executable, __file__, *(str(len(steps)) for steps in codes.values())], folder)
    results = json.loads((folder / "printed.json").read_text(encoding="utf-8"))
    return {
        page: Printed([_without_paths(text, folder / str(number)) for text in printed], error)
        for number, (page, (printed, error)) in enumerate(zip(codes, results, strict=True))
    }


@dataclass(frozen=True)
class Printed:
    """What a page's codes printed, and the traceback of the one that raised, if one did."""

    texts: list[str]
    error: str | None


def _without_paths(text: str, folder: Path) -> str:
    return re.sub(re.escape(f"{folder}/") + r"block\d+/", "", text)


def write_files(page: Path, folder: Path) -> None:
    """Writes the files that the page has its reader write."""
    folder.mkdir(exist_ok=True)
    for name, text in files(page).items():
        (folder / name).write_text(text, encoding="utf-8")


def run_words(words: Sequence[str], folder: Path) -> str:
    """Runs a command in the folder and returns what it printed; AssertionError with its messages where it failed."""
    programs = {"python": [], "radicel": ["-m", "radicel.cli"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}
    command = [sys.executable, *programs[words[0]], *words[1:]] if words[0] in programs else list(words)
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, **ENVIRONMENT}, timeout=280
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr
    return done.stdout


def _main(counts: Sequence[int]) -> None:
    """In the new process: page after page; what each code printed goes into a file."""
    results = [_run_page(Path(str(number)).resolve(), count) for number, count in enumerate(counts)]
    Path("printed.json").write_text(json.dumps(results), encoding="utf-8")


def _run_page(folder: Path, count: int) -> tuple[list[str], str | None]:
    import contextlib
    import io
    import traceback
    import types

    module = sys.modules["__main__"] = types.ModuleType("__main__")  # where types are looked up by name
    printed: list[str] = []
    known = set(sys.modules)
    back = os.getcwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        for number in range(count):
            path = folder / f"block{number}" / "program.py"
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
            printed.append(shown.getvalue())
    except Exception:
        return printed, traceback.format_exc()
    finally:
        os.chdir(back)
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:  # the files of one page are not those of the next
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
    return printed, None


if __name__ == "__main__":
    _main([int(word) for word in sys.argv[1:]])
