"""What a user may choose about a runtime, checked once.

In: the keywords of `LocalRuntime`. Out: a frozen `RuntimeConfig`; `resolve_device` and `resolve_dtype` turn "auto"
into values. Settings of the step loop alone are `EngineConfig` (`engine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InvalidValueError

__all__ = ["RuntimeConfig"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": ("auto", "float64", "float32", "bfloat16", "float16"),
    "policy": ("prefix", "fcfs"),
    "load_format": ("auto", "dummy"),
    "weights": ("auto", "int4"),
}


@dataclass(frozen=True)
class RuntimeConfig:
    """The keywords of `LocalRuntime`, whose docstring explains them."""

    model: str | Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    memory_fraction: float = 0.9
    kv_tokens: int | None = None
    context_length: int | None = None
    max_running: int = 256
    prefill_chunk: int = 8192
    policy: str = "prefix"
    prefix_cache: bool = True
    leases: bool = True
    cuda_graphs: bool = True
    overlap: bool = True
    forced_runs: bool = True
    attention: str = "auto"
    chat_template: str | Path | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    trust_remote_code: bool = False
    load_format: str = "auto"
    weights: str = "auto"
    check_invariants: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InvalidValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(allowed)}")
        for name in ("kv_tokens", "context_length", "max_running", "prefill_chunk"):
            value = getattr(self, name)
            if value is None and name in ("kv_tokens", "context_length"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValueError(f"{name}={value!r}: must be an integer ≥ 1")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise InvalidValueError(f"memory_fraction={self.memory_fraction!r}: must be in (0, 1]")
        if not (self.device in ("auto", "cpu") or self.device.startswith("cuda")):
            raise InvalidValueError(f"device={self.device!r}: must be 'auto', 'cpu', 'cuda' or 'cuda:<index>'")
        if self.deterministic and (self.attention not in ("auto", "deterministic") or self.weights != "auto"):
            raise InvalidValueError(
                f"attention={self.attention!r}, weights={self.weights!r}: deterministic=True has an attention of its "
                "own and multiplies no rounded weights; leave both at 'auto'"
            )
