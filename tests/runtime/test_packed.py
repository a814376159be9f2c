"""Packed weights: what they stand for, how near, and a runtime on them."""

from __future__ import annotations

import pytest
import torch
from radicel.errors import InvalidValueError
from radicel.runtime import LocalRuntime
from radicel.runtime.models import load_model, packed
from torch.nn import functional

BLOCKED = pytest.mark.skipif(
    not packed._blocks(torch.device("cpu"), torch.float32), reason="this torch has no oneDNN layout of weights"
)


def on_a_grid(rows: int, columns: int, most: int, seed: int = 0) -> torch.Tensor:
    """Weights as a 4-bit file gives them: per 32 a lowest value and a step; numbers up to `most` are used."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, most + 1, (rows * columns // 32, 32), generator=generator)
    step = torch.rand(len(numbers), 1, generator=generator) * 0.02 + 0.001
    low = -8 * step + torch.randn(len(numbers), 1, generator=generator) * 0.001
    return (low + numbers * step).view(rows, columns).bfloat16()


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def stands_for(made: packed.PackedWeight, columns: int, few: bool) -> torch.Tensor:
    """The matrix, read off through products with unit vectors, few or many at a time."""
    rows = torch.eye(columns).bfloat16().split(4 if few else columns)
    return torch.cat([functional.linear(part, made) for part in rows]).T


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("most", [15, 12, 9])
def test_int4_keeps_weights_that_were_four_bits_before(most, few):
    weight = on_a_grid(48, 128, most)
    assert relative(stands_for(packed.int4(weight), 128, few), weight) < 0.006


def test_how_far_random_weights_are_rounded():
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert 0.05 < relative(stands_for(packed.int4(weight), 256, True), weight) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_dense_products(dtype, rows, biased):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(75, 61, generator=generator).to(dtype)
    x = torch.randn(rows, 61, generator=generator).to(dtype)
    bias = torch.randn(75, generator=generator).to(dtype) if biased else None
    wanted = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    out = functional.linear(x, packed.dense(weight), bias)
    assert out.dtype is dtype
    assert out.shape == (rows, 75)
    assert relative(out, wanted) < {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 5e-3}[dtype]


@pytest.mark.parametrize("rows", [1, 3, packed.FEW_ROWS - 1, packed.FEW_ROWS, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_int4_products(rows, biased):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(80, 64, generator=generator).bfloat16()
    x = torch.randn(rows, 64, generator=generator).bfloat16()
    bias = torch.randn(80, generator=generator).bfloat16() if biased else None
    made = packed.int4(weight)
    wanted = functional.linear(x.float(), stands_for(made, 64, True).float(), None if bias is None else bias.float())
    out = functional.linear(x, made, bias)
    assert out.dtype is torch.bfloat16
    assert out.shape == (rows, 80)
    assert relative(out, wanted) < 0.01
    assert functional.linear(x.view(1, rows, 64), made, bias=bias).shape == (1, rows, 80)


def test_a_group_of_equal_weights():
    weight = torch.full((16, 32), 0.5).bfloat16()
    weight[3] = 0.0
    out = functional.linear(torch.ones(1, 32).bfloat16(), packed.int4(weight))
    assert out[0, 0].item() == pytest.approx(16.0, rel=0.01)
    assert out[0, 3].item() == pytest.approx(0.0, abs=1e-6)


def test_nothing_else_takes_a_packed_weight():
    with pytest.raises(TypeError):
        torch.matmul(torch.ones(1, 32), packed.dense(torch.ones(16, 32)))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_runtime_on_four_bits(arch, tiny_model, tmp_path):
    folder = tiny_model(tmp_path, arch, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    prompts = [f"Count to {i}: " for i in range(1, 20)]
    asked = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "token_healing": False}
    with LocalRuntime(folder, device="cpu", weights="int4", kv_tokens=4_000, check_invariants=True) as runtime:
        results = [*runtime.generate(prompts, **asked), runtime.generate(prompts[3], **asked)]
        scores = runtime.score(prompts[0], ["one", "two"])
    assert {result.meta.finish_reason for result in results} == {"length"}
    with LocalRuntime(folder, device="cpu", dtype="bfloat16", kv_tokens=4_000) as runtime:
        plain = runtime.score(prompts[0], ["one", "two"])
    for got, wanted in zip(scores, plain):
        assert got.logprob == pytest.approx(wanted.logprob, rel=0.25)  # a tiny random model feels every bit


@BLOCKED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("arch", ["llama", "llama3"])  # tied and untied
def test_auto_packs_on_a_cpu_and_keeps_the_embedding(arch, dtype, tiny_model, tmp_path):
    model = load_model(tiny_model(tmp_path, arch), device="cpu", dtype=dtype)
    if not packed._blocks(model.device, model.dtype):
        packed.pack(model)
        assert isinstance(model.layers[0].qkv, torch.Tensor)
        return  # this processor has no layout for bfloat16
    embed, plain = model.embed.clone(), model.logits(torch.ones(2, 48).to(model.dtype))
    packed.pack(model)
    assert all(
        isinstance(getattr(layer, name), packed.PackedWeight) for layer in model.layers for name in packed.MATRICES
    )
    assert isinstance(model.lm_head, packed.PackedWeight)
    assert model.embed.equal(embed)
    assert relative(model.logits(torch.ones(2, 48).to(model.dtype)), plain) < 1e-2


def test_a_large_tied_head_is_not_copied(tiny_llama, monkeypatch):
    monkeypatch.setattr(packed, "COPIED_HEAD", 1000)
    model = load_model(tiny_llama, device="cpu", dtype="float32")
    packed.pack(model)
    assert model.lm_head is None


def test_what_has_no_layout_stays(tiny_llama):
    model = load_model(tiny_llama, device="cpu", dtype="float64")
    packed.pack(model)
    assert all(isinstance(layer.qkv, torch.Tensor) for layer in model.layers)


def test_what_has_no_packing(tiny_llama):
    for options, said in (
        ({"weights": "int4", "dtype": "float32"}, "dtype='bfloat16'"),
        ({"weights": "int2"}, "int2"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            LocalRuntime(tiny_llama, device="cpu", **options)
    with pytest.raises(InvalidValueError, match="int3"):
        packed.pack(load_model(tiny_llama, device="cpu", dtype="bfloat16"), "int3")
