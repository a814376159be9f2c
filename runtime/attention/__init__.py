"""The attention interface: prepare once per step, attend once per layer.

In: a `StepBatch`, the page table, one layer's keys and values, the step's queries. Out: what the queries gathered.
An implementation is a module `NAME_attention.py` of this folder with a `create(...)`; it is found by that name.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Protocol

import torch

from ...errors import InvalidValueError
from ...kernels import has_triton
from ..batch import StepBatch

__all__ = ["Attention", "attention_names", "make_attention"]

_SUFFIX = "_attention"
_TRITON_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Attention(Protocol):
    """Causal attention of a ragged batch over paged keys and values."""

    def prepare(self, batch: StepBatch, page_table: torch.Tensor) -> Any:
        """What every layer of this step needs to know; called once, after the page table was updated.

        Args:
            batch: the step.
            page_table: int32 [rows, context] on the device.
        """
        ...

    def attend(
        self,
        layer_k: torch.Tensor,
        layer_v: torch.Tensor,
        q: torch.Tensor,
        meta: Any,
        *,
        window: int = 0,
        softcap: float = 0.0,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Attention of one layer, after the step's own keys and values were stored.

        Args:
            layer_k, layer_v: [slots, kv_heads, head_dim].
            q: [T, heads, head_dim].
            meta: what `prepare` gave.
            window: positions that a query of this layer sees at most, its own the last; 0 for all.
            softcap: bounds the scores to softcap · tanh(score / softcap); 0 for none.
            scale: factor of the scores; 1 / √head_dim without it.

        Returns:
            [T, heads, head_dim].
        """
        ...


def attention_names() -> list[str]:
    """The implementations in this folder."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def make_attention(
    name: str,
    *,
    num_heads: int,
    kv_heads: int,
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Attention:
    """The implementation called `name`; "auto" is the best one for the device and the dtype of keys and values.

    Raises:
        InvalidValueError: no such implementation.
    """
    fast = device.type == "cuda" and has_triton() and dtype in _TRITON_DTYPES
    chosen = name if name != "auto" else "triton" if fast else "torch"
    if chosen not in attention_names():
        raise InvalidValueError(f"attention={name!r} is not known; one of: auto, {', '.join(attention_names())}")
    module = importlib.import_module(f".{chosen}{_SUFFIX}", __package__)
    made: Attention = module.create(
        num_heads=num_heads, kv_heads=kv_heads, head_dim=head_dim, device=device, dtype=dtype
    )
    return made
