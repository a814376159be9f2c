"""Weights of few bits: what they stand for, how near, and a runtime on them."""

from __future__ import annotations

import pytest
import torch
from radicel.errors import InvalidValueError
from radicel.runtime import LocalRuntime
from radicel.runtime.models import load_model, packed
from torch.nn import functional


def on_a_grid(rows: int, columns: int, most: int, seed: int = 0) -> torch.Tensor:
    """Weights as a 4-bit file gives them: per 32 a lowest value and a step; numbers up to `most` are used."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, most + 1, (rows * columns // 32, 32), generator=generator)
    step = torch.rand(len(numbers), 1, generator=generator) * 0.02 + 0.001
    low = -8 * step + torch.randn(len(numbers), 1, generator=generator) * 0.001
    return (low + numbers * step).view(rows, columns).bfloat16()


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("most", [15, 12, 9])
def test_int4_keeps_weights_that_were_four_bits_before(most):
    weight = on_a_grid(48, 128, most)
    assert relative(packed.PACKINGS["int4"](weight)._rounded, weight) < 0.006


def test_how_far_random_weights_are_rounded():
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert 0.05 < relative(packed.PACKINGS["int4"](weight)._rounded, weight) < 0.1
    assert 0.003 < relative(packed.PACKINGS["int8"](weight)._rounded, weight) < 0.012


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("rows", [1, 3, packed.FEW_ROWS - 1, packed.FEW_ROWS, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_products(kind, rows, biased):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(80, 64, generator=generator).bfloat16()
    x = torch.randn(rows, 64, generator=generator).bfloat16()
    bias = torch.randn(80, generator=generator).bfloat16() if biased else None
    made = packed.PACKINGS[kind](weight)
    out = functional.linear(x, made, bias)
    wanted = functional.linear(x.float(), made._rounded.float(), None if bias is None else bias.float())
    assert out.dtype is torch.bfloat16
    assert out.shape == (rows, 80)
    assert relative(out, wanted) < 0.01
    assert functional.linear(x.view(1, rows, 64), made, bias).shape == (1, rows, 80)


def test_a_group_of_equal_weights():
    weight = torch.full((16, 32), 0.5).bfloat16()
    weight[3] = 0.0
    out = functional.linear(torch.ones(1, 32).bfloat16(), packed.PACKINGS["int4"](weight))
    assert out[0, 0].item() == pytest.approx(16.0, rel=0.01)
    assert out[0, 3].item() == pytest.approx(0.0, abs=1e-6)


def test_nothing_else_takes_a_packed_weight():
    made = packed.PACKINGS["int8"](torch.ones(16, 32).bfloat16())
    with pytest.raises(TypeError):
        torch.matmul(torch.ones(1, 32).bfloat16(), made)


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_runtime_on_packed_weights(kind, arch, tiny_model, tmp_path):
    folder = tiny_model(tmp_path, arch, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    model = load_model(folder, device="cpu", dtype="bfloat16", weights=kind)
    assert all(isinstance(layer.gate_up, packed.PackedWeight) for layer in model.layers)
    prompts = [f"Count to {i}: " for i in range(1, 20)]
    with LocalRuntime(folder, device="cpu", weights=kind, kv_tokens=4_000, check_invariants=True) as runtime:
        together = runtime.generate(prompts, temperature=0, max_tokens=6, ignore_eos=True, token_healing=False)
        alone = runtime.generate(prompts[3], temperature=0, max_tokens=6, ignore_eos=True, token_healing=False)
        scores = runtime.score(prompts[0], ["one", "two"])
    assert {result.meta.finish_reason for result in [alone, *together]} == {"length"}
    with LocalRuntime(folder, device="cpu", dtype="bfloat16", kv_tokens=4_000) as runtime:
        plain = runtime.score(prompts[0], ["one", "two"])
    for got, wanted in zip(scores, plain):
        # A tiny random model feels every bit; still it is the same model.
        assert got.logprob == pytest.approx(wanted.logprob, rel=0.25 if kind == "int4" else 0.05)


def test_what_has_no_packing(tiny_llama):
    for options, said in (
        ({"weights": "int4", "dtype": "float32"}, "dtype='bfloat16'"),
        ({"weights": "int2"}, "int2"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            LocalRuntime(tiny_llama, device="cpu", **options)
    with pytest.raises(InvalidValueError, match="int3"):
        load_model(tiny_llama, device="cpu", dtype="bfloat16", weights="int3")
