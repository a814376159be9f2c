""" "auto" made into a device and a dtype.

In: what the user said and what the checkpoint was saved in. Out: a `torch.device`, a `torch.dtype`.
"""

from __future__ import annotations

import torch

from ..errors import InvalidValueError

__all__ = ["resolve_device"]


def resolve_device(device: str) -> torch.device:
    """The device named, or the first GPU if there is one, else the CPU.

    Raises:
        InvalidValueError: CUDA is asked for and this machine, or this build of torch, has none; or no such GPU.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise InvalidValueError(f"device={device!r}: must be 'auto', 'cpu', 'cuda' or 'cuda:<index>'") from error
    if named.type != "cuda":
        return named
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise InvalidValueError(f"device={device!r}: torch {torch.__version__} sees no CUDA GPU here; use device='cpu'")
    if (named.index or 0) >= count:
        raise InvalidValueError(f"device={device!r}: this machine has {count} GPU(s), numbered from 0")
    return torch.device("cuda", named.index or 0)
