"""Every architecture against transformers, on tiny checkpoints that follow its published configs.

What is compared and how is `examples/bench/models`, which also makes the table of docs/models.md.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from radicel.runtime.models import ARCHITECTURES, load_model, model_config

SCRIPTS = Path(__file__).parents[2] / "examples" / "bench" / "models"


def _script(name: str) -> ModuleType:
    full = f"radicel_bench_models_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module  # dataclasses look themselves up there
        spec.loader.exec_module(module)
    return sys.modules[full]


families, agreement = _script("tiny_families"), _script("agreement")
Made = tuple[Path, Any]

TOLERANCE = 1e-3
"""Most that a float32 logit may be away from transformers'; some 1e-5 are usual."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Name of a family → its folder, and transformers' model."""
    folder = tmp_path_factory.mktemp("families")

    @cache
    def make(name: str) -> Made:
        return folder / name, families.make_checkpoint(name, folder / name)

    return make


def test_every_architecture_has_a_family() -> None:
    assert {family.architecture for family in families.FAMILIES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_logits_and_greedy_texts_equal_transformers(checkpoint: Callable[[str], Made], name: str) -> None:
    path, theirs = checkpoint(name)
    model = load_model(path, device="cpu", dtype="float32", context_length=families.FAMILIES[name].context)
    found = agreement.measure(model, theirs, model.context_length)
    assert found.worst < TOLERANCE, found
    assert found.greedy == agreement.GREEDY
    assert found.scale > 0.1  # logits that are all the same would agree, too


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("mistral", (24,) * 3),
        ("mistral-nemo", (0,) * 3),
        ("gemma-2", (24, 0, 24, 0)),
        ("gemma-3", (24, 24, 24, 24, 24, 0, 24)),
        ("phi-3", (24,) * 3),
        ("smollm3", (0,) * 5),
    ],
)
def test_windows_are_those_of_the_config(
    checkpoint: Callable[[str], Made], name: str, windows: tuple[int, ...]
) -> None:
    assert model_config(checkpoint(name)[0]).windows == windows


def test_short_texts_of_a_long_rope_use_its_short_factors(checkpoint: Callable[[str], Made]) -> None:
    path, theirs = checkpoint("phi-4-mini")
    model = load_model(path, device="cpu", dtype="float32", context_length=64)
    assert agreement.measure(model, theirs, 64).worst < TOLERANCE
