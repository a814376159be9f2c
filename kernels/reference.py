"""The PyTorch twin of every kernel: what it must compute, on any device and dtype.

In and out: tensors, as each docstring says. A GPU kernel has the same name, signature and result; parity tests compare
the two. These are also what runs where no faster kernel exists, so the small ones are written to be quick on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

__all__ = [
    "add_rms_norm",
    "fused_linear",
    "logprobs_of",
    "radix_attention",
    "ragged_attention",
    "rms_norm",
    "rotary_store",
    "sample_tokens",
    "silu_mul",
    "streamed_linear",
]

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm: x / sqrt(mean(x², last) + eps) · weight (Zhang and Sennrich, 2019).

    Args:
        x: [..., n], any of the float types; the mean is taken in float32 or wider.
        weight: [n], of the same dtype or a wider one.
        eps: added to the mean of squares.

    Returns:
        [..., n] in the dtype of `x`.
    """
    if weight.dtype != x.dtype:
        return functional.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
    return functional.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`residual += x` in place, then its `rms_norm`.

    Args:
        x: [T, n], what the last block gave; or float32 [S, T, n], parts of it that are added up first.
        residual: [T, n], changed.
        weight: [n].
        eps: added to the mean of squares.

    Returns:
        [T, n], the norm of the new residual.
    """
    return rms_norm(residual.add_(x.sum(0) if len(x.shape) == 3 else x), weight, eps)


def rotary_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Norms each head if asked to, rotates queries and keys (RoPE, Su et al. 2021), stores keys and values.

    With x = (x1, x2) split in the middle of the head: out = (x1·cos - x2·sin, x2·cos + x1·sin).

    Args:
        qkv: [T, (num_heads + 2·kv_heads)·d], queries, keys, values side by side; or [parts, T, …] in float32, which
            add up to them.
        cos: [T, d], the cosines of each token's angles, both halves equal.
        sin: [T, d], the sines, the first half negated.
        slots: integers [T], where each token's key and value go; only the trash slot may repeat.
        k_cache, v_cache: [slots, kv_heads, d], changed.
        num_heads: query heads.
        q_norm, k_norm: [d], weights of an RMS norm of each query and key head before the rotation, or None.
        eps: of that norm.

    Returns:
        The rotated queries, [T, num_heads, d], in the cache's dtype.
    """
    kv_heads, dim = k_cache.shape[1:]
    qkv = qkv.sum(0).to(k_cache.dtype) if qkv.dim() == 3 else qkv
    heads = qkv.view(qkv.shape[0], num_heads + 2 * kv_heads, dim)
    turned = heads[:, : num_heads + kv_heads]
    if q_norm is not None and k_norm is not None:
        turned = torch.cat(
            (rms_norm(heads[:, :num_heads], q_norm, eps), rms_norm(turned[:, num_heads:], k_norm, eps)), 1
        )
    turned = torch.addcmul(turned * cos.unsqueeze(1), turned.roll(dim // 2, -1), sin.unsqueeze(1))
    k_cache.index_copy_(0, slots, turned[:, num_heads:])
    v_cache.index_copy_(0, slots, heads[:, num_heads + kv_heads :])
    return turned[:, :num_heads]


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, the gate of a SwiGLU block (Shazeer, 2020).

    Args:
        gate_up: [T, 2n], gate and up side by side.

    Returns:
        [T, n].
    """
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """A linear layer with what stands before and after it.

    Args:
        x: [T, n], normed first if `norm` is given (see `rms_norm`).
        weight, bias: [m, n] and [m] or None.
        norm, eps: weights [n] of the norm or None, and what is added to its mean of squares.
        gated: whether the result y goes on as silu(y[:, : m / 2]) · y[:, m / 2 :].
        residual: what the result is added to, in place; or None.

    Returns:
        `residual`, or the result as a new tensor: [T, m], gated [T, m / 2].
    """
    if norm is not None:
        x = rms_norm(x, norm, eps)
    out = functional.linear(x, weight, bias)
    if gated:
        out = silu_mul(out)
    return out if residual is None else residual.add_(out)


def streamed_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, gated: bool = False, in_parts: bool = False
) -> Tensor:
    """A linear layer of a few dozen rows.

    Args:
        x: [T, n].
        weight, bias: [m, n] and [m] or None.
        gated: whether the result y goes on as silu(y[:, : m / 2]) · y[:, m / 2 :].
        in_parts: whether the result may come as parts, which the caller adds up.

    Returns:
        [T, m], gated [T, m / 2]; in parts perhaps float32 [S, T, m].
    """
    out = functional.linear(x, weight, bias)
    return silu_mul(out) if gated else out


def ragged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    rows: Tensor,
    q_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tiles: Tensor | None = None,
    out: Tensor | None = None,
    long: bool = False,
    runs: Tensor | None = None,
) -> Tensor:
    """Causal attention of a ragged batch over the page table: softmax(scale · q·Kᵀ)·V for each query and head.

    Query i of sequence b (token q_starts[b] + i) sees the positions 0 .. kv_lens[b] - q_lens[b] + i of its row, where
    q_lens[b] = q_starts[b + 1] - q_starts[b]; of these, with a window, the last `window`. Query head h reads key head
    h // (heads / kv_heads). Scores and sums are kept in float32 or wider.

    Args:
        q: [T, heads, d].
        k_cache, v_cache: [slots, kv_heads, d].
        page_table: int32 [rows, context], the slot of each position.
        rows: integers [B], the page-table row of each sequence.
        q_starts: integers [B + 1], the first token of each sequence, and T.
        kv_lens: integers [B], positions visible to the last query.
        scale: factor of the scores.
        window: positions that a query sees at most, its own the last (Beltagy et al. 2020); 0 for all.
        softcap: bounds the scores to softcap · tanh(score / softcap) (Gemma Team 2024); 0 for none.
        tiles: int32 [N, 2], sequence and first query of each tile of work (for a kernel; `q_starts` says as much).
            Queries of no tile may be left unwritten by a kernel.
        out: [T, heads, d], changed; a new tensor without it.
        long: whether a query sees thousands of positions (for a kernel to choose its tiles by).
        runs: int32 [B, 3], of each sequence a first position, an end, and the slot of the first: between them, slots
            follow one another (for a kernel to fetch many at once; the page table says as much). None where this is
            not so for most.

    Returns:
        `out`, in the dtype of `q`.
    """
    out = torch.empty_like(q) if out is None else out
    starts = q_starts.tolist()
    for b, (row, kv_len) in enumerate(zip(rows.tolist(), kv_lens.tolist())):
        queries = q[starts[b] : starts[b + 1]]
        if not len(queries):
            continue
        slots = page_table[row, :kv_len].long()
        if runs is not None:
            _check_run(slots, *runs[b].tolist())
        limits = torch.arange(kv_len - len(queries), kv_len, device=q.device) + 1
        positions = torch.arange(kv_len, device=q.device)
        found, _ = _attend(queries, k_cache[slots], v_cache[slots], positions, limits, scale, window, softcap)
        out[starts[b] : starts[b + 1]] = found.to(q.dtype)
    return out


def radix_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    plan: Mapping[str, Tensor],
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    queries: int = 1,
    out: Tensor | None = None,
    form: str = "any",
) -> Tensor:
    """`ragged_attention` of few queries per row, in the items of a plan that together cover each row once.

    An item is a stretch of positions that some rows share; the results of a row's items are weighted by exp(lse).

    Args:
        q: [T, heads, d].
        k_cache, v_cache: [slots, kv_heads, d].
        page_table: int32 [rows, context], the slot of each position.
        plan: the parts of a `RadixLayout` by name, int32.
        scale, window, softcap: as for `ragged_attention`.
        queries: most queries of a row.
        out: [T, heads, d], changed; a new tensor without it.
        form: what is known of the plan, one of `radix_items.FORMS`, so that a kernel need not look for the rest.

    Returns:
        `out`; tokens of no row of the plan are left as they were.
    """
    out = torch.empty_like(q) if out is None else out
    num_wide, members = plan["members"].shape
    firsts, nums, lens, sizes = (plan[name].tolist() for name in ("firsts", "nums", "lens", "sizes"))
    assert all(num <= queries for first, num in zip(firsts, nums) if first >= 0), "more queries than there may be"
    assert form != "alone" or (sizes[0] == 0 and int(plan["merges"].max()) <= 1), "some row has several items"
    partials: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    wide = [(i * members, item, plan["members"][i]) for i, item in enumerate(plan["wide"][: sizes[0]])]
    narrow = [(num_wide * members + i, item, item) for i, item in enumerate(plan["narrow"][: sizes[1]])]
    for number, item, rows in wide + narrow:
        shown_by, start, end, count = item.tolist()
        for k, row in enumerate(rows[:count].tolist()):
            limits = torch.arange(lens[row] - nums[row], lens[row], device=q.device) + 1
            positions = torch.arange(start, max(start, min(end, lens[row])), device=q.device)
            slots = page_table[shown_by, start : start + len(positions)].long()
            if number < num_wide * members and (slot := int(plan["slots"][number // members])) >= 0:
                _check_run(slots, 0, len(slots), slot)
            mine = q[firsts[row] : firsts[row] + nums[row]]
            found = _attend(mine, k_cache[slots], v_cache[slots], positions, limits, scale, window, softcap)
            assert (row, number + k) not in partials, "a partial result is computed twice"
            partials[row, number + k] = found
    for row in dict.fromkeys(row for _, row in plan["tokens"].tolist() if row >= 0 and firsts[row] >= 0):
        listed = plan["partials"][row, : int(plan["merges"][row])].tolist()
        parts = [partials.pop((row, number)) for number in listed]
        lse = torch.stack([part[1] for part in parts])
        weights = (lse - lse.logsumexp(0)).exp().unsqueeze(-1)
        out[firsts[row] : firsts[row] + nums[row]] = (torch.stack([p[0] for p in parts]) * weights).sum(0).to(q.dtype)
    assert not partials, "a partial result belongs to no row"
    return out


def sample_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    numbers: Tensor,
    masks: Tensor | None,
    mask_of: Tensor | None,
    vocab: int,
    rows: Tensor | None = None,
) -> Tensor:
    """One token id per row: the lowest id among the largest logits, or a draw from the distribution.

    NaN counts as -inf, +inf as the largest number. A mask forbids ids; an allowed id stays finite, however low. At
    temperature 0, and where no logit is finite, the lowest best id is taken. Otherwise the weights
    exp((x - max x) / temperature) of the k largest are kept (equals by lowest id), of these the shortest run, largest
    first, whose sum reaches top_p of the whole, of these what is at least min_p of the largest; the id is the first
    at which the sum of kept weights, in order of ids, exceeds `number` of their total.

    Args:
        logits: [S, at least `vocab`], float types, not changed; with `rows`, [R, at least `vocab`].
        temperature, top_p, min_p: float32 [S].
        top_k: int32 [S], 0 for all.
        numbers: float64 [S] in [0, 1).
        masks: int32 [M, words]: id i is allowed if bit i % 32 of word i // 32 is set, and forbidden beyond; or None.
        mask_of: int32 [S], the mask of each row, -1 for none; None where `masks` is.
        vocab: ids from here on are never chosen.
        rows: integers [S], the row of `logits` that each sample reads (several may read one); None for one each.

    Returns:
        int64 [S].
    """
    logits = logits if rows is None else logits[rows.long()]
    scores = logits[:, :vocab].to(torch.promote_types(logits.dtype, torch.float32))
    largest = torch.finfo(scores.dtype).max
    scores = scores.nan_to_num(nan=-torch.inf, posinf=largest, neginf=-torch.inf)
    if masks is not None and mask_of is not None:
        ids = torch.arange(vocab, device=logits.device)
        words = masks[mask_of.clamp(min=0).long()][:, (ids // 32).clamp(max=masks.shape[1] - 1)]
        allowed = ((words >> (ids % 32)) & 1 != 0) & (ids // 32 < masks.shape[1])
        masked = scores.clamp(min=-largest).masked_fill(~allowed, -torch.inf)
        scores = torch.where((mask_of >= 0)[:, None], masked, scores)
    top = scores.max(-1)[0]
    # Not argmax, which does not say which of equals it takes.
    best = torch.where(scores == top[:, None], torch.arange(vocab, device=logits.device), vocab).amin(-1)
    plain = (temperature <= 0) | (top <= -largest)
    safe = torch.where(temperature > 0, temperature, 1.0).to(scores.dtype)[:, None]
    scaled = (scores - torch.where(plain, 0.0, top)[:, None]) / safe
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    weights = ranked.double().exp()
    size = torch.where(top_k > 0, top_k, vocab)[:, None]
    weights = weights.masked_fill(torch.arange(vocab, device=logits.device) >= size, 0.0)
    before = weights.cumsum(-1) - weights
    mass = top_p.double()[:, None]
    kept = (weights > 0) & ((mass >= 1) | (before < mass * weights.sum(-1, keepdim=True)))
    kept[:, 0] = True
    kept &= ranked >= min_p.to(scores.dtype).log()[:, None]
    chosen = torch.zeros_like(kept).scatter(-1, order, kept)
    reached = scaled.double().exp().masked_fill(~chosen, 0.0).cumsum(-1)
    drawn = torch.searchsorted(reached, reached[:, -1:] * numbers[:, None], right=True).squeeze(-1)
    return torch.where(plain, best, drawn.clamp(max=vocab - 1))


def logprobs_of(logits: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Log probabilities of given ids: logits[rows[i], ids[i]] - log Σ exp(logits[rows[i]]).

    Args:
        logits: [R, vocab], float types.
        rows, ids: int64 [n].

    Returns:
        float32 [n].
    """
    wide = logits[rows].to(torch.promote_types(logits.dtype, torch.float32))
    return (wide.gather(-1, ids[:, None]).squeeze(-1) - wide.logsumexp(-1)).float()


def _check_run(slots: Tensor, first: int, end: int, slot: int) -> None:
    """Raises AssertionError unless the slots at [first, end) are `slot` and what follows it."""
    run = torch.arange(slot, slot + end - first, device=slots.device)
    assert torch.equal(slots[first:end], run), f"the slots of {first} to {end} do not follow {slot}"


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    limits: Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """([n, heads, d], log of the sum of weights [n, heads]), both wide; query i sees positions below limits[i]."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.to(wide).repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.to(wide), keys) * scale
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    seen = positions[None] < limits[:, None]
    if window:
        seen &= positions[None] >= limits[:, None] - window
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
    return torch.einsum("hqk,khd->qhd", weights, values), lse.transpose(0, 1)
