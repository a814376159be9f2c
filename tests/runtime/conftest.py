"""Fixtures of the runtime's tests: tiny models, made once a session."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    # Tests are no package (import mode "importlib"), so a helper beside them is loaded by its path.
    full = f"radicel_tests_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The module `tiny.py`: `make_tiny_model`, `tiny_hf_model`, `tiny_config`, `tiny_tokenizer`."""
    return _load("tiny")


@pytest.fixture(scope="session")
def driver() -> ModuleType:
    """The module `driver.py`: `Driver` runs steps without an engine, `sampling` makes a `SampleBatch`."""
    return _load("driver")


@pytest.fixture
def tiny_model(tiny: ModuleType) -> Callable[..., Path]:
    """`tiny_model(tmp_path, "qwen3", seed=0, **config overrides)` → the folder of a checkpoint with its tokenizer."""
    make: Any = tiny.make_tiny_model
    return make


@pytest.fixture(scope="session")
def tiny_llama(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with tied embeddings, shared by all tests that do not change it."""
    path: Path = tiny.make_tiny_model(tmp_path_factory.mktemp("tiny"), "llama")
    return path
