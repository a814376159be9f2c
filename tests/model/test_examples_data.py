"""Every program of `examples/programs` as a command, on its own rows and on the public files, without a model.

What answers writes whatever is allowed, so each row must succeed and the answers mean nothing.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from babbling import Babbler
from example_programs import DATA, PROGRAMS, load

common = load("common")

BBH = ("boolean_expressions", "hyperbaton", "penguins_in_a_table", "snarks")
PUBLIC = {
    "essay_judge": ["articles.jsonl"],
    "few_shot_maths": ["gsm8k_test.jsonl", "gsm8k_train_head200.jsonl"],
    "multi_chain_reasoning": ["gsm8k_test.jsonl"],
    "multi_document_qa": ["hotpotqa_100.jsonl"],
    "multiple_choice": [
        f"bbh_{name}.json" for name in ("boolean_expressions", "hyperbaton", "penguins_in_a_table", "snarks")
    ],
    "react": ["hotpotqa_100.jsonl"],
    "tip_suggestion": ["topic.jsonl"],
    "tool_calls": ["BFCL_v4_simple_python.jsonl", "BFCL_v4_parallel.jsonl"],
    "tree_of_thought": ["gsm8k_test.jsonl"],
    "two_turn_chat": ["mtbench_question.jsonl"],
}
"""Those whose public file is among the data; the others' (agents' calls, documents) are not."""
WITHOUT = {"generative_agents", "json_decoding", "map_reduce"}
ROWS = 25


def test_each_program_has_its_file() -> None:
    assert PUBLIC.keys() | WITHOUT == {path.stem for path in PROGRAMS.glob("*.py")} - {"common"}
    assert not PUBLIC.keys() & WITHOUT


def ran(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints; every row of it succeeded."""
    monkeypatch.setattr(common, "LocalRuntime", Babbler)
    load(name).main(words)
    text = capsys.readouterr().out
    assert "bytes to compute" in text
    assert "answers" in text
    assert "Error" not in text
    return text


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() | WITHOUT))
def test_on_its_own_rows(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran(name, [], monkeypatch, capsys)


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in PUBLIC.items() for file in files])
def test_on_the_public_file(
    name: str, file: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ran(name, ["--data", str(data_dir / file), "--rows", str(ROWS)], monkeypatch, capsys)
    rows = min(ROWS, len(common.read_rows(data_dir / file)))
    calls, left_out = re.search(r" of (\d+) calls", text), re.search(r"left out, because [^:]+: (\d+)", text)
    assert calls is not None
    assert int(calls[1]) + int(left_out[1] if left_out else 0) == rows


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() | WITHOUT))
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The file as a script; Python and PyTorch are started for one of them only (`test_help_of_a_process`)."""
    script = PROGRAMS / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    check_help(capsys.readouterr().out)


def test_help_of_a_process() -> None:
    command = [sys.executable, str(PROGRAMS / "tool_calls.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    check_help(done.stdout)


def check_help(shown: str) -> None:
    for word in ("--data", "--rows", "--model"):
        assert word in shown
    file = shown.partition("format of the default,")[2].split()[0]
    assert (DATA / file).is_file()
