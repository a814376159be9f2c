"""The models on this machine: those pulled by name, and those in the hub's cache.

In: the folder of pulled models; the hub's cache folder. Out: a `ModelEntry` for each, the embedded model first. Nothing
is fetched, and no weights are read.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from . import hub

__all__ = ["ModelEntry", "inventory"]


@dataclass(frozen=True)
class ModelEntry:
    """A model that is here, or that `radicel pull` would fetch.

    Attributes:
        name: what `--model` and `LocalRuntime` take.
        pulled: whether it is here, whole.
        size_bytes: of its files; None where it is not here.
        architecture: the first one that its config names; None where it is not here or names none.
        folder: where it is, or will be.
        license: SPDX name, where it is known.
        source: where it comes from.
        default: whether it is the embedded model.
    """

    name: str
    pulled: bool
    size_bytes: int | None
    architecture: str | None
    folder: str
    license: str | None
    source: str
    default: bool = False


def inventory() -> list[ModelEntry]:
    """All of them."""
    entries = []
    for known, folder, pulled in hub.models():
        entries.append(
            ModelEntry(
                known.name,
                pulled,
                _size(folder) if pulled else None,
                _architecture(folder) if pulled else None,
                str(folder),
                known.license,
                known.requirement,
                known.name == hub.DEFAULT_MODEL,
            )
        )
    return [*entries, *_other_folders({entry.folder for entry in entries}), *_hub_entries()]


def _other_folders(known: set[str]) -> list[ModelEntry]:
    """Model folders beside those known by name; they are named by their paths."""
    folders = sorted(
        path.parent for path in (hub.home() / "models").glob("*/config.json") if path.parent.name[0] != "."
    )
    return [
        ModelEntry(str(folder), True, _size(folder), _architecture(folder), str(folder), None, "a local folder")
        for folder in folders
        if str(folder) not in known
    ]


def _hub_entries() -> list[ModelEntry]:
    """What the hub's cache holds in a form that can be run: a config and safetensors."""
    from huggingface_hub.constants import HF_HUB_CACHE

    entries = []
    for repo in sorted(Path(HF_HUB_CACHE).expanduser().glob("models--*--*")):
        snapshots = [folder for folder in (repo / "snapshots").glob("*") if (folder / "config.json").is_file()]
        if snapshots:
            folder = max(snapshots, key=lambda path: path.stat().st_mtime)
            name = repo.name.removeprefix("models--").replace("--", "/")
            pulled = any(folder.glob("*.safetensors"))
            entries.append(
                ModelEntry(name, pulled, _size(folder), _architecture(folder), str(folder), None, "Hugging Face hub")
            )
    return entries


def _size(folder: Path) -> int:
    return sum(os.path.getsize(path) for path in folder.rglob("*") if path.is_file())


def _architecture(folder: Path) -> str | None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return None
