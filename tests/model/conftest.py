"""The embedded model, as transformers runs it and as we do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parity import Reference


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Reference:
    """transformers on the embedded model."""
    return Reference(model_dir)


@pytest.fixture(scope="module")
def runtime(model_dir: Path) -> Iterator[Any]:
    """Our runtime on the embedded model in float32, its invariants checked after every step."""
    from radicel.runtime import LocalRuntime

    with LocalRuntime(device="cpu", dtype="float32", kv_tokens=24_000, check_invariants=True) as made:
        yield made


@pytest.fixture
def fresh(runtime: Any) -> Any:
    """The same runtime with an empty cache."""
    runtime.flush_cache()
    return runtime
