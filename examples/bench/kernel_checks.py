"""Every Triton kernel against its PyTorch twin in float64, over the layouts that models have.

In: nothing. Out: checks, each a name, a function that gives the relative error, and the error allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from kernel_cases import VOCAB, plan_of, prefill, random, sampling_inputs, shared_prefixes
from radicel.kernels import KERNELS, reference, reference_experts
from radicel.kernels.grouped_experts import experts_launch
from radicel.kernels.radix_attention import item_rows, item_run
from radicel.runtime.attention.radix_plan import RadixTuning

TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

Check = tuple[str, Callable[[], float], float]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """‖found - wanted‖ / ‖wanted‖; infinite where a number is missing."""
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))


def poison(like: torch.Tensor) -> None:
    """Leaves NaN in the block that the next tensor of this size will get."""
    torch.full_like(like, float("nan"))


def attention_checks() -> Iterator[Check]:
    """Both attention kernels over dtypes, head dims, head ratios, windows, soft caps."""
    for dtype in TOLERANCES:
        for dim in (64, 80, 96, 128, 256):
            yield _ragged_check(dtype, dim, 8, 2, 0, 0.0)
            yield _radix_check(dtype, dim, 8, 2, 0, 0.0, 1)
    for group in (1, 2, 3, 5, 6, 7, 8, 12, 16):
        yield _ragged_check(torch.bfloat16, 128, 2 * group, 2, 0, 0.0)
        yield _radix_check(torch.bfloat16, 128, 2 * group, 2, 0, 0.0, 1)
    for dtype in (torch.float32, torch.bfloat16):
        for window, softcap in ((100, 0.0), (0, 30.0), (37, 20.0)):
            yield _ragged_check(dtype, 128, 8, 2, window, softcap)
            yield _radix_check(dtype, 128, 8, 2, window, softcap, 1)
    for queries in (2, 4, 8):
        yield _radix_check(torch.bfloat16, 128, 8, 2, 0, 0.0, queries)
        yield _radix_check(torch.bfloat16, 64, 6, 2, 33, 0.0, queries)


def _ragged_check(dtype: torch.dtype, dim: int, heads: int, kv_heads: int, window: int, softcap: float) -> Check:
    def run() -> float:
        worst, shape = 0.0, {"heads": heads, "kv_heads": kv_heads, "dim": dim, "dtype": dtype}
        for q_lens, cached in (([1, 2, 77, 300, 5], 0), ([7, 129, 64], 333), ([600], 900)):
            in_order = cached == 900
            case = prefill(q_lens, cached, shared=False, **shape, in_order=in_order)
            keys, values = case.caches[0]
            inputs = (case.table, case.rows, case.starts, case.lens, dim**-0.5, window, softcap)
            poison(case.q)
            found = KERNELS["ragged_attention"].triton()(case.q, keys, values, *inputs, runs=case.runs)
            wanted = reference.ragged_attention(case.q.double(), keys.double(), values.double(), *inputs)
            worst = max(worst, error(found, wanted))
        return worst

    name = f"ragged {dtype} d={dim} heads={heads}/{kv_heads} window={window} softcap={softcap}"
    return name, run, TOLERANCES[dtype]


def _radix_check(
    dtype: torch.dtype, dim: int, heads: int, kv_heads: int, window: int, softcap: float, queries: int
) -> Check:
    def run() -> float:
        worst, shape = 0.0, {"heads": heads, "kv_heads": kv_heads, "dim": dim, "dtype": dtype}
        for groups, members, prefix, suffix in ((3, 11, 500, 70), (5, 1, 0, 700), (1, 40, 1300, 40), (1, 40, 1333, 40)):
            in_order = prefix == 1333
            case = shared_prefixes(groups, members, prefix, suffix, **shape, uneven=31, layers=1, in_order=in_order)
            tuning = RadixTuning(units=64, least_piece=64, row_cost=8, least_saved=8)
            members = item_rows(heads // kv_heads, dim, dtype, queries)
            plan, form = plan_of(case, members, tuning, queries, item_run(dim, dtype, case.q.device))
            keys, values = case.caches[0]
            q = torch.randn(len(case.lens) * queries, heads, dim, device="cuda").to(dtype)
            starts = torch.arange(len(case.lens) + 1, device="cuda") * queries
            out = torch.full_like(q, float("nan"))
            KERNELS["radix_attention"].triton()(
                q, keys, values, case.table, plan, dim**-0.5, window, softcap, queries, out, form
            )
            wanted = reference.ragged_attention(
                q.double(), keys.double(), values.double(), case.table, torch.arange(len(case.lens)), starts,
                torch.from_numpy(case.lens), dim**-0.5, window, softcap,
            )  # fmt: skip
            worst = max(worst, error(out, wanted))
        return worst

    name = f"radix {dtype} d={dim} heads={heads}/{kv_heads} window={window} softcap={softcap} queries={queries}"
    return name, run, TOLERANCES[dtype]


def small_checks() -> Iterator[Check]:
    """The kernels around attention, and sampling."""
    for dtype, tolerance in TOLERANCES.items():
        for tokens, width in ((1, 48), (7, 4096), (300, 5120), (33, 3000)):
            yield f"rms_norm {dtype} {tokens}x{width}", lambda a=(dtype, tokens, width): _norm_error(*a), tolerance
            yield f"silu_mul {dtype} {tokens}x{width}", lambda a=(dtype, tokens, width): _silu_error(*a), tolerance
        for rows in (1, 2, 7, 16):
            for count, width in ((6144, 4096), (1001, 3000), (896, 896), (4096, 14336)):
                yield (
                    f"fused_linear {dtype} {rows}x{width}x{count}",
                    lambda a=(dtype, rows, count, width): _linear_error(*a),
                    tolerance,
                )
        for dim in (64, 80, 96, 128, 256):
            for normed in (False, True):
                yield (
                    f"rotary_store {dtype} d={dim} normed={normed}",
                    lambda a=(dtype, dim, normed): _rotary_error(*a),
                    tolerance,
                )
        for vocab in (1000, 32003, VOCAB):
            yield f"sample_tokens {dtype} {vocab}", lambda a=(dtype, vocab): _sample_error(*a), 0.0
            yield f"logprobs_of {dtype} {vocab}", lambda a=(dtype, vocab): _logprob_error(*a), 1e-5


def expert_checks() -> Iterator[Check]:
    """Mixtures of experts: one token, scanned and sorted pairs, as many experts as there are published shapes."""
    for dtype, tolerance in TOLERANCES.items():
        for tokens in (1, 2, 13, 64, 65, 700):
            for experts, chosen, width, inner in ((128, 8, 512, 192), (8, 2, 1024, 768), (6, 3, 200, 72)):
                yield (
                    f"grouped_experts {dtype} {tokens} tokens, {chosen} of {experts}, {width}x{inner}",
                    lambda a=(dtype, tokens, experts, chosen, width, inner): _experts_error(*a),
                    tolerance,
                )
        for experts, chosen in ((128, 8), (8, 2), (1000, 20)):
            yield (
                f"route_experts {dtype} {chosen} of {experts}",
                lambda a=(dtype, experts, chosen): _route_error(*a),
                2e-5,
            )


def expert_inputs(
    dtype: torch.dtype, tokens: int, experts: int, chosen: int, width: int, inner: int
) -> tuple[torch.Tensor, ...]:
    """Arguments of `grouped_experts`."""
    ids, shares = reference_experts.route_experts(random(tokens, experts), chosen, True)
    gate_up = random(experts, 2 * inner, width, dtype=dtype) / width**0.5
    return (
        random(tokens, width, dtype=dtype),
        gate_up,
        random(experts, width, inner, dtype=dtype) / inner**0.5,
        ids,
        shares,
    )


def _experts_error(dtype: torch.dtype, tokens: int, experts: int, chosen: int, width: int, inner: int) -> float:
    """The worst of what the runtime chooses, with norm and residual and without, and of every way to find pairs."""
    inputs = expert_inputs(dtype, tokens, experts, chosen, width, inner)
    x, gate_up, down, ids, shares = inputs
    wide = (x.double(), gate_up.double(), down.double(), ids, shares)
    kernel, norm, residual = KERNELS["grouped_experts"].triton(), random(width, dtype=dtype), random(tokens, width)
    residual = residual.to(dtype)
    wanted = reference_experts.grouped_experts(*wide)
    whole = reference_experts.grouped_experts(*wide, norm.double(), 1e-5, residual.double())
    ways = [(True, 16)] * (tokens * chosen <= 512) + [(False, 16), (False, 64), (False, 128)]
    return max(
        error(kernel(*inputs), wanted),
        error(kernel(*inputs, norm, 1e-5, residual), whole),
        *(error(experts_launch(*inputs, None, scans=scans, block=block), wanted) for scans, block in ways),
    )


def _route_error(dtype: torch.dtype, experts: int, chosen: int) -> float:
    logits = (random(300, experts) * 3).to(dtype)
    ids, shares = KERNELS["route_experts"].triton()(logits, chosen, True)
    wanted_ids, wanted = reference_experts.route_experts(logits, chosen, True)
    assert torch.equal(ids, wanted_ids), "other experts were chosen"
    return error(shares, wanted)


def _norm_error(dtype: torch.dtype, tokens: int, width: int) -> float:
    x, residual, weight = random(tokens, width, dtype=dtype), random(tokens, width, dtype=dtype), random(width)
    weight = weight.to(dtype)
    first = error(KERNELS["rms_norm"].triton()(x, weight, 1e-5), reference.rms_norm(x.double(), weight.double(), 1e-5))
    mine = residual.clone()
    found = KERNELS["add_rms_norm"].triton()(x, mine, weight, 1e-5)
    residual.add_(x)
    assert torch.equal(mine, residual), "the residual differs"
    return max(first, error(found, reference.rms_norm(residual.double(), weight.double(), 1e-5)))


def _linear_error(dtype: torch.dtype, rows: int, count: int, width: int) -> float:
    """The worst of all that may stand around the product; several launches in a row, which overlap."""
    kernel = KERNELS["fused_linear"].triton()
    weight = random(2 * count, width, dtype=dtype) / width**0.5
    x, norm, bias = random(rows, width, dtype=dtype), random(width, dtype=dtype), random(2 * count, dtype=dtype)
    residual = random(rows, count, dtype=dtype)
    found = kernel(x, weight, bias, norm, 1e-5, True)
    mine = residual.clone()
    for _ in range(3):
        kernel(x, weight[:count], residual=mine)
    plain = kernel(mine, weight[:count, :count].contiguous()) if count <= width else found
    wide = [part.double() for part in (x, weight, bias, norm)]
    wanted = reference.fused_linear(*wide, 1e-5, True)
    total = residual.double() + 3 * reference.fused_linear(wide[0], wide[1][:count])
    last = reference.fused_linear(mine.double(), wide[1][:count, :count]) if count <= width else wanted
    return max(error(found, wanted), error(mine, total), error(plain, last))


def _silu_error(dtype: torch.dtype, tokens: int, width: int) -> float:
    x = random(tokens, 2 * width, dtype=dtype)
    poison(x[:, :width].contiguous())
    return error(KERNELS["silu_mul"].triton()(x), reference.silu_mul(x.double()))


def _rotary_error(dtype: torch.dtype, dim: int, normed: bool, tokens: int = 37) -> float:
    heads, kv_heads = 12, 3
    qkv = random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles = random(tokens, dim // 2)
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    slots = torch.randperm(100, device="cuda")[:tokens]
    norms = [random(dim, dtype=dtype), random(dim, dtype=dtype)] if normed else [None, None]
    caches = [random(100, kv_heads, dim, dtype=dtype) for _ in range(2)]
    wide = [x.double() for x in caches]
    q = KERNELS["rotary_store"].triton()(qkv, cos, sin, slots, *caches, heads, *norms, 1e-6)
    wanted = reference.rotary_store(
        qkv.double(), cos.double(), sin.double(), slots, *wide, heads,
        *[None if x is None else x.double() for x in norms], 1e-6,
    )  # fmt: skip
    return max(error(q, wanted), *(error(a, b) for a, b in zip(caches, wide)))


def _sample_error(dtype: torch.dtype, vocab: int) -> float:
    """The share of rows that draw another token than the twin; rounding may move one near a border."""
    differ = total = 0
    for kind in ("greedy", "temperature", "top-k", "top-p", "all", "all masked", "greedy masked"):
        inputs = sampling_inputs(64, vocab, dtype, kind)
        inputs["logits"][3, 5] = float("nan")
        inputs["logits"][4] = inputs["logits"][4].round()
        inputs["logits"][5] = -float("inf")
        found = KERNELS["sample_tokens"].triton()(**inputs)
        differ += int((found != reference.sample_tokens(**inputs)).sum())
        total += len(found)
    return max(0.0, differ - 2) / total


def _logprob_error(dtype: torch.dtype, vocab: int) -> float:
    logits = random(19, vocab, dtype=dtype)
    rows = torch.randint(0, 19, (30,), device="cuda")
    ids = torch.randint(0, vocab, (30,), device="cuda")
    wanted = reference.logprobs_of(logits.double(), rows, ids)
    return error(KERNELS["logprobs_of"].triton()(logits, rows, ids), wanted)
