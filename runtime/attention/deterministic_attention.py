"""Attention whose numbers depend on the query and on what it sees, and on nothing else in the step.

In: a ragged batch. Out: the same as `kernels.reference.ragged_attention`; the bits of a query's result are the same
whatever runs beside it, in whichever chunk it comes, and wherever its keys and values were computed. There is one plan
for all steps: no sequence shares a read, and tiles lie at fixed positions (`kernels.reference_fixed`).

A step that is replayed as a CUDA graph has the same tiles, in a buffer that stays (`held_tiles`), and beyond them tiles
of nobody. A program reads its own tile, that tile's sequence and what the queries see, so it computes the same bits in
either; programs of nobody end at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels import find, has_triton
from ..batch import StepBatch
from ..kv_cache import upload
from .held_tiles import HeldTiles, starts_of

__all__ = ["DeterministicAttention", "DeterministicMeta", "create"]

Tensor = torch.Tensor

FEW = 8
"""Most new tokens of a row in a step with few tokens a row whose metadata stay where they are."""
FIXED_TOKENS = 512
"""Most tokens of a step with many tokens a row whose metadata stay where they are."""
FIXED_ROWS = 32
"""Most sequences of such a step: each may have a tile more, and a graph launches programs for all of them."""


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
        self._held: HeldTiles | None = None
        self._per_tile = 0
        if device.type == "cuda" and has_triton() and dtype is not torch.float64:
            from ...kernels.fixed_attention import tile_positions

            self._per_tile = tile_positions(num_heads // kv_heads, head_dim, dtype)

    def prepare(self, batch: StepBatch, page_table: Tensor) -> DeterministicMeta:
        """Sends what describes the step to the device."""
        starts = np.append(starts_of(batch), batch.num_tokens)
        num = batch.num_seqs
        sent = upload(np.concatenate((batch.rows, batch.kv_lens, starts)).astype(np.int32), self.device)
        tiles = upload(self._tiles(batch), self.device) if self._per_tile else None
        return DeterministicMeta(page_table, sent[:num], sent[2 * num :], sent[num : 2 * num], tiles)

    def takes_fixed(self, batch: StepBatch, queries: int) -> bool:
        """Whether a step may be replayed: by the kernel any may, with `queries` of 0 where its rows are not too many.
        The kernel's twin asks the device what to do next, which no graph can."""
        return self._per_tile > 0 and (queries > 0 or batch.num_seqs <= FIXED_ROWS)

    def forms(self, num_tokens: int, queries: int) -> tuple[str, ...]:
        """What `prepare_fixed` may say: there is one plan for all steps."""
        return ("any",) if self._per_tile else ()

    def prepare_fixed(self, batch: StepBatch, page_table: Tensor, queries: int) -> str:
        """Writes the tiles of a step to where all of `fixed_meta` are; see `FixedAttention`."""
        self._staying(page_table).send(batch, self._tiles(batch))
        return "any"

    def fixed_meta(self, page_table: Tensor, num_tokens: int, queries: int = 1, form: str = "any") -> DeterministicMeta:
        """What to capture a graph with: steps of up to `num_tokens` tokens, at most `queries` of a sequence, or of any
        number where `queries` is 0."""
        most = self._most_tiles(num_tokens, queries, page_table.shape[0])
        return DeterministicMeta(page_table, *self._staying(page_table).view(most))

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

    def _tiles(self, batch: StepBatch) -> NDArray[np.int32]:
        from ...kernels.fixed_attention import fixed_tiles

        return fixed_tiles(batch.kv_lens - batch.q_lens, batch.kv_lens, self._per_tile)

    def _staying(self, page_table: Tensor) -> HeldTiles:
        """The buffer, made when it is first needed: then it is known how many rows there are."""
        if self._held is None:
            rows = page_table.shape[0]
            most = max(self._most_tiles(FEW * rows, FEW, rows), self._most_tiles(FIXED_TOKENS, 0, rows))
            self._held = HeldTiles(rows, most, self.device)
        return self._held

    def _most_tiles(self, num_tokens: int, queries: int, rows: int) -> int:
        """Of so many tokens: each tile has one at least, and n tokens of a row, which begin anywhere in a tile, lie in
        (n + tile - 2) // tile + 1 at most; those of R rows therefore in n // tile + 2·R."""
        tile = self._per_tile
        if queries:
            return min(num_tokens, rows * ((queries + tile - 2) // tile + 1))
        return min(num_tokens, num_tokens // tile + 2 * min(rows, FIXED_ROWS))
