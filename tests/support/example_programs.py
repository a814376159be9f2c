"""The programs of `examples/programs` as modules: they import each other by their plain names, as scripts do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "programs"
DATA = PROGRAMS.parent / "data"


def load(name: str) -> ModuleType:
    """The module of a program."""
    if str(PROGRAMS) not in sys.path:
        sys.path.insert(0, str(PROGRAMS))
    return importlib.import_module(name)
