"""Fills a model's tensors from safetensors files, from a `.gguf` file, or with random numbers.

In: a model folder of the Hugging Face layout. Out: nothing; the model's tensors are filled in place, each straight to
its part of a merged matrix on the device, converted to the model's dtype. Missing, extra, misshapen and damaged
tensors are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path

import torch

from ...errors import WeightsError
from ..gguf_pointer import POINTER
from .decoder import CausalLM
from .load_bar import load_bar
from .tensor_reader import FLOATS, Stored, TensorReader, stored_tensors

__all__ = ["load_weights", "random_weights", "weight_files"]

INDEX = "model.safetensors.index.json"


def load_weights(model: CausalLM, path: Path) -> None:
    """Fills the model from the safetensors files of `path`, or from the `.gguf` file whose folder it is.

    Raises:
        WeightsError: no files, a damaged one, or a tensor that is missing, extra, twice there or misshapen.
    """
    if (path / POINTER).is_file():
        from .gguf_weights import load_gguf  # few models need the gguf package

        load_gguf(model, path)
        return
    places = model.places()
    found: dict[str, str] = {}
    files = weight_files(path)
    reader = TensorReader(model.device)
    with load_bar(path.name, sum(file.stat().st_size for file in files)) as read:
        for file, listed in files.items():
            _fill_from(file, listed, model, places, found, reader, read)
    reader.wait()
    missing = sorted(places.keys() - found.keys())
    if missing:
        raise WeightsError(f"{path} lacks {_few(missing)}, which {model.config.architecture} needs")
    model.loaded()


def _fill_from(
    file: Path,
    listed: frozenset[str],
    model: CausalLM,
    places: Mapping[str, torch.Tensor],
    found: dict[str, str],
    reader: TensorReader,
    read: Callable[[int], None],
) -> None:
    """Fills the places of one file's tensors; `found` says which file each came from (changed)."""
    stored = stored_tensors(file)
    _check_listed(file, set(stored), listed)
    with open(file, "rb", buffering=0) as raw:
        for name, tensor in stored.items():
            if model.ignores(name):
                continue
            _check_new(file, name, places, found)
            _fill(places[name], tensor, reader, raw, file, name)
            read(tensor.size)
            found[name] = file.name


def weight_files(path: Path) -> dict[Path, frozenset[str]]:
    """The safetensors files of a model folder → the tensors that its index promises in each (none without an index).

    Raises:
        WeightsError: no such files, a damaged index, or one that names a file which is not there.
    """
    index = path / INDEX
    if not index.is_file():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise WeightsError(f"{path} holds no *.safetensors file; convert the weights to safetensors")
        return {file: frozenset() for file in files}
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        by_file: dict[str, set[str]] = {}
        for name, file_name in weight_map.items():
            by_file.setdefault(file_name, set()).add(name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} is damaged: {error!r}") from error
    absent = sorted(name for name in by_file if not (path / name).is_file())
    if absent:
        raise WeightsError(f"{index} names {_few(absent)}, which {path} does not hold; fetch the model again")
    return {path / name: frozenset(names) for name, names in sorted(by_file.items())}


def random_weights(model: CausalLM, seed: int = 0) -> None:
    """Fills the model with random numbers of a usual scale: for benchmarks, which need a shape and no sense."""
    generator = torch.Generator(device=model.device).manual_seed(seed)
    for name, tensor in model.places().items():
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
        else:
            tensor.normal_(0.0, 0.02, generator=generator)


def _check_listed(file: Path, names: set[str], listed: frozenset[str]) -> None:
    absent = sorted(listed - names)
    if absent:
        raise WeightsError(f"{file} lacks {_few(absent)}, which {INDEX} promises there; fetch the model again")


def _check_new(file: Path, name: str, places: Mapping[str, torch.Tensor], found: Mapping[str, str]) -> None:
    if name not in places:
        raise WeightsError(
            f"{file} holds {name}, for which the config has no place; config.json may be another model's"
        )
    if name in found:
        raise WeightsError(f"{name} is in {found[name]} and again in {file}; keep one")


def _fill(place: torch.Tensor, stored: Stored, reader: TensorReader, raw: FileIO, file: Path, name: str) -> None:
    """Copies a tensor to its place."""
    if stored.kind not in FLOATS:
        raise WeightsError(f"{file}: {name} is stored as {stored.kind}; only {', '.join(FLOATS)} are supported")
    if stored.shape != tuple(place.shape):
        raise WeightsError(
            f"{file}: {name} has shape {list(stored.shape)}, but the config makes it {list(place.shape)}"
        )
    try:
        reader.fill(place, raw, stored)
    except (OSError, RuntimeError) as error:
        raise WeightsError(f"{file}: {name} cannot be read: {error}") from error


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
