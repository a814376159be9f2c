"""Seeing a run: what each value of programs that ran cost, when it waited and ran, and why tokens were computed.

In: states (`state.report()`, `batch_report(states)`). Out: a `RunReport` to print, to save as a page (`save_html`) or
as a trace for Perfetto (`save_trace`), and to read (`nodes`, `programs`).

    collect       states → Costs (`model.py`); with `program_tree`, `sharing` and `tokens`
    text          Costs → the terminal
    page …        Costs → one HTML file
    chrome_trace  Costs → Chrome trace JSON
    notebook      a state → its conversation as HTML
    progress      a running batch → a line on the terminal
"""

from __future__ import annotations

from .report import RunReport, batch_report

__all__ = ["RunReport", "batch_report"]
