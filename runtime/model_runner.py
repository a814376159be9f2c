"""Runs steps on the device: the `Runner` that the engine sees.

In: `StepBatch`, then `SampleBatch`. Out: a `PendingStep` whose `read()` gives the `StepResult`. Launching never waits
for the device: arrays go up through pinned memory, results come back behind an event, and only `read()` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidValueError
from .attention import make_attention
from .batch import SampleBatch, StepBatch, StepResult
from .cuda_graph import FixedAttention, StepGraphs, StepIds
from .deterministic import FixedRows, choose_by_row, make_fixed
from .grammar.matcher import mask_words
from .kv_cache import KVCache, bytes_per_slot, kv_slots_that_fit, upload, upload_together
from .logprobs import Found, Top, look_up
from .models import CausalLM
from .models.layers import Step
from .penalties import TokenCounts
from .rehearsal import sample_of_nobody, step_of_nobody
from .sampler import choose
from .step_clock import StepClock, device_mark

__all__ = ["ModelRunner", "Pending", "StepOutput", "bytes_per_slot", "kv_slots_that_fit"]

Tensor = torch.Tensor

REHEARSED = (64, 1024, 4096)
"""Tokens of the prompts that warming up runs."""
LOGIT_BYTES = 256 << 20
"""Most bytes of float32 logits that are held at once, where more rows than are sampled want a look-up."""


@dataclass(frozen=True)
class StepOutput:
    """What `forward` hands to `sample`: hidden states, and their logits where these are few enough.

    Attributes:
        where: the rows of both that are the step's R logit rows; None where they are these and no others.
    """

    hidden: Tensor
    logits: Tensor | None
    head: Callable[[Tensor], Tensor]
    where: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.hidden) if self.where is None else len(self.where)

    def rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Logits [n, vocab_size] of n indices into the step's logit rows, in the model's dtype."""
        source = self.hidden if self.logits is None else self.logits
        if self.where is not None:
            rows = self.where[rows]
        whole = len(rows) == len(source) and bool((rows == np.arange(len(rows))).all())
        picked = source if whole else source.index_select(0, upload(rows, source.device))
        return self.head(picked) if self.logits is None else picked


class ModelRunner:
    """A model with its KV cache, page table and sampler. Used by one thread.

    Args:
        model: as `load_model` gives it.
        kv_slots: slots of the KV pool, `TRASH_SLOT` included.
        num_rows: rows of the page table.
        context_length: most tokens of a sequence.
        attention: name of the implementation, or "auto".
        sample_vocab: ids from here on are never sampled; the whole logit row without it.
        cuda_graphs: whether decode steps are replayed as graphs, where device and attention can.
        deterministic: whether results are the same bits whatever else a step computes (`deterministic.py`); changes
            the model.

    Raises:
        InvalidValueError: sizes that the model does not have, an unknown attention.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        kv_slots: int,
        num_rows: int,
        context_length: int,
        attention: str = "auto",
        sample_vocab: int | None = None,
        cuda_graphs: bool = True,
        deterministic: bool = False,
    ) -> None:
        config = model.config
        if not 1 <= context_length <= model.context_length:
            raise InvalidValueError(f"context_length={context_length} must be 1 to {model.context_length}")
        if kv_slots < 2 or num_rows < 1:
            raise InvalidValueError(f"kv_slots={kv_slots} must be at least 2, num_rows={num_rows} at least 1")
        self.asynchronous = model.device.type == "cuda"
        self.vocab_size = config.vocab_size
        self.sample_vocab = min(sample_vocab or config.vocab_size, config.vocab_size)
        self.num_slots = kv_slots
        self.num_rows = num_rows
        self.context_length = context_length
        self.kv_bytes_per_token = bytes_per_slot(config, model.dtype)
        self.device = model.device
        self._model = model
        self._choose = choose
        if deterministic:
            cuda_graphs = make_fixed(model) and cuda_graphs
            self._choose = choose_by_row
        self._exactly: Callable[[], AbstractContextManager[Any]] = (
            partial(FixedRows, self.device) if deterministic else nullcontext
        )
        self._attention = make_attention(
            "deterministic" if deterministic else attention,
            num_heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            device=model.device,
            dtype=model.dtype,
        )
        self._kv = KVCache(
            config,
            num_slots=kv_slots,
            num_rows=num_rows,
            context_length=context_length,
            device=model.device,
            dtype=model.dtype,
        )
        self._logit_chunk = max(1, LOGIT_BYTES // (4 * self.vocab_size))
        self._ids = StepIds(num_rows, config.vocab_size, self.device)
        self._clock = StepClock(device_mark) if self.device.type == "cuda" else None
        self._graphs: StepGraphs | None = None
        fixed = self._attention if isinstance(self._attention, FixedAttention) else None
        if cuda_graphs and self.device.type == "cuda" and fixed is not None and fixed.forms(1, 1):
            most = min(num_rows, self._logit_chunk)
            self._graphs = StepGraphs(model, self._kv, fixed, ids=self._ids, most=most)

    def forward(self, batch: StepBatch) -> StepOutput:
        """Launches the step: page-table updates, all layers, and the LM head where its output is small enough.

        Raises:
            InvalidValueError: an index outside its bounds, arrays that do not fit each other.
        """
        self._check(batch)
        with torch.inference_mode(), self._exactly():
            if self._clock is not None:
                self._clock.forward_begins()
            self._kv.update(batch.updates, batch)
            if self._graphs is not None and self._graphs.takes(batch):
                replayed = self._graphs.run(batch)
                if replayed is not None:
                    return self._launched(self._replayed(batch, *replayed))
            all_rows = len(batch.logit_rows) == batch.num_tokens
            places, positions, slots, rows = upload_together(
                (self._ids.places(batch.token_ids), batch.positions, batch.slots, batch.logit_rows), self.device
            )
            step = Step(
                token_ids=self._ids.of(places),
                positions=positions,
                slots=slots,
                logit_rows=None if all_rows else rows,
                kv=self._kv,
                attention=self._attention,
                meta=self._attention.prepare(batch, self._kv.page_table),
            )
            return self._launched(self._with_logits(self._model.forward(step)))

    def _replayed(self, batch: StepBatch, hidden: Tensor, logits: Tensor | None) -> StepOutput:
        """What a graph gave: for all tokens, with which of them are the step's logit rows, or for these alone."""
        if logits is None:
            return self._with_logits(hidden)
        all_rows = len(batch.logit_rows) == batch.num_tokens
        return StepOutput(hidden, logits, self._model.logits, None if all_rows else batch.logit_rows)

    def _with_logits(self, hidden: Tensor) -> StepOutput:
        few = len(hidden) <= self._logit_chunk
        return StepOutput(hidden, self._model.logits(hidden) if few else None, self._model.logits)

    def _launched(self, output: StepOutput) -> StepOutput:
        if self._clock is not None:
            self._clock.forward_ends()
        return output

    def sample(self, output: StepOutput, batch: SampleBatch) -> Pending:
        """Launches sampling and look-ups. The sampled ids stay on the device for the next step.

        Raises:
            InvalidValueError: a row or a token id outside its bounds.
        """
        self._check_sample(output, batch)
        with torch.inference_mode(), self._exactly():
            if self._clock is not None:
                self._clock.sampling_begins()
            if len(batch.rows):
                ids = self._choose(output.rows(batch.rows), batch, self.sample_vocab)
            else:
                ids = torch.empty(0, dtype=torch.int64, device=self.device)
            found = look_up(output.rows, batch, ids, vocab=self.sample_vocab, chunk=self._logit_chunk)
            self._ids.sampled[: len(ids)] = ids
            return Pending(ids, found, self._clock)

    def warm_up(self, progress: Callable[[int, int], None]) -> None:
        """Makes ready what the first steps of each size would stop for; `progress` is told how many of how many."""
        with torch.inference_mode(), self._exactly():
            if self._graphs is not None:
                self._graphs.capture_all(progress)
        self._rehearse()

    def _rehearse(self) -> None:
        """Runs steps that no graph replays, and both ways to sample: what they need is compiled and loaded then."""
        graphs, self._graphs = self._graphs, None
        shapes = [(1, most) for most in REHEARSED if most <= self.context_length]
        if graphs is None:
            shapes += [(rows, queries) for queries in (1, 2, 4, 8) for rows in (1, min(16, self.num_rows))]
        try:
            for rows, queries in shapes:
                output = self.forward(step_of_nobody(rows, queries))
                for words in (None, mask_words(self.vocab_size)):
                    self.sample(output, sample_of_nobody(words)).read()
        finally:
            self._graphs = graphs

    def penalty_state(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> TokenCounts:
        """Counts for a sequence with penalties."""
        return TokenCounts(prompt_ids, output_ids, vocab=self.vocab_size, device=self.device)

    def close(self) -> None:
        """Frees the device's memory; the runner is of no use afterwards."""
        for name in ("_graphs", "_kv", "_model", "_attention", "_ids"):
            self.__dict__.pop(name, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _check(self, batch: StepBatch) -> None:
        num_tokens = batch.num_tokens
        if not (len(batch.rows) == len(batch.q_lens) == len(batch.kv_lens) > 0):
            raise InvalidValueError("a step needs as many rows as q_lens and kv_lens, and at least one")
        if not (int(batch.q_lens.sum()) == num_tokens == len(batch.positions) == len(batch.slots)):
            raise InvalidValueError(f"q_lens sum to {int(batch.q_lens.sum())}, but the step has {num_tokens} tokens")
        tokens = np.array((batch.token_ids, batch.positions, batch.slots))
        rows = np.array((batch.rows, batch.q_lens, batch.kv_lens, batch.kv_lens - batch.q_lens))
        context = self.context_length
        _bounds_of(_OF_ROWS, rows, (0, 1, 1, 0), (self.num_rows, num_tokens + 1, context + 1, context))
        _bounds_of(_OF_TOKENS, tokens, (-self.num_rows, 0, 0), (self.vocab_size, context, self.num_slots))
        _bounds("logit_rows", batch.logit_rows, 0, num_tokens)
        if (batch.logit_rows[1:] <= batch.logit_rows[:-1]).any():
            raise InvalidValueError("logit_rows must increase")

    def _check_sample(self, output: StepOutput, batch: SampleBatch) -> None:
        for name in ("rows", "query_rows", "end_rows"):
            _bounds(name, getattr(batch, name), 0, output.num_rows)
        _bounds("query_ids", batch.query_ids, 0, self.vocab_size)
        _bounds("mask_rows", batch.mask_rows, 0, len(batch.rows))
        ends = [token for members in batch.end_ids for token in members]
        _bounds("end_ids", np.asarray(ends, np.int64), 0, self.vocab_size)


class Pending:
    """The `PendingStep`: results on their way to pinned memory, behind an event."""

    def __init__(self, ids: Tensor, found: Found, clock: StepClock | None) -> None:
        tensors = [ids, found.sampled, found.queries, found.ends]
        self._tops = found.tops
        for top in found.tops:
            tensors += [top.values, top.ids]
        self._host = [_to_host(tensor) for tensor in tensors]
        self._marks = clock.step_ends() if clock is not None else None

    def read(self) -> StepResult:
        """Waits for the device and returns the results."""
        times = None if self._marks is None else self._marks.read()
        ids, sampled, queries, ends, *tops = (tensor.tolist() for tensor in self._host)
        top_logprobs: dict[int, dict[int, float]] = {}
        query_top: dict[int, dict[int, float]] = {}
        for top, values, names in zip(self._tops, tops[::2], tops[1::2]):
            (top_logprobs if top.sampled else query_top).update(_alternatives(top, values, names))
        return StepResult(ids, sampled, top_logprobs, queries, query_top, ends, times)


def _alternatives(top: Top, values: list[list[float]], ids: list[list[int]]) -> dict[int, dict[int, float]]:
    """Entry → {id: logprob}, most likely first, equals by lowest id."""
    found: dict[int, dict[int, float]] = {}
    for entry, count, row, names in zip(top.entries.tolist(), top.counts.tolist(), values, ids):
        ranked = sorted(zip(row, names), key=lambda pair: (-pair[0], pair[1]))
        found[entry] = {name: value for value, name in ranked[:count]}
    return found


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


_OF_ROWS = ("rows", "q_lens", "kv_lens", "kv_lens - q_lens")
_OF_TOKENS = ("token_ids", "positions", "slots")


def _bounds_of(
    names: Sequence[str], arrays: NDArray[np.signedinteger], lows: Sequence[int], highs: Sequence[int]
) -> None:
    """`_bounds` of each line of a table that has columns, by two calls of numpy where nothing is wrong."""
    least, most = np.minimum.reduce(arrays, 1).tolist(), np.maximum.reduce(arrays, 1).tolist()
    for name, array, low, high, lowest, highest in zip(names, arrays, lows, highs, least, most):
        if lowest < low or highest >= high:
            _bounds(name, array, low, high)


def _bounds(name: str, array: NDArray[np.signedinteger], low: int, high: int) -> None:
    """Raises unless low <= every element < high: on the device a wrong index is a crash, or silently wrong."""
    if len(array) and not (array.min() >= low and array.max() < high):
        raise InvalidValueError(f"{name} from {array.min()} to {array.max()} must lie in {low} to {high - 1}")
