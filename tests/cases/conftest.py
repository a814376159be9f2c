"""What the tests of the cases share: the tiny model of the runtime's tests, a runtime on it, and a check after each."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from radicel.runtime import LocalRuntime


def _tiny() -> Any:
    full = "radicel_tests_tiny"
    if full not in sys.modules:
        path = Path(__file__).parent.parent / "runtime" / "tiny.py"
        spec = importlib.util.spec_from_file_location(full, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with random weights; its tokenizer has no BOS."""
    path: Path = _tiny().make_tiny_model(tmp_path_factory.mktemp("cases"), "llama")
    return path


@pytest.fixture(scope="module")
def shared(tiny_path: Path) -> Iterator[LocalRuntime]:
    """One runtime for a module's tests."""
    with LocalRuntime(tiny_path, device="cpu", kv_tokens=6_000, context_length=2_048, check_invariants=True) as made:
        yield made
    thread = made._engine._thread
    assert thread is None or not thread.is_alive()


@pytest.fixture
def rt(shared: LocalRuntime) -> Iterator[LocalRuntime]:
    """The runtime with an empty cache; after the test nothing may be left in it."""
    shared.flush_cache()
    yield shared
    assert_clean(shared)


@pytest.fixture(scope="session")
def embedded() -> Iterator[LocalRuntime]:
    """The embedded model in float32."""
    with LocalRuntime(device="cpu", dtype="float32", kv_tokens=8_000) as made:
        yield made


@pytest.fixture
def clean() -> Callable[[LocalRuntime], None]:
    """`assert_clean`."""
    return assert_clean


def assert_clean(runtime: LocalRuntime) -> None:
    """Waits until nothing runs; then no slot is held and every invariant holds."""
    until = time.monotonic() + 10
    while (stats := runtime.stats()).running or stats.waiting or stats.kv_used:
        assert time.monotonic() < until, f"still held: {stats}"
        time.sleep(0.005)
    runtime.check()
