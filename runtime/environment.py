"""What a bug report should say about a machine.

In: nothing. Out: a dict that can be printed or made JSON: versions, devices, folders, the variables that matter.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from . import hub
from .cores import usable_cores

__all__ = ["environment"]

_PACKAGES = ("torch", "transformers", "tokenizers", "xgrammar", "llguidance", "triton", "pydantic", "numpy")
_VARIABLES = ("RADICEL_HOME", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")


def environment() -> dict[str, Any]:
    """Facts about this installation; GPU memory in GiB."""
    facts: dict[str, Any] = {
        "radicel": metadata.version("radicel"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cpus": usable_cores(),
    }
    facts |= {name: _version(name) for name in _PACKAGES}
    facts |= _devices()
    facts["home"] = str(hub.home())
    facts["models"] = [known.name for known, _, pulled in hub.models() if pulled]
    facts |= {name: value for name in _VARIABLES if (value := os.environ.get(name)) is not None}
    return facts


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "torch": torch.__version__,  # says more than the package's metadata: the build, such as +cpu
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda or "not in this torch",
    }
    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        facts["gpus"] = [f"{card.name}, {card.total_memory / 2**30:.0f} GiB" for card in cards]
    else:
        facts["gpus"] = []
    return facts
