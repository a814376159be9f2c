"""`make demo` says what is in the e-mails: every fact of every row."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from radicel.runtime import LocalRuntime

pytestmark = pytest.mark.model

# name, e-mail, phone, company, kind, goods
FACTS = [
    ("Zoë Müller", "zoe.mueller@example.org", "+49 30 901820", "Lindenhof Verlag", "a delivery", "printers"),
    ("José Hernández", "jose.hernandez@cafe-luna.example", None, "Café Luna", "an order", "coffee"),
    ("Åsa Lindström", "asa.lindstrom@bageri.example", "555 0123", "Lindströms Bageri", "a delivery", "bread"),
    ("Fionn O'Brien", "fionn.obrien@boats.example", "+353 1 55 5014", "Sea Otter Boats", "an order", "sails"),
]


@pytest.fixture(scope="module")
def example(repo_root: Path) -> Any:
    spec = importlib.util.spec_from_file_location("extract_contacts", repo_root / "examples" / "extract_contacts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["extract_contacts"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("forced_runs", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_facts_are_right(example: Any, model_dir: Path, forced_runs: bool) -> None:
    mails = [file.read_text(encoding="utf-8").strip() for file in sorted(example.EMAILS.glob("*.txt"))]
    with LocalRuntime(model_dir, device="cpu", forced_runs=forced_runs, check_invariants=True) as runtime:
        states = example.read_email.run_batch([{"mail": mail} for mail in mails], backend=runtime, temperature=0)
        for state, (name, email, phone, company, kind, goods) in zip(states, FACTS, strict=True):
            assert state.error() is None
            assert state["contact"] == example.Contact(name=name, email=email, phone=phone, company=company)
            assert state["answer"] == [kind, goods]
        stats = runtime.stats()
        assert stats.cached_tokens + stats.computed_tokens >= stats.prompt_tokens
        assert stats.computed_tokens < stats.prompt_tokens / 5
        assert stats.forced_tokens > 40


def test_a_file_that_is_too_long_is_a_row_of_its_own(example: Any, tmp_path: Path, repo_root: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("word " * 9_000, encoding="utf-8")
    good = example.EMAILS / "01_printers.txt"
    done = subprocess.run(
        [sys.executable, str(repo_root / "examples" / "extract_contacts.py"), str(long), str(good)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "long.txt: ContextLengthError" in done.stdout
    assert "Zoë" in done.stdout
    assert "from the cache" in done.stdout
