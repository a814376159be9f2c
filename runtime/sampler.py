"""Token ids out of logits.

In: logits [S, vocab] and a `SampleBatch`. Out: int64 [S] on the device. On each row, in this order: penalties, logit
bias, mask; then at temperature 0 the lowest id among the largest logits; else temperature, top-k, top-p (over what
top-k left), min-p (relative to the most likely token), and one draw by inverse distribution function.

A draw uses one uniform number that depends on (seed, sample_index, draw_index) alone: it is hashed from the three on
the CPU, so the same request draws the same tokens in any batch, in any row, on any device. Every row is computed by
itself; no operation mixes rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels import find, has_triton
from .batch import SampleBatch
from .kv_cache import upload
from .penalties import apply_bias, apply_masks, apply_penalties

__all__ = ["choose", "top_entries", "uniforms"]

Tensor = torch.Tensor

NARROW_TOP_K = 1024
"""Largest top-k for which the best logits are picked out; beyond it, and for top-p alone, all are sorted."""


def choose(logits: Tensor, batch: SampleBatch, vocab: int) -> Tensor:
    """One token id per row.

    Args:
        logits: [S, at least `vocab`], not changed.
        batch: how.
        vocab: ids from here on are never chosen.

    Returns:
        int64 [S]. A row whose every allowed logit is -inf (or NaN) gives its lowest allowed id.
    """
    if logits.device.type == "cuda" and has_triton():
        return _choose_fused(logits, batch, vocab)
    scores = logits[:, :vocab]
    hot = np.flatnonzero(batch.temperature > 0)
    if batch.penalties or batch.logit_bias or batch.masks is not None:
        scores = _edited(scores, batch)
    if not len(hot):
        return _first_best(scores)
    rows = upload(hot, scores.device)
    drawn = _draw(_wide(scores[rows]), batch, hot)
    if len(hot) == len(batch.rows):
        return drawn
    return _first_best(scores).index_copy_(0, rows, drawn)


def _choose_fused(logits: Tensor, batch: SampleBatch, vocab: int) -> Tensor:
    """`choose` in one launch, after what few rows have: penalties and bias."""
    device = logits.device
    if batch.penalties or batch.logit_bias:
        logits = _wide(logits[:, :vocab].clone())
        apply_penalties(logits, batch.penalties)
        apply_bias(logits, batch.logit_bias)
    masked = batch.masks is not None and len(batch.mask_rows) > 0
    mask_of = np.full(len(batch.rows), -1, np.int32)
    mask_of[batch.mask_rows] = np.arange(len(batch.mask_rows))
    parts: list[NDArray[Any]] = [
        uniforms(batch.seed, batch.sample_index, batch.draw_index),
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        mask_of,
    ]
    sent = upload(np.concatenate([part.view(np.int32) for part in parts]), device)  # one copy for all
    size = len(batch.rows)
    numbers, rest = sent[: 2 * size], sent[2 * size :].view(5, size)
    temperature, top_k, top_p, min_p, mask_of_row = rest.unbind(0)
    masks = upload(batch.masks, device) if masked and batch.masks is not None else None
    chosen: Tensor = find("sample_tokens", device)(
        logits,
        temperature.view(torch.float32),
        top_k,
        top_p.view(torch.float32),
        min_p.view(torch.float32),
        numbers.view(torch.float64),
        masks,
        mask_of_row if masked else None,
        vocab,
    )
    return chosen


def uniforms(seed: NDArray[np.int64], sample: NDArray[np.int64], draw: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, sample, draw), by SplitMix64's mixer (Steele et al., 2014) over the three."""
    state = np.zeros(len(seed), np.uint64)
    for part in (seed, sample, draw):
        state = _mix((state ^ part.astype(np.int64).view(np.uint64)) + np.uint64(0x9E3779B97F4A7C15))
    # 52 bits: the largest number times a sum stays below the sum after rounding, so a draw never runs off its end.
    number: NDArray[np.float64] = (state >> np.uint64(12)).astype(np.float64) * 2.0**-52
    return number


def top_entries(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and their ids, largest first; at the border, equals are taken by lowest id."""
    ranked = scores.topk(count, -1).values
    sizes = torch.full((len(scores), 1), count, device=scores.device)
    kept = scores.masked_fill(~_best(scores, ranked, sizes), -torch.inf)
    values, ids = kept.topk(count, -1)
    return values, ids


def _first_best(scores: Tensor) -> Tensor:
    """int64 [S], the lowest id among the largest of each row; NaN counts as -inf.

    torch does not say which of equals its argmax takes; numpy does.
    """
    if scores.device.type != "cpu":
        scores = _wide(scores)
        ids = torch.arange(scores.shape[1], device=scores.device)
        return torch.where(scores == scores.amax(-1, keepdim=True), ids, scores.shape[1]).amin(-1)
    host = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    found = torch.from_numpy(host.numpy().argmax(-1))
    picked = host.gather(-1, found.unsqueeze(-1))
    return _first_best(_wide(host)) if bool((picked != picked).any()) else found


def _edited(scores: Tensor, batch: SampleBatch) -> Tensor:
    """A copy with penalties, bias and masks applied."""
    scores = _wide(scores.clone())
    apply_penalties(scores, batch.penalties)
    apply_bias(scores, batch.logit_bias)
    if batch.masks is not None and len(batch.mask_rows):
        apply_masks(scores, batch.masks, batch.mask_rows)
    return scores


def _wide(scores: Tensor) -> Tensor:
    """In float32 or wider, without NaN or +inf."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.nan_to_num(nan=-torch.inf, posinf=torch.finfo(scores.dtype).max, neginf=-torch.inf)


def _draw(scores: Tensor, batch: SampleBatch, hot: NDArray[np.int64]) -> Tensor:
    """Draws for the rows `hot` of the batch, whose logits `scores` [H, vocab] are."""
    device, lowest = scores.device, _first_best(scores)
    top = scores.gather(-1, lowest.unsqueeze(-1))
    hopeless = top <= torch.finfo(scores.dtype).min
    # Less the largest first: a tiny temperature then drives the others to -inf, never anything to +inf or NaN.
    temperature = upload(batch.temperature[hot], device).to(scores.dtype).unsqueeze(-1)
    scaled = (scores - top).masked_fill(hopeless, 0.0) / temperature
    top_k, top_p, min_p = batch.top_k[hot], batch.top_p[hot], batch.min_p[hot]
    limited = ((top_k > 0) & (top_k < scores.shape[1])) | (top_p < 1)
    narrow = limited & (top_k > 0) & (top_k <= NARROW_TOP_K)
    for some in (narrow, limited & ~narrow):
        if some.any():
            _limit(scaled, np.flatnonzero(some), top_k, top_p)
    if (min_p > 0).any():
        scaled = scaled.masked_fill_(scaled < upload(min_p, device).log().unsqueeze(-1), -torch.inf)
    reached = scaled.double().exp().cumsum(-1)
    number = upload(uniforms(batch.seed[hot], batch.sample_index[hot], batch.draw_index[hot]), device)
    drawn = torch.searchsorted(reached, reached[:, -1:] * number.unsqueeze(-1), right=True).squeeze(-1)
    return torch.where(hopeless.squeeze(-1), lowest, drawn.clamp_(max=scores.shape[1] - 1))


def _limit(scaled: Tensor, rows: NDArray[np.intp], top_k: NDArray[np.int32], top_p: NDArray[np.float32]) -> None:
    """Sets to -inf, in these rows of `scaled`, what top-k and top-p leave out (changes it).

    Only values are sorted; how many of the best to keep is counted on them, and equals at the border are then taken by
    lowest id.
    """
    device, vocab = scaled.device, scaled.shape[1]
    sizes = np.where((top_k[rows] > 0) & (top_k[rows] < vocab), top_k[rows], vocab).astype(np.int64)
    width = int(sizes.max())
    where = upload(rows, device)
    scores = scaled[where]
    ranked = scores.topk(width, -1).values if width < vocab else scores.sort(-1, descending=True).values
    size = upload(sizes, device).unsqueeze(-1)
    mass = upload(top_p[rows].astype(np.float64), device).unsqueeze(-1)
    weights = ranked.double().exp()
    weights.masked_fill_(torch.arange(width, device=device) >= size, 0.0)
    before = weights.cumsum(-1) - weights
    needed = ((before < mass * weights.sum(-1, keepdim=True)) & (weights > 0)).sum(-1, keepdim=True).clamp_(min=1)
    size = torch.where(mass < 1, torch.minimum(size, needed), size)
    scaled[where] = scores.masked_fill(~_best(scores, ranked, size), -torch.inf)


def _best(scores: Tensor, ranked: Tensor, sizes: Tensor) -> Tensor:
    """bool [R, vocab]: the `sizes` [R, 1] largest of each row, equals by lowest id; `ranked` is the row sorted."""
    border = ranked.gather(-1, sizes - 1)
    above, equal = scores > border, scores == border
    return above | (equal & (equal.cumsum(-1) <= sizes - above.sum(-1, keepdim=True)))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
