"""SmolLM3: a Llama in which every fourth layer knows nothing of positions (NoPE).

In: its `config.json` and checkpoint names. Out: a `ModelConfig`, a `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config import ModelConfig, dense_config, layer_windows
from .decoder import CausalLM
from .names import ATTENTION, ENDS, MLP, PRE_NORMS
from .rope import NO_ROPE, read_rope

__all__ = ["SmolLM3", "read_config"]


def read_config(hf: Any) -> ModelConfig:
    """From the transformers config of a SmolLM3."""
    name, bias = "SmolLM3ForCausalLM", bool(hf.attention_bias)
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    rope = read_rope(hf.rope_parameters, context=hf.max_position_embeddings, head_dim=head_dim, architecture=name)
    return dense_config(
        hf,
        name,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(hf.mlp_bias),
        windows=layer_windows(hf, name),
        ropes=tuple(rope if turns else NO_ROPE for turns in hf.no_rope_layers[: hf.num_hidden_layers]),
    )


class SmolLM3(CausalLM):
    """A SmolLM3 decoder (Bakouch et al., 2025); layers without positions after Kazemnejad et al., 2023."""

    WEIGHTS: ClassVar[Mapping[str, str]] = {**ENDS, **PRE_NORMS, **ATTENTION, **MLP}
