"""Third-party suites, read from where they are: no invalid value is accepted, and enough rows are right.

A stratified sample (fixed seed) runs by default, the whole suites with the slow tests.
"""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.testing import _byte_compiler

# Right of the whole suite, at least; the figures of docs/constraints.md.
WANTED = {"json_schema_2020-12": 396, "json_schema_draft7": 268, "jsonschemabench_300": 291}
# What llguidance's own reader gets right in its default mode, on the same spellings.
PEER = {"jsonschemabench_300": 237}
REGEX_WANTED = {"regex_facts": 160, "regex_bench": 248}


@pytest.fixture(scope="module")
def bench(repo_root: Path) -> ModuleType:
    path = repo_root / "examples" / "bench" / "constraint_suites.py"
    spec = importlib.util.spec_from_file_location("constraint_suites", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["constraint_suites"] = module  # dataclasses look their module up
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_random_texts_of_real_schemas_are_valid(suites_dir: Path, bench: ModuleType) -> None:
    import jsonschema

    draw = random.Random(1)
    checked = 0
    for row in bench.read(suites_dir, "jsonschemabench_300"):
        try:
            made = Constraint.of(row["schema"])
        except ConstraintError:
            continue
        kind = jsonschema.validators.validator_for(row["schema"], default=jsonschema.Draft202012Validator)
        validator = kind(row["schema"], format_checker=kind.FORMAT_CHECKER)
        for _ in range(4):
            text = random_text(made, draw)
            if text is not None:
                checked += 1
                assert validator.is_valid(json.loads(text)), (row["id"], text)
    assert checked > 800


def random_text(made: Constraint, draw: random.Random, limit: int = 1500) -> str | None:
    """A text from a uniform "model" over the mask that leans towards the end; None where it did not end."""
    compiler = _byte_compiler()
    matcher = compiler.compile(made).matcher()
    row = compiler.vocabulary.empty_mask()
    out = bytearray()
    while len(out) < limit:
        matcher.fill_mask(row)
        bits = [i for i in range(257) if row[i >> 5] >> (i & 31) & 1]
        if 256 in bits and (len(bits) == 1 or draw.random() < 0.5):
            return out.decode()
        closing = [b for b in bits if b in (0x22, 0x5D, 0x7D)]
        lean = min(0.15 + len(out) / 2000, 0.9)
        byte = draw.choice(closing if closing and draw.random() < lean else [b for b in bits if b < 256])
        assert matcher.accept(byte)
        out.append(byte)
    return None


def documents(name: str, folder: Path, bench: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = bench.remotes(folder) if name.startswith("json_schema") else {}
    return found
