"""The settings of the step loop, checked once.

In: numbers and switches from `LocalRuntime` or a test. Out: a frozen `EngineConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidValueError

__all__ = ["EngineConfig", "spare_tokens"]

_SPARE_SHARE = 32
"""One of so many tokens of a step, and it may have one more where that ends a prompt."""


def spare_tokens(prefill_chunk: int) -> int:
    """How many tokens more than `prefill_chunk` a step may have where these end a prompt's prefill.

    Those few would cost a whole step of their own, and their sequence would end a step later than those beside it.
    """
    return prefill_chunk // _SPARE_SHARE


@dataclass(frozen=True)
class EngineConfig:
    """How the engine schedules.

    Attributes:
        prefill_chunk: most prompt tokens (and re-computed ones) of a step, and 1/32 more where that ends a prompt;
            decoding rows come in addition, so that neither kind of work can stop the other.
        max_running: most sequences that run at once; the runner's page-table rows are a limit too.
        policy: order among waiting sequences of one priority: "prefix" (longest cached prefix first, those of one
            prefix together) or "fcfs" (as they came).
        prefix_cache: whether sequences share prefixes and leave them in the tree; False is for comparison.
        forced_runs: whether a run of forced tokens enters one step together; False feeds one a step, with the same
            outcome.
        forced_chunk: most tokens of such a run in a step in which other sequences decode: longer ones would make the
            step slower for all.
        overlap: whether a step is launched before the results of the last one are read, where the device works beside
            the CPU; False is for comparison.
        leases: whether eviction and admission look ahead at what the requests of a graph will need; False is for
            comparison.
        lease_price: most tokens of leased prefixes that an admission may cost while fewer than `least_running` run;
            beside these it waits instead. Higher numbers run more side by side and compute more again.
        least_running: see `lease_price`.
        max_overtakes: how many admissions may pass the sequence that waits longest before it is next, whatever its
            priority and prefix.
        match_window: how many waiting sequences are compared by cached prefix at a time.
        decode_headroom: free slots per running sequence that an admission leaves, so that what was just admitted is
            not preempted at once.
        check_invariants: whether every step ends with `Engine.check()` (slow; for tests).
    """

    prefill_chunk: int = 8192
    max_running: int = 256
    policy: str = "prefix"
    prefix_cache: bool = True
    forced_runs: bool = True
    forced_chunk: int = 8
    overlap: bool = True
    leases: bool = True
    lease_price: int = 128
    least_running: int = 4
    max_overtakes: int = 256
    match_window: int = 64
    decode_headroom: int = 16
    check_invariants: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidValueError(f"{name}={value!r}: must be an integer ≥ {least}")
        if self.policy not in ("prefix", "fcfs"):
            raise InvalidValueError(f"policy={self.policy!r}: must be 'prefix' or 'fcfs'")


_LEAST = {
    "prefill_chunk": 1,
    "max_running": 1,
    "least_running": 1,
    "max_overtakes": 1,
    "match_window": 1,
    "decode_headroom": 0,
    "lease_price": 0,
}
