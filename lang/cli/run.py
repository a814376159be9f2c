"""`radicel run`: a program in a file, run once with arguments from the command line.

In: `FILE[:PROGRAM]`, key=value pairs. Out: the variables, printed one after the other, or a dict for JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from ..backend import Backend, Meta
from ..default_backend import get_default_backend
from ..errors import ProgramError
from ..program import Program
from ..state import State

__all__ = ["load_program", "read_arguments", "run_program"]


def run_program(target: str, pairs: Sequence[tuple[str, str]], *, model: str | None, as_json: bool) -> dict[str, Any]:
    """Runs a program and returns what it made; without `as_json` also prints it.

    Args:
        target: `FILE[:PROGRAM]`.
        pairs: arguments as written on the command line.
        model: what `LocalRuntime` is given; without one, a default backend that the file sets is used.
        as_json: whether the caller prints the result.

    Raises:
        ProgramError: no such file or program, or an argument that it cannot take.
    """
    program = load_program(target)
    arguments = read_arguments(program, pairs)
    with _backend(model) as backend:
        state = program.run(backend=backend, **arguments)
        result = _result(state)
    if not as_json:
        _show(result)
    return result


# ---- the program


def load_program(target: str) -> Program:
    """The program that `FILE[:PROGRAM]` names; without a name the file's only one, or the one called `main`."""
    path, name = _split(target)
    module = _load(path)
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if name is None:
        own = {key: value for key, value in programs.items() if value.__module__ == module.__name__} or programs
        name = next(iter(own)) if len(own) == 1 else "main"
    if name not in programs:
        there = ", ".join(programs) or "none"
        raise ProgramError(f"{path} has no program {name!r}; programs in it: {there}. Say which: {path}:PROGRAM")
    return programs[name]


def _split(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    path, program = (Path(file), name) if colon and name.isidentifier() else (Path(target), None)
    if not path.is_file():
        raise ProgramError(f"no file {path} (the command takes FILE or FILE:PROGRAM)")
    return path, program


def _load(path: Path) -> ModuleType:
    """Runs the file as a module, so that what stands under `if __name__ == "__main__":` does not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ProgramError(f"{path} is not a Python file (its name ends in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` would
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# ---- its arguments


def read_arguments(program: Program, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The arguments, each read by its parameter's annotation: text as it is, other types from text or JSON.

    Raises:
        ProgramError: an argument that the program does not have, lacks, is given twice, or cannot read.
    """
    signature = inspect.signature(program)
    hints = _hints(program)
    arguments: dict[str, Any] = {}
    for key, text in pairs:
        if key in arguments:
            raise ProgramError(f"-a {key}=… is given twice")
        arguments[key] = _read(key, _text(text), hints.get(key, str))
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        names = ", ".join(list(signature.parameters)[1:]) or "none"
        raise ProgramError(f"{program.name}: {error} (parameters: {names}; give them with -a key=value)") from error
    return arguments


def _hints(program: Program) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(program))
    except (NameError, TypeError):  # an annotation of names that exist for type checkers only
        return {}


def _text(value: str) -> str:
    if not value.startswith("@"):
        return value
    path = Path(value[1:])
    if not path.is_file():
        raise ProgramError(f"no file {path} to read an argument from (a value that starts with @ names a file)")
    return path.read_text(encoding="utf-8")


def _read(key: str, text: str, annotation: Any) -> Any:
    if annotation in (str, Any, object):
        return text
    adapter = TypeAdapter(annotation)
    try:
        return adapter.validate_strings(text)
    except ValidationError:
        pass
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ProgramError(f"-a {key}={text!r} is not of type {_type_name(annotation)}: {first['msg']}") from error


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


# ---- what runs it, and what comes out


@contextlib.contextmanager
def _backend(model: str | None) -> Iterator[Backend]:
    default = get_default_backend()
    if model is None and default is not None:
        yield default
        return
    from ..runtime.local import LocalRuntime

    with LocalRuntime(model) as runtime:
        yield runtime


_META = ("finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "forced_tokens")


def _result(state: State) -> dict[str, Any]:
    """What the program made, as plain data."""
    values: dict[str, Any] = {}
    metas: dict[str, Any] = {}
    for name in (name for name in state._stream.names() if not name.startswith("_gen_")):  # not of unnamed gens
        values[name] = to_jsonable_python(state[name], fallback=str)
        metas[name] = _plain_meta(state.meta(name))
    returned = to_jsonable_python(state.ret_value, fallback=str)
    return {
        "variables": values,
        "returned": returned,
        "text": state.text(),
        "messages": state.messages(),
        "meta": metas,
    }


def _plain_meta(meta: Any) -> Any:
    if isinstance(meta, list):
        return [_plain_meta(one) for one in meta]
    return {key: meta[key] for key in _META} if isinstance(meta, Meta) else None


def _show(result: Mapping[str, Any]) -> None:
    shown = dict(result["variables"])
    if result["returned"] is not None:
        shown["(returned)"] = result["returned"]
    if not shown:
        print(result["text"])
    for name, value in shown.items():
        print(f"{name}: {_lines(value)}")


def _lines(value: Any) -> str:
    """A value as text; the lines after the first are indented, so that names stand out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.strip().replace("\n", "\n    ")
