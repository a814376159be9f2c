"""The line of a running batch: what it counts, when it foretells the end, and that it is quiet without a terminal."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from radicel import MockBackend, Reply, errors, function, gen
from radicel.seeing.progress import Meter, line, progress, shown_to_its_end
from rich.console import Console


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def program(answered=0, cells=0, finished=False):
    cell = SimpleNamespace(generations=(), sent=True, done=False)
    return SimpleNamespace(answered=answered, cells=dict.fromkeys(range(cells), cell), finished=finished)


class Counting:
    """A backend that counts."""

    def __init__(self):
        self.counts = SimpleNamespace(generated_tokens=1000, cached_tokens=500, prompt_tokens=500, running=0, waiting=0)

    def stats(self):
        return self.counts

    def more(self, generated, cached, prompt):
        self.counts.generated_tokens += generated
        self.counts.cached_tokens += cached
        self.counts.prompt_tokens += prompt


def shown(renderable, width=140):
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True, legacy_windows=False)
    console.print(renderable)
    return console.file.getvalue().strip()


def test_rates_are_of_this_run_and_of_the_last_seconds():
    clock, backend = Clock(), Counting()
    meter = Meter([program(cells=1)], backend, clock)
    assert meter.read().hit_rate is None
    for _ in range(10):
        clock.now += 1
        backend.more(200, 30, 40)
    first = meter.read()
    assert (first.tokens_per_s, first.hit_rate, first.elapsed_s) == (200.0, 0.75, 10.0)
    for _ in range(10):
        clock.now += 1
        backend.more(20, 0, 0)
        last = meter.read()
    assert last.tokens_per_s == pytest.approx(20.0)
    assert meter.read(last=True).tokens_per_s == pytest.approx(2200 / 20)


def test_the_end_is_foretold_from_programs_and_their_values():
    clock = Clock()
    programs = [program(finished=True), program(finished=True), program(cells=1), program(cells=1)]
    meter = Meter(programs, Counting(), clock)
    reading = meter.read()
    assert (reading.done, reading.total, reading.share, reading.eta_s) == (2, 4, 0.5, None)
    clock.now += 10
    programs[2].answered = 1
    reading = meter.read()
    assert reading.share == 0.625
    assert reading.eta_s == pytest.approx(10 * 0.375 / 0.125), "what was done before it began took none of its time"
    programs[2].finished = programs[3].finished = True
    assert meter.read().eta_s == 0.0


def test_a_backend_that_counts_nothing():
    @function
    def p(s, x):
        s += f"{x}" + gen("a", max_tokens=9) + gen("b", max_tokens=9)

    backend = MockBackend({"a": "two words", "b": [Reply("slow", delay=0.3), "end", "end"]})
    state = p.run(x=1, backend=backend, stream=True)
    executor = state._stream.executor
    assert state["a"] == "two words"
    meter = Meter([executor], backend)
    reading = meter.read()
    assert (reading.running, reading.waiting, reading.done, reading.hit_rate) == (1, 0, 0, None)
    assert state["b"] == "slow"
    executor.wait_finished()
    assert meter.read(last=True).tokens_per_s == 0.0 or meter.read(last=True).done == 1
    assert meter._generated == 3


def test_the_line():
    clock, backend = Clock(), Counting()
    programs = [program(finished=True), program(answered=1, cells=3)]
    meter = Meter(programs, backend, clock)
    meter.read()
    clock.now += 75
    backend.more(7500, 82, 100)
    backend.counts.running, backend.counts.waiting = 16, 8
    programs[1].answered = 2
    text = shown(line(meter.read(), "judge", 140))
    assert re.search(r"^judge .*━.* 1 of 2 programs   100 tokens/s   82% cached   16 running  8 waiting   1:15", text)
    assert re.search(r"ETA 2:30", text)
    assert "\n" not in shown(line(meter.read(), "judge", 60), width=60)
    ended = shown(line(meter.read(last=True), "judge", 140, ended=True))
    assert "running" not in ended
    assert "ETA" not in ended


@function
def slow(s, x):
    s += f"{x}" + gen("a", max_tokens=4)


def test_it_is_shown_on_a_terminal_and_ends_with_the_totals():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None, legacy_windows=False)
    backend = MockBackend({"a": Reply("one two", delay=0.4)})
    state = slow.run(x=1, backend=backend, stream=True)
    with progress([state._stream.executor], backend, name="slow", console=console):
        state._stream.executor.wait_finished()
    frames = console.file.getvalue()
    assert "0 of 1 program" in frames
    assert "1 running  0 waiting" in frames
    assert re.search(r"1 of 1 program   \d+ tokens/s   0:0\d$", frames.splitlines()[-2])


def test_it_is_quiet_without_a_terminal(capfd):
    states = slow.run_batch([{"x": i} for i in range(3)], backend=MockBackend({"a": "fine"}), progress_bar=True)
    assert [state["a"] for state in states] == ["fine"] * 3
    assert capfd.readouterr() == ("", "")
    assert slow.run_batch([], backend=MockBackend(), progress_bar=True) == []


PRINTS = """
import sys
from rich.console import Console
from radicel import MockBackend, Reply, function, gen
from radicel.seeing import progress as shown

made = shown.Console
shown.Console = lambda **kw: made(**kw, force_terminal=True)

@function
def p(s, x):
    print("body", x)
    s += "q" + gen("a", max_tokens=3)

p.run_batch([{"x": 1}], backend=MockBackend({"a": Reply("ok", delay=0.3)}), progress_bar=True)
"""


def test_what_programs_print_stays_on_standard_output():
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "body 1\n"
    assert "of 1 program" in done.stderr


def test_a_run_that_is_shown_to_its_end_raises_what_it_failed_with():
    boom = ValueError("boom")
    state = slow.run(x=1, backend=MockBackend([boom]), stream=True)
    with pytest.raises(ValueError, match="boom") as raised:
        shown_to_its_end(state)
    assert raised.value is boom
    state = slow.run(x=1, backend=MockBackend(["fine"]), stream=True)
    assert shown_to_its_end(state) is state
    assert state["a"] == "fine"


def test_an_interrupt_of_a_run_that_is_shown_cancels_it(monkeypatch):
    state = slow.run(x=1, backend=MockBackend([Reply("late", delay=30)]), stream=True)

    def interrupted(timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(state._stream.executor, "wait_finished", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shown_to_its_end(state)
    with pytest.raises(errors.CancelledError):
        state["a"]


def test_an_interrupt_ends_the_line():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None, legacy_windows=False)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), progress([program(cells=1)], Counting(), console=console):
        raise KeyboardInterrupt
    assert time.monotonic() - began < 5
    assert "0 of 1 program" in console.file.getvalue()
