"""Linear layers of few rows, and a whole decode step of few, at the Llama-3.1-8B shape: parts of `kernel_times.py`.

In: a `Bench`. Out: its rows. Every layer is timed over several weights in turn (more than the cache holds), each launch
after the last, so that what launches overlap counts.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from kernel_cases import random
from radicel.kernels import (
    fused_linear,
    merge_partials,
    radix_attention,
    rms_norm,
    rotary_store,
    run_items,
    silu_mul,
    streamed_linear,
    tail_items,
)
from radicel.kernels.fused_linear import fused_linear_launch
from radicel.kernels.launch import MOST_ROWS, LinearBlocks
from radicel.runtime.attention import make_attention
from radicel.runtime.batch import StepBatch
from radicel.runtime.kv_cache import KVCache
from radicel.runtime.models.config import ModelConfig
from radicel.runtime.models.layers import Step
from radicel.runtime.models.llama import Llama
from radicel.runtime.models.loader import random_weights
from radicel.runtime.models.rope import RopeConfig
from torch.nn import functional

COPY = 4.23e12

LAYERS: dict[str, tuple[int, int, bool, bool, bool]] = {
    "qkv": (6144, 4096, True, False, False),
    "o": (4096, 4096, False, False, True),
    "gate_up": (28672, 4096, True, True, False),
    "down": (4096, 14336, False, False, True),
    "head": (128256, 4096, False, False, False),
}
"""Name → rows and columns of the weight, whether normed, gated, added."""

VECTORS = [
    LinearBlocks(8, 1024, 4, 0, 2),
    LinearBlocks(4, 2048, 8, 0, 2),
    LinearBlocks(4, 2048, 8, 0, 4),
    LinearBlocks(4, 1024, 4, 0, 4),
    LinearBlocks(8, 1024, 8, 0, 4),
    LinearBlocks(4, 2048, 8, 0),
    LinearBlocks(16, 256, 2, 6),
    LinearBlocks(16, 256, 2, 6, 4),
]
WHOLE = [
    LinearBlocks(1, 0, 8, 0, 0, 4),
    LinearBlocks(2, 0, 8, 0, 0, 2),
    LinearBlocks(2, 0, 8, 0, 0, 4),
    LinearBlocks(4, 0, 8, 0, 0, 2),
    LinearBlocks(2, 0, 4, 0, 0, 4),
]
"""With all of x in registers, for widths up to 8,192."""
TILES = [
    LinearBlocks(16, 256, 2, 6, 4),
    LinearBlocks(32, 256, 4, 4),
    LinearBlocks(32, 256, 4, 4, 4),
    LinearBlocks(64, 128, 4, 5),
]
ROWS = (1, 2, 4, 8, 16)


def describe(blocks: LinearBlocks) -> str:
    """A candidate in a few signs."""
    kind = "tiles" if blocks.stages else "whole" if blocks.programs else "vector"
    return f"{kind} {blocks.n}x{blocks.k} w{blocks.warps} s{blocks.stages} a{blocks.ahead} x{blocks.programs}"


def linear_part(bench: Any) -> None:
    """Every candidate and the library on the layers of the model."""
    for name, (count, width, normed, gated, added) in LAYERS.items():
        copies = 1 if bench._dry else max(2, (300 << 20) // (count * width * 2))
        weights = [random(count, width, dtype=torch.bfloat16) for _ in range(copies)]
        norm = random(width, dtype=torch.bfloat16) if normed else None
        for rows in ROWS:
            x = random(rows, width, dtype=torch.bfloat16)
            residual = random(rows, count, dtype=torch.bfloat16) if added else None
            floor = (weights[0].nbytes) / COPY * 1e6
            case = f"{name} {rows}"
            for blocks in TILES if rows > 1 else VECTORS + WHOLE * (width <= 8192):
                calls = [
                    functools.partial(fused_linear_launch, x, w, None, norm, 1e-5, gated, residual, blocks)
                    for w in weights
                ]
                bench.time("linear", case, describe(blocks), floor, calls)
            if not bench._dry:
                calls = [functools.partial(_library, x, w, norm, gated, residual) for w in weights]
                bench.time("linear", case, "library", floor, calls)
                bare = [functools.partial(functional.linear, x, w) for w in weights]
                bench.time("linear", case, "library, the product alone", floor, bare)
        del weights
        torch.cuda.empty_cache()


def _library(
    x: torch.Tensor, weight: torch.Tensor, norm: torch.Tensor | None, gated: bool, residual: torch.Tensor | None
) -> torch.Tensor:
    x = x if norm is None else rms_norm.rms_norm(x, norm, 1e-5)
    out = functional.linear(x, weight)
    out = silu_mul.silu_mul(out) if gated else out
    return out if residual is None else residual.add_(out)


def model_of(layers: int, context: int = 4096) -> Llama:
    """The Llama-3.1-8B shape with random weights."""
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        hidden=4096,
        intermediate=14336,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        context_length=context,
        dtype="bfloat16",
        rope=RopeConfig(theta=500000.0),
        norm_eps=1e-5,
        tied=False,
    )
    model = Llama(config, device=torch.device("cuda"), dtype=torch.bfloat16)
    random_weights(model)
    return model


def step_call(model: Llama, rows: int, length: int) -> Callable[[], torch.Tensor]:
    """A decode step of `rows` sequences of `length` positions, logits included."""
    device = model.device
    slots = rows * length + 1
    kv = KVCache(model.config, num_slots=slots, num_rows=rows, context_length=2048, device=device, dtype=torch.bfloat16)
    for part in (*kv.keys, *kv.values):
        part.normal_()
    table = torch.randperm(slots - 1, device=device).view(rows, length).int() + 1
    kv.page_table[:rows, :length] = table
    attention: Any = make_attention(
        "triton", num_heads=32, kv_heads=8, head_dim=128, device=device, dtype=torch.bfloat16
    )
    numbers = np.arange(rows)
    batch = StepBatch(
        token_ids=numbers,
        positions=np.full(rows, length - 1),
        slots=table[:, -1].cpu().numpy().astype(np.int64),
        rows=numbers.astype(np.int32),
        q_lens=np.ones(rows, np.int32),
        kv_lens=np.full(rows, length, np.int32),
        logit_rows=numbers,
    )
    attention.prepare(batch, kv.page_table)
    meta = attention.fixed_meta(kv.page_table, rows)
    inputs = [torch.from_numpy(part).to(device) for part in (batch.token_ids, batch.positions, batch.slots)]
    step = Step(*inputs, None, kv, attention, meta)
    return lambda: model.logits(model.forward(step))


@contextlib.contextmanager
def _order(order: int) -> Iterator[None]:
    """When a launch lets the next begin (0: not before its end)."""
    attention = (radix_attention, run_items, tail_items, merge_partials)
    modules = (fused_linear, streamed_linear, rms_norm, silu_mul, rotary_store, *attention)
    kept = [module.early_options for module in modules]
    for module in modules:
        module.early_options = lambda device: {"DEPENDENT": order, "launch_pdl": order > 0}
    try:
        yield
    finally:
        for module, options in zip(modules, kept):
            module.early_options = options


def step_part(bench: Any) -> None:
    """Decode steps as captured graphs: fused or not, launches overlapping or not."""
    if bench._dry:
        for rows in [rows for rows in (*ROWS, 64, 256) if bench.mine()]:
            with torch.inference_mode():
                step_call(model_of(1), rows, 640)()
        return
    model = model_of(32)
    floor = 15.0e9 / COPY * 1e6
    with torch.inference_mode():
        for rows in (*ROWS, 64, 256):
            call = step_call(model, rows, 640)
            plain = None
            for fused in (0, MOST_ROWS) if rows <= MOST_ROWS else (0,):
                model.fused_rows = fused
                for order in (2, 0) if rows == 1 and fused else (2,):
                    variant = f"{'fused' if fused else 'library'}, order {order}"
                    with _order(order):
                        bench.time("step", f"step of {rows}", variant, floor, [call])
                        found = call().float()
                    plain = found if plain is None else plain
                    far = float((found - plain).norm() / plain.norm())
                    if not far < 0.1:
                        bench.failed.append(f"step of {rows}, {variant}: logits {far:.4f} apart")
