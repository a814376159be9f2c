"""Hostile constraints: bounded time and memory, an error that names the keyword, and an engine that goes on unharmed.

The cases run in a process of its own (`tests/support/hostile_constraints.py`), with a limit on its address space.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MOST_SECONDS = 8.0  # of the processor, all threads together; the dearest takes under three on a quiet machine
MOST_MEGABYTES = 1_500  # of the whole process, PyTorch and two engines among them


def _support() -> Any:
    path = Path(__file__).parent.parent / "support" / "hostile_constraints.py"
    spec = importlib.util.spec_from_file_location("radicel_hostile_constraints", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SUPPORT = _support()


@pytest.fixture(scope="module")
def outcomes(tiny_llama: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, SUPPORT.__file__, str(tiny_llama)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, (list(found)[-1:], done.stderr[-3_000:])
    return found


@pytest.mark.parametrize(("name", "wanted"), SUPPORT.NAMES.items(), ids=list(SUPPORT.NAMES))
def test_a_hostile_constraint(outcomes: dict[str, dict[str, Any]], name: str, wanted: str) -> None:
    found = outcomes[name]
    assert found["outcome"] == wanted, found["came"]
    assert found["seconds"] < MOST_SECONDS
    assert found["peak"] < MOST_MEGABYTES
    assert found["unharmed"]
    assert "panic" not in found["came"]
