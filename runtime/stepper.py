"""One step after the other: planned, launched, sampled, and the results of the one before applied in between.

In: a scheduler with sequences. Out: steps on the runner, their results through `Outcomes`. Where the device works
beside the CPU, one step is always in flight:

    CPU     plan k+1, launch ┐  read k (waits) ┐ apply k, masks of k+1, sample ┐ plan k+2, launch …
    device  ───────── step k ──────────────────┴─ forward k+1 ───────────────────────────────────

The forward pass of step k+1 takes the tokens of step k from the device; that k's results end a sequence, or force what
it says next, shows only when k+1 is under way, and its row there is for nothing (`steps.goes_on`). Everything else a
step needs of the one before, masks and penalties above all, is needed for sampling only, which comes after reading.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .batch import PendingStep, Runner
from .grammar.ahead import MaskPool
from .lookahead import Lookahead
from .outcome import Outcomes
from .request import Sequence
from .scheduler import Plan, Scheduler
from .stats import Counters
from .steps import SettingArrays, build_samples, build_step

__all__ = ["Stepper"]

_log = logging.getLogger("radicel")


@dataclass(frozen=True)
class _Flight:
    """A step that was launched and not read.

    Attributes:
        sampled: the sequences that a token is drawn for, in the order of the rows.
        launched: when, in `time.perf_counter()` seconds; `cpu_s`: what planning and launching took.
        rested: whether there was nothing to do before it.
    """

    plan: Plan
    sampled: list[Sequence]
    pending: PendingStep
    launched: float
    cpu_s: float
    rested: bool


class Stepper:
    """Runs the steps of a scheduler. Used by the engine's thread.

    Args:
        overlap: whether a step may be launched before the last one was read.
        fail: called with a sequence and what its matcher raised.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        outcomes: Outcomes,
        counters: Counters,
        *,
        overlap: bool,
        fail: Callable[[Sequence, BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._outcomes = outcomes
        self._counters = counters
        self._fail = fail
        self._lookahead = Lookahead(overlap and runner.asynchronous)
        self._masks = MaskPool()
        self._settings = SettingArrays()
        self._flight: _Flight | None = None
        self._rested = True

    @property
    def is_in_flight(self) -> bool:
        """Whether a step was launched and not read."""
        return self._flight is not None

    @property
    def in_flight(self) -> frozenset[Sequence]:
        """The sequences of the step that was launched and not read, if there is one."""
        return frozenset(work.seq for work in self._flight.plan.works) if self._flight is not None else frozenset()

    def step(self) -> bool:
        """Launches a step, and applies the results of the last one; False where there was nothing to do."""
        began = time.perf_counter()
        flight = self._take_flight()
        plan = self._plan_ahead(flight) if flight is not None else None
        done = plan.done if plan is not None else []
        if plan is None or not plan.works:
            if flight is not None:
                self._land(flight)
                flight = None
            plan = self._scheduler.schedule()
            done += plan.done
        if plan.works:
            self._run(plan, flight, began)
        for seq in done:
            self._outcomes.settle(seq)
        if not self._lookahead.enabled:
            self._land_now()
        self._counters.busy_s += time.perf_counter() - began
        self._rested = not plan.works
        return bool(plan.works or done)

    def drain(self) -> None:
        """Waits for the step in flight, whose results nobody wants any more."""
        flight = self._take_flight()
        if flight is not None:
            try:
                flight.pending.read()
            except Exception:
                _log.debug("the last step raised", exc_info=True)

    def _take_flight(self) -> _Flight | None:
        flight, self._flight = self._flight, None
        return flight

    def _land_now(self) -> None:
        flight = self._take_flight()
        if flight is not None:
            self._land(flight)

    def _plan_ahead(self, flight: _Flight) -> Plan | None:
        """The step after the one in flight; None where that must be read first."""
        constrained = sum(seq.matcher is not None for seq in flight.sampled)
        if not self._lookahead.pays(len(flight.sampled), constrained):
            return None
        return self._scheduler.schedule_ahead(flight.plan)

    def _run(self, plan: Plan, flight: _Flight | None, began: float) -> None:
        """Launches a step; between its forward pass and its sampling, the results of `flight` are applied."""
        batch = build_step(plan.works, plan.updates, plan.chains)
        launched = time.perf_counter()
        output: Any = self._runner.forward(batch)
        cpu_s = time.perf_counter() - began
        now = time.monotonic()
        for work in plan.works:
            if work.seq.first_step_at is None:
                work.seq.first_step_at = now
        if flight is not None:
            self._land(flight)
        # Fills masks while the device works.
        samples, sampled = build_samples(plan.works, self._runner, self._fail, self._masks.compute, self._settings)
        pending = self._runner.sample(output, samples)
        self._flight = _Flight(plan, sampled, pending, launched, cpu_s, self._rested)
        self._counters.steps += 1

    def _land(self, flight: _Flight) -> None:
        result = flight.pending.read()
        read = time.perf_counter()
        device_s = read - flight.launched
        if (times := result.times) is not None:
            device_s = times.forward + times.sampling
            idle_s = times.between + (0.0 if flight.rested else times.before)
            self._counters.idle_s = (self._counters.idle_s or 0.0) + idle_s
        self._counters.device_s += device_s
        constrained = sum(seq.matcher is not None for seq in flight.sampled)
        forced = self._outcomes.apply(flight.plan, flight.sampled, result)
        self._lookahead.read(constrained, forced)
        self._lookahead.ran(device_s, flight.cpu_s + time.perf_counter() - read)
