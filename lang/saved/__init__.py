"""`run_batch(save=path)`: finished items on disk, and a second run that goes on from there.

fingerprint.py   a program and its arguments → digests that change when they do
values.py        what a program made ↔ JSON
file.py          the file: one JSON object a line, one writer at a time, a torn last line is dropped
restore.py       a finished state ↔ the line of its item
run.py           `SavedRun`: what a batch does with all of them
"""

from __future__ import annotations

from .run import SavedRun, saved_run

__all__ = ["SavedRun", "saved_run"]
