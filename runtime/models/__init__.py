"""Models: which architectures there are, and how one gets from a folder to the device.

In: a folder of the Hugging Face layout. Out: `model_config` (its shape) and `load_model` (a `CausalLM` with weights).
To add an architecture: one file with `read_config` and a `CausalLM`, and its line in `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import InvalidValueError, UnsupportedModelError
from . import gemma2, gemma3, granite, llama, mistral, mixtral, olmo2, phi3, qwen2, qwen3, qwen3_moe, smollm3
from .config import ModelConfig, RopeConfig, hf_config, raw_config
from .decoder import CausalLM
from .loader import load_weights, random_weights
from .packed import pack

__all__ = [
    "ARCHITECTURES",
    "CausalLM",
    "ModelConfig",
    "RopeConfig",
    "load_model",
    "model_config",
    "pack",
    "resolve_dtype",
]


@dataclass(frozen=True)
class Architecture:
    """How one architecture is read and run.

    Attributes:
        model_type: its name in `config.json` where no architecture is named.
        read_config: from the transformers config object.
        model: its class.
    """

    model_type: str
    read_config: Callable[[Any], ModelConfig]
    model: type[CausalLM]


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama", llama.read_config, llama.Llama),
    "MistralForCausalLM": Architecture("mistral", mistral.read_config, mistral.Mistral),
    "Qwen2ForCausalLM": Architecture("qwen2", qwen2.read_config, qwen2.Qwen2),
    "Qwen3ForCausalLM": Architecture("qwen3", qwen3.read_config, qwen3.Qwen3),
    "Gemma2ForCausalLM": Architecture("gemma2", gemma2.read_config, gemma2.Gemma2),
    "Gemma3ForCausalLM": Architecture("gemma3_text", gemma3.read_config, gemma3.Gemma3),
    "Gemma3ForConditionalGeneration": Architecture("gemma3", gemma3.read_config_of_images, gemma3.Gemma3OfImages),
    "Phi3ForCausalLM": Architecture("phi3", phi3.read_config, phi3.Phi3),
    "SmolLM3ForCausalLM": Architecture("smollm3", smollm3.read_config, smollm3.SmolLM3),
    "Olmo2ForCausalLM": Architecture("olmo2", olmo2.read_config, olmo2.Olmo2),
    "GraniteForCausalLM": Architecture("granite", granite.read_config, granite.Granite),
    "MixtralForCausalLM": Architecture("mixtral", mixtral.read_config, mixtral.Mixtral),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", qwen3_moe.read_config, qwen3_moe.Qwen3Moe),
}

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def model_config(path: Path) -> ModelConfig:
    """The shape of the model in a folder.

    Raises:
        ModelNotFoundError: no model there.
        UnsupportedModelError: an architecture, or a feature of one, that we do not have.
        ModelError: a config that makes no sense.
    """
    path = Path(path)
    return _architecture(path).read_config(hf_config(path))


def load_model(
    path: Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype | str = "auto",
    load_format: str = "auto",
    context_length: int | None = None,
) -> CausalLM:
    """Loads a model onto a device.

    Args:
        path: a folder of the Hugging Face layout.
        device: where to.
        dtype: "float32", "bfloat16", "float16", "float64" or "auto" (see `resolve_dtype`).
        load_format: "auto" reads the weights, "dummy" makes random ones.
        context_length: most positions of a sequence; at most, and without it, the config's.

    Raises:
        ModelError: see `model_config`; `WeightsError` for missing or damaged weights.
        InvalidValueError: an unknown dtype or load format, a context length that the model does not have.
    """
    path, device = Path(path), torch.device(device)
    if load_format not in ("auto", "dummy"):
        raise InvalidValueError(f"load_format={load_format!r} is not known; one of: auto, dummy")
    config = model_config(path)
    if context_length is not None and not 1 <= context_length <= config.context_length:
        raise InvalidValueError(f"context_length={context_length} must be 1 to {config.context_length} for this model")
    make = ARCHITECTURES[config.architecture].model
    model = make(config, device=device, dtype=resolve_dtype(config, device, dtype), context_length=context_length)
    if load_format == "dummy":
        random_weights(model)
    else:
        load_weights(model, path)
    return model


def resolve_dtype(config: ModelConfig, device: torch.device | str, dtype: torch.dtype | str) -> torch.dtype:
    """The dtype to compute in; "auto" is float32 on a CPU, on a GPU the checkpoint's half precision or bfloat16.

    Raises:
        InvalidValueError: a dtype that we do not compute in.
    """
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        half = config.dtype if config.dtype in ("bfloat16", "float16") else "bfloat16"
        name = half if torch.device(device).type == "cuda" else "float32"
    if name not in DTYPES:
        raise InvalidValueError(f"dtype={name!r} is not known; one of: auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _architecture(path: Path) -> Architecture:
    raw = raw_config(path)
    names = raw.get("architectures") or []
    for name, architecture in ARCHITECTURES.items():
        if name in names or (not names and raw.get("model_type") == architecture.model_type):
            return architecture
    what = ", ".join(map(str, names)) or f"model_type {raw.get('model_type')!r}"
    raise UnsupportedModelError(f"{what} in {path} is not supported; known: {', '.join(ARCHITECTURES)}")
