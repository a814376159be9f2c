"""Which tiles of queries a step has, in a buffer at an address that stays: a captured CUDA graph reads it there.

In: a step and its tiles. Out: the arguments of a kernel that takes one program for each tile. A graph launches as many
programs for every step, so the buffer has one sequence more than a step may have: the last, without tokens, which sees
nothing. The tiles that a step does not use are of it, whatever stood there before: they read and write nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..batch import StepBatch
from ..kv_cache import send, upload

__all__ = ["HeldTiles", "TileArgs", "starts_of"]

Tensor = torch.Tensor


class TileArgs(NamedTuple):
    """What a kernel reads: int32 [B] rows of the page table, [B + 1] first tokens, [B] lengths, [N, 2] tiles."""

    rows: Tensor
    starts: Tensor
    lens: Tensor
    tiles: Tensor


class HeldTiles:
    """The tiles of one step after another.

    Args:
        num_seqs: most sequences of a step.
        num_tiles: most tiles of a step.
    """

    def __init__(self, num_seqs: int, num_tiles: int, device: torch.device) -> None:
        self._num_seqs = num_seqs
        shapes = {"rows": num_seqs + 1, "starts": num_seqs + 2, "lens": num_seqs + 1, "tiles": 2 * num_tiles}
        ends = np.cumsum([-(-size // 4) * 4 for size in shapes.values()]).tolist()
        self._places = [slice(begin, begin + size) for size, begin in zip(shapes.values(), [0, *ends[:-1]])]
        self._host = np.zeros(ends[-1], np.int32)
        self._buffer = upload(self._host.copy(), device)

    def view(self, num_tiles: int) -> TileArgs:
        """The part for steps of up to so many tiles."""
        rows, starts, lens, tiles = (self._buffer[place] for place in self._places)
        return TileArgs(rows, starts, lens, tiles.view(-1, 2)[:num_tiles])

    def send(self, batch: StepBatch, tiles: NDArray[np.int32]) -> None:
        """Brings the buffer up to date, without waiting."""
        rows, starts, lens, held = (self._host[place] for place in self._places)
        count = batch.num_seqs
        rows[:count] = batch.rows
        starts[:] = batch.num_tokens
        starts[:count] = starts_of(batch)
        lens[:count], lens[count:] = batch.kv_lens, 0
        held = held.reshape(-1, 2)
        held[:] = self._num_seqs, 0
        held[: len(tiles)] = tiles
        send(self._host, self._buffer)


def starts_of(batch: StepBatch) -> NDArray[np.int32]:
    """The first token of each sequence of a step."""
    starts: NDArray[np.int32] = np.cumsum(batch.q_lens, dtype=np.int32) - batch.q_lens
    return starts
