"""Weight formats: one tiny model written in each, loaded, and compared with transformers' model of the same numbers.

In: a name of `FORMATS`, or of a family that GGUF files can hold. Out: the largest difference of a logit. A quantised
file is compared with a model whose weights are what the file's numbers stand for, so the difference is that of reading,
not of quantising.
"""

from __future__ import annotations

import json
import subprocess
import sys
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

__all__ = ["BLOCKY", "FORMATS", "GGUF_FAMILIES", "GGUF_KINDS", "measure_format", "measure_gguf", "peak_of_sharded_load"]

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


def peak_of_sharded_load(device: str, hidden: int = 2048) -> dict[str, float]:
    """Host memory that loading a checkpoint of four files takes at most, in a process of its own, against the largest.

    Returns:
        `largest` file, `whole` checkpoint and `peak` in MB; `peak` is the highest growth of the resident set, on a CPU
        without the model itself. A tiny model is loaded before, so that libraries and driver do not count.
    """
    with tempfile.TemporaryDirectory() as made:
        sizes = _sharded_checkpoint(Path(made) / "large", hidden)
        _sharded_checkpoint(Path(made) / "tiny", 128)
        child = subprocess.run(
            [sys.executable, "-c", _LOAD, made, device], check=True, capture_output=True, text=True, timeout=300
        )
    largest, whole, peak = max(sizes) / 1e6, sum(sizes) / 1e6, float(child.stdout.split()[-1])
    return {"largest": largest, "whole": whole, "peak": peak - (whole if device == "cpu" else 0)}


_LOAD = """
import sys
from pathlib import Path
from radicel.runtime.models import load_model

def memory(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6

def load(name):
    return load_model(Path(sys.argv[1]) / name, device=sys.argv[2], dtype="bfloat16", context_length=64)

load("tiny")
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
model = load("large")
print(memory("VmHWM") - before)
"""


def _sharded_checkpoint(folder: Path, hidden: int, layers: int = 8, shards: int = 4) -> list[int]:
    """A Llama of random bfloat16 numbers in several files; their sizes."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        vocab_size=16 * hidden,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in transformers.AutoModelForCausalLM.from_config(config).named_parameters()}
    parts: dict[str, list[str]] = {f"model-{part + 1:05}-of-{shards:05}.safetensors": [] for part in range(shards)}
    for number, name in enumerate(shapes):
        parts[list(parts)[number * shards // len(shapes)]].append(name)
    for part, names in parts.items():
        save_file({name: torch.randn(shapes[name]).bfloat16() for name in names}, folder / part)
    weight_map = {name: part for part, names in parts.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [(folder / part).stat().st_size for part in parts]
