"""Attention by the Triton kernels: prefills in tiles of queries, short rows as items of a radix plan.

In: a ragged batch of any mix. Out: the same as `kernels.reference.ragged_attention`. Rows with at most `SHORT` new
tokens (decode, drafts, short forced runs) are planned by `RadixPlanner`, one plan for each power of two of tokens;
longer ones go through the ragged kernel. Both write into one tensor.

What the kernels read of a plan lies in one buffer on the device, at an address that stays: a captured CUDA graph
that was made with `fixed_meta` replays whatever `prepare` wrote there last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels import find
from ...kernels.radix_attention import item_rows, item_run, one_launch_tokens
from ...kernels.radix_items import FORMS, RadixLayout
from ...kernels.ragged_attention import tile_queries
from ..batch import StepBatch
from ..kv_cache import send, upload, upload_together
from .held_tiles import HeldTiles, starts_of
from .radix_plan import RadixPlanner, RadixTuning
from .slot_runs import longest_run, runs_of

__all__ = ["TritonAttention", "TritonMeta", "create"]

Tensor = torch.Tensor

SHORT = 8
"""Most new tokens of a row that a radix plan takes."""
PARTIALS = 4096
"""Partial results that shared items may have, and narrow ones beyond two for each row, in one plan."""
MERGES = 64
"""Most partial results of a row."""
LONG = 4096
"""Positions that a query of the long rows sees on average from which on tiles for long contexts are faster."""
IN_RUNS = 0.75
"""Share of what the queries see that must lie in slots that follow one another, for tiles made for such."""
FIXED_TOKENS = 512
"""Most tokens of a step with many tokens a row whose metadata stay where they are."""
FIXED_ROWS = 32
"""Most sequences of a step with many tokens a row whose metadata stay where they are."""
SOON_READ = 2048
"""Positions of a row with few tokens that one program reads about as fast as the items of a plan would be read."""


@dataclass(frozen=True)
class Ragged:
    """The long rows of a step: arguments of `ragged_attention`, int32 on the device, and whether they see much."""

    rows: Tensor
    starts: Tensor
    lens: Tensor
    tiles: Tensor
    long: bool = False
    runs: Tensor | None = None


@dataclass(frozen=True)
class Planned:
    """Short rows of a step: arguments of `radix_attention`.

    Attributes:
        queries: most tokens of a row.
        parts: of the plan.
        form: what is known of the plan, one of `radix_items.FORMS`.
    """

    queries: int
    parts: dict[str, Tensor]
    form: str


@dataclass(frozen=True)
class TritonMeta:
    """One step.

    Attributes:
        page_table: int32 [rows, context].
        ragged: the rows with many tokens, None where there is none.
        plans: of the others.
    """

    page_table: Tensor
    ragged: Ragged | None
    plans: tuple[Planned, ...]


class _Plan:
    """A planner and its buffer on the device."""

    def __init__(self, planner: RadixPlanner, device: torch.device) -> None:
        layout = planner.layout
        self.planner = planner
        self.buffer = upload(planner.buffer.copy(), device)
        self.parts = {
            name: self.buffer[first:end].view(layout.shapes[name]) for name, (first, end) in layout.places().items()
        }

    def send(self) -> None:
        """Brings the buffer up to date, without waiting."""
        size = self.planner.layout.size if self.planner.changed else self.planner.layout.step_size
        send(self.planner.buffer[:size], self.buffer[:size])

    def first_tokens(self, count: int) -> dict[str, Tensor]:
        """The parts, for a step of at most `count` tokens."""
        return {**self.parts, "tokens": self.parts["tokens"][:count]}


def create(
    *, num_heads: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> TritonAttention:
    """Found by the file's name."""
    return TritonAttention(num_heads, kv_heads, head_dim, device, dtype)


class TritonAttention:
    """The Triton implementation of `Attention`.

    Attributes:
        tuning: of the plans; set it before the first `prepare`.
        scale: factor of the scores where a layer has none of its own.
    """

    def __init__(
        self,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        tuning: RadixTuning | None = None,
    ) -> None:
        self.device = device
        self.scale = head_dim**-0.5
        self.tuning = tuning or RadixTuning()
        self._group = num_heads // kv_heads
        self._kv_heads = kv_heads
        self._head_dim = head_dim
        self._dtype = dtype
        self._run = item_run(head_dim, dtype, device)
        self._one_launch = one_launch_tokens(head_dim, dtype)
        self._per_tile = tile_queries(self._group, head_dim, dtype)
        self._fixed = HeldTiles(FIXED_ROWS, self._most_tiles(FIXED_TOKENS), device)
        self._plans: dict[int, _Plan] = {}
        self._ragged = find("ragged_attention", device)
        self._radix = find("radix_attention", device)

    def prepare(self, batch: StepBatch, page_table: Tensor) -> TritonMeta:
        """Plans the short rows, cuts the long ones into tiles, and sends both to the device."""
        starts = starts_of(batch)
        kinds = np.where(batch.q_lens <= SHORT, _padded(batch.q_lens), 0)
        plans = []
        for queries in np.unique(kinds[kinds > 0]).tolist():
            mine = np.flatnonzero(kinds == queries)
            plans.append(self._planned(queries, batch, starts, mine, page_table))
        long_rows = np.flatnonzero(kinds == 0)
        return TritonMeta(
            page_table, self._ragged_of(batch, starts, long_rows) if len(long_rows) else None, tuple(plans)
        )

    def takes_fixed(self, batch: StepBatch, queries: int) -> bool:
        """Whether a step may be replayed: with `queries` of 0, where its short rows are not too many and not too long
        to be read as tiles."""
        if queries:
            return True
        short = batch.q_lens <= SHORT
        return batch.num_seqs <= FIXED_ROWS and not bool((batch.kv_lens[short] > SOON_READ).any())

    def forms(self, num_tokens: int, queries: int) -> tuple[str, ...]:
        """What `prepare_fixed` may say of steps of so many tokens, and so many of a row."""
        return ("any",) if not queries else tuple(form for form in FORMS if form == self._form(form, num_tokens))

    def prepare_fixed(self, batch: StepBatch, page_table: Tensor, queries: int) -> str:
        """Plans a step for the graph that was captured with `fixed_meta` of as many queries.

        Returns:
            `form` of that graph.
        """
        if queries:
            return self._planned(queries, batch, starts_of(batch), np.arange(batch.num_seqs), page_table).form
        self._fixed.send(batch, self._tiles(batch, np.arange(batch.num_seqs)))
        return "any"

    def fixed_meta(self, page_table: Tensor, num_tokens: int, queries: int = 1, form: str = "any") -> TritonMeta:
        """What to capture a graph with: steps of up to `num_tokens` tokens, at most `queries` of a sequence; 0 queries
        stand for any number, and then all rows are tiles. `form`: of what plans it is (`radix_items.FORMS`)."""
        if not queries:
            return TritonMeta(page_table, Ragged(*self._fixed.view(self._most_tiles(num_tokens))), ())
        parts = self._plan(queries, page_table).first_tokens(num_tokens)
        return TritonMeta(page_table, None, (Planned(queries, parts, form),))

    def attend(
        self,
        layer_k: Tensor,
        layer_v: Tensor,
        q: Tensor,
        meta: TritonMeta,
        *,
        window: int = 0,
        softcap: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        """Attention of one layer; see `Attention.attend`."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        options = {"window": window, "softcap": softcap, "out": out}
        scale = self.scale if scale is None else scale
        for plan in meta.plans:
            self._radix(
                q, layer_k, layer_v, meta.page_table, plan.parts, scale, queries=plan.queries, form=plan.form,
                **options,
            )  # fmt: skip
        if meta.ragged is not None:
            part = meta.ragged
            self._ragged(
                q, layer_k, layer_v, meta.page_table, part.rows, part.starts, part.lens, scale, tiles=part.tiles,
                long=part.long, runs=part.runs, **options,
            )  # fmt: skip
        return out

    def _planned(
        self, queries: int, batch: StepBatch, starts: NDArray[np.int32], mine: NDArray[np.intp], page_table: Tensor
    ) -> Planned:
        """The plan of these rows, on the device."""
        plan = self._plan(queries, page_table)
        chains = None if batch.chains is None else [batch.chains[i] for i in mine.tolist()]
        plan.planner.update(batch.rows[mine], starts[mine], batch.q_lens[mine], batch.kv_lens[mine], chains)
        plan.send()
        count = int(batch.q_lens[mine].sum())
        return Planned(queries, plan.first_tokens(count), self._form(plan.planner.form, count))

    def _form(self, form: str, num_tokens: int) -> str:
        """What the kernels make of it that a plan has this form: a few tokens take one launch whatever is shared."""
        return "any" if form == "runs" and (not self._run or num_tokens <= self._one_launch) else form

    def _plan(self, queries: int, page_table: Tensor) -> _Plan:
        if queries not in self._plans:
            rows = page_table.shape[0]
            members = item_rows(self._group, self._head_dim, self._dtype, queries)
            layout = RadixLayout(
                tokens=rows * queries,
                rows=rows,
                wide=max(8, PARTIALS // queries // members),
                members=members,
                narrow=2 * rows + PARTIALS // queries // 8,
                merges=MERGES,
            )
            planner = RadixPlanner(
                layout, kv_heads=self._kv_heads, tuning=self.tuning, run=self._run if queries == 1 else 0
            )
            self._plans[queries] = _Plan(planner, self.device)
        return self._plans[queries]

    def _ragged_of(self, batch: StepBatch, starts: NDArray[np.int32], long_rows: NDArray[np.intp]) -> Ragged:
        counts = batch.q_lens[long_rows].astype(np.int64)
        seen = (batch.kv_lens[long_rows] - counts // 2) * counts
        long = int(seen.sum()) > LONG * int(counts.sum())
        found = _runs(batch, long_rows) if long else np.zeros((0, 3), np.int32)
        rows, begins, lens, tiles, runs = upload_together(
            (
                batch.rows,
                np.append(starts, np.int32(batch.num_tokens)),
                batch.kv_lens,
                self._tiles(batch, long_rows),
                found,
            ),
            self.device,
        )
        in_runs = long and int(((found[:, 1] - found[:, 0])[long_rows] * counts).sum()) > IN_RUNS * int(seen.sum())
        return Ragged(rows, begins, lens, tiles, long=long, runs=runs if in_runs else None)

    def _most_tiles(self, num_tokens: int) -> int:
        """Of so many tokens of up to `FIXED_ROWS` sequences: whole tiles, and one that is not full for each."""
        return num_tokens // self._per_tile + min(num_tokens, FIXED_ROWS)

    def _tiles(self, batch: StepBatch, long_rows: NDArray[np.intp]) -> NDArray[np.int32]:
        """[N, 2], sequence and first query of each tile of these rows."""
        counts = -(-batch.q_lens[long_rows] // self._per_tile)
        tiles = np.empty((int(counts.sum()), 2), np.int32)
        tiles[:, 0] = np.repeat(long_rows, counts)
        # The last tiles of a row first: they see the most, and the longest work should begin earliest.
        ends = np.cumsum(counts)
        tiles[:, 1] = (np.repeat(ends, counts) - 1 - np.arange(len(tiles))) * self._per_tile
        return tiles


def _runs(batch: StepBatch, rows: NDArray[np.intp]) -> NDArray[np.int32]:
    """[B, 3], the longest run of each of these sequences, nothing for the others."""
    found = np.zeros((batch.num_seqs, 3), np.int32)
    if batch.chains is not None:
        for i in rows.tolist():
            found[i] = longest_run(runs_of(batch.chains[i]), 0, int(batch.kv_lens[i]))
    return found


def _padded(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """The power of two at or above each count."""
    return 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
