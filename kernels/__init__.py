"""The kernels that the model step calls: one table, name → reference twin and the faster versions by device type.

In: a kernel's name and a device. Out: the function to call. Every version of a kernel has the signature and the result
of its twin in `reference.py`, which runs wherever no faster one is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from . import reference

__all__ = ["KERNELS", "Kernel", "find"]


@dataclass(frozen=True)
class Kernel:
    """One entry of the table.

    Attributes:
        reference: the PyTorch twin, right on every device.
        fast: device type ("cuda") → a version with the same signature.
    """

    reference: Callable[..., Any]
    fast: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


KERNELS: dict[str, Kernel] = {name: Kernel(getattr(reference, name)) for name in reference.__all__}


def find(name: str, device: torch.device) -> Callable[..., Any]:
    """The version of kernel `name` to call on `device`.

    Raises:
        KeyError: no such kernel.
    """
    kernel = KERNELS[name]
    return kernel.fast.get(device.type, kernel.reference)
