"""Inputs for `kernel_times.py`: caches, page tables and plans of the shapes that structured programs make.

In: a shape in words. Out: tensors on the device, and the fewest bytes and operations that the work takes.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

try:
    import radicel.kernels  # noqa: F401
except ImportError:  # not installed: the checkout itself, whose folders are the package's
    root = Path(__file__).resolve().parents[2]
    package = types.ModuleType("radicel")
    package.__path__ = [str(root / "lang"), str(root)]
    sys.modules["radicel"] = package

from radicel.kernels.radix_items import RadixLayout
from radicel.runtime.attention.radix_plan import RadixPlanner, RadixTuning
from radicel.runtime.batch import Chain, Segment

Tensor = torch.Tensor
VOCAB = 128256


@dataclass
class Decode:
    """A decode step of one layer.

    Attributes:
        q: [rows, heads, d].
        caches: several (keys, values), to be taken in turn so that none stays in the L2 cache.
        table: int32 [rows, context].
        lens: visible positions of each row.
        chains: what each row shares.
        distinct: different slots that are read.
    """

    q: Tensor
    caches: list[tuple[Tensor, Tensor]]
    table: Tensor
    lens: np.ndarray
    chains: list[Chain]
    distinct: int

    @property
    def floor_bytes(self) -> int:
        """Each key and value once, queries and outputs once."""
        keys = self.caches[0][0]
        return self.distinct * 2 * keys[0].numel() * keys.element_size() + 2 * self.q.numel() * self.q.element_size()

    @property
    def flops(self) -> int:
        """Of the two products, each query with all it sees."""
        return 4 * int(self.lens.sum()) * self.q.shape[1] * self.q.shape[2]


def shared_prefixes(
    groups: int,
    members: int,
    prefix: int,
    suffix: int,
    *,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    seed: int = 0,
    uneven: int = 0,
    layers: int | None = None,
    in_order: bool = False,
) -> Decode:
    """`groups` prefixes with `members` rows each, which have `suffix` positions of their own (less up to `uneven`).

    Slots are scattered as after a long run, in no order; with `in_order` those of a prefix follow one another.
    """
    rng = np.random.default_rng(seed)
    rows = groups * members
    own = suffix - (rng.integers(0, uneven + 1, rows) if uneven else np.zeros(rows, np.int64))
    distinct = groups * prefix + int(own.sum())
    slots = (rng.permutation(distinct) + 1).astype(np.int32)
    if in_order:
        slots[:] = np.arange(1, distinct + 1)
    table = np.zeros((rows, prefix + suffix + 256), np.int32)
    chains: list[Chain] = []
    at = groups * prefix
    for row in range(rows):
        group = row // members
        table[row, :prefix] = slots[group * prefix : (group + 1) * prefix]
        table[row, prefix : prefix + own[row]] = slots[at : at + own[row]]
        at += own[row]
        first = int(slots[group * prefix]) if in_order else -1
        chains.append((Segment(group + 1, 0, prefix, first),) if prefix else ())
    size = (distinct + 1) * kv_heads * dim * dtype.itemsize * 2
    count = layers or max(2, min(16, (256 << 20) // size))
    generator = torch.Generator(device).manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    caches = [tuple(random(distinct + 1, kv_heads, dim) for _ in range(2)) for _ in range(count)]
    lens = (prefix + own).astype(np.int32)
    return Decode(random(rows, heads, dim), caches, torch.from_numpy(table).to(device), lens, chains, distinct)


def plan_of(
    case: Decode, members: int, tuning: RadixTuning, queries: int = 1, run: int = 0
) -> tuple[dict[str, Tensor], str]:
    """The plan of a step, on the device, and its form."""
    rows = len(case.lens)
    kv_heads = case.caches[0][0].shape[1]
    layout = RadixLayout(
        tokens=rows * queries, rows=rows, wide=1024, members=members, narrow=2048 + 2 * rows, merges=96
    )
    planner = RadixPlanner(layout, kv_heads=kv_heads, tuning=tuning, run=run)
    numbers = np.arange(rows, dtype=np.int32)
    planner.update(numbers, numbers * queries, np.full(rows, queries, np.int32), case.lens, case.chains)
    device = torch.from_numpy(planner.buffer).to(case.q.device)
    parts = {name: device[first:end].view(layout.shapes[name]) for name, (first, end) in layout.places().items()}
    return parts, planner.form


@dataclass
class Prefill:
    """A prefill step of one layer: `q_lens` new tokens of each row, which sees `kv_lens` positions."""

    q: Tensor
    caches: list[tuple[Tensor, Tensor]]
    table: Tensor
    rows: Tensor
    starts: Tensor
    lens: Tensor
    q_lens: list[int]
    floor_bytes: int
    flops: int
    runs: Tensor | None


def prefill(
    q_lens: list[int],
    cached: int,
    *,
    shared: bool = True,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    seed: int = 0,
    in_order: bool = False,
) -> Prefill:
    """Rows with `cached` positions before their new tokens; `shared` means the same ones for all.

    With `in_order` the slots of what is cached follow one another, or of what is new where nothing is.
    """
    rng = np.random.default_rng(seed)
    rows = len(q_lens)
    distinct = cached * (1 if shared else rows) + sum(q_lens)
    slots = (rng.permutation(distinct) + 1).astype(np.int32)
    if in_order:
        slots[:] = np.arange(1, distinct + 1)
    table = np.zeros((rows, cached + max(q_lens)), np.int32)
    at = cached * (1 if shared else rows)
    for row, count in enumerate(q_lens):
        first = 0 if shared else row * cached
        table[row, :cached] = slots[first : first + cached]
        table[row, cached : cached + count] = slots[at : at + count]
        at += count
    generator = torch.Generator(device).manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    caches = [tuple(random(distinct + 1, kv_heads, dim) for _ in range(2)) for _ in range(2)]
    starts = np.concatenate(([0], np.cumsum(q_lens)))
    pairs = sum(count * cached + count * (count + 1) // 2 for count in q_lens)
    q = random(sum(q_lens), heads, dim)
    return Prefill(
        q,
        caches,
        torch.from_numpy(table).to(device),
        torch.arange(rows, dtype=torch.int32, device=device),
        torch.from_numpy(starts.astype(np.int32)).to(device),
        torch.tensor([cached + count for count in q_lens], dtype=torch.int32, device=device),
        q_lens,
        distinct * 2 * kv_heads * dim * dtype.itemsize + 2 * q.numel() * q.element_size(),
        4 * pairs * heads * dim,
        torch.tensor([(0, cached or count, table[row, 0]) for row, count in enumerate(q_lens)]).int().to(device)
        if in_order
        else None,
    )


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers on the GPU."""
    return torch.randn(shape, device="cuda").to(dtype)


def sampling_inputs(rows: int, vocab: int, dtype: torch.dtype, kind: str) -> dict[str, Any]:
    """Arguments of `sample_tokens`; kinds: greedy, temperature, top-k, top-p, all, and each with "masked"."""
    generator = torch.Generator("cuda").manual_seed(rows)
    logits = (torch.randn(rows, vocab, generator=generator, device="cuda") * 3).to(dtype)
    full = lambda value, kind: torch.full((rows,), value, device="cuda", dtype=kind)
    masked = "masked" in kind
    return {
        "logits": logits,
        "temperature": full(0.0 if "greedy" in kind else 0.8, torch.float32),
        "top_k": full(50 if "top-k" in kind or "all" in kind else 0, torch.int32),
        "top_p": full(0.9 if "top-p" in kind or "all" in kind else 1.0, torch.float32),
        "min_p": full(0.02 if "all" in kind else 0.0, torch.float32),
        "numbers": torch.rand(rows, generator=generator, device="cuda", dtype=torch.float64),
        "masks": torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocab // 32)), device="cuda", dtype=torch.int32)
        if masked
        else None,
        "mask_of": torch.arange(rows, device="cuda", dtype=torch.int32) if masked else None,
        "vocab": vocab,
    }
