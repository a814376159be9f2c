"""Weight formats: one tiny model written in each, loaded, and compared with transformers' model of the same numbers.

In: a name of `FORMATS`, or of a family that GGUF files can hold. Out: the largest difference of a logit. A quantised
file is compared with a model whose weights are what the file's numbers stand for, so the difference is that of reading,
not of quantising.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from agreement import measure
from gguf_write import write_gguf
from radicel.runtime.gguf_file import folder_of_file
from radicel.runtime.models import load_model
from safetensors.torch import load_file, save_file
from tiny_families import make_checkpoint

__all__ = ["BLOCKY", "FORMATS", "GGUF_FAMILIES", "GGUF_KINDS", "measure_format", "measure_gguf"]

GGUF_KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
SAFETENSORS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
GGUF_FAMILIES: dict[str, str] = {
    "llama-2": "llama",
    "llama-3.1": "llama",
    "mixtral": "llama",
    "qwen2.5-small": "qwen2",
    "qwen3-small": "qwen3",
    "qwen3-moe": "qwen3moe",
    "gemma-2": "gemma2",
    "gemma-3": "gemma3",
    "phi-3": "phi3",
    "phi-4-mini": "phi3",
    "smollm3": "smollm3",
    "olmo-2": "olmo2",
    "granite-3": "granite",
}
"""Family → its architecture in a GGUF file."""
BLOCKY = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 32}
"""Sizes that blocks of 256 numbers divide."""
FORMATS = (
    *(f"safetensors {kind}" for kind in SAFETENSORS),
    "safetensors in 3 files",
    *(f"GGUF {kind}" for kind in GGUF_KINDS),
)


def measure_format(name: str) -> dict[str, Any]:
    """Writes a Llama in a format and compares; as `Agreement.as_dict`."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        theirs = make_checkpoint("llama-3", folder / "hf", **(BLOCKY if name.startswith("GGUF") else {}))
        if name.startswith("GGUF"):
            write_gguf(theirs, "llama", name.split()[1], folder / "model.gguf")
            source = folder_of_file(folder / "model.gguf", folder / "home")
        else:
            source = folder / "hf"
            _rewrite(theirs, source, name)
        model = load_model(source, device="cpu", dtype="float32")
    return measure(model, theirs, model.context_length).as_dict()


def measure_gguf(family: str) -> dict[str, Any]:
    """Writes a family as a GGUF file of half-precision numbers and compares; as `Agreement.as_dict`."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        theirs = make_checkpoint(family, folder / "hf")
        write_gguf(theirs, GGUF_FAMILIES[family], "F16", folder / "model.gguf")
        model = load_model(folder_of_file(folder / "model.gguf", folder / "home"), device="cpu", dtype="float32")
    return measure(model, theirs, model.context_length).as_dict()


def _rewrite(theirs: Any, folder: Path, name: str) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    if "files" not in name:
        dtype = SAFETENSORS[name.split()[1]]
        save_file({key: tensor.to(dtype) for key, tensor in tensors.items()}, file)
        theirs.load_state_dict({key: tensor.to(dtype).float() for key, tensor in tensors.items()}, strict=False)
        return
    file.unlink()
    names = sorted(tensors)
    parts = {f"model-{part + 1:05}-of-00003.safetensors": names[part::3] for part in range(3)}
    for part, some in parts.items():
        save_file({key: tensors[key] for key in some}, folder / part)
    weight_map = {key: part for part, some in parts.items() for key in some}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
