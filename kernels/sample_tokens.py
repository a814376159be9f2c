"""Token ids out of logits in one launch: mask, temperature, top-k, top-p, min-p and the draw; no sort.

A program takes one row and passes over it several times; the row stays in the L2 cache. With v = (x - max x) /
temperature <= 0, the bits of |v| order the tokens as integers, so the border of the k largest, and then of the
shortest run that holds top_p of their weight, is found by bisection on those bits: a pass counts and weighs what is
above the middle and sees the nearest values on both sides of it, so the search ends as soon as no value is left
between (about as many passes as the logarithm of the number of distinct values; after Sun et al. 2024's sorting-free
sampling in FlashInfer, but exact and deterministic). The search begins at a bound that the pass for the maximum gives:
each lane keeps the best of its ids, and of these few the border is found without reading the row. Equals at the border
are taken by lowest id. The draw inverts the distribution function in order of ids with sums in float64, as
`reference.sample_tokens` does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import reference
from .launch import padded, supported

__all__ = ["sample_tokens"]

BLOCK = 4096
"""Ids of one round; twice as many in the pass for the maximum, which needs few registers."""


@triton.jit
def _load(logits_ptr, mask_ptr, first, vocab, words, HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr):
    """The logits of a block of a row as they are, and the words of its mask, one for eight ids (0 without a mask)."""
    ids = first + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + ids, mask=ids < vocab, other=float("-inf"))
    word = 0
    if HAS_MASKS:
        eighths = first + 8 * tl.arange(0, BLOCK // 8)
        word = tl.load(mask_ptr + eighths // 32, mask=eighths < words * 32, other=0)
    return x, word


@triton.jit
def _scores(x, word, first, vocab, words, HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr):
    """Loaded logits after their mask (of no words: none), without NaN or +inf."""
    LARGEST: tl.constexpr = 3.4028234663852886e38
    x = x.to(tl.float32)
    x = tl.where(x != x, float("-inf"), tl.minimum(x, LARGEST))
    if HAS_MASKS:
        shift = ((first + 8 * tl.arange(0, BLOCK // 8)) % 32)[:, None] + tl.arange(0, 8)[None, :]
        allowed = tl.reshape((word[:, None] >> shift) & 1, [BLOCK]) != 0
        allowed = allowed & (first + tl.arange(0, BLOCK) < vocab)
        x = tl.where(words > 0, tl.where(allowed, tl.maximum(x, -LARGEST), float("-inf")), x)
    return x


@triton.jit
def _border(
    logits_ptr,
    mask_ptr,
    vocab,
    words,
    best,
    temperature,
    by_count,
    wanted,
    last,
    HAS_MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The bits of the value at which the count, or the weight, of what is at least as likely reaches `wanted`.

    Returns:
        the bits, and the count and weight of what is above.
    """
    low = -1  # not reached here
    high = last  # reached here
    nearest = 0  # the smallest value above `low`
    count_above = 0
    weight_above = tl.zeros([], dtype=tl.float64)
    probed = False
    while nearest < high:
        # Counts are searched from a bound that is nearly always the border itself: look right above it first.
        middle = tl.where(by_count & (not probed), high - 1, low + (high - low) // 2)
        probed = True
        counts = tl.zeros([BLOCK], dtype=tl.int32)
        weights = tl.zeros([BLOCK], dtype=tl.float64)
        below = tl.full([BLOCK], -1, dtype=tl.int32)
        above = tl.full([BLOCK], 2147483647, dtype=tl.int32)
        raw, word = _load(logits_ptr, mask_ptr, 0, vocab, words, HAS_MASKS, BLOCK)
        for first in range(0, vocab, BLOCK):
            next_raw, next_word = _load(logits_ptr, mask_ptr, first + BLOCK, vocab, words, HAS_MASKS, BLOCK)
            ids = first + tl.arange(0, BLOCK)
            x = _scores(raw, word, first, vocab, words, HAS_MASKS, BLOCK)
            raw, word = next_raw, next_word
            distance = tl.abs(tl.div_rn(x - best, temperature))
            bits = distance.to(tl.int32, bitcast=True)
            taken = (bits <= middle) & (ids < vocab)
            counts += taken.to(tl.int32)
            weights += tl.where(taken, tl.exp(-distance), 0.0).to(tl.float64)
            below = tl.maximum(below, tl.where(taken, bits, -1))
            above = tl.minimum(above, tl.where(taken, 2147483647, bits))
        count = tl.sum(counts, 0)
        weight = tl.sum(weights, 0)
        reached = tl.where(by_count, count.to(tl.float64) >= wanted, weight >= wanted)
        if reached:
            high = tl.max(below, 0)
        else:
            low = middle
            nearest = tl.min(above, 0)
            count_above = count
            weight_above = weight
    return nearest, count_above, weight_above


@triton.jit
def _finite(
    logits_ptr,
    mask_ptr,
    vocab,
    words,
    best,
    temperature,
    HAS_MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Weight and number of the ids that are not ruled out, and the bits of the least likely one."""
    NOTHING: tl.constexpr = 2139095040
    counts = tl.zeros([BLOCK], dtype=tl.int32)
    weights = tl.zeros([BLOCK], dtype=tl.float64)
    last = tl.zeros([BLOCK], dtype=tl.int32)
    raw, word = _load(logits_ptr, mask_ptr, 0, vocab, words, HAS_MASKS, BLOCK)
    for first in range(0, vocab, BLOCK):
        next_raw, next_word = _load(logits_ptr, mask_ptr, first + BLOCK, vocab, words, HAS_MASKS, BLOCK)
        ids = first + tl.arange(0, BLOCK)
        x = _scores(raw, word, first, vocab, words, HAS_MASKS, BLOCK)
        raw, word = next_raw, next_word
        distance = tl.abs(tl.div_rn(x - best, temperature))
        bits = distance.to(tl.int32, bitcast=True)
        finite = (bits < NOTHING) & (ids < vocab)
        counts += finite.to(tl.int32)
        weights += tl.where(finite, tl.exp(-distance), 0.0).to(tl.float64)
        last = tl.maximum(last, tl.where(finite, bits, 0))
    return tl.sum(weights, 0), tl.sum(counts, 0), tl.max(last, 0)


@triton.jit
def _bound(bits, weights, wanted):
    """The smallest of the lanes' bits at which the weights of what is at least as likely reach `wanted`, or infinity's.

    Each lane holds the most likely of its ids; with the rest, what is wanted is reached there at the latest.
    """
    low = -1
    high = 2139095040
    while low + 1 < high:
        middle = low + (high - low) // 2
        reached = tl.sum(tl.where(bits <= middle, weights, 0.0), 0) >= wanted
        low = tl.where(reached, low, middle)
        high = tl.where(reached, middle, high)
    return high


@triton.jit
def _kept(
    raw,
    word,
    first,
    vocab,
    words,
    best,
    temperature,
    border,
    equals,
    lowest_score,
    seen_equal,
    HAS_MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Weights (float64) of a block, 0 where left out, and how many equals of the border were seen up to its end."""
    ids = first + tl.arange(0, BLOCK)
    x = _scores(raw, word, first, vocab, words, HAS_MASKS, BLOCK)
    scaled = tl.div_rn(x - best, temperature)
    bits = tl.abs(scaled).to(tl.int32, bitcast=True)
    equal = ((bits == border) & (ids < vocab)).to(tl.int32)
    num_equal = tl.sum(equal, 0)
    kept = bits < border
    if (num_equal > 0) & (equals > 0):
        rank = seen_equal + tl.cumsum(equal, 0)
        kept = kept | ((equal == 1) & (rank <= equals))
    kept = kept & (scaled >= lowest_score) & (ids < vocab)
    return tl.where(kept, tl.exp(scaled), 0.0).to(tl.float64), seen_equal + num_equal


_BY_ROW = ["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "numbers_ptr", "mask_of_ptr", "rows_ptr"]
"""One number for each row: parts of one upload, at any place in it."""


@triton.jit(do_not_specialize=["words"], do_not_specialize_on_alignment=_BY_ROW)
def _sample_tokens_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    numbers_ptr,
    masks_ptr,
    mask_of_ptr,
    rows_ptr,
    out_ptr,
    stride,
    words,
    vocab,
    HAS_MASKS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LONG_BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    LARGEST: tl.constexpr = 3.4028234663852886e38
    NOTHING: tl.constexpr = 2139095040  # the bits of infinity
    row = tl.program_id(0).to(tl.int64)
    if HAS_ROWS:
        logits_ptr += tl.load(rows_ptr + row).to(tl.int64) * stride
    else:
        logits_ptr += row * stride
    mask_ptr = masks_ptr
    if HAS_MASKS:
        mask = tl.load(mask_of_ptr + row)
        mask_ptr += tl.maximum(mask, 0).to(tl.int64) * words
        words = tl.where(mask >= 0, words, 0)

    long_lanes = tl.arange(0, LONG_BLOCK)
    tops = tl.full([LONG_BLOCK], float("-inf"), dtype=tl.float32)
    places = long_lanes
    long_raw, long_word = _load(logits_ptr, mask_ptr, 0, vocab, words, HAS_MASKS, LONG_BLOCK)
    for first in range(0, vocab, LONG_BLOCK):
        long_next, long_next_word = _load(logits_ptr, mask_ptr, first + LONG_BLOCK, vocab, words, HAS_MASKS, LONG_BLOCK)
        ids = first + long_lanes
        x = _scores(long_raw, long_word, first, vocab, words, HAS_MASKS, LONG_BLOCK)
        long_raw, long_word = long_next, long_next_word
        places = tl.where(x > tops, ids, places)
        tops = tl.maximum(tops, x)
    best = tl.max(tops, 0)
    chosen = tl.min(tl.where(tops == best, places, 2147483647), 0)

    lanes = tl.arange(0, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    if (temperature > 0.0) & (best > -LARGEST):
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row).to(tl.float64)
        min_p = tl.load(min_p_ptr + row)
        border = NOTHING  # everything finite
        equals = 0
        limit_k = (top_k > 0) & (top_k < vocab)
        if limit_k | (top_p < 1.0):
            lane_distance = tl.abs(tl.div_rn(tops - best, temperature))
            lane_bits = lane_distance.to(tl.int32, bitcast=True)
            least_likely = NOTHING
            total = tl.zeros([], dtype=tl.float64)
            if limit_k & (top_k < LONG_BLOCK):
                ones = tl.full([LONG_BLOCK], 1.0, dtype=tl.float64)
                least_likely = _bound(lane_bits, ones, top_k.to(tl.float64))
            bounded = least_likely < NOTHING
            finite_ids = vocab
            if not bounded:
                total, finite_ids, least_likely = _finite(
                    logits_ptr, mask_ptr, vocab, words, best, temperature, HAS_MASKS, BLOCK
                )
            if limit_k & (bounded | (top_k < finite_ids)):
                border, above, weight = _border(
                    logits_ptr, mask_ptr, vocab, words, best, temperature, True, top_k.to(tl.float64),
                    least_likely, HAS_MASKS, BLOCK,
                )  # fmt: skip
                equals = top_k - above
                total = weight + equals.to(tl.float64) * tl.exp(-border.to(tl.float32, bitcast=True)).to(tl.float64)
                least_likely = border
            if top_p < 1.0:
                wanted = top_p * total
                lane_weights = tl.where(lane_bits < NOTHING, tl.exp(-lane_distance), 0.0).to(tl.float64)
                least_likely = tl.minimum(least_likely, _bound(lane_bits, lane_weights, wanted))
                new_border, above, weight = _border(
                    logits_ptr, mask_ptr, vocab, words, best, temperature, False, wanted,
                    least_likely, HAS_MASKS, BLOCK,
                )  # fmt: skip
                each = tl.exp(-new_border.to(tl.float32, bitcast=True)).to(tl.float64)
                # As many equals as it takes: rounded up, for those before the last must fall short of what is wanted.
                needed = tl.ceil((wanted - weight) / tl.maximum(each, 1e-300))
                needed = tl.minimum(tl.maximum(needed, 1.0), 2147483647.0).to(tl.int32)
                equals = tl.where(new_border == border, tl.minimum(equals, needed), needed)
                border = new_border
        lowest_score = tl.log(min_p)
        numbers = tl.arange(0, NUM_BLOCKS)
        sums = tl.zeros([NUM_BLOCKS], dtype=tl.float64)  # of each block
        seen_before = tl.zeros([NUM_BLOCKS], dtype=tl.int32)
        seen = 0
        raw, word = _load(logits_ptr, mask_ptr, 0, vocab, words, HAS_MASKS, BLOCK)
        for first in range(0, vocab, BLOCK):
            next_raw, next_word = _load(logits_ptr, mask_ptr, first + BLOCK, vocab, words, HAS_MASKS, BLOCK)
            seen_before = tl.where(numbers == first // BLOCK, seen, seen_before)
            weights, seen = _kept(
                raw, word, first, vocab, words, best, temperature, border, equals, lowest_score,
                seen, HAS_MASKS, BLOCK,
            )  # fmt: skip
            raw, word = next_raw, next_word
            sums = tl.where(numbers == first // BLOCK, tl.sum(weights, 0), sums)
        target = tl.sum(sums, 0) * tl.load(numbers_ptr + row)
        # The block in which the sum goes beyond the target; where rounding leaves none, the last with any weight.
        last_block = tl.max(tl.where(sums > 0.0, numbers, 0), 0)
        beyond = (tl.cumsum(sums, 0) > target) & (sums > 0.0)
        block_number = tl.minimum(tl.min(tl.where(beyond, numbers, NUM_BLOCKS), 0), last_block)
        reached = tl.sum(tl.where(numbers < block_number, sums, 0.0), 0)
        seen = tl.sum(tl.where(numbers == block_number, seen_before, 0), 0)
        found = -1
        chosen = -1
        first = block_number * BLOCK
        while (found < 0) & (first < vocab):
            raw, word = _load(logits_ptr, mask_ptr, first, vocab, words, HAS_MASKS, BLOCK)
            weights, seen = _kept(
                raw, word, first, vocab, words, best, temperature, border, equals, lowest_score,
                seen, HAS_MASKS, BLOCK,
            )  # fmt: skip
            ids = first + lanes
            block = tl.sum(weights, 0)
            if reached + block > target:
                over = reached + tl.cumsum(weights, 0) > target
                found = tl.min(tl.where(over & (weights > 0.0), ids, 2147483647), 0)
            if found == 2147483647:
                found = -1  # the two sums of the block round differently: the first of the next block is it
            # Rounding may leave no later one: then the last that was kept.
            chosen = tl.maximum(tl.max(tl.where(weights > 0.0, ids, -1), 0), chosen)
            reached += block
            first += BLOCK
        chosen = tl.where(found >= 0, found, chosen)
    tl.store(out_ptr + row, chosen.to(tl.int64))


def sample_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    numbers: torch.Tensor,
    masks: torch.Tensor | None,
    mask_of: torch.Tensor | None,
    vocab: int,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `reference.sample_tokens`."""
    if not supported(logits) or logits.stride(1) != 1:
        return reference.sample_tokens(logits, temperature, top_k, top_p, min_p, numbers, masks, mask_of, vocab, rows)
    count = len(temperature)
    out = torch.empty(count, dtype=torch.int64, device=logits.device)
    if count:
        masked = masks is not None and mask_of is not None
        block = min(BLOCK, padded(vocab, 128))
        _sample_tokens_kernel[(count,)](
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            numbers,
            masks if masked else logits,
            mask_of if masked else logits,
            logits if rows is None else rows,
            out,
            logits.stride(0),
            masks.shape[1] if masks is not None else 0,
            vocab,
            HAS_MASKS=masked,
            HAS_ROWS=rows is not None,
            BLOCK=block,
            LONG_BLOCK=min(2 * BLOCK, padded(vocab, 128)),
            NUM_BLOCKS=padded(triton.cdiv(vocab, block), 2),
            num_warps=16 if vocab > 4096 else 4,
        )
    return out
