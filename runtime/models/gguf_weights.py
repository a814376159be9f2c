"""Fills a model's tensors from a `.gguf` file.

In: a model, the file. Out: nothing; each tensor is dequantised in pieces, turned into the layout of the checkpoints
that the model was written for, and copied to its place on the device. Missing, extra and misshapen tensors are refused
by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, dequantize, get_tensor_name_map
from numpy.typing import NDArray

from ...errors import WeightsError
from ..gguf_file import open_gguf
from ..gguf_pointer import source_of
from .decoder import CausalLM
from .load_bar import load_bar

__all__ = ["KINDS", "load_gguf"]

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
"""Kinds of numbers that we read: those that the gguf package turns into floats."""

PAIRED = ("llama", "granite", "smollm3")
"""Architectures whose files keep the two numbers of a rotary pair side by side, instead of half a head apart."""
SHIFTED = ("gemma2", "gemma3")
"""Architectures whose files have 1 added to the weights of norms."""
COMPUTED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are in the config."""
PIECE = 1 << 24
"""Most numbers that are dequantised at once."""

_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def load_gguf(model: CausalLM, folder: Path) -> None:
    """Fills `model` from the file whose folder this is.

    Raises:
        WeightsError: not a whole file, a tensor that is missing, extra or misshapen, or of a kind that we cannot read.
    """
    path = source_of(folder)
    reader, meta = open_gguf(path)
    architecture = meta["general.architecture"]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    by_source: dict[str, list[tuple[str, int | None, torch.Tensor]]] = {}
    for name, source, expert, place in _sources(model, architecture):
        by_source.setdefault(source, []).append((name, expert, place))
    _check(model, path, set(by_source), set(tensors))
    with load_bar(path.name, sum(int(tensors[source].n_bytes) for source in by_source)) as read:
        for source, wanted in by_source.items():
            tensor = tensors[source]
            if tensor.tensor_type.name not in KINDS:
                raise WeightsError(
                    f"{path}: {source} is stored as {tensor.tensor_type.name}; supported are {', '.join(KINDS)}"
                )
            for name, expert, place in wanted:
                _fill(place, tensor, path, expert, _order(name, architecture, model), architecture)
            read(int(tensor.n_bytes))
    model.loaded()


def _sources(model: CausalLM, architecture: str) -> Iterator[tuple[str, str, int | None, torch.Tensor]]:
    """(checkpoint name, the file's name, which expert of it, place)."""
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(number, model.config.layers)
    for name, place in model.places().items():
        match = _EXPERT.search(name)
        whole = _EXPERT.sub(".experts.", name)
        source = names.get_name(whole, try_suffixes=(".weight", ".bias"))
        if source is None:
            raise WeightsError(f"{name} has no name in a GGUF file of architecture {architecture!r}")
        yield name, source, None if match is None else int(match[1]), place


def _check(model: CausalLM, path: Path, wanted: set[str], found: set[str]) -> None:
    if missing := sorted(wanted - found):
        raise WeightsError(f"{path} lacks {_few(missing)}, which {model.config.architecture} needs")
    if extra := sorted(found - wanted - set(COMPUTED)):
        raise WeightsError(f"{path} holds {_few(extra)}, for which {model.config.architecture} has no place")


def _order(name: str, architecture: str, model: CausalLM) -> NDArray[np.int64] | None:
    """The rows of the file's tensor in our order, where they differ."""
    if architecture not in PAIRED or ("q_proj" not in name and "k_proj" not in name):
        return None
    config = model.config
    heads = config.heads if "q_proj" in name else config.kv_heads
    rows = np.arange(heads * config.head_dim, dtype=np.int64).reshape(heads, config.head_dim // 2, 2)
    order: NDArray[np.int64] = rows.swapaxes(1, 2).reshape(-1)
    return order


def _fill(
    place: torch.Tensor, tensor: Any, path: Path, expert: int | None, order: NDArray[np.int64] | None, architecture: str
) -> None:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    wanted = tuple(place.shape)
    if (shape if expert is None else shape[1:]) != wanted:
        raise WeightsError(f"{path}: {tensor.name} has shape {list(shape)}, but the config makes it {list(wanted)}")
    data = tensor.data if expert is None else tensor.data[expert]
    shift = -1.0 if architecture in SHIFTED and tensor.name.endswith("norm.weight") else 0.0
    step = max(1, PIECE // max(1, int(np.prod(wanted[1:]))))
    for first in range(0, wanted[0], step):
        rows = data[first : first + step] if order is None else data[order[first : first + step]]
        values = np.array(dequantize(rows, GGMLQuantizationType(tensor.tensor_type)), np.float32)
        place[first : first + step].copy_(torch.from_numpy(values + shift if shift else values))


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
