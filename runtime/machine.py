"""What a runtime runs on, in words: for numbers that mean nothing without it.

In: a runtime. Out: device, dtype, versions, threads.
"""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .local import LocalRuntime

__all__ = ["machine_of"]


def machine_of(runtime: LocalRuntime) -> dict[str, str | int]:
    """Facts about where its model runs."""
    model = runtime._runner._model
    cuda = model.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(model.device) if cuda else f"CPU: {_cpu_name()}",
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "radicel": metadata.version("radicel"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
