"""The engine: one thread that runs model steps for whatever sequences were submitted.

In: sequences (`submit`, `cancel`), from any thread. Out: calls of their listeners, on the engine's thread.

`_step` is the map of the system, `stepper.py` what a step does. Ownership: a sequence is its caller's until `submit`
returns, then the engine's until its listener is called, once. `_live` holds every sequence between the two, whatever
happens in a step: so whoever is owed an answer gets one, also when a step raises (`EngineDeadError`) or the engine is
closed (`BackendClosedError`).
"""

from __future__ import annotations

import heapq
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from functools import partial

from ..backend import serves_requests
from ..errors import BackendClosedError, DeadlineError, EngineDeadError, ForkedProcessError
from ..heap import Busy
from .batch import Runner
from .engine_config import EngineConfig
from .intake import check_fits, longest
from .invariants import check_invariants
from .leases import Graph
from .outcome import Outcomes
from .request import FinishReason, Sequence, SequenceState
from .scheduler import Scheduler
from .stats import Counters, RuntimeStats
from .stepper import Stepper

__all__ = ["Engine", "EngineConfig"]

SWITCH_S = 1e-3
"""Most seconds that a thread keeps the interpreter while another waits, once an engine runs in the process."""
_REST_S = 1e-3

_log = logging.getLogger("radicel")


class Engine:
    """Runs sequences on a model.

    Args:
        runner: the model; the engine's from here on, closed by `close`.
        config: how to schedule.

    Without `start()`, whoever calls `step()` is the engine's thread (tests).
    """

    def __init__(self, runner: Runner, config: EngineConfig | None = None) -> None:
        self.runner = runner
        self.config = config or EngineConfig()
        self.max_len = longest(runner)
        self.counters = Counters()
        self._outcomes = Outcomes(self.counters, self._finish, self._fail)
        self.scheduler = Scheduler(
            self.config,
            num_slots=runner.num_slots,
            num_rows=runner.num_rows,
            counters=self.counters,
            begin=self._outcomes.begin,
        )
        self._stepper = Stepper(
            self.scheduler, runner, self._outcomes, self.counters, overlap=self.config.overlap, fail=self._fail
        )
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._outbox: list[tuple[Sequence, FinishReason | BaseException]] = []
        self._deadlines: list[tuple[float, int]] = []
        # shared with other threads, under the lock of `_wake`
        self._wake = threading.Condition()
        self._live: dict[int, Sequence] = {}
        self._submitted: list[Sequence] = []
        self._cancelled: list[Sequence] = []
        self._notes: list[Callable[[], None]] = []
        self._calls: list[tuple[Callable[[], None], Future[None]]] = []
        self._closing = False
        self._closed_by_listener = False
        self._dead: BaseException | None = None
        self._busy = Busy()
        self._snapshot = self._take_snapshot()

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        # Whoever computes in Python keeps the interpreter for so long; the engine must not wait for a whole step.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self._thread = threading.Thread(target=self._main, name="radicel-engine", daemon=True)
        self._thread.start()

    def submit(self, sequences: Seq[Sequence]) -> None:
        """Takes sequences in, all or none; returns at once.

        Raises:
            ContextLengthError: one can never fit into the context or the KV pool.
            InvalidValueError: a prompt is empty, or has an id that the model does not have.
            EngineDeadError, BackendClosedError, ForkedProcessError: the engine runs no more.
        """
        for seq in sequences:
            check_fits(seq, self.runner)
        with self._wake:
            self._check_alive()
            for seq in sequences:
                seq.max_len = min(len(seq.prompt_ids) + seq.sampling.max_tokens, self.max_len)
                self._live[seq.id] = seq
            self._submitted.extend(sequences)
            self._cancelled.extend(seq for seq in sequences if seq.cancelled)
            self._wake.notify_all()

    def cancel(self, seq: Sequence) -> None:
        """Ends a sequence before the next step, with `FinishReason.CANCELLED`; nothing where it is over already.

        One that is submitted only after this ends as soon as it is.
        """
        with self._wake:
            seq.cancelled = True
            if seq.id in self._live:
                self._cancelled.append(seq)
                self._wake.notify_all()

    def withdraw(self, graph: Graph, places: Iterable[int]) -> None:
        """No sequence of the graph will come at these places: what only they need is leased no longer."""
        self._note(partial(self.scheduler.leases.withdraw, graph, tuple(places)))

    def close_graph(self, graph: Graph) -> None:
        """Ends the graph's leases before the next step; its sequences go on."""
        self._note(partial(self.scheduler.leases.close, graph))

    def _note(self, note: Callable[[], None]) -> None:
        with self._wake:
            if self._dead is None and not self._closing:
                self._notes.append(note)
                self._wake.notify_all()

    def flush_cache(self) -> None:
        """Drops every cached prefix that no live sequence holds; returns when that is done."""
        with self._wake:
            self._check_alive()
        self._between_steps(self._flush)

    def between_steps(self, call: Callable[[], None]) -> None:
        """Calls on the engine's thread where no step is being launched; returns when that is done."""
        with self._wake:
            self._check_alive()
        self._between_steps(call)

    def stats(self) -> RuntimeStats:
        """What was done and what is held, as of the last step."""
        with self._wake:
            return self._snapshot.with_waiting(len(self._submitted))

    def close(self, timeout: float | None = None) -> None:
        """Ends the engine; sequences in flight fail with `BackendClosedError`. A second call does nothing.

        Args:
            timeout: seconds to wait for the step in flight; then its sequences fail all the same, and the runner is
                left open.
        """
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._closed_by_listener = threading.current_thread() is self._thread
            self._wake.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        self._abandon(lambda: BackendClosedError("the runtime was closed while the request was in flight"))
        if thread is None or not thread.is_alive():
            self._let_go()
        elif thread is not threading.current_thread():
            _log.warning("the model step in flight did not end within %s s; its memory is not freed", timeout)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold; looks between two steps."""
        self._between_steps(lambda: check_invariants(self.scheduler, self._stepper.in_flight))

    def _between_steps(self, call: Callable[[], None]) -> None:
        """Calls where no step is under way: on the engine's thread, or here where that does not run."""
        thread = self._thread
        with self._wake:
            elsewhere = thread is not None and thread.is_alive() and thread is not threading.current_thread()
            if elsewhere and not self._closing and self._dead is None:
                done: Future[None] = Future()
                self._calls.append((call, done))
                self._wake.notify_all()
            else:
                elsewhere = False
        if elsewhere:
            done.result()
        else:
            call()

    # -- on the engine's thread --------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Runs one step; False where there was nothing to run.

        Raises:
            BaseException: what the step raised; the engine is dead then, and every waiter was told.
        """
        try:
            return self._step()
        except BaseException as error:
            self._die(error)
            raise

    def _step(self) -> bool:
        self._receive()
        worked = self._stepper.step()
        if self.config.check_invariants:
            check_invariants(self.scheduler, self._stepper.in_flight)
        self._publish()
        return worked

    def _receive(self) -> None:
        with self._wake:
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, []
            calls, self._calls = self._calls, []
            notes, self._notes = self._notes, []
        self.scheduler.add(submitted)
        for note in notes:
            note()
        for seq in submitted:
            if seq.deadline is not None:
                heapq.heappush(self._deadlines, (seq.deadline, seq.id))
        for seq in cancelled:
            self._finish(seq, FinishReason.CANCELLED)
        self._expire()
        for call, done in calls:
            try:
                call()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

    def _expire(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, identity = heapq.heappop(self._deadlines)
            seq = self._live.get(identity)
            if seq is not None and seq.deadline is not None:
                allowed = seq.deadline - seq.submitted_at
                self._fail(seq, DeadlineError(f"the request was not done within its timeout of {allowed:.3g} s"))
        if len(self._deadlines) > 2 * len(self._live) + 64:
            self._deadlines = sorted(entry for entry in self._deadlines if entry[1] in self._live)

    def _flush(self) -> None:
        dropped = self.scheduler.placement.flush()
        _log.debug("dropped %d cached tokens", dropped)
        self._snapshot = self._take_snapshot()

    def _finish(self, seq: Sequence, reason: FinishReason) -> None:
        if seq.state is SequenceState.FINISHED:
            return
        self.scheduler.remove(seq)
        seq.penalty_state = None
        seq.ended_at = time.monotonic()
        self._outbox.append((seq, reason))  # its text is settled when it is told: what runs next need not wait for that

    def _fail(self, seq: Sequence, error: BaseException) -> None:
        if seq.state is SequenceState.FINISHED:
            return
        self.scheduler.remove(seq)
        seq.penalty_state = None
        self._outbox.append((seq, error))

    def _publish(self) -> None:
        """Shows the numbers, then tells listeners: whoever is told finds the numbers up to date."""
        snapshot = self._take_snapshot()
        with self._wake:
            self._snapshot = snapshot
        outbox, self._outbox = self._outbox, []
        for seq, outcome in outbox:
            self._tell(seq, outcome)

    def _take_snapshot(self) -> RuntimeStats:
        scheduler, placement = self.scheduler, self.scheduler.placement
        return self.counters.snapshot(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_used=placement.tree.protected_size + placement.owned,
            kv_cached=placement.tree.evictable_size,
            kv_free=placement.pool.num_free,
        )

    def _main(self) -> None:
        serves_requests()
        try:
            while self._wait_for_work():
                if not self.step():
                    self._rest()
        except BaseException:  # told to every waiter by `step`
            _log.exception("a model step raised; the engine stops")
            return
        finally:
            self._busy.set(False)
        if self._closed_by_listener:
            self._let_go()

    def _let_go(self) -> None:
        """Nobody uses runner and scheduler any more."""
        self._stepper.drain()
        for seq in [*self.scheduler.running, *self.scheduler.waiting]:
            self.scheduler.remove(seq)
        self._snapshot = self._take_snapshot()
        self.runner.close()

    def _wait_for_work(self) -> bool:
        """Sleeps until there is work; False where the engine is being closed."""
        with self._wake:
            while not (self._closing or self._has_work()):
                self._busy.set(False)
                self._wake.wait()
            self._busy.set(not self._closing)
            return not self._closing

    def _rest(self) -> None:
        """Where nothing ran, though somebody waits: for the thread that makes a grammar ready."""
        with self._wake:
            if self._has_work() and not (self._closing or self._is_asked()):
                self._wake.wait(_REST_S)

    def _has_work(self) -> bool:
        scheduler = self.scheduler
        return bool(self._is_asked() or scheduler.running or scheduler.waiting or self._stepper.is_in_flight)

    def _is_asked(self) -> bool:
        return bool(self._submitted or self._cancelled or self._calls or self._notes)

    # -- who is owed an answer ---------------------------------------------------------------------------------------

    def _tell(self, seq: Sequence, outcome: FinishReason | BaseException) -> None:
        with self._wake:
            if self._live.pop(seq.id, None) is None:
                return
        try:
            if isinstance(outcome, FinishReason):
                try:
                    if seq.sink is not None and outcome is not FinishReason.CANCELLED:
                        seq.sink.finish()
                    seq.listener.on_finish(seq, seq.result(outcome))
                except Exception as error:
                    seq.listener.on_error(seq, error)
            else:
                seq.listener.on_error(seq, outcome)
        except Exception:
            _log.exception("the listener of sequence %d raised", seq.id)

    def _die(self, error: BaseException) -> None:
        with self._wake:
            self._dead = error
        outbox, self._outbox = self._outbox, []
        for seq, outcome in outbox:
            self._tell(seq, outcome)
        self._abandon(self._dead_error)

    def _abandon(self, error: Callable[[], BaseException]) -> None:
        """Fails whoever still waits for an answer."""
        with self._wake:
            live, calls = list(self._live.values()), self._calls
            self._submitted, self._cancelled, self._calls = [], [], []
        for seq in live:
            self._tell(seq, error())
        for _, done in calls:
            done.set_exception(error())

    def _dead_error(self) -> EngineDeadError:
        cause = self._dead
        error = EngineDeadError(
            f"a model step raised {type(cause).__name__}: {cause}; this runtime is stopped, make a new one"
        )
        error.__cause__ = cause
        return error

    def _check_alive(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"this runtime was made in process {self._pid} and is used in its child {os.getpid()}, where its "
                "thread and device do not exist; make the runtime after forking, or start processes with 'spawn'"
            )
        if self._dead is not None:
            raise self._dead_error()
        if self._closing:
            raise BackendClosedError("the runtime is closed; make a new one")
