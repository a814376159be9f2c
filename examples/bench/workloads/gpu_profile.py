"""GPU time by kernel, from `torch.profiler`.

In: a call to run. Out: its kernels as (name, start, end), their time by group, and how long the GPU had none.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Kernel", "Recording", "Watched", "group_of", "idle_share", "recording", "table"]

GROUPS = (
    ("attention", r"radix_attention|ragged_attention|_merge_kernel|flash|fmha|attention|softmax_warp"),
    ("sampling", r"sample|argmax|ArgMax|reduce_kernel|topk|sort|logprobs|log_softmax|multinomial|cunn_SoftMax"),
    ("linear layers", r"gemm|gemv|cutlass|nvjet|cublas|xmma|splitK|matmul|_linear_kernel|skinny"),
    ("norm, rotary, activation", r"rms_norm|rotary|silu"),
    ("copies", r"Memcpy|Memset|memcpy|memset|copy"),
)
"""The first group whose expression is found in a kernel's name is its group; others are "other"."""


@dataclass(frozen=True)
class Kernel:
    """One kernel, copy or fill on the device; times in nanoseconds of one clock."""

    name: str
    start: int
    end: int


@dataclass
class Recording:
    """What the profiler saw between `begin` and `end`; wall seconds in between."""

    wall_s: float = 0.0
    kernels: tuple[Kernel, ...] = ()
    _profiler: Any = None
    _began: float = 0.0

    def begin(self) -> None:
        """Starts the profiler; device activity only, since watching the CPU would slow what is measured."""
        activity = torch.profiler.ProfilerActivity
        kinds = [activity.CUDA] if torch.cuda.is_available() else [activity.CPU]
        self._profiler = torch.profiler.profile(activities=kinds)
        self._profiler.__enter__()
        self._began = time.perf_counter()

    def end(self) -> None:
        """Stops it and reads what it saw."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.wall_s = time.perf_counter() - self._began
        self._profiler.__exit__(None, None, None)
        self.kernels = tuple(sorted(_read(self._profiler), key=lambda kernel: kernel.start))
        self._profiler = None


def recording(call: Callable[[], Any]) -> tuple[Recording, Any]:
    """Runs a call under the profiler: what was seen, and what the call returned."""
    made = Recording()
    made.begin()
    try:
        result = call()
    finally:
        made.end()
    return made, result


class Watched:
    """An engine whose calls run under the profiler.

    Attributes:
        longest: what the longest call showed, by kind: "" for plain ones, " schema" for constrained ones.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.longest: dict[str, Recording] = {}

    def gen(self, prompts: Any, max_new: int, schema: Any = None) -> Any:
        """As the engine's."""
        seen, result = recording(lambda: self._engine.gen(prompts, max_new, schema=schema))
        kind = "" if schema is None else " schema"
        if kind not in self.longest or seen.wall_s > self.longest[kind].wall_s:
            self.longest[kind] = seen
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def group_of(name: str) -> str:
    """The group of a kernel, by its name."""
    return next((group for group, pattern in GROUPS if re.search(pattern, name)), "other")


def idle_share(kernels: Iterable[Kernel], start: int, end: int) -> float:
    """Share of [start, end) in which no kernel ran; overlapping kernels count once. The kernels are in order."""
    busy, reached = 0, start
    for kernel in kernels:
        first, last = max(kernel.start, reached), min(kernel.end, end)
        if last > first:
            busy += last - first
            reached = last
    return 1.0 - busy / (end - start)


def table(seen: Recording, longest: int = 12) -> dict[str, Any]:
    """Share of kernel time by group, the longest kernels, and the idle share of the wall."""
    times: defaultdict[str, int] = defaultdict(int)
    counts: defaultdict[str, int] = defaultdict(int)
    for kernel in seen.kernels:
        times[kernel.name] += kernel.end - kernel.start
        counts[kernel.name] += 1
    total = sum(times.values()) or 1
    groups: defaultdict[str, float] = defaultdict(float)
    for name, spent in times.items():
        groups[group_of(name)] += spent / total
    ranked = sorted(times, key=lambda name: -times[name])[:longest]
    busy = 0.0
    if seen.kernels:
        first, last = seen.kernels[0].start, max(kernel.end for kernel in seen.kernels)
        busy = (1.0 - idle_share(seen.kernels, first, last)) * (last - first) / 1e9
    return {
        "kernels": len(seen.kernels),
        "wall_ms": seen.wall_s * 1e3,
        "busy_ms": busy * 1e3,
        "idle": max(0.0, 1.0 - busy / seen.wall_s) if seen.wall_s else 0.0,
        "groups": dict(groups),
        "longest": [{"name": name[:110], "ms": times[name] / 1e6, "count": counts[name]} for name in ranked],
    }


def _read(profiler: Any) -> list[Kernel]:
    """Device events; on a machine without a GPU the operators, so that the rest can be tried there."""
    wanted = torch.autograd.DeviceType.CUDA if torch.cuda.is_available() else torch.autograd.DeviceType.CPU
    events = profiler.profiler.kineto_results.events()  # `profiler.events()` takes minutes for a million of them
    return [
        Kernel(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() == wanted and event.duration_ns() > 0
    ]
