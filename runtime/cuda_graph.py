"""Short steps replayed as CUDA graphs: one launch for all layers instead of hundreds.

In: a step in which every sequence has a few new tokens (decode rows, forced runs, drafts), or that has few tokens in
all (the end of a prompt of which the rest is cached). Out: hidden states of its tokens and their logits where every
sequence has a few, else hidden states of those whose logits are wanted, from a graph captured for the next larger
number of tokens. What a graph reads lies at fixed
addresses: inputs in one buffer here, the plan of attention in the attention's own (`fixed_meta`), keys, values and
page table in the cache. Tokens beyond the step's are padding: token 0 at position 0, written to `TRASH_SLOT`, in no
plan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from .attention import Attention
from .batch import TRASH_SLOT, StepBatch
from .kv_cache import KVCache, send
from .models import CausalLM
from .models.layers import Step

__all__ = ["ANY", "FixedAttention", "StepGraphs", "StepIds", "capture", "graph_sizes"]

Tensor = torch.Tensor
Outputs = tuple[Tensor, Tensor | None]
Replay = Callable[[], Outputs]

_log = logging.getLogger("radicel")


@runtime_checkable
class FixedAttention(Attention, Protocol):
    """An `Attention` whose metadata can stay where a graph expects it."""

    def takes_fixed(self, batch: StepBatch, queries: int) -> bool:
        """Whether metadata that stay do for a step, and do not make it slower than its own would."""
        ...

    def forms(self, num_tokens: int, queries: int) -> Sequence[str]:
        """What `prepare_fixed` may say of steps of so many tokens, and so many of a row; nothing if it takes none."""
        ...

    def fixed_meta(self, page_table: Tensor, num_tokens: int, queries: int = 1, form: str = "any") -> Any:
        """Metadata for up to `num_tokens` tokens, at most `queries` of a sequence (`ANY`: any number), at addresses
        that stay."""
        ...

    def prepare_fixed(self, batch: StepBatch, page_table: Tensor, queries: int) -> str:
        """Writes to these addresses what a step needs; says of which `form` the graph must be that does for it: in
        some, attention looks for less."""
        ...


def graph_sizes(most: int) -> list[int]:
    """Numbers of rows that get a graph: 1 to 8 singly, since programs often run few, then in growing steps."""
    steps = [*range(1, 9), 12, 16, 24, 32, 48, 64, 96, *range(128, most + 1, 32)]
    return sorted({*(size for size in steps if size < most), most})


class StepIds:
    """The ids of a step's tokens, of which some are known on the device only: one table of both, read in one launch.

    Attributes:
        sampled: int64 [num_rows], the ids that the last step sampled, always at this address.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._num_rows = num_rows
        self._table = torch.cat((torch.zeros(num_rows, dtype=torch.int64), torch.arange(vocab_size))).to(device)
        self.sampled = self._table[:num_rows]

    def places(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the table the ids of a `StepBatch` stand, those that it names by their row included."""
        found: NDArray[np.int64] = np.where(token_ids < 0, -1 - token_ids, token_ids + self._num_rows)
        return found

    def of(self, places: Tensor) -> Tensor:
        """int64 [T], the ids at these places."""
        return self._table.index_select(0, places)


MOST_QUERIES = 8
"""Most tokens of a row in a step that is replayed for its few tokens a row."""
SMALL_STEP = 16
"""Tokens of a step up to which there are graphs for two and four a row: many rows seldom have so few at most."""
ANY = 0
"""Stands for any number of tokens of a row."""
ANY_ROWS = 32
"""Most tokens of such a step whose logits are wanted; of the last layer only keys and values are made for others."""
ANY_SIZES = (16, 32, 64, 128, 192, 256, 320, 384, 448, 512)
"""Tokens of the graphs for any number of tokens of a row. Larger steps keep the device busy longer than it takes to
launch their kernels one by one."""


class _Key(NamedTuple):
    """A graph: its tokens, most tokens of a row, what is known of its plans of attention."""

    size: int
    queries: int
    form: str


class StepGraphs:
    """The graphs of one model, captured when they are first needed, sharing one memory pool. Used by one thread.

    There is one for each number of tokens (`graph_sizes`) of one a row and of up to `MOST_QUERIES` a row; for small
    steps also for the powers of two between. Attention is told by its plan which tokens are whose, all else is done
    token by token; so rows with more and with fewer tokens share a graph. For rows with more tokens there are the
    graphs of `ANY_SIZES`, which give the hidden states of `ANY_ROWS` tokens and leave the logits to the caller. Where
    no row shares anything or is long, attention has less to launch; for such steps there are graphs of their own.

    Args:
        model, kv, attention: as the runner has them; none of their tensors may move.
        ids: turns what a step says of its tokens into their ids.
        most: most tokens of a step that is replayed.
        most_bytes: of device memory for graphs; once they have as much, steps of other sizes run without.
        capture: makes a replay of a call; tests pass one that captures nothing.

    Attributes:
        held_bytes: device memory that capturing took.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: KVCache,
        attention: FixedAttention,
        *,
        ids: StepIds,
        most: int,
        most_bytes: int = 4 << 30,
        capture: Callable[[Replay], Replay] | None = None,
    ) -> None:
        self._model = model
        self._kv = kv
        self._attention = attention
        self._ids = ids
        self._sizes = graph_sizes(most)
        longest = max(most, ANY_SIZES[-1])
        self._inputs = torch.full((3 * longest + ANY_ROWS,), TRASH_SLOT, dtype=torch.int64, device=model.device)
        self._graphs: dict[_Key, Replay] = {}
        self._capture = capture or _Capture()
        self._most_bytes = most_bytes
        self._broken = False
        self.held_bytes = 0

    def takes(self, batch: StepBatch) -> bool:
        """Whether a step is one that can be replayed."""
        fits = self._fitting(batch)
        if fits is not None and fits[1] == ANY and len(batch.logit_rows) > ANY_ROWS:
            return False
        return not self._broken and fits is not None and self._attention.takes_fixed(batch, fits[1])

    def run(self, batch: StepBatch) -> Outputs | None:
        """Hidden states [T, hidden] of a step's T tokens, valid until the next call, and their logits [T, vocab_size].

        Where a row has more than `MOST_QUERIES` tokens, most of whose logits nobody wants, hidden states [R, hidden] of
        the step's logit rows, and None. The page table is up to date already. None where no graph could be captured, or
        there is no room for one; the step then runs without.
        """
        fits = self._fitting(batch)
        assert fits is not None, "asked for a step that it does not take"
        size, queries = fits
        count = batch.num_tokens
        key = _Key(size, queries, self._attention.prepare_fixed(batch, self._kv.page_table, queries))
        if key not in self._graphs and self.held_bytes >= self._most_bytes:
            return None
        # The inputs come first: capturing runs the step once, which must write the keys and values of this one.
        inputs = np.empty(3 * size + ANY_ROWS * (queries == ANY), np.int64)
        padded = inputs[: 3 * size].reshape(3, size)
        padded[0, :count] = self._ids.places(batch.token_ids)
        padded[1, :count], padded[2, :count] = batch.positions, batch.slots
        padded[0, count:] = self._ids.places(_FIRST_ID)
        padded[1:, count:] = inputs[3 * size :] = TRASH_SLOT
        if queries == ANY:
            count = len(batch.logit_rows)
            inputs[3 * size : 3 * size + count] = batch.logit_rows
        send(inputs, self._inputs[: len(inputs)])
        if key not in self._graphs and not self._try_to_capture(key):
            return None
        hidden, logits = self._graphs[key]()
        return hidden[:count], None if logits is None else logits[:count]

    def capture_all(self, progress: Callable[[int, int], None]) -> None:
        """Captures every graph that is not there yet, as far as their memory reaches.

        Args:
            progress: told how many are done, of how many.
        """
        kinds = [*(1 << bits for bits in range(MOST_QUERIES.bit_length())), ANY]
        keys = [
            _Key(size, queries, form)
            for queries in kinds
            for size in self._sizes_of(queries)
            for form in self._attention.forms(size, queries)
        ]
        for done, key in enumerate(keys):
            progress(done, len(keys))
            if key in self._graphs or self._broken or self.held_bytes >= self._most_bytes:
                continue
            # Nobody's tokens in nobody's rows, so that the one run before capturing changes nothing.
            self._inputs.fill_(TRASH_SLOT)
            self._attention.prepare_fixed(_NOBODY, self._kv.page_table, key.queries)
            self._try_to_capture(key)
        progress(len(keys), len(keys))

    def _sizes_of(self, queries: int) -> Sequence[int]:
        """Numbers of tokens that get a graph, where a row has up to so many."""
        if queries == ANY:
            return ANY_SIZES
        most = SMALL_STEP if 1 < queries < MOST_QUERIES else self._sizes[-1]
        return [size for size in self._sizes if queries <= size <= most]

    def _fitting(self, batch: StepBatch) -> tuple[int, int] | None:
        """Tokens of the graph for a step, and most tokens of a row there; None where there is none so large."""
        queries = _queries(batch)
        size = next((size for size in self._sizes_of(queries) if size >= batch.num_tokens), None)
        return None if size is None else (size, queries)

    def _try_to_capture(self, key: _Key) -> bool:
        try:
            self._graphs[key] = self._captured(key)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            self._broken = True
            _log.warning("no CUDA graph for %d tokens, steps run without: %s", key.size, error)
        return not self._broken

    def _captured(self, key: _Key) -> Replay:
        began, free = time.perf_counter(), _free_bytes(self._inputs.device)
        replay = self._capture(lambda: self._step(key))
        self.held_bytes += max(0, free - _free_bytes(self._inputs.device))
        _log.info(
            "captured a graph for steps of %d tokens, %d a row, in %.2f s; %d graphs hold %.0f MB",
            key.size, key.queries, time.perf_counter() - began, len(self._graphs) + 1, self.held_bytes / 1e6,
        )  # fmt: skip
        return replay

    def _step(self, key: _Key) -> Outputs:
        places, positions, slots = self._inputs[: 3 * key.size].view(3, key.size).unbind(0)
        rows = self._inputs[3 * key.size : 3 * key.size + ANY_ROWS] if key.queries == ANY else None
        token_ids = self._ids.of(places)
        meta = self._attention.fixed_meta(self._kv.page_table, key.size, key.queries, key.form)
        hidden = self._model.forward(Step(token_ids, positions, slots, rows, self._kv, self._attention, meta))
        return hidden, None if key.queries == ANY else self._model.logits(hidden)


_FIRST_ID = np.zeros(1, np.int64)
_NONE64, _NONE32 = np.empty(0, np.int64), np.empty(0, np.int32)
_NOBODY = StepBatch(_NONE64, _NONE64, _NONE64, _NONE32, _NONE32, _NONE32, _NONE64)


def _queries(batch: StepBatch) -> int:
    """Most tokens of a row in the graphs for a step."""
    most = int(batch.q_lens.max())
    if most > MOST_QUERIES:
        return ANY
    return MOST_QUERIES if batch.num_tokens > SMALL_STEP and most > 1 else 1 << (most - 1).bit_length()


def _free_bytes(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0


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
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        outputs = call()

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay, graph.pool()
