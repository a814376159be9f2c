"""How nearly a model computes what transformers computes, over every way to cut texts into steps.

In: a checkpoint, transformers' model of it. Out: the largest difference of any logit from transformers' over one
prefill, chunks, single tokens, and a batch of forks that share a prefix; and whether greedy texts are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from radicel.runtime.batch import RowUpdate, SampleBatch, StepBatch
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models import CausalLM

__all__ = ["Agreement", "Steps", "measure"]

IDS: list[int] = torch.randint(0, 268, (150,), generator=torch.Generator().manual_seed(3)).tolist()
PREFIX = 100
FORKS = 6
GREEDY = 24


@dataclass(frozen=True)
class Agreement:
    """Largest absolute difference of a logit, by kind of step, and how many of `GREEDY` tokens are the same.

    Attributes:
        prefill: 150 tokens in one step.
        chunks: the same in chunks of 7 and of 64.
        decode: the last 30 of them one by one.
        forks: 6 sequences over one prefix of 100 tokens, each with a prompt of its own, then three tokens one by one.
        scale: root mean square of transformers' logits, to judge the differences by.
        greedy: tokens that equal those of transformers' `generate`.
    """

    prefill: float
    chunks: float
    decode: float
    forks: float
    scale: float
    greedy: int

    @property
    def worst(self) -> float:
        """The largest difference of all."""
        return max(self.prefill, self.chunks, self.decode, self.forks)

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


class Steps:
    """Page-table rows of a runner, without an engine. Slots are handed out in random order."""

    def __init__(self, model: CausalLM, context: int) -> None:
        self.runner = ModelRunner(model, kv_slots=1200, num_rows=12, context_length=context)
        self._free = (np.random.default_rng(0).permutation(1199) + 1).tolist()
        self._slots: dict[int, list[int]] = {}
        self._updates: list[RowUpdate] = []

    def fork(self, row: int, parent: int) -> None:
        """`row` begins with what `parent` holds now, in the same slots."""
        self._slots[row] = list(self._slots[parent])
        self._updates.append(RowUpdate(row, 0, np.asarray(self._slots[row], np.int32)))

    def feed(self, parts: Sequence[tuple[int, Sequence[int]]], last: bool = False) -> Any:
        """One step with new tokens of some rows; the runner's output, of all tokens or of the last of each row."""
        updates, slots, positions, kv_lens = self._updates, [], [], []
        for row, new in parts:
            held = self._slots.setdefault(row, [])
            own = [self._free.pop() for _ in new]
            updates.append(RowUpdate(row, len(held), np.asarray(own, np.int32)))
            positions += range(len(held), len(held) + len(new))
            held += own
            slots += own
            kv_lens.append(len(held))
        self._updates = []
        q_lens = np.asarray([len(new) for _, new in parts], np.int32)
        return self.runner.forward(
            StepBatch(
                token_ids=np.asarray([token for _, new in parts for token in new], np.int64),
                positions=np.asarray(positions, np.int64),
                slots=np.asarray(slots, np.int64),
                rows=np.asarray([row for row, _ in parts], np.int32),
                q_lens=q_lens,
                kv_lens=np.asarray(kv_lens, np.int32),
                logit_rows=np.cumsum(q_lens) - 1 if last else np.arange(len(slots)),
                updates=tuple(updates),
            )
        )

    def logits(self, parts: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
        """float32 [T, vocab] on the CPU, of every token of a step."""
        output = self.feed(parts)
        return output.rows(np.arange(len(output.hidden))).float().cpu()

    def greedy(self, row: int, prompt: Sequence[int], count: int) -> list[int]:
        """The most likely continuation."""
        found: list[int] = []
        new = list(prompt)
        for _ in range(count):
            output = self.feed([(row, new)], last=True)
            new = self.runner.sample(output, _greedy_row()).read().token_ids
            found += new
        return found


def measure(model: CausalLM, theirs: Any, context: int) -> Agreement:
    """Compares `model` with transformers' model `theirs`, in texts of up to `context` tokens."""
    ids = IDS[:context]
    prefix = min(PREFIX, context - 16)
    wanted = _wanted(theirs, ids)
    chunks = [_chunked(Steps(model, context), ids, size) for size in (7, 64)]
    decode = Steps(model, context)
    decode.feed([(0, ids[:-30])])
    singles = torch.cat([decode.logits([(0, [token])]) for token in ids[-30:]])
    return Agreement(
        prefill=_apart(Steps(model, context).logits([(3, ids)]), wanted),
        chunks=max(_apart(found, wanted) for found in chunks),
        decode=_apart(singles, wanted[-30:]),
        forks=_forks(Steps(model, context), theirs, ids[:prefix]),
        scale=float(wanted.square().mean().sqrt()),
        greedy=_same_greedy(Steps(model, context), theirs, ids[: prefix - 10]),
    )


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max())


def _wanted(theirs: Any, ids: Sequence[int]) -> torch.Tensor:
    """float32 [len(ids), vocab] by transformers."""
    with torch.inference_mode():
        logits: torch.Tensor = theirs(torch.tensor([ids], device=theirs.device)).logits[0].float().cpu()
        return logits


def _chunked(steps: Steps, ids: Sequence[int], size: int) -> torch.Tensor:
    return torch.cat([steps.logits([(1, ids[i : i + size])]) for i in range(0, len(ids), size)])


def _forks(steps: Steps, theirs: Any, prefix: Sequence[int]) -> float:
    steps.feed([(0, prefix)])
    tails = [IDS[fork * 13 : fork * 13 + 2 + fork + 3] for fork in range(FORKS)]
    for row, _ in enumerate(tails, 1):
        steps.fork(row, 0)
    # The prompts differ in length, and are computed in one step; then every fork gets three single tokens.
    cuts = [tail[:-3] for tail in tails]
    found = [list(part) for part in steps.logits(list(enumerate(cuts, 1))).split([len(cut) for cut in cuts])]
    for back in (3, 2, 1):
        row_logits = steps.logits([(row, [tail[-back]]) for row, tail in enumerate(tails, 1)])
        for fork, logits in enumerate(row_logits):
            found[fork].append(logits)
    wanted = [_wanted(theirs, [*prefix, *tail])[len(prefix) :] for tail in tails]
    return max(_apart(torch.stack(ours), rows) for ours, rows in zip(found, wanted))


def _same_greedy(steps: Steps, theirs: Any, prompt: Sequence[int]) -> int:
    count = min(GREEDY, steps.runner.context_length - len(prompt))
    ids = torch.tensor([prompt], device=theirs.device)
    with torch.inference_mode():
        wanted = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    found = steps.greedy(5, prompt, count)
    return next((i for i, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1]), count) + GREEDY - count


def _greedy_row() -> SampleBatch:
    zero, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    return SampleBatch(
        rows=zero,
        temperature=np.zeros(1, np.float32),
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        top_k=np.zeros(1, np.int32),
        seed=zero,
        sample_index=zero,
        draw_index=zero,
        masks=None,
        mask_rows=none,
        penalties=(),
        logit_bias={},
        want_logprobs=np.zeros(1, np.bool_),
        top_logprobs=np.zeros(1, np.int32),
        query_rows=none,
        query_ids=none,
        query_top=np.empty(0, np.int32),
        end_rows=none,
        end_ids=(),
    )
