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

__all__ = [
    "GREEDY",
    "KINDS",
    "Agreement",
    "Steps",
    "greedy_rows",
    "measure",
    "our_logits",
    "same_greedy",
    "their_logits",
]

IDS: list[int] = torch.randint(0, 268, (150,), generator=torch.Generator().manual_seed(3)).tolist()
PREFIX = 100
FORKS = 6
GREEDY = 24


KINDS = ("prefill", "chunks", "decode", "forks")
"""The ways to cut texts into steps: 150 tokens in one step; in chunks of 7 and of 64; the last 30 one by one; forks, 6
sequences over one prefix of 100 tokens, each with a prompt of its own length in one step, then three tokens one by one.
"""

Logits = dict[str, torch.Tensor]
"""float32 [rows, vocab] on the CPU, of each kind."""


@dataclass(frozen=True)
class Agreement:
    """Ours against transformers'.

    Attributes:
        apart: the largest absolute difference of a logit, by kind of step.
        scale: root mean square of transformers' logits, to judge the differences by.
        greedy: how many of `GREEDY` tokens equal those of transformers' `generate`, from the first on.
    """

    apart: dict[str, float]
    scale: float
    greedy: int

    @property
    def worst(self) -> float:
        """The largest difference of all."""
        return max(self.apart.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Steps:
    """Page-table rows of a runner, without an engine. Slots are handed out in random order."""

    def __init__(self, model: CausalLM, context: int, slots: int = 1200, rows: int = 12) -> None:
        self.runner = ModelRunner(model, kv_slots=slots, num_rows=rows, context_length=context)
        self._free = (np.random.default_rng(0).permutation(slots - 1) + 1).tolist()
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
            new = self.runner.sample(output, greedy_rows(1)).read().token_ids
            found += new
        return found


def measure(model: CausalLM, theirs: Any, context: int) -> Agreement:
    """Compares `model` with transformers' model `theirs`, in texts of up to `context` tokens."""
    found, wanted = our_logits(model, context), their_logits(theirs, context)
    return Agreement(
        apart={kind: _apart(found[kind], wanted[kind]) for kind in KINDS},
        scale=float(wanted["prefill"].square().mean().sqrt()),
        greedy=same_greedy(model, theirs, context),
    )


def our_logits(model: CausalLM, context: int) -> Logits:
    """What our model gives, cut into steps in every way."""
    ids = IDS[:context]
    decode = Steps(model, context)
    decode.feed([(0, ids[:-30])])
    singles = [decode.logits([(0, [token])]) for token in ids[-30:]]
    return {
        "prefill": Steps(model, context).logits([(3, ids)]),
        "chunks": torch.cat([_chunked(Steps(model, context), ids, size) for size in (7, 64)]),
        "decode": torch.cat(singles),
        "forks": _forks(Steps(model, context), _prefix(context)),
    }


def their_logits(theirs: Any, context: int) -> Logits:
    """The same rows by transformers, each text whole."""
    prefix, rows = _prefix(context), _wanted(theirs, IDS[:context])
    return {
        "prefill": rows,
        "chunks": torch.cat([rows, rows]),
        "decode": rows[-30:],
        "forks": torch.cat([_wanted(theirs, [*prefix, *tail])[len(prefix) :] for tail in _tails()]),
    }


def _prefix(context: int) -> list[int]:
    return IDS[: min(PREFIX, context - 16)]


def _tails() -> list[list[int]]:
    """What follows the prefix: prompts of different lengths, and three tokens more."""
    return [IDS[fork * 13 : fork * 13 + 2 + fork + 3] for fork in range(FORKS)]


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max())


def _wanted(theirs: Any, ids: Sequence[int]) -> torch.Tensor:
    """float32 [len(ids), vocab] by transformers."""
    with torch.inference_mode():
        logits: torch.Tensor = theirs(torch.tensor([ids], device=theirs.device)).logits[0].float().cpu()
        return logits


def _chunked(steps: Steps, ids: Sequence[int], size: int) -> torch.Tensor:
    return torch.cat([steps.logits([(1, ids[i : i + size])]) for i in range(0, len(ids), size)])


def _forks(steps: Steps, prefix: Sequence[int]) -> torch.Tensor:
    tails = _tails()
    steps.feed([(0, prefix)])
    for row, _ in enumerate(tails, 1):
        steps.fork(row, 0)
    cuts = [tail[:-3] for tail in tails]
    found = [[part] for part in steps.logits(list(enumerate(cuts, 1))).split([len(cut) for cut in cuts])]
    for back in (3, 2, 1):
        rows = steps.logits([(row, [tail[-back]]) for row, tail in enumerate(tails, 1)])
        for fork, logits in enumerate(rows.split(1)):
            found[fork].append(logits)
    return torch.cat([part for parts in found for part in parts])


def same_greedy(model: CausalLM, theirs: Any, context: int) -> int:
    """How many of `GREEDY` tokens are the same, from the first on."""
    prompt = _prefix(context)[:-10]
    count = min(GREEDY, context - len(prompt))
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
    found = Steps(model, context).greedy(5, prompt, count)
    return next((i for i, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1]), count) + GREEDY - count


def greedy_rows(count: int) -> SampleBatch:
    """The most likely token of each of the first `count` logit rows."""
    zeros, none = np.zeros(count, np.int64), np.empty(0, np.int64)
    return SampleBatch(
        rows=np.arange(count),
        temperature=np.zeros(count, np.float32),
        top_p=np.ones(count, np.float32),
        min_p=np.zeros(count, np.float32),
        top_k=np.zeros(count, np.int32),
        seed=zeros,
        sample_index=zeros,
        draw_index=zeros,
        masks=None,
        mask_rows=none,
        penalties=(),
        logit_bias={},
        want_logprobs=np.zeros(count, np.bool_),
        top_logprobs=np.zeros(count, np.int32),
        query_rows=none,
        query_ids=none,
        query_top=np.empty(0, np.int32),
        end_rows=none,
        end_ids=(),
    )
