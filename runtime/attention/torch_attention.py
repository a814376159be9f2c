"""Attention in plain PyTorch, for the CPU and for any GPU: gather keys and values by slot, then SDPA.

In: a ragged batch. Out: the same as `kernels.reference.ragged_attention`, in far fewer calls. Sequences with the same
number of queries and similar lengths are padded to one group and computed together, so a decode batch is one call (a
few, where lengths differ by more than half); a long prefill is a group of its own, cut into blocks of queries so that
no mask grows with the square of the context.

Layers with a window get groups of their own, made when the first such layer asks: only what a window can show is
gathered. Soft-capped scores are written out, in blocks that bound them, since SDPA does not cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..batch import StepBatch
from ..kv_cache import upload
from .shared_read import SharedGroup, attend_shared, families, run_of

__all__ = ["TorchAttention", "TorchMeta", "create"]

Tensor = torch.Tensor

GROUP_NUMBERS = 1 << 26
"""Most numbers of the keys gathered at once for several sequences: bounds the copies of keys and of values."""
MASK_CELLS = 1 << 24
"""Most cells of one mask, or of the scores that are written out: bounds a block's query rows × positions."""
FEW_QUERIES = 16
"""Most queries of a sequence whose scores over a shared prefix are written out; beyond, scores cost more than keys."""


@dataclass(frozen=True)
class Block:
    """Some queries of a group: `start .. stop` of each of its sequences see gathered positions `first .. end`.

    Attributes:
        mask: bool [B, 1, 1 or share · queries, positions], True where seen; None where all are, or it is causal.
        causal: whether query i sees exactly positions 0 .. i.
    """

    start: int
    stop: int
    first: int
    end: int
    mask: Tensor | None
    causal: bool


@dataclass(frozen=True)
class Group:
    """Sequences computed together.

    Attributes:
        tokens: which tokens of the step these are, sequence after sequence: a slice where they lie side by side.
        slots: integers [B · num_kv], what to gather.
        size: B.
        num_queries: of each sequence.
        num_kv: gathered positions of each.
        blocks: the queries, cut where needed.
    """

    tokens: slice | Tensor
    slots: Tensor
    size: int
    num_queries: int
    num_kv: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class TorchMeta:
    """One step.

    Attributes:
        batch, page_table: what to group, and where its slots are.
        groups: (window, whether scores are written out) → the groups of such layers.
    """

    batch: StepBatch
    page_table: Tensor
    groups: dict[tuple[int, bool], tuple[Group | SharedGroup, ...]]


def create(*, num_heads: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> TorchAttention:
    """Found by the file's name; any dtype will do."""
    return TorchAttention(num_heads, kv_heads, head_dim, device)


class TorchAttention:
    """The PyTorch implementation of `Attention`.

    The query heads that share a key head (`share` of them) become rows of one product wherever no causal mask is built
    into it, so that keys and values are not copied for each head.
    """

    def __init__(self, num_heads: int, kv_heads: int, head_dim: int, device: torch.device) -> None:
        self.share = num_heads // kv_heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.device = device
        self._scratch: dict[str, Tensor] = {}

    def prepare(self, batch: StepBatch, page_table: Tensor) -> TorchMeta:
        """Remembers the step; its sequences are grouped when the first layer of a kind asks."""
        return TorchMeta(batch, page_table, {})

    def groups(self, meta: TorchMeta, window: int = 0, written: bool = False) -> tuple[Group | SharedGroup, ...]:
        """The groups of a step, for layers with a window or with scores that are `written` out."""
        kind = (window, written)
        if kind not in meta.groups:
            meta.groups[kind] = tuple(self._grouped(meta.batch, meta.page_table, *kind))
        return meta.groups[kind]

    def attend(
        self,
        layer_k: Tensor,
        layer_v: Tensor,
        q: Tensor,
        meta: TorchMeta,
        *,
        window: int = 0,
        softcap: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        """Attention of one layer; see `Attention.attend`."""
        scale = self.head_dim**-0.5 if scale is None else scale
        groups = self.groups(meta, window, softcap > 0)
        if len(groups) == 1 and isinstance(groups[0].tokens, slice):
            return self._attend_any(layer_k, layer_v, q, groups[0], scale, softcap)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for group in groups:
            out[group.tokens] = self._attend_any(layer_k, layer_v, q[group.tokens], group, scale, softcap)
        return out

    def _grouped(self, batch: StepBatch, table: Tensor, window: int, written: bool) -> Iterator[Group | SharedGroup]:
        starts = np.cumsum(batch.q_lens) - batch.q_lens
        # Positions before the window of a sequence's first query are nobody's: they are not gathered.
        shown = np.minimum(batch.kv_lens, batch.q_lens + (window - 1)) if window else batch.kv_lens
        for members in self._similar(batch.q_lens, shown):
            if self.device.type != "cpu" or window or written or len(members) == 1:
                yield self._group(batch, members, starts, table, shown, window, written)
                continue
            seen = batch.kv_lens[members] - batch.q_lens[members] + 1
            for some, shared in families(table.numpy(), batch.rows[members], seen):
                piece = self._shared_piece(batch, members[some]) if shared else 0
                if piece > 1:
                    for first in range(0, len(some), piece):
                        yield self._shared_group(batch, members[some[first : first + piece]], starts, table, shared)
                else:
                    yield self._group(batch, members[some], starts, table, shown, window, written)

    def _shared_piece(self, batch: StepBatch, members: NDArray[np.intp]) -> int:
        """How many of some sequences may write out all their scores together; 0 where they had better not."""
        num_queries = int(batch.q_lens[members[0]])
        cells = num_queries * self.share * self.kv_heads * int(batch.kv_lens[members].max())
        return MASK_CELLS // cells if num_queries <= FEW_QUERIES else 0

    def _tokens(self, members: NDArray[np.intp], starts: NDArray[np.int32], num_queries: int) -> slice | Tensor:
        """Which tokens of the step the queries of some sequences are."""
        tokens = (starts[members, None] + np.arange(num_queries)).reshape(-1).astype(np.int64)
        whole = bool((np.diff(tokens) == 1).all())
        return slice(int(tokens[0]), int(tokens[-1]) + 1) if whole else upload(tokens, self.device)

    def _shared_group(
        self, batch: StepBatch, members: NDArray[np.intp], starts: NDArray[np.int32], table: Tensor, shared: int
    ) -> SharedGroup:
        num_queries, host = int(batch.q_lens[members[0]]), table.numpy()
        rows, own_lens = batch.rows[members], batch.kv_lens[members] - shared
        num_own = int(own_lens.max())
        slots = host[rows, shared : shared + num_own]
        columns = np.arange(num_own)
        inside = columns < own_lens[:, None]
        last_seen = (own_lens - num_queries)[:, None] + np.arange(num_queries)
        mask = np.tile(columns <= last_seen[:, :, None], (1, self.share, 1))
        prefix = host[rows[0], :shared]
        return SharedGroup(
            self._tokens(members, starts, num_queries),
            run_of(prefix) or torch.from_numpy(prefix.copy()),
            torch.from_numpy(np.where(inside, slots, prefix[0]).reshape(-1)),
            len(members),
            num_queries,
            num_own,
            None if mask.all() else torch.from_numpy(mask),
        )

    def _group(
        self,
        batch: StepBatch,
        members: NDArray[np.intp],
        starts: NDArray[np.int32],
        table: Tensor,
        shown: NDArray[np.int32],
        window: int,
        written: bool,
    ) -> Group:
        num_queries = int(batch.q_lens[members[0]])
        kv_lens = shown[members]
        num_kv = int(kv_lens.max())
        lens = upload(kv_lens.astype(np.int64), self.device)
        return Group(
            self._tokens(members, starts, num_queries),
            self._slots(batch, members, table, kv_lens, lens).reshape(-1),
            len(members),
            num_queries,
            num_kv,
            tuple(self._blocks(num_queries, kv_lens, lens, window, written)),
        )

    def _slots(
        self, batch: StepBatch, members: NDArray[np.intp], table: Tensor, kv_lens: NDArray[np.int32], lens: Tensor
    ) -> Tensor:
        """[B, num_kv], the slots of the last `kv_lens` positions of each sequence."""
        num_kv = int(kv_lens.max())
        skipped = batch.kv_lens[members] - kv_lens
        if len(members) == 1:
            return table[int(batch.rows[members[0]]), int(skipped[0]) : int(batch.kv_lens[members[0]])][None]
        rows = upload(batch.rows[members].astype(np.int64), self.device)
        columns = torch.arange(num_kv, device=self.device)[None]
        if skipped.any():
            places = columns + upload(skipped.astype(np.int64), self.device)[:, None]
            slots = table[rows[:, None], places.clamp_(max=table.shape[1] - 1)]
        else:
            slots = table[rows, :num_kv]
        # Past a sequence's end the table holds old entries: another's keys, which might be NaN, must not be read.
        return torch.where(columns < lens[:, None], slots, slots[:, :1])

    def _blocks(
        self, num_queries: int, kv_lens: NDArray[np.int32], lens: Tensor, window: int, written: bool
    ) -> Iterator[Block]:
        num_kv = int(kv_lens.max())
        padded = bool((kv_lens != num_kv).any())
        windowed = 0 < window < num_kv
        if num_queries == num_kv and not (padded or windowed or (written and num_queries > 1)):
            yield Block(0, num_queries, 0, num_kv, None, num_queries > 1)
            return
        if num_queries == 1 and not padded:
            yield Block(0, 1, 0, num_kv, None, False)
            return
        step = max(1, MASK_CELLS // (num_kv * len(kv_lens) * self.share * (self.kv_heads if written else 1)))
        step = min(step, max(window, 64)) if windowed else step
        for start in range(0, num_queries, step):
            stop = min(start + step, num_queries)
            first = max(0, int(kv_lens.min()) - num_queries + start - window + 1) if windowed else 0
            end = num_kv - num_queries + stop
            last_seen = lens[:, None] - num_queries + torch.arange(start, stop, device=self.device)
            positions = torch.arange(first, end, device=self.device)
            mask = positions <= last_seen[:, :, None]
            if windowed:
                mask &= positions > last_seen[:, :, None] - window
            mask = mask[:, None] if stop - start == 1 else mask[:, None].repeat(1, 1, self.share, 1)
            yield Block(start, stop, first, end, mask, False)

    def _attend_any(
        self, layer_k: Tensor, layer_v: Tensor, q: Tensor, group: Group | SharedGroup, scale: float, softcap: float
    ) -> Tensor:
        """[tokens, heads, head_dim] of one group."""
        if isinstance(group, Group):
            return self._attend_group(layer_k, layer_v, q, group, scale, softcap)
        shape = (group.size, group.num_own, self.kv_heads, self.head_dim)
        caches = {"keys": layer_k, "values": layer_v}
        shared = [self._gather(f"shared {name}", cache, group.shared) for name, cache in caches.items()]
        own = [self._gather(name, cache, group.own).view(shape) for name, cache in caches.items()]
        q = q.reshape(group.size, group.num_queries, -1, self.head_dim)
        return attend_shared(q, (shared[0], shared[1]), (own[0], own[1]), group.mask, scale)

    def _attend_group(
        self, layer_k: Tensor, layer_v: Tensor, q: Tensor, group: Group, scale: float, softcap: float
    ) -> Tensor:
        """[B · queries, heads, head_dim] of one group."""
        shape = (group.size, group.num_kv, self.kv_heads, self.head_dim)
        keys = self._gather("keys", layer_k, group.slots).view(shape).transpose(1, 2)
        values = self._gather("values", layer_v, group.slots).view(shape).transpose(1, 2)
        q = q.reshape(group.size, group.num_queries, -1, self.head_dim)
        parts = [
            self._attend_block(keys, values, q[:, block.start : block.stop], block, scale, softcap)
            for block in group.blocks
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return out.reshape(group.size * group.num_queries, -1, self.head_dim)

    def _attend_block(
        self, keys: Tensor, values: Tensor, q: Tensor, block: Block, scale: float, softcap: float
    ) -> Tensor:
        """[B, queries, heads, head_dim] of some queries of a group; q has the same shape."""
        if block.causal:
            return self._attend_causal(keys, values, q.transpose(1, 2), scale).transpose(1, 2)
        size, num, heads, dim = q.shape
        keys, values = keys[:, :, block.first : block.end], values[:, :, block.first : block.end]
        rows = q.view(size, num, self.kv_heads, self.share, dim).permute(0, 2, 3, 1, 4)
        rows = rows.reshape(size, self.kv_heads, self.share * num, dim)
        if softcap:
            out = _capped(rows, keys, values, block.mask, scale, softcap)
        else:
            out = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=block.mask, scale=scale)
        out = out.view(size, self.kv_heads, self.share, num, dim).permute(0, 3, 1, 2, 4)
        return out.reshape(size, num, heads, dim)

    def _attend_causal(self, keys: Tensor, values: Tensor, q: Tensor, scale: float) -> Tensor:
        """[B, heads, queries, head_dim]; q has the same shape, keys and values as many positions."""
        if self.device.type == "cpu":
            return functional.scaled_dot_product_attention(
                q, keys, values, is_causal=True, scale=scale, enable_gqa=self.share > 1
            )
        # On a GPU, shared heads can mean the path that writes all scores out; copied keys never do.
        keys, values = keys.repeat_interleave(self.share, 1), values.repeat_interleave(self.share, 1)
        return functional.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=scale)

    def _gather(self, name: str, cache: Tensor, slots: slice | Tensor) -> Tensor:
        """`cache[slots]`, valid until the next call under the same name."""
        if isinstance(slots, slice):
            return cache[slots]
        if self.device.type != "cpu":
            return cache.index_select(0, slots)
        # Fresh memory for every layer would cost more in page faults than the copy itself.
        count, held = slots.shape[0], self._scratch.get(name)
        if held is None or held.shape[0] < count or held.dtype != cache.dtype:
            held = torch.empty((1 << (count - 1).bit_length(), *cache.shape[1:]), dtype=cache.dtype)
            self._scratch[name] = held
        return torch.index_select(cache, 0, slots, out=held[:count])

    def _similar(self, q_lens: NDArray[np.int32], kv_lens: NDArray[np.int32]) -> Iterator[NDArray[np.intp]]:
        """Sequences that are computed together: equally many queries, lengths within a factor of two."""
        order = np.lexsort((kv_lens, q_lens))
        first = 0
        for i in range(1, len(order) + 1):
            if i < len(order) and self._fits(q_lens, kv_lens, order[first], order[i], i - first + 1):
                continue
            yield np.sort(order[first:i])
            first = i

    def _fits(
        self, q_lens: NDArray[np.int32], kv_lens: NDArray[np.int32], shortest: int, longest: int, size: int
    ) -> bool:
        """Whether a group that begins with `shortest` may take `longest` as its member number `size`."""
        num_queries, num_kv = int(q_lens[longest]), int(kv_lens[longest])
        return (
            num_queries == int(q_lens[shortest])
            and num_kv <= 2 * int(kv_lens[shortest]) + 64
            and size * num_kv * self.kv_heads * self.head_dim <= GROUP_NUMBERS
            and size * num_kv * num_queries * self.share <= MASK_CELLS
        )


def _capped(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """[B, kv_heads, rows, head_dim], attention with scores softcap · tanh(score / softcap), in float32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(q, keys.transpose(2, 3)).to(wide).mul_(scale / softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    return torch.matmul(scores.softmax(-1).to(values.dtype), values)
