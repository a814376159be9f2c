"""Mixtures of experts at published shapes, one layer: a part of `kernel_times.py`.

In: a `Bench`. Out: its rows: every way to compute the experts of 1 to 2,048 tokens, and the launches before them. The
floor is reading once the matrices of every expert that a token chose, or the products. Choices are taken in turn, which
read more than the cache holds.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from kernel_cases import random
from radicel.kernels import KERNELS
from radicel.kernels.fused_linear import fused_linear
from radicel.kernels.grouped_experts import experts_launch, pair_tiles
from radicel.kernels.launch import TokenExperts
from radicel.kernels.rms_norm import rms_norm
from radicel.kernels.token_experts import token_experts

COPY = 4.23e12
PRODUCT = 790e12

SHAPES: dict[str, tuple[int, int, int, int]] = {
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "Mixtral-8x7B": (8, 2, 4096, 14336),
}
"""Name → experts, chosen, hidden size, width of an expert."""
TOKENS = (1, 2, 4, 8, 16, 64, 96, 256, 2048)
TOKEN_BLOCKS = [
    TokenExperts(1, 4, 8, 2, 1024, 4),
    TokenExperts(1, 4, 4, 4, 1024, 4),
    TokenExperts(1, 4, 6, 4, 1024, 4),
    TokenExperts(2, 4, 4, 4, 256, 4),
    TokenExperts(1, 8, 4, 8, 1024, 8),
    TokenExperts(1, 2, 8, 8, 256, 4),
]
"""The first ones are in use."""
WAYS = [(True, 16), (False, 16), (False, 64), (False, 128)]
"""Whether pairs are scanned, and how many are in a tile."""


def experts_part(bench: Any) -> None:
    """Every candidate, and the launches before."""
    dtype = torch.bfloat16
    for name, (experts, chosen, width, inner) in SHAPES.items():
        size = 3 * experts * width * inner * 2
        layers = [
            (random(experts, 2 * inner, width, dtype=dtype), random(experts, width, inner, dtype=dtype))
            for _ in range(1 if bench._dry or size > 2 << 30 else 2)
        ]
        norm, router = random(width, dtype=dtype), random(experts, width, dtype=dtype) / width**0.5
        for tokens in TOKENS:
            x, residual = random(tokens, width, dtype=dtype), random(tokens, width, dtype=dtype)
            # A choice for each layer, so that one token's experts are read from memory.
            choices = [_choice(tokens, experts, chosen, seed) for seed in range(8)]
            met = sum(len(ids.unique()) for ids, _ in choices) / len(choices)
            flops = 6 * tokens * chosen * width * inner
            floor = max(met / experts * size / COPY, flops / PRODUCT) * 1e6
            calls = [(*layers[seed % len(layers)], *choice) for seed, choice in enumerate(choices)]
            case = f"{name} {tokens}"
            in_use = KERNELS["grouped_experts"].triton()
            bench.time(
                "experts", case, "in use, norm and sum", floor,
                [functools.partial(in_use, x, *call, norm, 1e-6, residual) for call in calls],
            )  # fmt: skip
            for blocks in TOKEN_BLOCKS if tokens == 1 else []:
                bench.time(
                    "experts", case, f"one token, {blocks}", floor,
                    [functools.partial(token_experts, x, *call, norm, 1e-6, residual, blocks) for call in calls],
                )  # fmt: skip
            for scans, block in WAYS:
                if scans and tokens * chosen > 1024:
                    continue
                bench.time(
                    "experts", case, f"{'scanned' if scans else 'sorted'}, tiles of {block}", floor,
                    [functools.partial(experts_launch, x, *call, residual, scans=scans, block=block) for call in calls],
                )  # fmt: skip
            bench.time(
                "experts", case, "router and choice alone", floor,
                [functools.partial(_before, x, norm, router, chosen)] * 8,
            )  # fmt: skip
            bench.time(
                "experts", case, "sorting alone", floor,
                [functools.partial(pair_tiles, ids, experts, 64) for ids, _ in choices],
            )  # fmt: skip
        del layers, calls
        torch.cuda.empty_cache()


def _choice(tokens: int, experts: int, chosen: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = torch.randn(tokens, experts, generator=generator, device="cuda")
    found: tuple[torch.Tensor, torch.Tensor] = KERNELS["route_experts"].triton()(logits, chosen, True)
    return found


def _before(x: torch.Tensor, norm: torch.Tensor, router: torch.Tensor, chosen: int) -> None:
    if len(x) == 1:
        logits = fused_linear(x, router, None, norm, 1e-6)
    else:
        logits = fused_linear(rms_norm(x, norm, 1e-6), router)
    KERNELS["route_experts"].triton()(logits, chosen, True)
