"""The report of a run: the object that a user holds.

In: states. Out: text, a page, a trace, numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from ..shown import plain
from .chrome_trace import chrome_trace
from .collect import collect
from .model import Costs, NodeCost, ProgramCost
from .page import page
from .text import renderable

if TYPE_CHECKING:
    from ..state import State

__all__ = ["RunReport", "batch_report"]


class RunReport:
    """What runs cost: `print(report)`, `report.save_html("run.html")`, `report.save_trace("run.json")`.

    Attributes:
        costs: all of it as plain data (`radicel.seeing.model`).
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    @property
    def nodes(self) -> tuple[NodeCost, ...]:
        """What each `gen` and `select` cost, program by program."""
        return self.costs.nodes

    @property
    def programs(self) -> tuple[ProgramCost, ...]:
        """The runs of programs, those that they called behind them."""
        return self.costs.programs

    def computed(self) -> dict[str, int]:
        """Why prompt tokens were computed: reason → how many (`radicel.seeing.model.REASONS` explains each)."""
        return self.costs.computed()

    def save_html(self, path: str | PathLike[str]) -> Path:
        """Writes one page that needs nothing else, not even a network; returns where it is."""
        return _write(path, page(self.costs))

    def save_trace(self, path: str | PathLike[str]) -> Path:
        """Writes the times as Chrome trace JSON, which https://ui.perfetto.dev opens; returns where it is."""
        return _write(path, chrome_trace(self.costs))

    def __str__(self) -> str:
        return plain(renderable(self.costs), 120)

    def __rich__(self) -> RenderableType:
        return renderable(self.costs)

    def __repr__(self) -> str:
        return f"<RunReport: {len(self.programs)} programs, {len(self.nodes)} values>"

    def _repr_html_(self) -> str:
        frame = "width:100%;height:720px;border:1px solid #8884;border-radius:8px"
        return f'<iframe title="Radicel run report" style="{frame}" srcdoc="{escape(page(self.costs))}"></iframe>'


def batch_report(states: Iterable[State]) -> RunReport:
    """What a batch cost (`run_batch`, or any states): per value its tokens, times, and why tokens were computed.

    Waits for nothing: of programs that still run, it shows what is there.

    Args:
        states: of the programs.
    """
    return RunReport(collect(list(states)))


def _write(path: str | PathLike[str], text: str) -> Path:
    target = Path(path)
    target.write_text(text, encoding="utf-8")
    return target
