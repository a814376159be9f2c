"""Runs every Triton kernel once at small sizes under `compute-sanitizer`: bad accesses (memcheck), races (racecheck).

In: one NVIDIA GPU, `compute-sanitizer` on the PATH or under CUDA_HOME. Out: what each tool found, exit code 1 if that
is anything.

    python examples/bench/kernel_sanitize.py [--tools memcheck,racecheck]

The kernels are compiled by a run without a tool first. PyTorch's allocator hands out parts of large blocks, which hides
what runs over an end, so every tensor gets a block of its own (PYTORCH_NO_CUDA_MEMORY_CACHING).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from kernel_cases import plan_of, prefill, random, sampling_inputs, shared_prefixes
from kernel_checks import expert_inputs
from radicel.kernels import KERNELS
from radicel.kernels.radix_attention import item_rows, item_run
from radicel.runtime.attention.radix_plan import RadixTuning

DTYPE = torch.bfloat16


def run_all() -> None:
    """Every kernel, on shapes that leave tiles partly empty."""
    kernel = {name: entry.triton() for name, entry in KERNELS.items()}
    x, weight, norm = random(3, 200, dtype=DTYPE), random(52, 200, dtype=DTYPE), random(200, dtype=DTYPE)
    kernel["rms_norm"](x, norm, 1e-5)
    kernel["add_rms_norm"](x, x.clone(), norm, 1e-5)
    kernel["silu_mul"](x)
    many, wide = random(33, 2048, dtype=DTYPE), random(12288, 256, dtype=DTYPE)
    parts = kernel["streamed_linear"](many[:, :], random(6144, 2048, dtype=DTYPE), in_parts=True)
    kernel["streamed_linear"](many[:, :256].contiguous(), wide, gated=True)
    kernel["add_rms_norm"](parts, random(33, 6144, dtype=DTYPE), random(6144, dtype=DTYPE), 1e-5)
    for rows in (1, 3):
        kernel["fused_linear"](x[:rows], weight, random(52, dtype=DTYPE), norm, 1e-5, True)
        kernel["fused_linear"](x[:rows], weight, residual=random(rows, 52, dtype=DTYPE))
    long = random(1, 9000, dtype=DTYPE)
    kernel["fused_linear"](long, random(20, 9000, dtype=DTYPE), residual=random(1, 20, dtype=DTYPE))
    cos, sin = random(3, 64, dtype=DTYPE), random(3, 64, dtype=DTYPE)
    caches = [random(7, 2, 64, dtype=DTYPE) for _ in range(2)]
    slots = torch.tensor([6, 0, 3], device="cuda")
    kernel["rotary_store"](random(3, 10 * 64, dtype=DTYPE), cos, sin, slots, *caches, 6)
    kernel["rotary_store"](random(2, 3, 10 * 64), cos, sin, slots, *caches, 6)
    for dim, window, softcap in ((64, 0, 0.0), (80, 33, 20.0), (128, 0, 0.0)):
        shape = {"heads": 8, "kv_heads": 2, "dim": dim, "dtype": DTYPE}
        case = prefill([1, 70, 5], 90, shared=False, **shape)
        inputs = (case.table, case.rows, case.starts, case.lens, dim**-0.5, window, softcap)
        kernel["ragged_attention"](case.q, *case.caches[0], *inputs)
        for groups, members, prefix in ((2, 7, 150), (1, 3, 150), (12, 1, 0)):  # two launches, one, rows alone
            decode = shared_prefixes(groups, members, prefix, 140, **shape, uneven=99, layers=1, in_order=dim == 128)
            tuning = RadixTuning(units=16, wide_units=8, least_piece=64, row_cost=4, least_saved=8)
            plan, form = plan_of(decode, item_rows(4, dim, DTYPE), tuning, 1, item_run(dim, DTYPE, decode.q.device))
            kernel["radix_attention"](
                decode.q, *decode.caches[0], decode.table, plan, dim**-0.5, window, softcap, 1, None, form
            )
    for kind in ("greedy masked", "all masked", "top-p"):
        kernel["sample_tokens"](**sampling_inputs(3, 1003, DTYPE, kind))
    logits = random(3, 1003, dtype=DTYPE)
    kernel["logprobs_of"](logits, torch.tensor([2, 0], device="cuda"), torch.tensor([1002, 5], device="cuda"))
    for tokens in (1, 3, 90):  # alone, scanned, sorted
        x, gate_up, down, ids, shares = expert_inputs(DTYPE, tokens, 20, 6, 200, 56)
        ids, shares = kernel["route_experts"](random(tokens, 20, dtype=DTYPE), 6, True)
        kernel["grouped_experts"](x, gate_up, down, ids, shares, norm, 1e-5, x.clone())
        kernel["grouped_experts"](x, gate_up, down, ids, shares)
    kernel["fixed_linear"](random(70, 200, dtype=DTYPE), weight, random(52, dtype=DTYPE))
    case = prefill([1, 70, 5], 90, shared=False, heads=8, kv_heads=2, dim=80, dtype=DTYPE)
    kernel["fixed_attention"](case.q, *case.caches[0], case.table, case.rows, case.starts, case.lens, 80**-0.5)
    torch.cuda.synchronize()


def main() -> int:
    """Runs the tools."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    run_all()
    if options.inside:
        return 0
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    tool = shutil.which("compute-sanitizer") or shutil.which(str(home / "bin" / "compute-sanitizer"))
    if tool is None:
        print("compute-sanitizer is not installed: nothing was checked")
        return 1
    bad = 0
    for name in options.tools.split(","):
        command = [tool, "--tool", name, "--kernel-name-exclude", "kernel_substring=at::", "--error-exitcode", "9"]
        done = subprocess.run(
            [*command, sys.executable, __file__, "--inside"],
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            capture_output=True,
            text=True,
        )
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "=========" in line]
        print(f"{name}: exit code {done.returncode}", *lines[-12:], sep="\n", flush=True)
        if not lines:
            print(done.stderr[-1000:])
        bad |= done.returncode != 0
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
