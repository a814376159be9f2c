"""`radicel new NAME`: a starter program and its unit test, to be changed.

In: a name. Out: a folder with `NAME.py` (a typed extraction over a text file) and `test_NAME.py`, which needs no model.
Nothing that is there is overwritten.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import sys
from pathlib import Path

from ..errors import ProgramError
from ..frames import is_library
from .output import print_json

__all__ = ["new"]


def new(args: argparse.Namespace) -> None:
    """Writes the files.

    Raises:
        ProgramError: a name that no module can have, or a folder with something in it.
    """
    name = _module_name(args.name)
    folder = Path(args.folder).expanduser() / args.name
    files = {folder / f"{name}.py": _PROGRAM, folder / f"test_{name}.py": _TEST}
    for file in files:
        if file.exists():
            raise ProgramError(f"{file} is there already and was left as it is; choose another name, or move it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            with file.open("x", encoding="utf-8") as out:
                out.write(text.replace("NAME", name))
    except OSError as error:
        raise ProgramError(f"{folder} cannot be written: {error}") from error
    if args.json:
        print_json({"folder": str(folder), "files": [str(file) for file in files]})
        return
    program, test = files
    print(f"{program}\n{test}\n")
    print(f"run it:   radicel run {program} -a text=@FILE")
    print(f"test it:  python {test}")


def _module_name(name: str) -> str:
    module = name.replace("-", "_")
    if not module.isidentifier() or keyword.iskeyword(module) or not module.isascii():
        raise ProgramError(f"{name!r} is no name for a Python module; use letters, digits and _, such as letters")
    if module in sys.stdlib_module_names or module in _TAKEN or _is_installed(module):
        raise ProgramError(
            f"{name!r} is taken: a Python module or the starter itself has that name; choose another one"
        )
    return module


def _is_installed(module: str) -> bool:
    """Whether a library has the name: the starter would stand in its way."""
    found = importlib.util.find_spec(module)
    return found is not None and is_library(module, found.origin or "")


_TAKEN = {"radicel", "pytest", "pydantic"} | {
    *("Found", "Literal", "BaseModel", "Field", "Path", "MockBackend", "LocalRuntime"),
    *("assistant", "function", "gen", "system", "user", "state", "states", "text", "texts", "file", "runtime"),
}

_PROGRAM = '''\
"""NAME: reads a text and answers with a typed value.

    radicel run NAME.py -a text=@letter.txt      # a program in a file, its argument from another file
    radicel explain NAME.py                      # what it would compute, before it runs
    python NAME.py letter.txt report.txt         # many texts at the same time
"""

import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from radicel import assistant, function, gen, system, user


class Found(BaseModel):
    """What is asked for: the model's answer is forced to be one of these. Change it to what you need."""

    kind: Literal["letter", "report", "story", "other"]
    title: str = Field(max_length=80)
    people: list[str] = Field(max_length=8)


@function(temperature=0)
def NAME(s, text: str):
    s += system("You read texts carefully and answer briefly.")
    s += user(f"Here is a text.\\n\\n{text}\\n\\nWhat kind of text is it, what would be its title, who is named in it?")
    s += assistant(gen("found", schema=Found, max_tokens=200))


if __name__ == "__main__":
    from radicel.runtime import LocalRuntime

    if len(sys.argv) < 2:
        sys.exit("usage: python NAME.py TEXTFILE...")
    with LocalRuntime() as runtime:  # the embedded model; LocalRuntime("Qwen/Qwen2.5-7B-Instruct") is a better one
        texts = [{"text": Path(file).read_text(encoding="utf-8")} for file in sys.argv[1:]]
        states = NAME.run_batch(texts, backend=runtime)
    for file, state in zip(sys.argv[1:], states):
        print(file, state.error() or state["found"])
'''

_TEST = '''\
"""The test of NAME: no model is needed, so it runs anywhere, at once.

    pytest test_NAME.py
    python test_NAME.py
"""

from NAME import Found, NAME

from radicel import MockBackend
from radicel.errors import ConstraintError, IncompleteOutputError


def test_the_answer_is_typed():
    mock = MockBackend({"found": '{"kind": "letter", "title": "To Ada", "people": ["Ada"]}'})
    state = NAME.run(text="Dear Ada, …", backend=mock)
    assert state["found"] == Found(kind="letter", title="To Ada", people=["Ada"])


def test_the_text_is_what_the_model_is_asked_about():
    mock = MockBackend({"found": '{"kind": "other", "title": "", "people": []}'})
    NAME.run(text="Dear Ada, …", backend=mock)
    (request,) = mock.requests
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert "Dear Ada, …" in request.messages[-1]["content"]


def test_an_answer_of_another_form_cannot_happen():
    """A mock honours constraints, as the models do: what your test replies is checked, too."""
    mock = MockBackend({"found": '{"kind": "poem", "title": "", "people": []}'})
    try:
        NAME.run(text="Roses are red", backend=mock)
    except (ConstraintError, IncompleteOutputError):
        return
    raise AssertionError("a kind that is not in Found")


def test_the_program_has_no_problems():
    assert NAME.trace().problems == []


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed", name)
'''
