"""Reading the product's source: modules, their names as they are imported, and what each imports. No code is run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"radicel": ROOT / "lang", "radicel.runtime": ROOT / "runtime", "radicel.kernels": ROOT / "kernels"}


@dataclass(frozen=True)
class Import:
    """One imported module name: absolute, as written after resolving dots.

    Attributes:
        module: the module named by `import module` or `from module import …`.
        names: the names after `from module import`, which may be sub-modules.
        level: "module" for what importing the file runs, "function" for what a call runs, "typing" under
            TYPE_CHECKING.
        line: where.
    """

    module: str
    names: tuple[str, ...]
    level: str
    line: int


@cache
def modules() -> dict[str, Path]:
    """Every module of the package: dotted name → file."""
    found: dict[str, Path] = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            if "__pycache__" in path.parts:
                continue
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """The file, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(module: str) -> list[Import]:
    """What a module imports, in order."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []
    _visit(tree(path), package, "module", found)
    return found


def _visit(node: ast.AST, package: str, level: str, found: list[Import]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = level
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = "function" if level == "module" else level
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = "typing"
        if isinstance(child, ast.Import):
            found.extend(Import(alias.name, (), level, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - (child.level - 1)] if child.level else []
            name = ".".join([*base, *([child.module] if child.module else [])])
            found.append(Import(name, tuple(alias.name for alias in child.names), level, child.lineno))
        _visit(child, package, inner, found)


def imported_modules(module: str, *levels: str) -> set[str]:
    """The dotted names that a module imports at these levels; `from package import submodule` names the sub-module."""
    found: set[str] = set()
    for one in imports(module):
        if one.level in levels:
            subs = {f"{one.module}.{name}" for name in one.names} & modules().keys()
            found |= subs or {one.module}
            if len(subs) < len(one.names):
                found.add(one.module)
    return found
