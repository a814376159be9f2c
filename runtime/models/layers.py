"""The building blocks of a decoder: its tensors by layer, merged projections, rotary angles.

In: a `ModelConfig`. Out: empty tensors on the device, for the loader to fill, and the tables that need no weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..attention import Attention
    from ..kv_cache import KVCache
    from .config import ModelConfig, RopeConfig

__all__ = ["Layer", "Step", "empty_layer", "merged_parts", "rope_tables"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Step:
    """One step on the device, as a model sees it.

    Attributes:
        token_ids, positions, slots: int64 [T].
        logit_rows: int64 [R], the tokens whose hidden state is wanted; None for all.
        kv: where keys and values are kept.
        attention, meta: how to attend, and what it prepared for this step.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor | None
    kv: KVCache
    attention: Attention
    meta: Any


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer; the projections that read the same input are one matrix each.

    Attributes:
        input_norm, post_norm: [hidden].
        qkv, qkv_bias: [(heads + 2·kv_heads)·head_dim, hidden], and its bias or None.
        q_norm, k_norm: [head_dim] or None.
        o, o_bias: [hidden, heads·head_dim].
        gate_up, gate_up_bias: [2·intermediate, hidden].
        down, down_bias: [hidden, intermediate].
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


def empty_layer(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Layer:
    """A layer whose tensors are allocated and not yet filled."""
    hidden, inter = config.hidden, config.intermediate
    q_rows, qkv_rows = config.heads * config.head_dim, (config.heads + 2 * config.kv_heads) * config.head_dim

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Layer(
        input_norm=new(hidden),
        qkv=new(qkv_rows, hidden),
        qkv_bias=new(qkv_rows) if config.qkv_bias else None,
        q_norm=new(config.head_dim) if config.qk_norm else None,
        k_norm=new(config.head_dim) if config.qk_norm else None,
        o=new(hidden, q_rows),
        o_bias=new(hidden) if config.o_bias else None,
        post_norm=new(hidden),
        gate_up=new(2 * inter, hidden),
        gate_up_bias=new(2 * inter) if config.mlp_bias else None,
        down=new(hidden, inter),
        down_bias=new(hidden) if config.mlp_bias else None,
    )


def merged_parts(config: ModelConfig) -> dict[str, slice]:
    """Where each projection lies in its merged matrix: name → rows."""
    q = config.heads * config.head_dim
    k = q + config.kv_heads * config.head_dim
    v = k + config.kv_heads * config.head_dim
    inter = config.intermediate
    return {
        "q": slice(0, q),
        "k": slice(q, k),
        "v": slice(k, v),
        "gate": slice(0, inter),
        "up": slice(inter, 2 * inter),
    }


def rope_tables(config: ModelConfig, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, [positions, head_dim] each, for `kernels.reference.rotary_store`.

    The angles are computed in float32 whatever the model's dtype: a bfloat16 angle would be off by whole turns.
    """
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), _frequencies(config.rope, config.head_dim))
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat((cos, cos), -1).to(device, dtype),
        torch.cat((-sin, sin), -1).to(device, dtype),
    )


def _frequencies(rope: RopeConfig, dim: int) -> Tensor:
    """float32 [dim / 2], radians per position of each pair.

    "llama3" (Llama 3.1) divides the frequencies of wavelengths beyond the original context by `factor`, keeps the
    short ones, and blends between.
    """
    plain = 1.0 / (rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "default":
        return plain
    waves = 2 * math.pi / plain
    longest_kept = rope.original_context / rope.high_freq_factor
    shortest_cut = rope.original_context / rope.low_freq_factor
    share = (rope.original_context / waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * plain / rope.factor + share * plain
    stretched = torch.where(waves > shortest_cut, plain / rope.factor, plain)
    return torch.where((waves >= longest_kept) & (waves <= shortest_cut), blended, stretched)
