"""Steps of nobody, which compile and load what the first steps of their kind would stop for.

In: sizes. Out: batches for a runner. Their tokens are token 0 at the front of the first rows, their keys and values go
to `TRASH_SLOT`, and what they sample is thrown away: a runner that has run them holds nothing else than before.
"""

from __future__ import annotations

import numpy as np

from .batch import TRASH_SLOT, SampleBatch, StepBatch

__all__ = ["sample_of_nobody", "step_of_nobody"]


def step_of_nobody(num_rows: int, queries: int) -> StepBatch:
    """Rows with so many new tokens each, all logits of the last tokens wanted."""
    count = num_rows * queries
    return StepBatch(
        token_ids=np.zeros(count, np.int64),
        positions=np.tile(np.arange(queries, dtype=np.int64), num_rows),
        slots=np.full(count, TRASH_SLOT, np.int64),
        rows=np.arange(num_rows, dtype=np.int32),
        q_lens=np.full(num_rows, queries, np.int32),
        kv_lens=np.full(num_rows, queries, np.int32),
        logit_rows=np.arange(queries - 1, count, queries, dtype=np.int64),
    )


def sample_of_nobody(mask_words: int | None) -> SampleBatch:
    """One greedy token of the first row, under a mask that allows all where `mask_words` says how wide it is."""
    one, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    return SampleBatch(
        rows=one,
        temperature=np.zeros(1, np.float32),
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        top_k=np.zeros(1, np.int32),
        seed=one,
        sample_index=one,
        draw_index=one,
        masks=None if mask_words is None else np.full((1, mask_words), -1, np.int32),
        mask_rows=none if mask_words is None else one,
        penalties=(),
        logit_bias={},
        want_logprobs=np.array([mask_words is None]),
        top_logprobs=np.zeros(1, np.int32),
        query_rows=none,
        query_ids=none,
        query_top=none.astype(np.int32),
        end_rows=none,
        end_ids=(),
    )
