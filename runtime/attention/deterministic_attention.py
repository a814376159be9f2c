"""Attention whose numbers depend on the query and on what it sees, and on nothing else in the step.

In: a ragged batch. Out: the same as `kernels.reference.ragged_attention`; the bits of a query's result are the same
whatever runs beside it, in whichever chunk it comes, and wherever its keys and values were computed. There is one plan
for all steps: no sequence shares a read, and tiles lie at fixed positions (`kernels.reference_fixed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...kernels import find, has_triton
from ..batch import StepBatch
from ..kv_cache import upload

__all__ = ["DeterministicAttention", "DeterministicMeta", "create"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class DeterministicMeta:
    """One step: the page table, int32 [B] rows, [B + 1] first tokens and [B] lengths, and the tiles of a kernel."""

    page_table: Tensor
    rows: Tensor
    starts: Tensor
    lens: Tensor
    tiles: Tensor | None


def create(
    *, num_heads: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> DeterministicAttention:
    """Found by the file's name."""
    return DeterministicAttention(num_heads, kv_heads, head_dim, device, dtype)


class DeterministicAttention:
    """The implementation of `Attention` for `deterministic=True`."""

    def __init__(self, num_heads: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.scale = head_dim**-0.5
        self._attend = find("fixed_attention", device)
        self._per_tile = 0
        if device.type == "cuda" and has_triton() and dtype is not torch.float64:
            from ...kernels.fixed_attention import tile_positions

            self._per_tile = tile_positions(num_heads // kv_heads, head_dim, dtype)

    def prepare(self, batch: StepBatch, page_table: Tensor) -> DeterministicMeta:
        """Sends what describes the step to the device."""
        starts = np.concatenate(([0], np.cumsum(batch.q_lens)))
        num = batch.num_seqs
        sent = upload(np.concatenate((batch.rows, batch.kv_lens, starts)).astype(np.int32), self.device)
        tiles = None
        if self._per_tile:
            from ...kernels.fixed_attention import fixed_tiles

            tiles = upload(fixed_tiles(batch.kv_lens - batch.q_lens, batch.kv_lens, self._per_tile), self.device)
        return DeterministicMeta(page_table, sent[:num], sent[2 * num :], sent[num : 2 * num], tiles)

    def attend(
        self,
        layer_k: Tensor,
        layer_v: Tensor,
        q: Tensor,
        meta: DeterministicMeta,
        *,
        window: int = 0,
        softcap: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        """Attention of one layer; see `Attention.attend`."""
        scale = self.scale if scale is None else scale
        args = (meta.page_table, meta.rows, meta.starts, meta.lens, scale, window, softcap, meta.tiles)
        out: Tensor = self._attend(q, layer_k, layer_v, *args)
        return out
