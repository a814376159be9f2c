"""Attention of sequences with a common prefix in plain PyTorch: its keys and values are read once for all of them.

In: queries of some sequences, the keys and values of what they share and of what is each one's own. Out: what the
queries gathered, as if each had read all of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["LEAST_SHARED", "SharedGroup", "attend_shared", "common_prefix", "families", "run_of"]

Tensor = torch.Tensor
Ints = NDArray[np.integer]

LEAST_SHARED = 64
"""Positions that sequences must share for two passes to pay."""


@dataclass(frozen=True)
class SharedGroup:
    """Sequences computed together that begin alike. Every query of them sees all that they share.

    Attributes:
        tokens: which tokens of the step these are: a slice where they lie side by side.
        shared: slots of the common prefix, a slice where they follow each other.
        own: integers [size · num_own], the slots of what comes after it, sequence after sequence.
        size: how many sequences.
        num_queries: of each.
        num_own: positions of each beyond the prefix.
        mask: bool [size, 1 or share · queries, num_own], True where seen; None where all are.
    """

    tokens: slice | Tensor
    shared: slice | Tensor
    own: Tensor
    size: int
    num_queries: int
    num_own: int
    mask: Tensor | None


def run_of(slots: Ints) -> slice | None:
    """The slots as a slice, where each follows the one before."""
    first, count = int(slots[0]), len(slots)
    if int(slots[-1]) - first != count - 1 or (np.diff(slots) != 1).any():
        return None
    return slice(first, first + count)


def families(table: Ints, rows: Ints, seen: Ints) -> list[tuple[NDArray[np.intp], int]]:
    """Which sequences begin alike, and how many positions they share; 0 for those that share too little.

    Args:
        table: [rows, context], the slot of each position.
        rows: of the table, one for each sequence.
        seen: positions that all queries of a sequence see.
    """
    first = table[rows, 0]
    found: list[tuple[NDArray[np.intp], int]] = []
    alone: list[NDArray[np.intp]] = []
    for slot in np.unique(first):
        mine = np.flatnonzero(first == slot)
        shared = common_prefix(table, rows[mine], int(seen[mine].min())) if len(mine) > 1 else 0
        if shared >= LEAST_SHARED:
            found.append((mine, shared))
        else:
            alone.append(mine)
    if alone:
        found.append((np.sort(np.concatenate(alone)), 0))
    return found


def common_prefix(table: Ints, rows: Ints, most: int) -> int:
    """How many of the first `most` positions have the same slots in all rows."""
    if most <= 0:
        return 0
    differs = (table[rows[1:], :most] != table[rows[0], :most]).any(0)
    return int(differs.argmax()) if differs.any() else most


def attend_shared(
    q: Tensor, shared: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], mask: Tensor | None, scale: float
) -> Tensor:
    """What the queries of a group gather, in float32 or wider in between.

    Args:
        q: [size, queries, heads, head_dim].
        shared: keys and values of the prefix, [positions, kv_heads, head_dim] each.
        own: keys and values after it, [size, positions, kv_heads, head_dim] each.
        mask: see `SharedGroup`.
        scale: of the scores.

    Returns:
        [size · queries, heads, head_dim].
    """
    size, queries, heads, dim = q.shape
    kv_heads, wide = shared[0].shape[1], torch.promote_types(q.dtype, torch.float32)
    share = heads // kv_heads
    prefix_k, prefix_v = (part.to(wide).transpose(0, 1) for part in shared)
    own_k, own_v = (part.to(wide).permute(2, 0, 1, 3) for part in own)
    rows = (q.to(wide) * scale).view(size, queries, kv_heads, share, dim).permute(2, 0, 3, 1, 4)
    rows = rows.reshape(kv_heads, size, share * queries, dim)
    above = torch.bmm(rows.reshape(kv_heads, -1, dim), prefix_k.transpose(1, 2)).view(*rows.shape[:3], -1)
    below = torch.matmul(rows, own_k.transpose(2, 3))
    if mask is not None:
        below = below.masked_fill_(~mask, -torch.inf)
    weights = torch.cat((above, below), -1).softmax(-1)
    num = prefix_k.shape[1]
    out = torch.matmul(weights[..., num:], own_v)
    out += torch.bmm(weights[..., :num].reshape(kv_heads, -1, num), prefix_v).view(out.shape)
    out = out.view(kv_heads, size, share, queries, dim).permute(1, 3, 0, 2, 4)
    return out.reshape(size * queries, heads, dim).to(q.dtype)
