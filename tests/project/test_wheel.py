"""The wheel holds every module, installs over an environment's packages, and is typed."""

from __future__ import annotations

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import source_tree as src

PYPROJECT = (src.ROOT / "pyproject.toml").read_text(encoding="utf-8")
VERSION = re.search(r'^version = "(.*)"$', PYPROJECT, re.M)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what is needed, so that the checkout gets no build folder."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("lang", "runtime", "kernels"):
        shutil.copytree(src.ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(src.ROOT / name, copy)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "dist", copy, cwd=copy)
    (built,) = (copy / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with the wheel alone, which sees this environment's packages (but not its editable install: the hooks
    of a folder that a .pth file names are not run)."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "environment.pth").write_text("\n".join(others) + "\n")
    return python


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packed = {name for name in names if name.endswith(".py")}
    expected = {
        str(Path(*package.split(".")) / path.relative_to(folder))
        for package, folder in src.FOLDERS.items()
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert packed == expected
    assert "radicel/py.typed" in names
    assert {f"radicel/seeing/page/page.{kind}" for kind in ("css", "js")} <= set(names)
    assert {name.split("/")[0] for name in names} == {"radicel", f"radicel-{VERSION[1]}.dist-info" if VERSION else ""}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_module_imports_from_the_wheel(clean_python: Path) -> None:
    code = (
        "import importlib, radicel, sys\n"
        f"assert radicel.__file__.startswith({str(clean_python.parents[1])!r}), radicel.__file__\n"
        f"for name in {sorted(src.modules())!r}: importlib.import_module(name)\n"
        "print(len([name for name in sys.modules if name.split('.')[0] == 'radicel']))\n"
    )
    assert int(run(clean_python, "-c", code, cwd=clean_python.parent)) >= len(src.modules())


def test_the_command_is_installed(clean_python: Path) -> None:
    assert VERSION is not None
    assert run(clean_python.parent / "radicel", "--version").strip() == f"radicel {VERSION[1]}"


def test_one_version(wheel: Path) -> None:
    """pyproject.toml has it; the rest reads the installed metadata."""
    assert VERSION is not None
    assert importlib.metadata.version("radicel") == VERSION[1]
    assert wheel.name.startswith(f"radicel-{VERSION[1]}-")
    for module, path in src.modules().items():
        assert f'"{VERSION[1]}"' not in path.read_text(encoding="utf-8"), module
    assert f"## {VERSION[1]}" in (src.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        meta = email.message_from_bytes(archive.read(name))
    assert meta["Requires-Python"] == ">=3.10"
    assert meta["License-Expression"] == "Apache-2.0"
    needs = meta.get_all("Requires-Dist") or []
    assert "torch<2.14,>=2.8" in needs
    assert any(re.match(r"triton; .*Linux", need) for need in needs), "triton is for Linux, and each torch pins its own"


def test_imports_are_declared() -> None:
    """Each third-party package that the product imports is in pyproject.toml."""
    block = re.search(r"^dependencies = \[(.*?)^\]", PYPROJECT, re.M | re.S)
    assert block is not None
    declared = {re.split(r"[\[;<>=! ]", line.strip(' ",'))[0].replace("-", "_") for line in block[1].split("\n")}
    optional = {"openai"}
    declared.add("pydantic_core")  # pydantic pins it exactly
    used = {
        imported.split(".")[0]
        for module in src.modules()
        for imported in src.imported_modules(module, "module", "function", "typing")
    }
    third_party = {name for name in used if name not in sys.stdlib_module_names and name not in ("radicel", "")}
    assert third_party - declared - optional == set()


USER = """
from radicel import SamplingParams, function, gen
from radicel.runtime import LocalRuntime

def take(runtime: LocalRuntime, params: SamplingParams) -> None:
    runtime.close()
    wrong: int = params
"""


@pytest.mark.slow
def test_users_type_checkers_see_the_types(clean_python: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(clean_python), "user.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert re.fullmatch(
        r'user\.py:\d+: error: Incompatible types in assignment \(expression has type "SamplingParams".*\n'
        r"Found 1 error in 1 file \(checked 1 source file\)\n",
        done.stdout,
    ), done.stdout + done.stderr
