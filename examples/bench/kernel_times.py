"""Checks every Triton kernel against its PyTorch twin on a GPU and times it against what the device could do.

In: one NVIDIA GPU. Out: tables, and JSON in the folder `--out` (by default $OUT, else docs/benchmarks).

    python examples/bench/kernel_times.py [--parts checks,linear,step,experts,…] [--out FOLDER]

Compiling takes longer than measuring, so `--shards` processes first run every check and every candidate once; Triton
keeps what they compiled. Times are medians of CUDA-graph replays over several caches in turn. Floors: bytes over the
measured copy rate, operations over the measured rate of a large bf16 product.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from kernel_cases import VOCAB, Decode, Prefill, plan_of, prefill, random, sampling_inputs, shared_prefixes
from kernel_checks import attention_checks, expert_checks, small_checks
from kernel_experts import experts_part
from kernel_linear import linear_part, step_part
from radicel.kernels import KERNELS, reference
from radicel.kernels.launch import RADIX, RAGGED, Blocks, RadixBlocks
from radicel.kernels.radix_attention import radix_launch
from radicel.kernels.ragged_attention import query_tiles, ragged_launch
from radicel.runtime.attention.radix_plan import RadixTuning

COPY = 4.23e12
PRODUCT = 790e12
FLAT = RadixTuning(sharing=False)
TREE = RadixTuning()

DECODES: dict[str, tuple[int, int, int, int]] = {
    "8x32 over 2048, own 96": (8, 32, 2048, 96),
    "64 over 32768, own 256": (1, 64, 32768, 256),
    "256 over 1024, own 256": (1, 256, 1024, 256),
    "4x4 over 512, own 64": (4, 4, 512, 64),
    "256 alone, 640": (256, 1, 0, 640),
    "64 alone, 384": (64, 1, 0, 384),
    "1 alone, 640": (1, 1, 0, 640),
    "1 alone, 32768": (1, 1, 0, 32768),
    "8 alone, 2000": (8, 1, 0, 2000),
    "32 alone, 1100": (32, 1, 0, 1100),
}
"""Name → groups, members, prefix, suffix. Where something is shared, also with its slots in order."""

PREFILLS: dict[str, tuple[list[int], int]] = {
    "16 x 512": ([512] * 16, 0),
    "64 x 64 over 32768": ([64] * 64, 32768),
    "128 x 64 over 2048": ([64] * 128, 2048),
    "1 x 8192": ([8192], 0),
    "1 x 512": ([512], 0),
    "1 x 2048": ([2048], 0),
}

NARROW, BOTH = Blocks(16, 64, 2, 3), Blocks(16, 128, 4, 3)
RADIX_CANDIDATES = [
    RADIX[2, 128],
    replace(RADIX[2, 128], run=Blocks(128, 64, 8, 3, 168, run=64)),
    replace(RADIX[2, 128], tail=NARROW, few=None),
    replace(RADIX[2, 128], tail=Blocks(16, 32, 1, 4, ahead=True), narrow=Blocks(16, 32, 1, 3), narrow_programs=8),
    RadixBlocks(Blocks(128, 64, 8, 5), NARROW, BOTH, 1, 4, 8),
    RadixBlocks(Blocks(128, 64, 8, 3), NARROW, BOTH, 1, 4, 8),
    RadixBlocks(Blocks(128, 128, 8, 5), NARROW, BOTH, 1, 4, 8),
    RadixBlocks(Blocks(128, 32, 8, 5, 128), NARROW, BOTH, 2, 4, 8),
    RadixBlocks(Blocks(64, 64, 4, 3), NARROW, BOTH, 2, 4, 8),
    RadixBlocks(Blocks(128, 64, 8, 5), NARROW, Blocks(16, 64, 4, 3), 1, 4, 16),
    RadixBlocks(Blocks(128, 64, 8, 5), NARROW, BOTH, 1, 4, 16),
]
PIECES = [(264, 128), (528, 128), (528, 64), (1056, 64)]
"""(units, least piece) of a plan."""
RAGGED_CANDIDATES = [
    RAGGED[2, 128].many,
    RAGGED[2, 128].few,
    RAGGED[2, 128].long,
    Blocks(128, 32, 8, 2, 128, run=64, run_stages=2),
    Blocks(128, 64, 8, 2, 128, run=64, run_stages=2),
    Blocks(128, 64, 8, 3, ahead=True, run=128),
    Blocks(128, 128, 8, 3, ahead=True, run=128),
    Blocks(128, 32, 8, 5, 128),
    Blocks(128, 64, 8, 5),
    Blocks(128, 64, 8, 7),
    Blocks(128, 64, 8, 2),
    Blocks(128, 128, 8, 5),
]


def median_us(calls: list[Callable[[], Any]], repeats: int = 7) -> float:
    """Microseconds of one call: the calls run one after another in a CUDA graph, which is replayed."""
    for call in calls[:1]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    rounds = max(1, 16 // len(calls))
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / (rounds * len(calls)))
    return statistics.median(times)


class Bench:
    """Collects rows; in a dry run each candidate is only compiled."""

    def __init__(self, shard: int, shards: int, dry: bool) -> None:
        self.rows: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self._shard, self._shards, self._dry = shard, shards, dry
        self._count = 0

    def mine(self) -> bool:
        """Whether this process does the next piece of work."""
        self._count += 1
        return self._count % self._shards == self._shard

    def time(self, part: str, name: str, variant: str, floor_us: float, calls: list[Callable[[], Any]]) -> None:
        """Times a variant of a case."""
        if self._dry and not self.mine():
            return
        try:
            if self._dry:
                calls[0]()
                torch.cuda.synchronize()
                return
            took = median_us(calls)
        except Exception as problem:
            self.failed.append(f"{part} {name} {variant}: {type(problem).__name__}: {str(problem)[:150]}")
            return
        self.rows.append({"part": part, "case": name, "variant": variant, "us": took, "floor_us": floor_us})

    def check(self, name: str, run: Callable[[], float], tolerance: float) -> None:
        """Runs a check."""
        if not self.mine():
            return
        try:
            found = run()
        except Exception as problem:
            self.failed.append(f"check {name}: {type(problem).__name__}: {str(problem)[:300]}")
            return
        self.rows.append({"part": "checks", "case": name, "error": found, "tolerance": tolerance})
        if not found <= tolerance:
            self.failed.append(f"check {name}: error {found:.2e}, allowed {tolerance:.0e}")


def floor_us(size: int, flops: int = 0) -> float:
    """The larger of the bytes' and the operations' time."""
    return max(size / COPY, flops / PRODUCT) * 1e6


def radix_calls(case: Decode, blocks: RadixBlocks, tuning: RadixTuning) -> list[Callable[[], Any]]:
    """One call per cache."""
    group = case.q.shape[1] // case.caches[0][0].shape[1]
    plan, form = plan_of(case, max(1, blocks.wide.m // group), tuning, 1, blocks.run.run)
    scale = case.q.shape[2] ** -0.5
    return [
        lambda c=cache: radix_launch(case.q, *c, case.table, plan, scale, 0, 0.0, 1, None, blocks, form)
        for cache in case.caches
    ]


def describe_tile(blocks: Blocks) -> str:
    """A tile in a few signs."""
    more = f" r{blocks.registers}" * (blocks.registers > 0) + " ahead" * blocks.ahead
    more += f" run {blocks.run} s{blocks.run_stages}" * (blocks.run > 0)
    return f"{blocks.m}x{blocks.n} w{blocks.warps} s{blocks.stages}{more}"


def describe(blocks: RadixBlocks, tuning: RadixTuning) -> str:
    """A candidate in a few signs."""
    shown = (blocks.wide, blocks.narrow, blocks.both, blocks.run, blocks.tail, blocks.few or blocks.narrow)
    parts = [describe_tile(b) for b in shown]
    kind = "tree" if tuning.sharing else "flat"
    programs = f"x{blocks.wide_programs}/{blocks.narrow_programs}"
    return f"{kind} {' / '.join(parts)} {programs} f{blocks.fused_rows} u{tuning.units} p{tuning.least_piece}"


def decode_part(bench: Bench) -> None:
    """Decode attention: every candidate on the shapes of the benchmark."""
    for (name, shape), in_order in itertools.product(DECODES.items(), (False, True)):
        if in_order and shape[1] == 1:
            continue
        name += ", in order" * in_order
        case = shared_prefixes(*shape, in_order=in_order)
        floor = floor_us(case.floor_bytes, case.flops)
        for sharing in (True, False) if shape[1] > 1 else (False,):
            for blocks in RADIX_CANDIDATES:
                for units, piece in PIECES if not bench._dry else PIECES[:1]:
                    wide = 132 * blocks.wide_programs
                    tuning = RadixTuning(units, wide, piece, sharing=sharing, row_cost=0, least_saved=0)
                    bench.time("decode", name, describe(blocks, tuning), floor, radix_calls(case, blocks, tuning))
        del case
        torch.cuda.empty_cache()


def crossover_part(bench: Bench) -> None:
    """Where sharing begins to pay: flat against tree with the blocks in use, over group sizes and prefix lengths."""
    if bench._dry:
        return
    blocks = RADIX[2, 128]
    for rows in (4, 16, 64, 256):
        for members in [n for n in (2, 4, 8, 16, 32) if n <= rows]:
            for prefix in (64, 128, 256, 512, 1024, 2048):
                case = shared_prefixes(rows // members, members, prefix, 128)
                floor = floor_us(case.floor_bytes)
                name = f"{rows} rows, {members} share {prefix}"
                for tuning in (FLAT, RadixTuning(row_cost=0, least_saved=0)):
                    variant = "tree" if tuning.sharing else "flat"
                    bench.time("crossover", name, variant, floor, radix_calls(case, blocks, tuning))


def prefill_part(bench: Bench) -> None:
    """Ragged prefill: every candidate."""
    for (name, (q_lens, cached)), in_order in itertools.product(PREFILLS.items(), (False, True)):
        name += ", in order" * in_order
        case = prefill(q_lens, cached, in_order=in_order)
        for blocks in RAGGED_CANDIDATES:
            variant = describe_tile(blocks)
            floor = floor_us(case.floor_bytes, case.flops)
            bench.time("prefill", name, variant, floor, ragged_calls(case, blocks))
        if not bench._dry and cached == 0:
            bench.time("prefill", name, "torch SDPA (keys copied)", floor, sdpa_calls(case))
        torch.cuda.empty_cache()


def ragged_calls(case: Prefill, blocks: Blocks) -> list[Callable[[], Any]]:
    """One call per cache."""
    group = case.q.shape[1] // case.caches[0][0].shape[1]
    tiles = query_tiles(case.q_lens, blocks.m // group).cuda()
    scale = case.q.shape[2] ** -0.5
    rest = (case.table, case.rows, case.starts, case.lens, scale, 0, 0.0, tiles, None, blocks, case.runs)
    return [functools.partial(ragged_launch, case.q, *cache, *rest) for cache in case.caches]


def sdpa_calls(case: Prefill) -> list[Callable[[], Any]]:
    """The PyTorch path, for equally long sequences without a cached prefix."""
    size, num, group = len(case.q_lens), case.q_lens[0], case.q.shape[1] // case.caches[0][0].shape[1]
    slots = case.table[:, :num].reshape(-1).long()

    def call(cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        keys, values = (
            x[slots].view(size, num, *x.shape[1:]).transpose(1, 2).repeat_interleave(group, 1) for x in cache
        )
        q = case.q.view(size, num, *case.q.shape[1:]).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True)

    return [lambda c=cache: call(c) for cache in case.caches]


def sampling_part(bench: Bench) -> None:
    """Sampling and log probabilities, against the twins (which PyTorch runs)."""
    kernel = KERNELS["sample_tokens"].triton()
    for rows in (1, 8, 64, 256):
        floor = floor_us(rows * VOCAB * 2)
        for kind in ("greedy", "greedy masked", "temperature", "top-k", "top-p", "all masked"):
            inputs = sampling_inputs(rows, VOCAB, torch.bfloat16, kind)
            bench.time("sampling", f"{rows} x {kind}", "triton", floor, [lambda a=inputs: kernel(**a)])
            if not bench._dry and rows == 1 and "masked" not in kind:
                call = [lambda a=inputs: reference.sample_tokens(**a)]
                bench.time("sampling", f"{rows} x {kind}", "torch", floor, call)
        logits = random(rows, VOCAB, dtype=torch.bfloat16)
        ids = torch.zeros(rows, dtype=torch.int64, device="cuda")
        numbers = torch.arange(rows, device="cuda")
        for variant, function in (("triton", KERNELS["logprobs_of"].triton()), ("torch", reference.logprobs_of)):
            calls = [lambda f=function, x=logits, y=ids, z=numbers: f(x, z, y)]
            bench.time("sampling", f"{rows} x logprobs", variant, floor, calls)


def small_part(bench: Bench) -> None:
    """The kernels around the products, at the 8B shape."""
    dtype = torch.bfloat16
    for tokens in (1, 8, 64, 256, 8192):
        x, residual, weight = (random(tokens, 4096, dtype=dtype) for _ in range(3))
        weight = weight[0].clone()
        gate_up = random(tokens, 28672, dtype=dtype)
        qkv = random(tokens, 48 * 128, dtype=dtype)
        cos, sin = (random(tokens, 128, dtype=dtype) for _ in range(2))
        slots = torch.randperm(tokens, device="cuda")
        caches = [random(tokens, 8, 128, dtype=dtype) for _ in range(2)]
        works: dict[str, tuple[tuple[Any, ...], int]] = {
            "rms_norm": ((x, weight, 1e-5), 2 * x.nbytes),
            "add_rms_norm": ((x, residual, weight, 1e-5), 4 * x.nbytes),
            "silu_mul": ((gate_up,), gate_up.nbytes * 3 // 2),
            "rotary_store": ((qkv, cos, sin, slots, *caches, 32), 2 * qkv.nbytes),
        }
        for name, (inputs, size) in works.items():
            kernel = KERNELS[name]
            for variant, function in (("triton", kernel.triton()), ("torch", kernel.reference)):
                call = [lambda f=function, a=inputs: f(*a)]
                bench.time("small", f"{name} {tokens}", variant, floor_us(size), call)


PARTS: dict[str, Callable[[Bench], None]] = {
    "linear": linear_part,
    "step": step_part,
    "decode": decode_part,
    "prefill": prefill_part,
    "sampling": sampling_part,
    "small": small_part,
    "experts": experts_part,
    "crossover": crossover_part,
}


def run_checks(bench: Bench, match: str) -> None:
    """Every check of this shard whose name holds `match`."""
    for checks in (attention_checks(), small_checks(), expert_checks()):
        for name, run, tolerance in checks:
            if match in name:
                bench.check(name, run, tolerance)


def show(rows: list[dict[str, Any]]) -> None:
    """Tables: of decode and prefill the best variants, of the rest Triton's time beside PyTorch's."""
    crossover = [row for row in rows if row["part"] == "crossover"]
    if crossover:
        print("\n== crossover: tree / flat time, by prefix 64, 128, 256, 512, 1024, 2048")
    times = {(row["case"], row["variant"]): row["us"] for row in crossover}
    for rows_members in dict.fromkeys(row["case"].rsplit(" ", 1)[0] for row in crossover):
        cases = [row["case"] for row in crossover if row["case"].rsplit(" ", 1)[0] == rows_members][::2]
        flat = " ".join(f"{times[case, 'flat']:.0f}" for case in cases)
        ratios = [f"{times[case, 'tree'] / times[case, 'flat']:5.2f}" for case in cases]
        print(f"{rows_members:28} {' '.join(ratios)}   flat us {flat}")
    for part in ("small", "sampling"):
        mine = [row for row in rows if row["part"] == part]
        print(f"\n== {part}: floor us, triton us, torch us" if mine else "")
        for case in dict.fromkeys(row["case"] for row in mine):
            of_case = {row["variant"]: row["us"] for row in mine if row["case"] == case}
            floor = next(row["floor_us"] for row in mine if row["case"] == case)
            print(f"{case:24} {floor:7.1f} {of_case.get('triton', -1):8.1f} {of_case.get('torch', -1):8.1f}")
    for part, best_of in (("prefill", 4), ("decode", 4), ("linear", 4), ("step", 8), ("experts", 9)):
        mine = sorted((row for row in rows if row["part"] == part), key=lambda row: row["us"])
        print(f"\n== {part}: us, floor us, ratio, variant" if mine else "")
        for case in dict.fromkeys(row["case"] for row in rows if row["part"] == part):
            of_case = [row for row in mine if row["case"] == case]
            for kind in dict.fromkeys(row["variant"][:4] if part == "decode" else "" for row in of_case):
                for row in [row for row in of_case if row["variant"].startswith(kind)][:best_of]:
                    ratio = row["us"] / row["floor_us"]
                    print(f"{case:23} {row['us']:8.1f} {row['floor_us']:7.1f} {ratio:5.2f} {row['variant']}")


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="checks," + ",".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "docs/benchmarks")))
    parser.add_argument("--shards", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--match", default="", help="checks whose name holds this")
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    parts = options.parts.split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    if options.shard is not None:
        bench = Bench(options.shard, options.shards, dry=True)
        if "checks" in parts:
            run_checks(bench, options.match)
        for part in [part for part in PARTS if part in parts]:
            PARTS[part](bench)
        result = {"rows": bench.rows, "failed": bench.failed}
        (options.out / f"shard{options.shard}.json").write_text(json.dumps(result))
        return
    command = [sys.executable, __file__, "--parts", options.parts, "--match", options.match, "--out", str(options.out)]
    workers = [
        subprocess.Popen([*command, "--shards", str(options.shards), "--shard", str(i)]) for i in range(options.shards)
    ]
    codes = [worker.wait() for worker in workers]
    print(f"compiled and checked in {time.perf_counter() - began:.0f} s; exit codes {codes}", flush=True)
    bench = Bench(0, 1, dry=False)
    for file in sorted(options.out.glob("shard*.json")):
        found = json.loads(file.read_text())
        bench.rows += found["rows"]
        bench.failed += found["failed"]
        file.unlink()
    for part in [part for part in PARTS if part in parts]:
        PARTS[part](bench)
        print(f"{part} done at {time.perf_counter() - began:.0f} s", flush=True)
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "seconds": time.perf_counter() - began}
    (options.out / "kernels.json").write_text(
        json.dumps({**facts, "failed": bench.failed, "rows": bench.rows}, indent=1)
    )
    show(bench.rows)
    checks = [row for row in bench.rows if row["part"] == "checks"]
    wrong = [row for row in checks if not row["error"] <= row["tolerance"]]
    print(f"\n{len(checks)} checks, {len(wrong)} wrong, {len(bench.failed)} failures")
    for line in bench.failed[:60]:
        print("FAILED", line)


if __name__ == "__main__":
    main()
