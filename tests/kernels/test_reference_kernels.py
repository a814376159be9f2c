"""The PyTorch twins against formulas written out in float64, in every dtype and on odd shapes."""

from __future__ import annotations

import pytest
import torch
from radicel.kernels import KERNELS, find, reference

CPU = torch.device("cpu")
TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 4e-2)]


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 48), (7, 33), (0, 16)])
def test_rms_norm(dtype: torch.dtype, tolerance: float, tokens: int, width: int) -> None:
    x, weight = _random(tokens, width, dtype=dtype), _random(width, dtype=dtype, seed=5)
    wide = x.double()
    wanted = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    _close(reference.rms_norm(x, weight, 1e-3), wanted, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_add_rms_norm_changes_the_residual(dtype: torch.dtype, tolerance: float) -> None:
    x, residual, weight = (_random(5, 24, dtype=dtype, seed=s) for s in (0, 1, 2))
    weight = weight[0]
    total = x + residual
    found = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    wide = total.double()
    _close(found, wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double(), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_silu_mul(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = _random(5, 26, dtype=dtype)
    gate, up = gate_up.double().split(13, -1)
    _close(reference.silu_mul(gate_up), gate / (1 + (-gate).exp()) * up, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("normed", [False, True])
def test_rotary_store(dtype: torch.dtype, tolerance: float, normed: bool) -> None:
    tokens, heads, kv_heads, dim = 4, 6, 2, 8
    qkv = _random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles = torch.tensor([3.0, 7.0, 0.0, 50.0], dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    q_norm, k_norm = (_random(dim, dtype=dtype, seed=s) for s in (8, 9))
    slots = torch.tensor([5, 2, 0, 9])
    k_cache, v_cache = (torch.full((10, kv_heads, dim), 77.0, dtype=dtype) for _ in range(2))
    norms = {"q_norm": q_norm, "k_norm": k_norm, "eps": 1e-6} if normed else {}
    q = reference.rotary_store(qkv, cos, sin, slots, k_cache, v_cache, heads, **norms)

    parts = qkv.double().view(tokens, -1, dim).split((heads, kv_heads, kv_heads), 1)

    def turn(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        if normed:
            x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm.double()
        a, b = x.split(dim // 2, -1)
        c, s = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    _close(q, turn(parts[0], q_norm), tolerance)
    _close(k_cache[slots], turn(parts[1], k_norm), tolerance)
    assert torch.equal(v_cache[slots].double(), parts[2])

    again = [torch.zeros_like(cache) for cache in (k_cache, v_cache)]
    in_parts = torch.stack((qkv.float() - 1, torch.ones_like(qkv, dtype=torch.float32)))
    _close(reference.rotary_store(in_parts, cos, sin, slots, *again, heads, **norms), q, max(tolerance, 1e-5))
    _close(again[0][slots], k_cache[slots], max(tolerance, 1e-5))
    untouched = [1, 3, 4, 6, 7, 8]
    assert (k_cache[untouched] == 77).all()
    assert (v_cache[untouched] == 77).all()


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_ragged_attention_against_a_loop_over_queries(dtype: torch.dtype, tolerance: float) -> None:
    heads, kv_heads, dim, scale = 4, 2, 8, 0.3
    q_lens, kv_lens, rows = [3, 1, 4], [9, 5, 4], [2, 0, 1]
    k_cache, v_cache = (_random(30, kv_heads, dim, dtype=dtype, seed=s) for s in (1, 2))
    q = _random(sum(q_lens), heads, dim, dtype=dtype)
    table = torch.randperm(30, generator=torch.Generator().manual_seed(3))[:27].view(3, 9).int()
    starts = torch.tensor([0, 3, 4, 8])
    found = reference.ragged_attention(
        q, k_cache, v_cache, table, torch.tensor(rows), starts, torch.tensor(kv_lens), scale
    )
    token = 0
    for row, q_len, kv_len in zip(rows, q_lens, kv_lens):
        for i in range(q_len):
            slots = table[row, : kv_len - q_len + i + 1].long()
            for head in range(heads):
                keys, values = (cache[slots, head // 2].double() for cache in (k_cache, v_cache))
                weights = (keys @ q[token, head].double() * scale).softmax(0)
                _close(found[token, head], weights @ values, tolerance)
            token += 1


def test_every_kernel_is_in_the_table_under_its_name() -> None:
    assert set(KERNELS) >= set(reference.__all__)
    for name, kernel in KERNELS.items():
        assert kernel.reference.__name__ == name
        assert find(name, CPU) is kernel.reference
    with pytest.raises(KeyError):
        find("no_such_kernel", CPU)
