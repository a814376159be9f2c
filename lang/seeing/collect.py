"""From the states of runs to what they cost.

In: states, whose programs may still be running. Out: `Costs`: each program's steps, what each `gen` and `select` cost,
and the tree of the prefixes that they share.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..backend import Meta
from ..bindings import Cell
from ..errors import CancelledError
from ..executor import Executor
from ..ir import Node, Op
from .model import Costs, NodeCost, ProgramCost
from .program_tree import Steps
from .sharing import Call, Sharing
from .tokens import Tokens

if TYPE_CHECKING:
    from ..state import State

__all__ = ["collect"]

_MOST_CALLS = 2_000
"""Of so many nodes the shared prefixes are found: their prompts are encoded for it."""


def collect(states: Sequence[State]) -> Costs:
    """What the runs of these states cost so far.

    The prompts of the first nodes are encoded once more, to find what they share; no model is asked.
    """
    collector = _Collector()
    for index, state in enumerate(states):
        collector.add(state, index)
    return collector.costs()


class _Collector:
    def __init__(self) -> None:
        self._programs: list[ProgramCost] = []
        self._cells: list[tuple[Cell, Executor, int]] = []
        self._branches: dict[Cell, tuple[str, ...]] = {}

    def add(self, state: State, index: int) -> None:
        """A program and those that it called."""
        stream, executor = state._stream, state._stream.executor
        item = index if executor.item is None else executor.item
        tips = [stream.tip] if stream.tip is not None else []
        self._add(executor, item, None, tips, None if (error := state.error()) is None else _line(error))

    def _add(self, executor: Executor, item: int, caller: int | None, tips: list[Node], error: str | None) -> None:
        with executor.changed:
            cells, children = dict(executor.cells), list(executor.children)
        place = len(self._programs)
        numbers = {node: len(self._cells) + at for at, node in enumerate(cells)}
        self._cells += [(cell, executor, place) for cell in cells.values()]
        steps = Steps([*cells, *tips], numbers)
        self._branches.update({cells[node]: branch for node, branch in steps.branches.items()})
        self._programs.append(ProgramCost(item, executor.program, caller, steps.steps, error))
        for child in children:
            failure = child.error(None)
            self._add(child, item, place, [], None if failure is None else _line(failure))

    def costs(self) -> Costs:
        now = time.monotonic()
        zero = min((cell.recorded_at for cell, _, _ in self._cells), default=now)
        tokens: dict[int, Tokens] = {}
        nodes: list[NodeCost] = []
        for number, (cell, executor, program) in enumerate(self._cells):
            of_backend = tokens.setdefault(id(executor.backend), Tokens(executor.backend))
            made = _Measured(cell, of_backend, zero)
            nodes.append(made.cost(number, program, self._branches.get(cell, ())))
        counts = {one.counts for one in tokens.values()}
        unit = counts.pop() if len(counts) == 1 else "tokens"
        sharing = None
        if len(tokens) == 1:  # several backends share nothing
            (of_backend,) = tokens.values()
            sharing = self._sharing(nodes, of_backend)
            nodes = [_with_boundary(node, sharing.boundary.get(node.number, 0)) for node in nodes]
        return Costs(
            programs=tuple(self._named()),
            nodes=tuple(nodes),
            stretches=() if sharing is None else sharing.stretches(),
            sharing_of=0 if sharing is None else len(sharing),
            unit=unit,
            stretch_unit="" if sharing is None else of_backend.unit,
            now_s=now - zero,
        )

    def _named(self) -> Iterator[ProgramCost]:
        """The programs; one that never began, or was taken from a file, has the name of its batch."""
        known = next((program.name for program in self._programs if program.name), "program")
        for program in self._programs:
            yield program if program.name else replace(program, name=known)

    def _sharing(self, nodes: Sequence[NodeCost], tokens: Tokens) -> Sharing:
        sharing = Sharing(tokens)
        for number in _in_order(nodes):
            call = self._call(nodes[number], tokens)
            if call is not None:
                sharing.add(call)
        return sharing

    def _call(self, node: NodeCost, tokens: Tokens) -> Call | None:
        cell, executor, _ = self._cells[node.number]
        with executor.changed:
            known = node.sent_s is not None and all(need.written is not None for need in cell.needs)
        if not known:
            return None
        ids = tokens.ids(executor.prompt(cell.node.prefix))
        written, replaced = tokens.written(cell.written)
        ids = ids[: len(ids) - replaced]
        if not ids:
            return None
        cached = node.cached_tokens + (node.computed.get("logits", 0) if node.kind == "gen" else 0)
        return Call(node.number, ids, written, None if "unknown" in node.computed else cached)


def _in_order(nodes: Iterable[NodeCost]) -> list[int]:
    """The first nodes, as they began to run: each may find in the cache what those before it left there."""
    sent = [node for node in nodes if node.sent_s is not None][:_MOST_CALLS]
    sent.sort(key=lambda node: (node.sent_s if node.started_s is None else node.started_s, node.number))
    return [node.number for node in sent]


def _with_boundary(node: NodeCost, count: int) -> NodeCost:
    """Tokens whose text was there in other tokens are not new."""
    count = min(count, node.computed.get("new", 0))
    if not count:
        return node
    computed = Counter(node.computed)
    computed["new"] -= count
    computed["boundary"] += count
    return replace(node, computed={reason: computed[reason] for reason in computed if computed[reason]})


class _Measured:
    """A cell, and when it did what."""

    def __init__(self, cell: Cell, tokens: Tokens, zero: float) -> None:
        self._cell = cell
        self._tokens = tokens
        self._zero = zero
        self._metas = [generation.meta for generation in cell.generations]

    def cost(self, number: int, program: int, branch: tuple[str, ...]) -> NodeCost:
        cell, metas, site = self._cell, self._metas, self._cell.node.site
        first = metas[0] if metas else Meta()
        error = cell.error()
        return NodeCost(
            number=number,
            program=program,
            kind=str(cell.node.op.value),
            name=cell.name,
            site="" if site is None else f"{site.file}:{site.line}",
            branch=branch,
            state=_state(cell),
            text=cell.text(),
            error=None if error is None else _line(error),
            finish_reason=first.finish_reason,
            prompt_tokens=sum(meta.prompt_tokens for meta in metas),
            cached_tokens=sum(meta.cached_tokens for meta in metas),
            generated_tokens=0 if cell.node.op is Op.SELECT else sum(meta.completion_tokens for meta in metas),
            forced_tokens=sum(meta.forced_tokens for meta in metas),
            computed=_computed(metas),
            samples=max(1, len(metas)),
            retries=max((meta.retries for meta in metas), default=0),
            reencoded=first.reencoded,
            recorded_s=cell.recorded_at - self._zero,
            sent_s=self._since(cell.sent_at),
            started_s=min(self._moments("queue_s"), default=None),
            first_token_s=min(self._moments("first_token_s"), default=None),
            ended_s=max(self._moments("total_s"), default=self._since(cell.done_at)),
            pieces=self._tokens.pieces(first) if metas else (),
            probabilities=first.probabilities or {},
        )

    def _since(self, when: float | None) -> float | None:
        return None if when is None else max(0.0, when - self._zero)

    def _moments(self, field: str) -> list[float]:
        """When each sample got so far; of a backend that gives no times, as if it had begun at once."""
        sent, done = self._cell.sent_at, self._cell.done_at
        if sent is None or done is None:
            return []
        found = []
        for meta in self._metas:
            base = sent if meta.submitted_at is None else meta.submitted_at
            seconds = getattr(meta, field)
            if not meta.total_s or not sent <= base <= done:  # none, or those of another process (a replayed run)
                seconds = {"queue_s": sent, "total_s": done}.get(field)
                base = 0.0
            if seconds is not None:
                found.append(max(0.0, min(base + seconds, done) - self._zero))
        return found


def _computed(metas: Sequence[Meta]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for meta in metas:
        missing = meta.prompt_tokens - meta.cached_tokens
        counts.update(meta.computed or ({"unknown": missing} if missing > 0 else {}))
    return dict(counts)


def _state(cell: Cell) -> str:
    if not cell.done:
        return "sent" if cell.sent_at is not None else "recorded"
    if isinstance(cell.failure, CancelledError):
        return "cancelled"
    return "done" if cell.error() is None else "failed"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
