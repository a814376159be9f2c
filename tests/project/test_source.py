"""What every product file keeps to: size, first docstring, syntax and library of the oldest supported Python."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import source_tree as src

MAX_LINES = 400
ALL = sorted(src.modules())

TOO_NEW_MODULES = {"tomllib", "wsgiref.types"}
TOO_NEW_NAMES = {
    "asyncio": {"timeout", "timeout_at", "TaskGroup", "Runner", "Barrier"},
    "builtins": {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"},
    "contextlib": {"chdir"},
    "copy": {"replace"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "verify", "member", "nonmember", "ReprEnum", "EnumCheck", "FlagBoundary", "property"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static", "markcoroutinefunction"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping", "getHandlerByName", "getHandlerNames"},
    "math": {"cbrt", "exp2", "sumprod", "fma"},
    "operator": {"call"},
    "queue": {"ShutDown"},
    "sys": {"exception", "monitoring", "activate_stack_trampoline"},
    "types": {"get_original_bases", "CapsuleType"},
    "typing": {
        "Self", "LiteralString", "Never", "assert_never", "assert_type", "reveal_type", "Required", "NotRequired",
        "Unpack", "TypeVarTuple", "dataclass_transform", "clear_overloads", "get_overloads", "override",
        "TypeAliasType", "get_protocol_members", "is_protocol", "NoDefault", "ReadOnly", "TypeIs",
    },
    "warnings": {"deprecated"},
}  # fmt: skip
"""Names of the standard library that came with Python 3.11 or later, among those one might reach for."""
TOO_NEW_METHODS = {"add_note", "shutdown_immediately"}


@pytest.mark.parametrize("module", ALL)
def test_one_sitting(module: str) -> None:
    lines = src.modules()[module].read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_LINES, f"{module} has {lines} lines; split it"


@pytest.mark.parametrize("module", ALL)
def test_first_docstring(module: str) -> None:
    path = src.modules()[module]
    if path.stat().st_size:
        assert ast.get_docstring(src.tree(path)), f"{module} does not say what comes in and what goes out"


PYTHON_FILES = [*src.modules().values(), *sorted((src.ROOT / "tests").rglob("*.py"))]
PYTHON_FILES += sorted((src.ROOT / "examples").rglob("*.py"))


def too_new(tree: ast.Module) -> list[str]:
    """What a file uses that Python 3.10 does not have."""
    found: list[str] = []
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
            found += [alias.name for alias in node.names if alias.name in TOO_NEW_MODULES]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            newer = TOO_NEW_NAMES.get(node.module or "", set())
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name in newer]
            found += [node.module] if node.module in TOO_NEW_MODULES else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name):
                module = imported.get(node.value.id, "")
                found += [f"{module}.{node.attr}"] if node.attr in TOO_NEW_NAMES.get(module, ()) else []
            found += [f".{node.attr}"] if node.attr in TOO_NEW_METHODS else []
        elif isinstance(node, ast.Name) and node.id in TOO_NEW_NAMES["builtins"]:
            found.append(node.id)
    return found


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(src.ROOT)))
def test_python_310(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path), feature_version=(3, 10))
    assert not too_new(tree)


NEWER = [
    ("import tomllib", "tomllib"),
    ("from typing import Self", "typing.Self"),
    ("import asyncio as a\na.timeout(1)", "asyncio.timeout"),
    ("raise ExceptionGroup('x', [])", "ExceptionGroup"),
    ("import itertools\nitertools.batched([], 2)", "itertools.batched"),
]


@pytest.mark.parametrize(("code", "name"), NEWER)
def test_newer_names_are_found(code: str, name: str) -> None:
    assert too_new(ast.parse(code)) == [name]


@pytest.mark.parametrize("code", ["try:\n  pass\nexcept* ValueError:\n  pass", "type X = int", "def f[T](x: T): ..."])
def test_newer_syntax_is_found(code: str) -> None:
    with pytest.raises(SyntaxError):
        ast.parse(code, feature_version=(3, 10))


LEFT_OVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|breakpoint\(\)|pdb\.set_trace")


@pytest.mark.parametrize("module", ALL)
def test_nothing_left_over(module: str) -> None:
    text = src.modules()[module].read_text(encoding="utf-8")
    assert not LEFT_OVER.search(text)
