"""Layers as few launches against the same layers as many: on the CPU by the twins, on a GPU by the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from radicel.kernels import KERNELS
from radicel.runtime.attention import make_attention
from radicel.runtime.batch import StepBatch
from radicel.runtime.kv_cache import KVCache
from radicel.runtime.models.config import ModelConfig
from radicel.runtime.models.decoder import CausalLM
from radicel.runtime.models.experts import ExpertConfig
from radicel.runtime.models.gemma2 import Gemma2, GemmaConfig
from radicel.runtime.models.layers import Step
from radicel.runtime.models.llama import Llama
from radicel.runtime.models.loader import random_weights
from radicel.runtime.models.qwen3_moe import Qwen3Moe
from radicel.runtime.models.rope import RopeConfig

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def _logits(model: CausalLM, rows: int, wanted: list[int] | None, dtype: torch.dtype) -> torch.Tensor:
    """Of one decode step over random keys and values; of the tokens wanted, or all."""
    config = model.config
    kv = KVCache(config, num_slots=rows * 20 + 1, num_rows=rows, context_length=40, device=DEVICE, dtype=dtype)
    generator = torch.Generator(DEVICE).manual_seed(0)
    for part in (*kv.keys, *kv.values):
        part.normal_(generator=generator)
    kv.page_table[:, :20] = torch.arange(rows * 20, device=DEVICE).view(rows, 20).int() + 1
    numbers = np.arange(rows)
    batch = StepBatch(
        token_ids=numbers % config.vocab_size,
        positions=np.full(rows, 19),
        slots=numbers * 20 + 20,
        rows=numbers.astype(np.int32),
        q_lens=np.ones(rows, np.int32),
        kv_lens=np.full(rows, 20, np.int32),
        logit_rows=numbers if wanted is None else np.array(wanted),
    )
    attention: Any = make_attention(
        "auto", num_heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim, device=DEVICE, dtype=dtype
    )
    inputs = [torch.from_numpy(part).to(DEVICE) for part in (batch.token_ids, batch.positions, batch.slots)]
    rows_of = None if wanted is None else torch.tensor(wanted, device=DEVICE)
    with torch.inference_mode():
        hidden = model.forward(Step(*inputs, rows_of, kv, attention, attention.prepare(batch, kv.page_table)))
        return model.logits(hidden)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_few_launches_give_the_same(rows: int, biased: bool) -> None:
    config = ModelConfig(
        architecture="LlamaForCausalLM", hidden=96, intermediate=144, layers=2, heads=6, kv_heads=2, head_dim=16,
        vocab_size=50, context_length=64, dtype="float32", rope=RopeConfig(), norm_eps=1e-5, tied=True,
        qkv_bias=biased, o_bias=biased, mlp_bias=biased, qk_norm=biased,
    )  # fmt: skip
    model = Llama(config, device=DEVICE, dtype=torch.float32)
    random_weights(model)
    for layer in model.layers:
        for bias in (layer.qkv_bias, layer.o_bias, layer.gate_up_bias, layer.down_bias, layer.q_norm, layer.k_norm):
            if bias is not None:
                bias.normal_(generator=torch.Generator(DEVICE).manual_seed(1))
    assert model.fused_rows == (16 if ON_GPU else 0)
    results = []
    for fused_rows in (0, 16):
        model.fused_rows = fused_rows
        results.append([_logits(model, rows, wanted, torch.float32) for wanted in (None, [rows - 1])])
    for plain, fused in zip(*results):
        torch.testing.assert_close(fused, plain, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(results[0][1], results[0][0][-1:], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gemma", "experts"])
def test_layers_of_a_few_dozen_rows_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that come in parts go to the residual, and only where nothing stands between."""
    from radicel.kernels import launch, streamed_linear

    shape: dict[str, Any] = {
        "hidden": 96, "layers": 2, "heads": 6, "kv_heads": 2, "head_dim": 16, "vocab_size": 50, "context_length": 64,
        "dtype": "float32", "rope": RopeConfig(), "norm_eps": 1e-5, "tied": True,
    }  # fmt: skip
    model: CausalLM
    if name == "experts":
        more = {"experts": 12, "chosen": 3, "expert_width": 20, "dense_layers": frozenset({1})}
        config: Any = ExpertConfig(architecture="Qwen3MoeForCausalLM", intermediate=144, **shape, **more)
        model = Qwen3Moe(config, device=DEVICE, dtype=torch.float32)
    elif name == "gemma":
        config = GemmaConfig(architecture="Gemma2ForCausalLM", intermediate=144, **shape)
        model = Gemma2(config, device=DEVICE, dtype=torch.float32)
    else:
        config = ModelConfig(
            architecture="LlamaForCausalLM", intermediate=144, qkv_bias=True, o_bias=True, mlp_bias=True, **shape
        )
        model = Llama(config, device=DEVICE, dtype=torch.float32)
    random_weights(model)
    for layer in model.layers:
        for bias in (layer.qkv_bias, layer.o_bias, layer.gate_up_bias, layer.down_bias):
            if bias is not None:
                bias.normal_(generator=torch.Generator(DEVICE).manual_seed(1))
    calls = []

    def blocks(x: torch.Tensor, weight: torch.Tensor, gated: bool, in_parts: bool) -> launch.StreamedBlocks:
        calls.append((gated, in_parts))
        return launch.StreamedBlocks(64, 64, 4, 2, 2 if in_parts else 1)

    monkeypatch.setattr(streamed_linear, "streamed_blocks", blocks)
    model._streamed_linear = KERNELS["streamed_linear"].triton()
    model._add_rms_norm = KERNELS["add_rms_norm"].triton()
    results = []
    for fused_rows in (0, 16):
        model.fused_rows = fused_rows
        results.append([_logits(model, 20, wanted, torch.float32) for wanted in (None, list(range(1, 20)))])
    for plain, streamed in zip(*results):
        torch.testing.assert_close(streamed, plain, atol=2e-5, rtol=2e-5)
    wanted = {"llama": {(True, False), (False, True)}, "gemma": {(False, False)}}
    assert set(calls) == wanted.get(name, {(True, False), (False, True)})


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_experts_in_few_launches_give_the_same(rows: int, kernels: bool) -> None:
    """With a layer that has none; by the twins, and by the kernels (on a CPU in the interpreter)."""
    config = ExpertConfig(
        architecture="Qwen3MoeForCausalLM", hidden=48, intermediate=40, layers=3, heads=6, kv_heads=2, head_dim=16,
        vocab_size=50, context_length=64, dtype="float32", rope=RopeConfig(), norm_eps=1e-5, tied=False, qk_norm=True,
        experts=12, chosen=3, expert_width=20, dense_layers=frozenset({1}),
    )  # fmt: skip
    model = Qwen3Moe(config, device=DEVICE, dtype=torch.float32)
    random_weights(model)
    for layer in model.layers:
        layer.post_norm.uniform_(0.5, 1.5, generator=torch.Generator(DEVICE).manual_seed(1))
    results = []
    for fused_rows in (0, 16):
        model.fused_rows = fused_rows
        if kernels and fused_rows:
            model._experts = KERNELS["grouped_experts"].triton()
            model._route = KERNELS["route_experts"].triton()
        results.append([_logits(model, rows, wanted, torch.float32) for wanted in (None, [rows - 1])])
    for plain, fused in zip(*results):
        torch.testing.assert_close(fused, plain, atol=2e-5, rtol=2e-5)
