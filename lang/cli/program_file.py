"""A program in a file, and its arguments as a command line or a file of rows gives them.

In: `FILE[:PROGRAM]`; key=value pairs; a file with a JSON object a line. Out: a `Program`; arguments of the types that
its annotations name.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import ProgramError
from ..program import Program
from .output import complain

__all__ = ["load_program", "read_arguments", "read_rows"]


# ---- the program


def load_program(target: str) -> Program:
    """The program that `FILE[:PROGRAM]` names; without a name the file's only one, or the one called `main`."""
    path, name = _split(target)
    module = _load(path)
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if name is None:
        own = {key: value for key, value in programs.items() if value.__module__ == module.__name__} or programs
        name = next(iter(own)) if len(own) == 1 else "main"
    if not programs:
        raise ProgramError(f"{path} has no program: put `@function` (from radicel import function) above the function")
    if name not in programs:
        there = ", ".join(programs)
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
    if path.stem in sys.stdlib_module_names:
        complain(f"{path} hides Python's own module {path.stem!r} from what imports that; give it another name")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` would
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# ---- its arguments

_TEXT = (str, Any, object)
"""Annotations of arguments that are taken as they are written."""


def read_arguments(program: Program, pairs: Sequence[tuple[str, str]], *, all_needed: bool = True) -> dict[str, Any]:
    """The arguments, each read by its parameter's annotation: text as it is, other types from text or JSON.

    Args:
        program: whose arguments.
        pairs: as written on the command line.
        all_needed: whether every argument without a default must be among them.

    Raises:
        ProgramError: an argument that the program does not have, lacks, is given twice, or cannot read.
    """
    signature = inspect.signature(program)
    hints = _hints(program)
    arguments: dict[str, Any] = {}
    for key, text in pairs:
        if key in arguments:
            raise ProgramError(f"-a {key}=… is given twice")
        annotation = hints.get(key, str)
        if annotation in _TEXT and _names_a_file(text):
            complain(f"-a {key}={text} is that name itself; -a {key}=@{text} is the text of the file")
        arguments[key] = _read(key, _text(text), annotation)
    try:
        signature.bind_partial(None, **arguments)  # a name that is not there is told before one that is missing
        if all_needed:
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
    return _utf8(path)


def _utf8(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], error.start
        raise ProgramError(
            f"{path} is not UTF-8 text (byte 0x{byte:02x} at position {at}); save it as UTF-8, or convert it: "
            f"iconv -f LATIN1 -t UTF-8 {path}"
        ) from error


def _names_a_file(value: str) -> bool:
    try:
        return "." in value and Path(value).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null character: a text
        return False


def _read(key: str, text: str, annotation: Any) -> Any:
    if annotation in _TEXT:
        return text
    adapter = TypeAdapter(annotation)
    try:
        return adapter.validate_strings(text)
    except ValidationError as error:
        plain = error
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        told = plain if error.errors()[0]["type"] == "json_invalid" else error  # it was not meant as JSON
        reason = told.errors()[0]["msg"]
        raise ProgramError(f"-a {key}={text!r} is not of type {_type_name(annotation)}: {reason}") from error


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The calls in a file: a JSON object of arguments a line, or one JSON list of them.

    Raises:
        ProgramError: no such file, no JSON, or rows that are no objects.
    """
    if not path.is_file():
        raise ProgramError(f"no file {path} to read rows from")
    text = _utf8(path)
    rows: list[Any] = []
    if path.suffix == ".json":
        rows = _parsed(text, str(path))
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                rows.append(_parsed(line, f"{path}, line {number}"))
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ProgramError(f'{path}: row {number} is no JSON object of arguments, such as {{"text": "…"}}')
    if not rows:
        raise ProgramError(f"{path} has no rows")
    return rows


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ProgramError(f"{where}: {error}") from error
