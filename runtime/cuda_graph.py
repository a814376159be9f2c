"""Decode steps replayed as CUDA graphs: one launch for all layers instead of hundreds.

In: a step in which every sequence has one new token. Out: hidden states and logits of its rows, from a graph captured
for the next larger number of rows. What a graph reads lies at fixed addresses: inputs in one buffer here, the plan of
attention in the attention's own (`fixed_meta`), keys, values and page table in the cache. Rows beyond the step's are
padding: token 0 at position 0, written to `TRASH_SLOT`, in no plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from .attention import Attention
from .batch import TRASH_SLOT, StepBatch
from .kv_cache import KVCache, upload
from .models import CausalLM
from .models.layers import Step

__all__ = ["DecodeGraphs", "FixedAttention", "capture", "graph_sizes", "known"]

Tensor = torch.Tensor
Outputs = tuple[Tensor, Tensor]
Replay = Callable[[], Outputs]

_log = logging.getLogger("radicel")


@runtime_checkable
class FixedAttention(Attention, Protocol):
    """An `Attention` whose metadata can stay where a graph expects it."""

    def fixed_meta(self, page_table: Tensor, num_seqs: int, queries: int = 1) -> Any:
        """Metadata for up to `num_seqs` sequences, at addresses that `prepare` writes to."""
        ...


def graph_sizes(most: int) -> list[int]:
    """Numbers of rows that get a graph: 1 to 8 singly, since programs often run few, then in growing steps."""
    steps = [*range(1, 9), 12, 16, 24, 32, 48, 64, 96, *range(128, most + 1, 32)]
    return sorted({*(size for size in steps if size < most), most})


class DecodeGraphs:
    """The graphs of one model, captured when they are first needed, sharing one memory pool. Used by one thread.

    Args:
        model, kv, attention: as the runner has them; none of their tensors may move.
        sampled: int64, the ids that the last step sampled, always at this address.
        most: most rows of a step that is replayed.
        capture: makes a replay of a call; tests pass one that captures nothing.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: KVCache,
        attention: FixedAttention,
        *,
        sampled: Tensor,
        most: int,
        capture: Callable[[Replay], Replay] | None = None,
    ) -> None:
        self._model = model
        self._kv = kv
        self._attention = attention
        self._sampled = sampled
        self._sizes = graph_sizes(most)
        self._inputs = torch.full((3, most), TRASH_SLOT, dtype=torch.int64, device=model.device)
        self._graphs: dict[int, Replay] = {}
        self._capture = capture or _Capture()
        self._broken = False

    def takes(self, batch: StepBatch) -> bool:
        """Whether a step is one that can be replayed."""
        return (
            not self._broken
            and batch.num_tokens == batch.num_seqs <= self._sizes[-1]
            and len(batch.logit_rows) == batch.num_tokens
        )

    def run(self, batch: StepBatch) -> Outputs | None:
        """Hidden states [n, hidden] and logits [n, vocab_size] of a step's n rows, valid until the next call.

        The page table is up to date already. None where no graph could be captured; the step then runs without.
        """
        size = next(size for size in self._sizes if size >= batch.num_seqs)
        self._attention.prepare(batch, self._kv.page_table)
        # The inputs come first: capturing runs the step once, which must write the keys and values of this one.
        padded = np.full((3, size), TRASH_SLOT, np.int64)
        padded[:, : batch.num_seqs] = batch.token_ids, batch.positions, batch.slots
        self._inputs[:, :size].copy_(upload(padded, self._inputs.device), non_blocking=True)
        if size not in self._graphs:
            try:
                self._graphs[size] = self._capture(lambda: self._step(size))
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                self._broken = True
                _log.warning("no CUDA graph for %d rows, steps run without: %s", size, error)
                return None
        hidden, logits = self._graphs[size]()
        return hidden[: batch.num_seqs], logits[: batch.num_seqs]

    def _step(self, size: int) -> Outputs:
        ids, positions, slots = self._inputs[:, :size].unbind(0)
        token_ids = known(ids, self._sampled)
        meta = self._attention.fixed_meta(self._kv.page_table, size)
        hidden = self._model.forward(Step(token_ids, positions, slots, None, self._kv, self._attention, meta))
        return hidden, self._model.logits(hidden)


def known(token_ids: Tensor, sampled: Tensor) -> Tensor:
    """The ids of a step, where those that a `StepBatch` names by their row are taken from what was sampled last."""
    return torch.where(token_ids < 0, sampled[(-1 - token_ids).clamp_(min=0)], token_ids)


class _Capture:
    """Captures calls into graphs that share one pool: they never run at the same time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, call: Replay) -> Replay:
        replay, self._pool = capture(call, self._pool)
        return replay


def capture(call: Replay, pool: Any = None) -> tuple[Replay, Any]:
    """A replay of `call`, and the memory pool it uses.

    The call runs once before: compiling kernels and making library handles cannot be captured.
    """
    free = torch.cuda.mem_get_info()[0]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        outputs = call()
    _log.info("captured a decode graph, %.0f MB", (free - torch.cuda.mem_get_info()[0]) / 1e6)

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay, graph.pool()
