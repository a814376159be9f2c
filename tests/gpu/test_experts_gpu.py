"""Mixtures of experts on a GPU: steps of any number of rows give what they give without graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from radicel.runtime.batch import RowUpdate, StepBatch
from radicel.runtime.cuda_graph import ANY
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models.experts import ExpertConfig
from radicel.runtime.models.loader import random_weights
from radicel.runtime.models.qwen3_moe import Qwen3Moe
from radicel.runtime.models.rope import RopeConfig

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
ROWS = 100
LENGTH = 5
LONG = 100
CONFIG = ExpertConfig(
    architecture="Qwen3MoeForCausalLM", hidden=256, intermediate=512, layers=3, heads=8, kv_heads=2, head_dim=64,
    vocab_size=1000, context_length=128, dtype="float32", rope=RopeConfig(), norm_eps=1e-6, tied=False, qk_norm=True,
    experts=64, chosen=8, expert_width=96, dense_layers=frozenset({1}),
)  # fmt: skip


@pytest.mark.parametrize("rows", [1, 2, 12, 48, 70, 96])
def test_replayed_steps_give_the_same(rows: int) -> None:
    """96 rows with 8 experts each are 768 pairs, which are sorted before; up to 16 are scanned."""
    model = Qwen3Moe(CONFIG, device=DEVICE, dtype=torch.float32)
    random_weights(model)
    found = []
    for graphs in (True, False):
        runner = ModelRunner(model, kv_slots=ROWS * LENGTH + 1, num_rows=ROWS, context_length=64, cuda_graphs=graphs)
        found.append([_step(runner, rows, position) for position in range(LENGTH)])
        if graphs:
            assert runner._graphs is not None
            assert not runner._graphs._broken
            assert {key.queries for key in runner._graphs._graphs} == {1}
        runner.close()
    for replayed, plain in zip(*found):
        torch.testing.assert_close(replayed, plain, atol=1e-3, rtol=1e-3)


def test_replayed_prompts_give_the_same() -> None:
    """Three prompts of 100 tokens in one step: a graph for any number of tokens of a row, 2,560 pairs."""
    model = Qwen3Moe(CONFIG, device=DEVICE, dtype=torch.float32)
    random_weights(model)
    numbers = np.arange(3 * LONG)
    found = []
    for graphs in (True, False):
        runner = ModelRunner(model, kv_slots=3 * LONG + 1, num_rows=4, context_length=128, cuda_graphs=graphs)
        output = runner.forward(
            StepBatch(
                token_ids=numbers * 37 % CONFIG.vocab_size,
                positions=numbers % LONG,
                slots=numbers + 1,
                rows=np.arange(3, dtype=np.int32),
                q_lens=np.full(3, LONG, np.int32),
                kv_lens=np.full(3, LONG, np.int32),
                logit_rows=np.arange(3) * LONG + LONG - 1,
                updates=tuple(
                    RowUpdate(row, 0, (numbers[row * LONG : (row + 1) * LONG] + 1).astype(np.int32)) for row in range(3)
                ),
            )
        )
        found.append(output.rows(np.arange(3)).clone())
        if graphs:
            assert runner._graphs is not None
            assert [(key.size, key.queries) for key in runner._graphs._graphs] == [(320, ANY)]
        runner.close()
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)


def _step(runner: ModelRunner, rows: int, position: int) -> torch.Tensor:
    """The logits of a step with one token of each row; tokens and slots are others in every step."""
    numbers = np.arange(rows)
    slots = 1 + position * ROWS + numbers
    output = runner.forward(
        StepBatch(
            token_ids=(numbers * 37 + position * 101) % CONFIG.vocab_size,
            positions=np.full(rows, position),
            slots=slots,
            rows=numbers.astype(np.int32),
            q_lens=np.ones(rows, np.int32),
            kv_lens=np.full(rows, position + 1, np.int32),
            logit_rows=numbers,
            updates=tuple(RowUpdate(row, position, slots[row : row + 1].astype(np.int32)) for row in range(rows)),
        )
    )
    return output.rows(numbers).clone()
