"""The PyTorch twins of the kernels whose numbers do not depend on what else is computed beside them.

In and out: tensors, as each docstring says. A library chooses how to sum by the shapes it is given, so the same row may
give other bits in another batch. Here every product has a shape that does not depend on the batch: a linear layer takes
`ROWS` rows at a time, attention takes the queries of a sequence in tiles that lie at multiples of `QUERIES`, with as
many keys as the tile's own position says (He et al. 2025, "Defeating nondeterminism in LLM inference").
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn import functional as nn

__all__ = ["QUERIES", "ROWS", "fixed_attention", "fixed_linear"]

Tensor = torch.Tensor

ROWS = 8
"""Rows of one product of a linear layer; the last ones are filled up with zeros."""
QUERIES = 8
"""Query positions of one tile."""
KEYS = 128
"""Keys of a tile are filled up to a multiple of this many positions."""


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·weightᵀ + bias, where no row's bits depend on how many rows there are or which place it has among them.

    Args:
        x: [..., n].
        weight, bias: [m, n], or what stands for it in `functional.linear`, and [m] or None.

    Returns:
        [..., m].
    """
    flat = x.reshape(-1, x.shape[-1])
    # Copies, all to the same place: where its memory begins may matter to a library, too.
    held = torch.zeros((_rows(weight, flat), flat.shape[1]), dtype=flat.dtype, device=flat.device)
    found = []
    for part in flat.split(len(held)):
        held[: len(part)] = part
        found.append(nn.linear(held, weight, bias)[: len(part)])
    return torch.cat(found).view(*x.shape[:-1], -1) if len(flat) else nn.linear(x, weight, bias)


def fixed_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    rows: Tensor,
    q_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tiles: Tensor | None = None,
) -> Tensor:
    """`ragged_attention`, where no query's bits depend on the other sequences, or on the other queries of its own.

    Args:
        q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, window, softcap: as for `ragged_attention`.
        tiles: int32 [N, 2], sequence and first query of each tile of work (for a kernel).

    Returns:
        [T, heads, d] in the dtype of `q`.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    starts = q_starts.tolist()
    for b, (row, kv_len) in enumerate(zip(rows.tolist(), kv_lens.tolist())):
        first_query = kv_len - (starts[b + 1] - starts[b])
        keys, values = (_gathered(cache, page_table[row, :kv_len]) for cache in (k_cache, v_cache))
        for tile in range(first_query // QUERIES * QUERIES, kv_len, QUERIES):
            begin, end = max(first_query, tile), min(kv_len, tile + QUERIES)
            here = slice(starts[b] + begin - first_query, starts[b] + end - first_query)
            found = _tile(q[here], keys, values, tile, begin - tile, scale, window, softcap)
            out[here] = found[begin - tile : end - tile].to(q.dtype)
    return out


def _gathered(cache: Tensor, slots: Tensor) -> Tensor:
    """[kv_heads, positions, d] in float32 or wider, filled up with zeros to a whole number of tiles of keys."""
    positions = -(-len(slots) // KEYS) * KEYS
    wide = torch.promote_types(cache.dtype, torch.float32)
    held = torch.zeros((cache.shape[1], positions, cache.shape[2]), dtype=wide, device=cache.device)
    held[:, : len(slots)] = cache.index_select(0, slots).transpose(0, 1)
    return held


def _tile(
    q: Tensor, keys: Tensor, values: Tensor, tile: int, place: int, scale: float, window: int, softcap: float
) -> Tensor:
    """[QUERIES, heads, d]: the queries of positions tile .. tile + QUERIES; `q` are those from `place` on."""
    kv_heads, _, dim = keys.shape
    first = max(0, tile - window + 1) // KEYS * KEYS if window else 0
    end = -(-(tile + QUERIES) // KEYS) * KEYS
    keys, values = keys[:, first:end].contiguous(), values[:, first:end].contiguous()
    held = torch.zeros((QUERIES, *q.shape[1:]), dtype=keys.dtype, device=q.device)
    held[place : place + len(q)] = q
    grouped = held.view(QUERIES, kv_heads, -1, dim).transpose(0, 1).reshape(kv_heads, -1, dim)
    scores = torch.bmm(grouped, keys.transpose(1, 2)) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    limits = torch.arange(tile, tile + QUERIES, device=q.device)[:, None]
    positions = torch.arange(first, end, device=q.device)
    seen = positions <= limits
    if window:
        seen &= positions > limits - window
    scores = scores.view(kv_heads, QUERIES, -1, end - first).masked_fill_(~seen[:, None], -torch.inf)
    weights = torch.softmax(scores, -1).view(kv_heads, -1, end - first)
    return torch.bmm(weights, values).view(kv_heads, QUERIES, -1, dim).transpose(0, 1).reshape(QUERIES, -1, dim)


_TRIED: dict[tuple[object, ...], int] = {}
_TRIED_PACKED: WeakKeyDictionary[object, int] = WeakKeyDictionary()


def _rows(weight: Tensor, like: Tensor) -> int:
    """`ROWS` where a row's place among as many does not matter to this machine's library, else 1.

    That is tried, once for each shape, or for each matrix that is no tensor but multiplies as one.
    """
    plain = isinstance(weight, Tensor)
    key: Any = (*weight.shape, weight.dtype, weight.device) if plain else weight
    known: MutableMapping[Any, int] = _TRIED if plain else _TRIED_PACKED
    if key not in known:
        x = torch.randn((ROWS, like.shape[1]), generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
        found = nn.linear(x, weight)
        turned = [nn.linear(x.roll(by, 0), weight).roll(-by, 0) for by in range(1, ROWS)]
        known[key] = ROWS if all(torch.equal(found, other) for other in turned) else 1
    return known[key]
