"""Imports point one way: programs need no runtime, the runtime only the contracts, the kernels neither."""

from __future__ import annotations

import graphlib
import subprocess
import sys

import pytest
import source_tree as src

RUNTIME, KERNELS = "radicel.runtime", "radicel.kernels"

CONTRACTS = {
    "radicel.backend": "requests and results",
    "radicel.chat": "roles and templates",
    "radicel.constraint": "what a text must be",
    "radicel.encode": "prompt parts to ids: the same for every backend that has a tokenizer",
    "radicel.errors": "the tree of exceptions",
    "radicel.heap": "when there is much to do: in a batch, and in the engine",
    "radicel.graph": "what a batch shares",
    "radicel.prompt": "what stands before",
    "radicel.retries": "tries once more what failed its check: the same for programs and direct calls",
    "radicel.sampling": "how to continue",
    "radicel.schema": "types, schemas and their values",
    "radicel.stops": "where a text ends: the same for the mock and the runtime",
}
"""What the runtime may import of the language: the modules both sides agree on (and the sub-modules of packages)."""

LAZY = {
    **{
        f"radicel.cli.{word}": "commands that need the runtime import it when they run"
        for word in ("bench", "chat", "env", "explain", "models", "pull", "run")
    },
    "radicel.accepts": "accepts() asks the runtime's own masks",
}
"""Language modules that may import the runtime, inside functions only."""

LOADED_BY_NAME = {"radicel.lazy": "what stands on the runtime; `radicel.__getattr__` loads it when such a name is used"}
"""Language modules that import the runtime when they are imported, and that no module imports."""

MUTUAL = {
    ("radicel.state", "radicel.branches"): "a state forks into branches, and these are states",
    ("radicel.primitives.expr", "radicel.primitives.text"): "a bare str stands for its literal, which is an expression",
    ("radicel.primitives.select", "radicel.primitives.gen"): "gen(choices=…) is select, and both check names alike",
}
"""Imports inside functions that may point back, module → what it imports; each is used when it is called only."""

WITHOUT_TORCH = [
    "radicel",
    "radicel.cli",
    "radicel.constraint",
    "radicel.runtime",
    "radicel.runtime.batch",
    "radicel.runtime.request",
    "radicel.runtime.hub",
    "radicel.runtime.radix_cache",
    "radicel.runtime.kv_pool",
    "radicel.runtime.scheduler",
    "radicel.runtime.grammar",
    "radicel.runtime.grammar.matcher",
]


def side(module: str) -> str:
    """Which of the three folders a module belongs to; "" for other packages."""
    for package in (RUNTIME, KERNELS, "radicel"):
        if module == package or module.startswith(package + "."):
            return package
    return ""


ALL = sorted(src.modules())


def test_the_folders_are_read() -> None:
    assert {"radicel", "radicel.errors", RUNTIME, f"{RUNTIME}.batch", KERNELS} <= set(ALL)
    assert all(module.split(".")[0] == "radicel" for module in ALL)


@pytest.mark.parametrize("module", [m for m in ALL if side(m) == "radicel"])
def test_the_language_needs_no_runtime_and_no_torch(module: str) -> None:
    at_import = src.imported_modules(module, "module")
    assert not at_import & LOADED_BY_NAME.keys()
    if module in LOADED_BY_NAME:
        return
    assert not {m for m in at_import if side(m) in (RUNTIME, KERNELS) or m.split(".")[0] in ("torch", "triton")}
    in_functions = {m for m in src.imported_modules(module, "function") if side(m) in (RUNTIME, KERNELS)}
    assert not in_functions or module in LAZY, f"{module} imports {in_functions} inside a function"
    assert not {m for m in src.imported_modules(module, "function") if m.split(".")[0] in ("torch", "triton")}


@pytest.mark.parametrize("module", [m for m in ALL if side(m) == RUNTIME])
def test_the_runtime_needs_only_the_contracts(module: str) -> None:
    language = {m for m in src.imported_modules(module, "module", "function", "typing") if side(m) == "radicel"}
    assert not {m for m in language if not any(m == c or m.startswith(c + ".") for c in CONTRACTS)}


@pytest.mark.parametrize("module", [m for m in ALL if side(m) == KERNELS])
def test_kernels_need_neither(module: str) -> None:
    assert not {
        m for m in src.imported_modules(module, "module", "function", "typing") if side(m) in ("radicel", RUNTIME)
    }


def graph() -> dict[str, set[str]]:
    """Module → the modules it imports, at import time and inside functions; not what only type checkers see."""
    found = {}
    for module in ALL:  # what a lazy one imports on use imports nothing of it
        levels = ("module",) if module in LAZY else ("module", "function")
        found[module] = (src.imported_modules(module, *levels) & src.modules().keys()) - {module}
    return found


def test_no_cycles() -> None:
    edges = graph()
    for module, other in MUTUAL:
        edges[module].discard(other)
    tuple(graphlib.TopologicalSorter(edges).static_order())  # raises CycleError naming the cycle


@pytest.mark.parametrize(("module", "other"), MUTUAL)
def test_every_mutual_exception_is_used(module: str, other: str) -> None:
    assert other in src.imported_modules(module, "function")
    assert other not in src.imported_modules(module, "module")


def test_every_lazy_exception_is_used() -> None:
    for module in LAZY.keys() & src.modules().keys():
        assert any(side(m) == RUNTIME for m in src.imported_modules(module, "function")), f"{module} is lazy no more"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_imports_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}; assert 'transformers' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_generic_is_installed_at_top_level() -> None:
    names = "['lang', 'runtime', 'kernels']"
    code = f"import importlib.util as u; assert not [n for n in {names} if u.find_spec(n)]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
