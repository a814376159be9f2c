"""Third-party suites, read from where they are: no invalid value is accepted, and enough rows are right.

A stratified sample (fixed seed) runs by default, the whole suites with the slow tests.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError

# Right of the whole suite, at least; the figures of docs/constraints.md.
WANTED = {"json_schema_2020-12": 396, "json_schema_draft7": 268, "jsonschemabench_300": 291}
# What llguidance's own reader gets right in its default mode, on the same spellings.
PEER = {"jsonschemabench_300": 237}
REGEX_WANTED = {"regex_facts": 160, "regex_bench": 248}


@pytest.fixture(scope="module")
def bench(repo_root: Path) -> ModuleType:
    return loaded(repo_root, "constraint_suites")


@pytest.fixture(scope="module")
def maker(repo_root: Path) -> ModuleType:
    return loaded(repo_root, "constraint_samples")


def loaded(repo_root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, repo_root / "examples" / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def sample(rows: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """Some rows of every file or split."""
    strata: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        strata.setdefault(str(row.get("file") or row.get("split") or row.get("src")), []).append(row)
    draw = random.Random(20)
    share = size / len(rows)
    return [row for stratum in strata.values() for row in draw.sample(stratum, max(1, round(share * len(stratum))))]


@pytest.mark.parametrize("name", WANTED)
def test_a_sample_has_no_false_accept(name: str, suites_dir: Path, bench: ModuleType) -> None:
    rows = sample(bench.read(suites_dir, name), 60)
    found = bench.count_schemas(rows, documents(name, suites_dir, bench), bench.radicel_maker(None), bench.reachable)
    assert found.false_accepts == []
    assert found.right >= 0.6 * len(rows)


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # on a slow machine beside another test
@pytest.mark.parametrize("name", WANTED)
def test_whole_suites(name: str, suites_dir: Path, bench: ModuleType) -> None:
    rows = bench.read(suites_dir, name)
    found = bench.count_schemas(rows, documents(name, suites_dir, bench), bench.radicel_maker(None), bench.reachable)
    assert found.false_accepts == []
    assert found.right >= max(WANTED[name], PEER.get(name, 0))


@pytest.mark.parametrize("name", REGEX_WANTED)
def test_regexes(name: str, suites_dir: Path, bench: ModuleType) -> None:
    found = bench.count_regexes(bench.read(suites_dir, name), None)
    assert found.false_accepts == []
    assert found.right >= REGEX_WANTED[name]


def test_regexes_that_must_be_refused(suites_dir: Path, bench: ModuleType) -> None:
    for row in bench.read(suites_dir, "regex_must_refuse"):
        with pytest.raises(ConstraintError):
            Constraint.regex(row["pattern"])


@pytest.mark.parametrize("name", WANTED)
def test_what_a_uniform_model_makes_is_valid(name: str, suites_dir: Path, bench: ModuleType, maker: ModuleType) -> None:
    rows = sample(bench.read(suites_dir, name), 16)
    found = maker.count(name, rows, documents(name, suites_dir, bench), samples=20)
    assert found.wrong == []
    assert found.samples >= 150


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # on a slow machine beside another test
@pytest.mark.parametrize("name", WANTED)
def test_what_a_uniform_model_makes_of_whole_suites(
    name: str, suites_dir: Path, bench: ModuleType, maker: ModuleType
) -> None:
    found = maker.count(name, bench.read(suites_dir, name), documents(name, suites_dir, bench), samples=20)
    assert found.wrong == []
    assert found.samples >= 0.9 * 20 * found.schemas - found.unchecked
    assert found.unfinished <= 20


def test_a_wrong_value_would_be_noticed(maker: ModuleType) -> None:
    schema = {"properties": {"foo": {"format": "date"}}, "multipleOf": 0.1}
    validator = maker.checker(schema, None, {})
    problems = [
        maker.problem(text, schema, validator)
        for text in ('{"foo": "2024-02-30"}', '{"foo": 1, "foo": 2}', "0.25", "0.3", '[{"foo": 1, "foo": 2}]')
    ]
    assert problems[0] is not None
    assert problems[1:] == ["'foo' stands twice", "0.25 is no multiple of 0.1", None, None]


def documents(name: str, folder: Path, bench: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = bench.remotes(folder) if name.startswith("json_schema") else {}
    return found
