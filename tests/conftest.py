"""Fixtures that every test folder uses, and what is skipped where: GPU tests without a GPU, suites that are not here.

`RADICEL_SUITES` and `RADICEL_DATA` say where the third-party suites and data are (by default beside the checkout).
Tests that need the embedded model skip where it was not pulled; under `make` they fail instead, saying so.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from radicel.errors import ModelNotFoundError
from radicel.runtime import hub

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def suites_dir() -> Path:
    """The folder of third-party suites; skips where it is absent."""
    return _beside("RADICEL_SUITES", "suites")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of third-party data; skips where it is absent."""
    return _beside("RADICEL_DATA", "data")


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The embedded model's folder."""
    return hub.resolve()


def _beside(variable: str, name: str) -> Path:
    folder = Path(os.environ.get(variable) or ROOT.parent / "shared" / name)
    if not folder.is_dir():
        pytest.skip(f"no {folder}; {variable} says where it is")
    return folder


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files with slow tests first, so that none is left to one worker; marks what cannot run here as skipped."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
    try:
        hub.resolve()
    except ModelNotFoundError as error:
        if os.environ.get("RADICEL_REQUIRE_MODEL"):
            raise pytest.UsageError(str(error)) from error
        for item in items:
            if item.get_closest_marker("model"):
                item.add_marker(pytest.mark.skip(reason=str(error)))
