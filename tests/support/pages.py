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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import source_tree as src

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$", re.M | re.S
)


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


def runs(page: Path) -> bool:
    """Whether something of the page is run."""
    return bool(python_steps(page) or command_steps(page))


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


def run_python(steps: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Runs the codes one after another in one new process and returns what each printed."""
    for number, code in enumerate(steps):
        (folder / f"block{number}").mkdir()
        (folder / f"block{number}" / "program.py").write_text(code, encoding="utf-8")
    run_words([sys.executable, __file__, str(len(steps))], folder, environment)
    printed: list[str] = json.loads((folder / "printed.json").read_text(encoding="utf-8"))
    return [text.replace(f"{folder}/block{number}/", "") for number, text in enumerate(printed)]


def run_words(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a command in the folder and returns what it printed; AssertionError with its messages where it failed."""
    programs = {"python": [], "radicel": ["-m", "radicel.cli"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}
    command = [sys.executable, *programs[words[0]], *words[1:]] if words[0] in programs else list(words)
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, **environment}, timeout=120
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr
    return done.stdout


def _main(count: int) -> None:
    """In the new process: every block in one namespace, what each prints into a file."""
    import contextlib
    import io
    import types

    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module  # where types are looked up by name
    printed = []
    for number in range(count):
        path = Path(f"block{number}", "program.py").resolve()
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
        printed.append(shown.getvalue())
    Path("printed.json").write_text(json.dumps(printed), encoding="utf-8")


if __name__ == "__main__":
    _main(int(sys.argv[1]))
