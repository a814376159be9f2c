"""The kernels that the model step calls: one table, name → reference twin and the file of its Triton version.

In: a kernel's name and a device. Out: the function to call. Every version of a kernel has the signature and the result
of its twin in `reference.py`, which runs wherever no faster one is listed or Triton is missing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import reference, reference_experts, reference_fixed

__all__ = ["KERNELS", "Kernel", "find", "has_triton"]


@dataclass(frozen=True)
class Kernel:
    """One entry of the table.

    Attributes:
        reference: the PyTorch twin, right on every device.
        module: the module of this folder that holds the Triton version, under the same name.
    """

    reference: Callable[..., Any]
    module: str

    def triton(self) -> Callable[..., Any]:
        """The Triton version; imports Triton."""
        module = importlib.import_module(f".{self.module}", __package__)
        found: Callable[..., Any] = getattr(module, self.reference.__name__)
        return found


KERNELS: dict[str, Kernel] = {
    "add_rms_norm": Kernel(reference.add_rms_norm, "rms_norm"),
    "fixed_attention": Kernel(reference_fixed.fixed_attention, "fixed_attention"),
    "fixed_linear": Kernel(reference_fixed.fixed_linear, "fixed_linear"),
    "fused_linear": Kernel(reference.fused_linear, "fused_linear"),
    "grouped_experts": Kernel(reference_experts.grouped_experts, "grouped_experts"),
    "logprobs_of": Kernel(reference.logprobs_of, "logprobs_of"),
    "radix_attention": Kernel(reference.radix_attention, "radix_attention"),
    "ragged_attention": Kernel(reference.ragged_attention, "ragged_attention"),
    "rms_norm": Kernel(reference.rms_norm, "rms_norm"),
    "rotary_store": Kernel(reference.rotary_store, "rotary_store"),
    "route_experts": Kernel(reference_experts.route_experts, "route_experts"),
    "sample_tokens": Kernel(reference.sample_tokens, "sample_tokens"),
    "silu_mul": Kernel(reference.silu_mul, "silu_mul"),
    "streamed_linear": Kernel(reference.streamed_linear, "streamed_linear"),
}


def find(name: str, device: torch.device) -> Callable[..., Any]:
    """The version of kernel `name` to call on `device`.

    Raises:
        KeyError: no such kernel.
    """
    kernel = KERNELS[name]
    return kernel.triton() if device.type == "cuda" and has_triton() else kernel.reference


@functools.lru_cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None
