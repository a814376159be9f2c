"""Requests that are made one after the other and start together.

In: the sequences of each request, as it is made. Out: calls of the engine with many of them, so that its first step is
a full one and the thread that still makes requests does not keep the interpreter from the engine's.
"""

from __future__ import annotations

import threading
from typing import Any

from .engine import Engine
from .intake import check_fits
from .request import Sequence
from .results import Collector

__all__ = ["Together"]


class Together:
    """Collects sequences up to `send`; what comes later, from a grammar that is compiled, goes on at once.

    Before `send` the engine gets as many at a time as fill a step, so that it does not wait for thousands.

    Args:
        engine: runs them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._sequences: list[Sequence] = []
        self._open = True

    def launch(self, collector: Collector[Any], sequences: list[Sequence]) -> None:
        """Takes the sequences of one request; raises where one of them can never run.

        Where the engine takes none any more, all that wait here are told.
        """
        for seq in sequences:
            check_fits(seq, self._engine.runner)
        if not collector.watch(sequences, self._engine.cancel):
            return
        with self._lock:
            self._sequences += sequences
            full = not self._open or len(self._sequences) >= self._engine.config.max_running
        if full:
            self._submit()

    def send(self) -> None:
        """Gives the engine what came so far; later ones go to it one by one."""
        with self._lock:
            self._open = False
        self._submit()

    def _submit(self) -> None:
        with self._lock:
            sequences, self._sequences = self._sequences, []
        if not sequences:
            return
        try:
            self._engine.submit(sequences)
        except Exception as error:
            for seq in sequences:
                seq.listener.on_error(seq, error)
