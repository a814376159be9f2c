"""What a model is made of, as one frozen value.

In: a folder with a `config.json` of the Hugging Face layout, read through transformers (it knows every family's
defaults and old spellings). Out: a `ModelConfig`; what our code cannot compute is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ModelError, ModelNotFoundError, UnsupportedModelError
from .rope import RopeConfig, read_rope

__all__ = ["ModelConfig", "RopeConfig", "dense_config", "hf_config", "layer_windows", "raw_config"]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder; families with more to say have a subclass.

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
        windows: of each layer, positions that a query sees at most, 0 for all; empty where all layers see all.
        ropes: of each layer; empty where all have `rope`.
        score_scale: factor of the attention scores; None for 1 / √head_dim.
        score_softcap: bound of the attention scores, 0 for none.
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
    windows: tuple[int, ...] = ()
    ropes: tuple[RopeConfig, ...] = ()
    score_scale: float | None = None
    score_softcap: float = 0.0


Config = TypeVar("Config", bound=ModelConfig)


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


def dense_config(
    hf: Any,
    architecture: str,
    *,
    make: Callable[..., Config] = ModelConfig,  # type: ignore[assignment]
    activation: str = "silu",
    partial_rope: bool = False,
    **features: Any,
) -> Config:
    """The `ModelConfig` of a family with the usual field names.

    Args:
        hf: the transformers config.
        architecture: its name.
        make: the class to make.
        activation: what the family's gate computes.
        partial_rope: whether it may turn a part of each head only.
        features: the family's biases, norms, windows and what else its class has.

    Raises:
        UnsupportedModelError: an activation, rotary scaling, quantisation or window that we do not compute.
        ModelError: sizes that do not fit each other.
    """
    _refuse(hf, architecture, activation, windowed="windows" in features)
    heads, kv_heads = hf.num_attention_heads, hf.num_key_value_heads
    if heads % kv_heads:
        raise ModelError(f"{architecture}: {heads} query heads are no multiple of {kv_heads} key heads")
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // heads
    if head_dim % 2:
        raise ModelError(f"{architecture}: a head of {head_dim} numbers cannot be split in two for the rotation")
    context = hf.max_position_embeddings
    ropes = features.get("ropes")
    rope = (
        ropes[0]
        if ropes
        else read_rope(hf.rope_parameters, context=context, head_dim=head_dim, architecture=architecture)
    )
    if rope.dim and not partial_rope:
        raise UnsupportedModelError(f"{architecture}: a rotary embedding of {rope.dim} of {head_dim} is not supported")
    if rope.kind == "yarn":
        context = max(context, int(rope.original_context * rope.factor))
    return make(
        architecture=architecture,
        hidden=hf.hidden_size,
        intermediate=hf.intermediate_size,
        layers=hf.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=hf.vocab_size,
        context_length=context,
        dtype=str(hf.dtype or "bfloat16").removeprefix("torch."),
        rope=rope,
        norm_eps=hf.rms_norm_eps,
        tied=bool(hf.tie_word_embeddings),
        **features,
    )


def layer_windows(hf: Any, architecture: str) -> tuple[int, ...]:
    """The window of each layer, from `layer_types` or for all layers alike; 0 where a layer sees everything.

    Raises:
        UnsupportedModelError: a kind of layer that we do not compute.
    """
    window = int(getattr(hf, "sliding_window", None) or 0)
    kinds = getattr(hf, "layer_types", None)
    if kinds is None:
        return (window,) * int(hf.num_hidden_layers)
    known: dict[str, int] = {"full_attention": 0, "sliding_attention": window}
    for kind in kinds:
        if kind not in known:
            raise UnsupportedModelError(f"{architecture}: layers of type {kind!r} are not supported")
    return tuple(known[kind] for kind in kinds)


def _refuse(hf: Any, architecture: str, activation: str, *, windowed: bool) -> None:
    """Raises for what would load and then compute something else."""
    found = getattr(hf, "hidden_activation", None) or getattr(hf, "hidden_act", None)
    if found != activation:
        raise UnsupportedModelError(
            f"{architecture}: activation {found!r} is not supported; only {activation!r} is for this architecture"
        )
    if getattr(hf, "quantization_config", None) is not None:
        raise UnsupportedModelError(f"{architecture}: quantised weights are not supported; take the plain checkpoint")
    if not windowed and "sliding_attention" in (getattr(hf, "layer_types", None) or ()):
        raise UnsupportedModelError(f"{architecture}: sliding-window attention is not supported")
