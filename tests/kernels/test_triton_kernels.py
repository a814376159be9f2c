"""The Triton kernels against their twins: in the interpreter on a CPU (small shapes), on a GPU all layouts.

The interpreter multiplies no bfloat16 matrices and rounds bfloat16 toward zero, so that dtype is a GPU's to test.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from radicel.kernels import KERNELS, find, reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
TOLERANCES = [(torch.float32, 1e-5), (torch.float16, 2e-3)] + [(torch.bfloat16, 2e-2)] * ON_GPU

# The interpreter computes infinities that a GPU computes as well, and warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
]


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def _close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted.double(), atol=tolerance, rtol=tolerance)


def test_signatures_are_those_of_the_twins() -> None:
    for name, kernel in KERNELS.items():
        fast = kernel.triton()
        assert fast.__name__ == name
        assert list(inspect.signature(fast).parameters) == list(inspect.signature(kernel.reference).parameters)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 48), (7, 33), (3, 1000), (0, 16)])
def test_norms(dtype: torch.dtype, tolerance: float, tokens: int, width: int) -> None:
    x, weight = _random(tokens, width, dtype=dtype), _random(width, dtype=dtype, seed=5)
    residual = _random(tokens, width, dtype=dtype, seed=7)
    _close(KERNELS["rms_norm"].triton()(x, weight, 1e-3), reference.rms_norm(x, weight, 1e-3), tolerance)
    mine, theirs = residual.clone(), residual.clone()
    found = KERNELS["add_rms_norm"].triton()(x, mine, weight, 1e-5)
    _close(found, reference.add_rms_norm(x, theirs, weight, 1e-5), tolerance)
    assert torch.equal(mine, theirs)


def test_norm_with_wider_weights() -> None:
    x, weight = _random(5, 24, dtype=torch.float16), _random(24, seed=5)
    wanted = reference.rms_norm(x.float(), weight, 1e-5).half()
    for norm in (reference.rms_norm, KERNELS["rms_norm"].triton()):
        found = norm(x, weight, 1e-5)
        assert found.dtype == torch.float16
        _close(found, wanted, 2e-3)


def test_norm_of_a_view_and_of_float64() -> None:
    wide = _random(4, 3, 40)
    weight = _random(16)
    _close(
        KERNELS["rms_norm"].triton()(wide[..., 8:24], weight, 1e-5),
        reference.rms_norm(wide[..., 8:24], weight, 1e-5),
        1e-5,
    )
    exact = wide.double()
    assert torch.equal(
        KERNELS["rms_norm"].triton()(exact, exact[0, 0], 1e-5), reference.rms_norm(exact, exact[0, 0], 1e-5)
    )


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("tokens", "width"), [(5, 26), (2, 1500), (0, 4)])
def test_silu_mul(dtype: torch.dtype, tolerance: float, tokens: int, width: int) -> None:
    x = _random(tokens, width, dtype=dtype)
    _close(KERNELS["silu_mul"].triton()(x), reference.silu_mul(x), tolerance)


def _rotary_inputs(tokens: int, kv_heads: int, dim: int, dtype: torch.dtype, normed: bool) -> Any:
    """Cosines, sines, slots, norms and two pairs of caches for five tokens."""
    angles = _random(tokens, dim // 2)
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    slots = torch.tensor([5, 2, 1, 9, 7], device=DEVICE)
    norms: dict[str, Any] = {}
    if normed:
        norms = {"q_norm": _random(dim, dtype=dtype, seed=1), "k_norm": _random(dim, dtype=dtype, seed=2), "eps": 1e-6}
    caches = [torch.full((10, kv_heads, dim), 77.0, dtype=dtype, device=DEVICE) for _ in range(4)]
    return cos, sin, slots, norms, caches


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 80), (9, 3, 64), (1, 1, 8)])
def test_rotary_store(dtype: torch.dtype, tolerance: float, normed: bool, heads: int, kv_heads: int, dim: int) -> None:
    tokens = 5
    qkv = _random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    cos, sin, slots, norms, caches = _rotary_inputs(tokens, kv_heads, dim, dtype, normed)
    found = KERNELS["rotary_store"].triton()(qkv, cos, sin, slots, *caches[:2], heads, **norms)
    wanted = reference.rotary_store(qkv, cos, sin, slots, *caches[2:], heads, **norms)
    _close(found, wanted, tolerance)
    _close(caches[0], caches[2], tolerance)
    assert torch.equal(caches[1], caches[3])


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_rotary_store_adds_up_parts(dtype: torch.dtype, tolerance: float, normed: bool, parts: int) -> None:
    tokens, heads, kv_heads, dim = 5, 6, 2, 64
    qkv = _random(parts, tokens, (heads + 2 * kv_heads) * dim, dtype=torch.float32)
    cos, sin, slots, norms, caches = _rotary_inputs(tokens, kv_heads, dim, dtype, normed)
    found = KERNELS["rotary_store"].triton()(qkv, cos, sin, slots, *caches[:2], heads, **norms)
    wanted = reference.rotary_store(qkv.sum(0).to(dtype), cos, sin, slots, *caches[2:], heads, **norms)
    assert found.dtype == dtype
    for mine, theirs in ((found, wanted), (caches[0], caches[2]), (caches[1], caches[3])):
        _close(mine, theirs, 2 * tolerance)  # rounded once more there


def _batch(q_lens: list[int], kv_lens: list[int], heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> Any:
    """Arguments of `ragged_attention` up to kv_lens; the slot 0 and what lies beyond a row's end hold NaN."""
    context = max(kv_lens) + 5
    slots = len(q_lens) * context + 1
    table = torch.randperm(slots - 1, generator=torch.Generator().manual_seed(1)).view(-1, context).int() + 1
    caches = [_random(slots, kv_heads, dim, dtype=dtype, seed=seed) for seed in (3, 4)]
    for cache in caches:
        cache[0] = torch.nan
        for row, kv_len in enumerate(kv_lens):
            cache[table[row, kv_len:].long()] = torch.nan
    starts = torch.tensor([0, *q_lens]).cumsum(0).int()
    q = _random(sum(q_lens), heads, dim, dtype=dtype)
    rows = torch.arange(len(q_lens)).flip(0).int()
    return (
        q, *caches, table.flip(0).contiguous().to(DEVICE), rows.to(DEVICE), starts.to(DEVICE),
        torch.tensor(kv_lens, dtype=torch.int32, device=DEVICE),
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (7, 0.0), (0, 4.0), (40, 3.0)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 40), (3, 3, 16), (16, 1, 24)])
def test_ragged_attention(
    dtype: torch.dtype, tolerance: float, window: int, softcap: float, heads: int, kv_heads: int, dim: int
) -> None:
    inputs = _batch([3, 1, 30, 17], [9, 95, 80, 17], heads, kv_heads, dim, dtype)
    found = KERNELS["ragged_attention"].triton()(*inputs, 0.2, window, softcap)
    _close(found, reference.ragged_attention(*inputs, 0.2, window, softcap), tolerance)


def test_ragged_attention_writes_only_its_tiles() -> None:
    from radicel.kernels.ragged_attention import query_tiles, tile_queries

    inputs = _batch([3, 2, 30], [9, 40, 30], 4, 2, 16, torch.float32)
    out = torch.full_like(inputs[0], 5.0)
    tiles = query_tiles([0, 0, 30], tile_queries(2, 16, torch.float32)).to(DEVICE)
    found = KERNELS["ragged_attention"].triton()(*inputs, 0.2, 0, 0.0, tiles, out)
    assert found is out
    assert (out[:5] == 5.0).all()
    _close(out[5:], reference.ragged_attention(*inputs, 0.2)[5:], 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 5, 8, 12, 16])
def test_ragged_attention_of_every_layout(dim: int, group: int) -> None:
    for dtype, tolerance in TOLERANCES:
        inputs = _batch([1, 130, 64, 7], [1, 700, 64, 333], 2 * group, 2, dim, dtype)
        for window, softcap in ((0, 0.0), (100, 20.0)):
            found = KERNELS["ragged_attention"].triton()(*inputs, dim**-0.5, window, softcap)
            _close(found, reference.ragged_attention(*inputs, dim**-0.5, window, softcap), tolerance)


SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1e-6},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 999, "top_p": 0.999},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.1},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.6, "min_p": 0.02},
]


@pytest.mark.parametrize("settings", SAMPLING, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seeds", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.slow)], ids=str)
def test_sample_tokens(settings: dict[str, float], masked: bool, seeds: tuple[int, ...]) -> None:
    rows, vocab = 9, 1000
    logits = _random(rows, vocab + 3) * 3
    logits[1] = logits[1].round()  # many equals
    logits[2, 7] = torch.nan
    logits[3] = -torch.inf
    logits[4, 11] = torch.inf
    logits[5] = 1.0
    logits[6, 20:] = -torch.inf
    masks = torch.randint(-(2**31), 2**31 - 1, (3, 30), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    mask_of = torch.tensor([0, 1, -1, 2, -1, 0, 1, -1, 2], dtype=torch.int32, device=DEVICE)

    def full(name: str, default: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((rows,), settings.get(name, default), device=DEVICE).to(dtype)

    for seed in seeds:
        numbers = torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)
        inputs = (
            logits, full("temperature", 1.0), full("top_k", 0, torch.int32), full("top_p", 1.0), full("min_p", 0.0),
            numbers, masks.to(DEVICE) if masked else None, mask_of if masked else None, vocab,
        )  # fmt: skip
        found = KERNELS["sample_tokens"].triton()(*inputs)
        assert found.dtype == torch.int64
        assert found.tolist() == reference.sample_tokens(*inputs).tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sample_tokens_of_given_rows(dtype: torch.dtype) -> None:
    logits = _random(6, 500) * 3
    rows = torch.tensor([5, 0, 0, 3], dtype=dtype, device=DEVICE)
    masks = torch.full((1, 16), 0x0F0F0F0F, dtype=torch.int32, device=DEVICE)
    settings = [torch.full((4,), value, device=DEVICE) for value in (0.8, 0.9, 0.0)]
    numbers = torch.tensor([0.1, 0.5, 0.99, 0.3], dtype=torch.float64, device=DEVICE)
    mask_of = torch.tensor([-1, 0, -1, 0], dtype=torch.int32, device=DEVICE)
    top_k = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    inputs = (settings[0], top_k, settings[1], settings[2], numbers, masks, mask_of, 500)
    wanted = reference.sample_tokens(logits[rows.long()], *inputs).tolist()
    assert KERNELS["sample_tokens"].triton()(logits, *inputs, rows).tolist() == wanted
    assert reference.sample_tokens(logits, *inputs, rows).tolist() == wanted
    assert [token % 8 < 4 for token in (wanted[1], wanted[3])] == [True, True]


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_logprobs_of(dtype: torch.dtype, tolerance: float) -> None:
    logits = _random(5, 300, dtype=dtype) * 4
    logits[2, 50:] = -torch.inf
    rows, ids = torch.tensor([4, 0, 2, 2], device=DEVICE), torch.tensor([299, 0, 10, 60], device=DEVICE)
    found = KERNELS["logprobs_of"].triton()(logits, rows, ids)
    _close(found, reference.logprobs_of(logits, rows, ids), 1e-5)
    assert found[3] == -torch.inf


def test_a_cpu_gets_the_twins() -> None:
    assert find("rms_norm", torch.device("cpu")) is reference.rms_norm
