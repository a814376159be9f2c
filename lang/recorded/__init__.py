"""Recorded runs: what a program asked a backend for, and what it was answered, in a file; and the run again out of it.

calls.py      a request ↔ JSON, and what two of them differ in
record.py     `record(path)`: a backend that notes what goes through it
replay.py     `replay(path)`: a backend that answers out of the file
snapshot.py   a plan or a trace as text that changes only when the program does
"""

from __future__ import annotations

from .record import Recorder, record
from .replay import Replay, replay
from .snapshot import check_snapshot

__all__ = ["Recorder", "Replay", "check_snapshot", "record", "replay"]
