"""Decode speed of two real shapes with random weights, beside the time in which their weights can be read.

In: a GPU. Out: milliseconds of a step of 1, 4 and 16 sequences with 512 tokens each, the runner's own launches and the
sampled ids read back after every step, without an engine. The floor is the bytes of the matrices that a step must read
(of experts, those that are chosen) by the rate at which one large linear layer of one row reads its weights.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agreement import Steps, greedy_rows
from radicel.runtime.models import CausalLM, load_model
from radicel.runtime.models.experts import ExpertConfig

__all__ = ["SHAPES", "measure_speed"]

PROMPT = 512
STEPS = 48
BATCHES = (1, 4, 16)
_QWEN3 = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
    "head_dim": 128,
    "num_attention_heads": 32,
    "dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen3-8B": {
        **_QWEN3,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
    },
    "Qwen3-30B-A3B": {
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
}

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
}


def measure_speed(name: str, device: str, *, tiny: bool = False) -> dict[str, Any]:
    """One shape.

    Args:
        name: of `SHAPES`.
        device: where.
        tiny: a small one of the same kind in its place, to try the script.

    Returns:
        "sizes": batch → {"ms": of a step, "floor_ms": of its weights}, and "read_gb_per_s", the rate of reading.
    """
    rate = _reading_rate(device, 1 << 10 if tiny else 1 << 18)
    config = {**SHAPES[name], **(_TINY if tiny else {})}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        model = load_model(
            Path(folder), device=device, dtype="bfloat16", load_format="dummy", context_length=PROMPT + STEPS + 32
        )
    sizes = {
        str(size): {"ms": _step_ms(model, size), "floor_ms": _bytes_read(model, size) / rate * 1e3} for size in BATCHES
    }
    return {"read_gb_per_s": rate / 1e9, "sizes": sizes}


def _step_ms(model: CausalLM, size: int) -> float:
    steps = Steps(model, model.context_length, slots=size * model.context_length + 1, rows=size)
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, (size, PROMPT))
    for row in range(size):
        steps.feed([(row, ids[row].tolist())], last=True)
    new = [7] * size

    def step() -> None:
        nonlocal new
        output = steps.feed([(row, [token]) for row, token in enumerate(new)], last=True)
        new = steps.runner.sample(output, greedy_rows(size)).read().token_ids

    return _median_ms(step, STEPS)


def _bytes_read(model: CausalLM, size: int) -> float:
    config = model.config
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim + config.heads * config.head_dim
    layer = config.hidden * heads
    if isinstance(config, ExpertConfig):
        # Experts that at least one of `size` tokens chooses, at random: as the weights are.
        met = config.experts * (1 - (1 - config.chosen / config.experts) ** size)
        layer += 3 * config.hidden * config.expert_width * met + config.experts * config.hidden
    else:
        layer += 3 * config.hidden * config.intermediate
    return (layer * config.layers + config.vocab_size * config.hidden) * model.dtype.itemsize


def _reading_rate(device: str, rows: int) -> float:
    weight = torch.zeros(rows, 8192, dtype=torch.bfloat16, device=device)
    x = torch.zeros(1, 8192, dtype=torch.bfloat16, device=device)

    def read() -> None:
        torch.nn.functional.linear(x, weight)
        if weight.is_cuda:
            torch.cuda.synchronize()

    return weight.numel() * 2 / _median_ms(read, 10) * 1e3


def _median_ms(call: Callable[[], None], count: int) -> float:
    times = []
    for number in range(count + 5):
        start = time.perf_counter()
        call()
        if number >= 5:
            times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3
