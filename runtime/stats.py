"""What the engine has done and what it holds, as numbers.

In: events of scheduler and engine. Out: `RuntimeStats`, a frozen snapshot that any thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Counters", "RuntimeStats"]


@dataclass(frozen=True)
class RuntimeStats:
    """A snapshot, consistent in itself: between two steps, never inside one.

    Attributes:
        running, waiting: sequences now.
        kv_used: slots held by live requests; a shared slot counts once.
        kv_cached: slots in the tree that no live request holds.
        kv_free: slots with nothing in them.
        prompt_tokens: prompt tokens of every sequence whose prompt is through (or that ended before).
        cached_tokens: those of them that were not computed for it.
        computed_tokens: prompt tokens that the model ran, those for their logits only and those run again after a
            preemption included.
        generated_tokens: output tokens, forced ones included, end tokens not.
        forced_tokens: output tokens that a grammar left no choice about.
        hit_rate: cached_tokens / prompt_tokens; 0 before the first prompt.
        preemptions: how often a running sequence was sent back to wait.
        steps: model steps.
        step_s: mean seconds from one step to the next while there is work.
        gpu_idle_share: share of the busy time (idle waiting excluded) in which the device had nothing to do: by its own
            clock between the steps, and between forward pass and sampling; on a CPU, by the time outside of the model.
    """

    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    kv_cached: int = 0
    kv_free: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    hit_rate: float = 0.0
    preemptions: int = 0
    steps: int = 0
    step_s: float = 0.0
    gpu_idle_share: float = 0.0

    def with_waiting(self, more: int) -> RuntimeStats:
        """The same with sequences that the engine's thread has not seen yet."""
        return replace(self, waiting=self.waiting + more) if more else self


@dataclass
class Counters:
    """The running totals behind `RuntimeStats`. Written by the engine's thread only.

    Attributes:
        busy_s: seconds spent in steps.
        device_s: seconds that the device worked, or else those between launching a forward pass and its results.
        idle_s: seconds that the device had nothing to do between steps; None where it cannot tell.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    busy_s: float = 0.0
    device_s: float = 0.0
    idle_s: float | None = None

    @property
    def gpu_idle_share(self) -> float:
        """See `RuntimeStats`."""
        if self.idle_s is not None:
            return self.idle_s / (self.idle_s + self.device_s) if self.device_s else 0.0
        return max(0.0, 1.0 - self.device_s / self.busy_s) if self.busy_s else 0.0

    def snapshot(self, *, running: int, waiting: int, kv_used: int, kv_cached: int, kv_free: int) -> RuntimeStats:
        """The totals together with what is held now."""
        return RuntimeStats(
            running=running,
            waiting=waiting,
            kv_used=kv_used,
            kv_cached=kv_cached,
            kv_free=kv_free,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            generated_tokens=self.generated_tokens,
            forced_tokens=self.forced_tokens,
            hit_rate=self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            preemptions=self.preemptions,
            steps=self.steps,
            step_s=self.busy_s / self.steps if self.steps else 0.0,
            gpu_idle_share=self.gpu_idle_share,
        )
