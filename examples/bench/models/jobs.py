"""Pieces of a measurement, each in a process of its own: one that fails, or takes the device with it, ends no other.

In: names of pieces, a script that measures one and prints a JSON object as its last line. Out: name → what it printed,
or {"error": …}. What did not fit into the time is not there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Clock", "run_jobs"]

MOST_OUTPUT = 400
"""Characters of an error that are kept."""


class Clock:
    """How much of a limit is left."""

    def __init__(self, limit: float) -> None:
        self._end = time.monotonic() + limit if limit else None

    def left(self) -> float:
        """Seconds."""
        return float("inf") if self._end is None else self._end - time.monotonic()


def run_jobs(
    script: Path,
    options: Sequence[str],
    names: Sequence[str],
    *,
    at_once: int,
    least: float,
    most: float,
    clock: Clock,
    done: Callable[[str, dict[str, Any], float], None],
) -> None:
    """Runs `script options --piece NAME` for each name.

    Args:
        script, options: what measures a piece.
        names: in the order in which they begin.
        at_once: how many run side by side.
        least: seconds that must be left for one to begin.
        most: seconds after which one is ended.
        clock: what is left in all; whoever runs when nothing is left is ended, and counts as not measured.
        done: told of each as it ends: name, result, seconds.
    """
    waiting, running = list(names), []
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < at_once and clock.left() >= least:
                    name = waiting.pop(0)
                    command = [sys.executable, str(script), *options, "--piece", name]
                    running.append(_Job(name, command, Path(folder), most, {"OMP_NUM_THREADS": threads}))
                if waiting and not running:
                    return
                time.sleep(0.05)
                for job in running:
                    job.look(clock)
                for job in [job for job in running if job.ended]:
                    running.remove(job)
                    if job.result is not None:
                        done(job.name, job.result, time.monotonic() - job.began)
        finally:
            for job in running:
                job.end()


class _Job:
    """One piece that is measured."""

    def __init__(self, name: str, command: list[str], folder: Path, most: float, variables: dict[str, str]) -> None:
        self.name, self.began, self.ended = name, time.monotonic(), False
        self.result: dict[str, Any] | None = None
        self._most = most
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=err, start_new_session=True, env={**os.environ, **variables}
            )

    def look(self, clock: Clock) -> None:
        """Takes the result if it is there; ends the piece if its time is over."""
        took = time.monotonic() - self.began
        if self._process.poll() is not None:
            self.result = self._read()
        elif took > self._most:
            self.result = {"error": f"not done after {self._most:.0f} s"}
        elif clock.left() > 0:
            return
        self.end()

    def end(self) -> None:
        """Ends the process, and what it started, if they run."""
        self.ended = True
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        lines = self._out.read_text().splitlines()
        if self._process.returncode == 0 and lines:
            found: dict[str, Any] = json.loads(lines[-1])
            return found
        said = self._err.read_text().strip()
        print(f"--- {self.name}\n{said[-4000:]}", file=sys.stderr, flush=True)
        last = said.splitlines()[-1] if said else "it said nothing"
        return {"error": f"exit code {self._process.returncode}: {last[:MOST_OUTPUT]}"}
