"""What a layer of a decode step takes in its place, between the launches before and after it, by the way it is done.

In: one NVIDIA GPU. Out: a table, microseconds of a layer: the median of CUDA-graph replays of a whole step of a Llama
of the 8B shape with few layers (enough that no weights stay in the cache), divided by the layers; a share of the LM
head is in it. Kernels that overlap with their neighbours cannot be told apart one by one.

    python examples/bench/kernel_layers.py [--layers 8] [--only W6,W4] [--hot 250]

`--hot` is how many large products run before each measurement, so that the clock is that of a device at work.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from kernel_linear import model_of
from radicel.kernels import launch
from radicel.kernels.launch import RADIX, Blocks
from radicel.runtime.batch import RowUpdate, Segment, StepBatch
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models.decoder import CausalLM
from torch.nn import functional

CASES = {
    "W6: 64 over 32768, own 128": (1, 64, 32768, 128),
    "W3: 8 x 32 over 2048, own 96": (8, 32, 2048, 96),
    "W4: 32 alone, 900": (32, 1, 0, 900),
    "W4: 32 alone, 320": (32, 1, 0, 320),
    "W5: 64 alone, 384": (64, 1, 0, 384),
    "W1: 256 alone, 640": (256, 1, 0, 640),
}
"""Name → groups, members, prefix, own positions."""
IN_USE = RADIX[2, 128]
WAYS: dict[str, tuple[bool, launch.RadixBlocks]] = {
    "in use": (True, IN_USE),
    "one projection, rows alone as ever": (False, replace(IN_USE, few=None)),
    "by page table": (True, replace(IN_USE, run=replace(IN_USE.run, run=0))),
    "tails one block at a time": (True, replace(IN_USE, tail=Blocks(16, 32, 1, 3))),
    "in use, again": (True, IN_USE),
}
"""Name → whether queries, keys and values are projected in parts, and the blocks of attention."""
SLOTS, CONTEXT = 180_000, 40_000


def step_of(groups: int, members: int, prefix: int, own: int) -> StepBatch:
    """A decode step whose prefixes and rows lie in slots that follow one another."""
    rows, length = groups * members, prefix + own
    updates, chains = [], []
    for row in range(rows):
        first = 1 + row // members * prefix
        shared = np.arange(first, first + prefix, dtype=np.int32)
        at = 1 + groups * prefix + row * own
        updates.append(RowUpdate(row, 0, np.concatenate((shared, np.arange(at, at + own, dtype=np.int32)))))
        chains.append((Segment(row // members + 1, 0, prefix, first),) if prefix else ())
    return StepBatch(
        token_ids=np.full(rows, 1000, np.int64),
        positions=np.full(rows, length - 1, np.int64),
        slots=np.array([update.slots[-1] for update in updates], np.int64),
        rows=np.arange(rows, dtype=np.int32),
        q_lens=np.ones(rows, np.int32),
        kv_lens=np.full(rows, length, np.int32),
        logit_rows=np.arange(rows, dtype=np.int64),
        updates=tuple(updates),
        chains=tuple(chains),
    )


@contextlib.contextmanager
def way(in_parts: bool, blocks: launch.RadixBlocks) -> Iterator[None]:
    """Does it this way."""
    kept: Any = CausalLM._qkv
    RADIX[2, 128] = blocks
    if not in_parts:
        CausalLM._qkv = lambda self, x, layer: functional.linear(x, layer.qkv)  # type: ignore[method-assign]
    try:
        yield
    finally:
        CausalLM._qkv = kept  # type: ignore[method-assign]
        RADIX[2, 128] = IN_USE


def measured(model: Any, batch: StepBatch, hot: int) -> float:
    """Microseconds of a step."""
    runner = ModelRunner(model, kv_slots=SLOTS, num_rows=256, context_length=CONTEXT)
    for part in (*runner._kv.keys, *runner._kv.values):
        part.normal_()
    runner.forward(batch)
    assert runner._graphs is not None, "no graphs on this machine"
    ((_, replay),) = runner._graphs._graphs.items()
    square = torch.randn(8192, 8192, device=model.device, dtype=torch.bfloat16)
    for _ in range(hot):
        torch.mm(square, square)
    times = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(6):
            replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / 6)
    runner.close()
    return statistics.median(times)


def main() -> None:
    """Every case in every way, the ways one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--only", default="", help="cases whose name begins so, with commas")
    parser.add_argument("--hot", type=int, default=250)
    options = parser.parse_args()
    model = model_of(options.layers, CONTEXT)
    cases = {name: sizes for name, sizes in CASES.items() if name.startswith(tuple(options.only.split(",")))}
    print("| case |", " | ".join(WAYS), "|\n|---|" + "---|" * len(WAYS))
    for name, sizes in cases.items():
        batch, found = step_of(*sizes), []
        for in_parts, blocks in WAYS.values():
            with way(in_parts, blocks):
                found.append(f"{measured(model, batch, options.hot) / options.layers:.1f}")
        print(f"| {name} |", " | ".join(found), "|", flush=True)


if __name__ == "__main__":
    main()
