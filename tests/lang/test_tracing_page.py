"""The page about tracing: its programs print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tracing.md"
PAIRS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_every_program_of_the_page_says_what_it_prints():
    assert len(PAIRS) == 4
    assert PAGE.read_text(encoding="utf-8").count("```python") == 4


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_the_page_is_what_its_programs_print(number, tmp_path):
    program, printed = PAIRS[number]
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace(f"{tmp_path}/", "") == printed
