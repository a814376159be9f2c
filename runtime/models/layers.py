"""The building blocks of a decoder: its tensors by layer, merged projections.

In: a `ModelConfig`. Out: empty tensors on the device, for the loader to fill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..attention import Attention
    from ..kv_cache import KVCache
    from .config import ModelConfig

__all__ = ["Layer", "Step", "empty_layer", "merged_parts"]

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
