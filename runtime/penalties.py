"""What changes the logits before a token is chosen: penalties, logit bias, masks.

In: logits [S, vocab] in float32 or wider, and a `SampleBatch`. Out: the same tensor, changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidValueError
from .batch import PenaltyRow
from .kv_cache import upload

__all__ = ["TokenCounts", "apply_bias", "apply_masks", "apply_penalties"]

Tensor = torch.Tensor


class TokenCounts:
    """The `PenaltyState` of one sequence: what it has generated, and what it has seen at all, on the device.

    Attributes:
        output: float32 [vocab], how often each id was generated.
        seen: bool [vocab], whether an id is in the prompt or was generated.
    """

    def __init__(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], *, vocab: int, device: torch.device
    ) -> None:
        counts = np.bincount(np.asarray(output_ids, np.int64), minlength=vocab).astype(np.float32)
        seen = counts > 0
        seen[np.asarray(prompt_ids, np.int64)] = True
        self.output = upload(counts, device)
        self.seen = upload(seen, device)

    def add(self, token_id: int) -> None:
        """Counts one more generated token (changes state)."""
        with torch.inference_mode():
            self.output[token_id] += 1
            self.seen[token_id] = True


def apply_penalties(scores: Tensor, rows: Sequence[PenaltyRow]) -> None:
    """Repetition penalty, then frequency and presence penalties; `SamplingParams` says what each does."""
    if not rows:
        return
    device, vocab = scores.device, scores.shape[1]
    states = [_counts(row) for row in rows]
    output = torch.stack([state.output[:vocab] for state in states])
    seen = torch.stack([state.seen[:vocab] for state in states])
    numbers = np.asarray([(row.repetition, row.frequency, row.presence) for row in rows], np.float32)
    repetition, frequency, presence = upload(numbers, device).unsqueeze(-1).unbind(1)
    where = upload(np.asarray([row.row for row in rows], np.int64), device)
    x = scores[where]
    x = torch.where(seen, torch.where(x > 0, x / repetition, x * repetition), x)
    scores[where] = x - frequency * output - presence * (output > 0)


def apply_bias(scores: Tensor, bias: Mapping[int, Mapping[int, float]]) -> None:
    """Adds `bias[row][id]`.

    Raises:
        InvalidValueError: an id that no logit has.
    """
    cells = [(row, token, value) for row, values in bias.items() for token, value in values.items()]
    if not cells:
        return
    outside = [token for _, token, _ in cells if not 0 <= token < scores.shape[1]]
    if outside:
        raise InvalidValueError(f"logit_bias of token {outside[0]}: ids go from 0 to {scores.shape[1] - 1}")
    places = upload(np.asarray([(row, token) for row, token, _ in cells], np.int64), scores.device)
    values = upload(np.asarray([value for _, _, value in cells], np.float32), scores.device)
    scores.index_put_((places[:, 0], places[:, 1]), values.to(scores.dtype), accumulate=True)


def apply_masks(scores: Tensor, masks: NDArray[np.int32], rows: NDArray[np.int64]) -> None:
    """Sets to -inf what a mask forbids: id i of `rows[m]` is allowed if bit i % 32 of masks[m, i // 32] is set.

    An id beyond the mask's width is forbidden. An allowed id stays finite, however low: where all allowed ones are
    -inf, the lowest allowed id is chosen and never a forbidden one.
    """
    device, vocab = scores.device, scores.shape[1]
    words = upload(masks, device)
    bits = (words.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=device)) & 1
    allowed = bits.view(len(rows), -1)[:, :vocab] != 0
    if allowed.shape[1] < vocab:
        allowed = torch.nn.functional.pad(allowed, (0, vocab - allowed.shape[1]))
    where = upload(rows, device)
    finite = scores[where].clamp(min=torch.finfo(scores.dtype).min)
    scores[where] = finite.masked_fill_(~allowed, -torch.inf)


def _counts(row: PenaltyRow) -> TokenCounts:
    if not isinstance(row.state, TokenCounts):
        raise InvalidValueError(f"penalty state {row.state!r} was not made by this runner's penalty_state()")
    return row.state
