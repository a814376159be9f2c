"""What a model is made of, as one frozen value.

In: a folder with a `config.json` of the Hugging Face layout, read through transformers (it knows every family's
defaults and old spellings). Out: a `ModelConfig`; what our code cannot compute is refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError, ModelNotFoundError, UnsupportedModelError

__all__ = ["ModelConfig", "RopeConfig", "dense_config", "hf_config", "raw_config"]

ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles.

    Attributes:
        kind: one of `ROPE_KINDS`.
        theta: base of the frequencies.
        factor: by how much long wavelengths are stretched ("linear": all of them).
        low_freq_factor, high_freq_factor, original_context: the borders of the stretch ("llama3").
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a dense decoder.

    Attributes:
        architecture: name in `config.json`, "LlamaForCausalLM".
        hidden, intermediate, layers, heads, kv_heads, head_dim, vocab_size: sizes.
        context_length: most positions of a sequence.
        dtype: the checkpoint's own, "bfloat16".
        rope: rotary position embedding.
        norm_eps: of the RMS norms.
        tied: whether the LM head is the embedding.
        qkv_bias, o_bias, mlp_bias: which projections have a bias.
        qk_norm: whether each query and key head is normed before the rotation.
    """

    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    dtype: str
    rope: RopeConfig
    norm_eps: float
    tied: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def raw_config(path: Path) -> dict[str, Any]:
    """`config.json` of a model folder, as it stands.

    Raises:
        ModelNotFoundError: no such folder, or no `config.json` in it.
        ModelError: the file is no JSON object.
    """
    file = path / "config.json"
    if not file.is_file():
        raise ModelNotFoundError(f"{path} holds no model: there is no config.json in it")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{file} holds a JSON {type(raw).__name__}, not an object")
    return raw


def hf_config(path: Path) -> Any:
    """The transformers config object of a model folder.

    Raises:
        ModelError: transformers refuses the file; its reason is the cause.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:  # transformers raises many unrelated types here
        raise ModelError(f"{path / 'config.json'} is not a usable model config: {error}") from error


def dense_config(hf: Any, architecture: str, **features: bool) -> ModelConfig:
    """The `ModelConfig` of a family with the usual field names; `features` are the family's biases and norms.

    Raises:
        UnsupportedModelError: an activation, rotary scaling, quantisation or window that we do not compute.
        ModelError: sizes that do not fit each other.
    """
    _refuse(hf, architecture)
    heads, kv_heads = hf.num_attention_heads, hf.num_key_value_heads
    if heads % kv_heads:
        raise ModelError(f"{architecture}: {heads} query heads are no multiple of {kv_heads} key heads")
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // heads
    if head_dim % 2:
        raise ModelError(f"{architecture}: a head of {head_dim} numbers cannot be split in two for the rotation")
    return ModelConfig(
        architecture=architecture,
        hidden=hf.hidden_size,
        intermediate=hf.intermediate_size,
        layers=hf.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=hf.vocab_size,
        context_length=hf.max_position_embeddings,
        dtype=str(hf.dtype or "bfloat16").removeprefix("torch."),
        rope=_rope(hf, architecture),
        norm_eps=hf.rms_norm_eps,
        tied=bool(hf.tie_word_embeddings),
        **features,
    )


def _refuse(hf: Any, architecture: str) -> None:
    """Raises for what would load and then compute something else."""
    if hf.hidden_act != "silu":
        raise UnsupportedModelError(f"{architecture}: activation {hf.hidden_act!r} is not supported; only 'silu' is")
    if getattr(hf, "quantization_config", None) is not None:
        raise UnsupportedModelError(f"{architecture}: quantised weights are not supported; take the plain checkpoint")
    if "sliding_attention" in (getattr(hf, "layer_types", None) or ()):
        raise UnsupportedModelError(f"{architecture}: sliding-window attention is not supported")


def _rope(hf: Any, architecture: str) -> RopeConfig:
    rope = dict(hf.rope_parameters or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_KINDS or rope.get("partial_rotary_factor", 1.0) != 1.0:
        known = ", ".join(ROPE_KINDS)
        raise UnsupportedModelError(f"{architecture}: rotary embedding {rope!r} is not supported; known types: {known}")
    return RopeConfig(
        kind=kind,
        theta=float(rope.get("rope_theta", 10000.0)),
        factor=float(rope.get("factor", 1.0)),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_context=int(rope.get("original_max_position_embeddings", hf.max_position_embeddings)),
    )
