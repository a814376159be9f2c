"""The sequences that wait for admission, and which of them is next.

In: sequences as they arrive or come back from preemption. Out: `next()`, the one to admit now.

Higher priority first. Within a priority there are single sequences and graphs, and they take turns:

- Of the singles, "prefix" takes the longest cached prefix first, so that a prefix is used while it is there, and those
  that end in the same node together (depth first).
- Graphs are served in the order that saves cache, where that is scarce: each offers the sequence of the lowest place
  in its order, depth first, so that subtrees finish and free their tokens; of several graphs, the one whose offer has
  the longest cached prefix is next. Where the pool has room for all that run and wait, no order saves anything, and
  they are served as they came (`turns.py`): that keeps the batch full to the end.

"fcfs" knows no graphs and takes everything as it came.

Ageing: whoever waits longest of all is next once `max_overtakes` others were admitted past it. A graph counts as one
here, that arrives anew with each of its admissions; as they came, a run of graphs does. Everybody becomes the longest
waiting at some time, so nobody starves; and a single sequence waits at most for the singles before it and as many of
the graphs'.

The work of a step is bounded whatever the length of the queue: cached lengths are found for a window of
`match_window` sequences at a time, in order of arrival, and only when somebody can be admitted. They are estimates (a
later admission may lengthen them); admission itself matches exactly.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Iterator

from .engine_config import EngineConfig
from .leases import Graph
from .request import Sequence, SequenceState
from .turns import Turns, line_of

__all__ = ["WaitingQueue"]

_NOT_PEEKED = (-1, 0)


class _Flow:
    """The waiting sequences of one graph and priority.

    Attributes:
        members: by (place, arrival).
        rank: since when it waits: of its first arrival, or of the last admission from it.
        peeked: the cached length of its first member and the node where it ends, if looked up in this step.
    """

    __slots__ = ("graph", "members", "peeked", "priority", "rank")

    def __init__(self, graph: Graph, priority: int, rank: tuple[int, int]) -> None:
        self.graph = graph
        self.priority = priority
        self.rank = rank
        self.members: list[Sequence] = []
        self.peeked = _NOT_PEEKED


class WaitingQueue:
    """The waiting sequences.

    Args:
        peek: length of a sequence's cached prefix, and the serial of the node it ends in.
        has_room: whether the pool has room for all that run and wait; asked at most once a step.

    Attributes:
        unleased: prompt tokens of the single sequences, which no lease counts.
        unwritten: tokens that those who wait may write.
        in_order: whether graphs are served as they came; None where nobody asked in this step.
    """

    def __init__(
        self,
        config: EngineConfig,
        peek: Callable[[Sequence], tuple[int, int]],
        has_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self.unleased = 0
        self.unwritten = 0
        self.in_order: bool | None = None
        self._config = config
        self._peek = peek
        self._has_room = has_room
        self._singles: list[Sequence] = []  # by (priority, arrival)
        self._flows: list[_Flow] = []  # by (priority, rank)
        self._flow_of: dict[tuple[Graph, int], _Flow] = {}
        self._turns = Turns()  # the same sequences, in their other order
        # (rank, serial, who), heap; entries of those that left or were served stay until on top
        self._oldest: list[tuple[tuple[int, int], int, Sequence | _Flow]] = []
        self._serials = itertools.count(1)
        self._count = 0
        self._overtaken = 0  # admissions past the one on top of the heap
        self._latest = -1  # the arrival of the youngest
        self._graph_was_last = False  # admitted, while both kinds waited
        self._held = False
        self._window: list[Sequence] = []  # the best single last; only within one step

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return itertools.chain(self._singles, *(flow.members for flow in self._flows))

    def add(self, seq: Sequence) -> None:
        """One more; `arrival` says where it stands among its priority. One that comes back keeps its `rank`."""
        self._latest = max(self._latest, seq.arrival)
        self._count += 1
        seq.may_write = seq.sampling.max_tokens
        self.unwritten += seq.may_write
        if seq.graph is None or self._config.policy == "fcfs":
            seq.rank = (seq.arrival, 0)
            self.unleased += len(seq.prompt_ids)
            bisect.insort(self._singles, seq, key=_order_key)
            self._window = []
            self._push_oldest(seq)
        else:
            self._add_to_flow(seq, seq.graph)

    def remove(self, seq: Sequence) -> None:
        """It was cancelled or failed; nobody overtook anybody."""
        if (flow := self._drop(seq)) is None or not flow.members:
            self._settle_oldest()

    def admitted(self, seq: Sequence) -> None:
        """`next()` was admitted; its `rank` says since when it, or its graph, waited."""
        was_oldest = self._is_due(seq)
        flow = self._drop(seq, served=True)
        if flow is not None:
            seq.rank = flow.rank
            self._serve(flow)
        self._graph_was_last = flow is not None
        if was_oldest:
            self._overtaken = 0
            self._settle_oldest()
        else:
            self._overtaken += 1

    def new_step(self) -> None:
        """The tree has changed; cached lengths found before are out of date, and nobody is held back."""
        self._window = []
        self._held = False
        self.in_order = None
        for flow in self._flows[: self._config.match_window]:
            flow.peeked = _NOT_PEEKED

    def hold_graphs(self) -> None:
        """Until the next step, graphs are not offered."""
        self._held = True

    def next(self) -> Sequence | None:
        """Who is to be admitted next; stays in the queue until `admitted` or `remove`."""
        if self.overdue and (seq := self._longest_waiting()) is not None:
            return seq
        flows = [] if self._held else self._flows
        if not (self._singles and flows):
            return self._best_of_graphs(flows) if flows else self._best_single() if self._singles else None
        ahead = self._singles[0].priority - flows[0].priority
        if ahead < 0 or (ahead == 0 and not self._graph_was_last):
            return self._best_of_graphs(flows)
        return self._best_single()

    @property
    def overdue(self) -> bool:
        """Whether the one that waits longest was overtaken so often that it is next."""
        return self._overtaken >= self._config.max_overtakes

    def check(self) -> None:
        """Raises AssertionError where the queue is not what its docstring says."""
        everybody = list(self)
        assert self._singles == sorted(self._singles, key=_order_key), "the queue is out of order"
        assert self._flows == sorted(self._flows, key=_flow_key), "the graphs are out of order"
        assert set(self._flows) == set(self._flow_of.values()), "a graph is lost"
        for flow in self._flows:
            assert flow.members, "a graph of which nobody waits"
            assert flow.members == sorted(flow.members, key=_place_key), "a graph is out of order"
            assert all((seq.graph, seq.priority) == (flow.graph, flow.priority) for seq in flow.members), "a stray"
        self._turns.check()
        assert set(self._turns) == {seq for flow in self._flows for seq in flow.members}, "one waits in one order only"
        assert self.unleased == sum(len(seq.prompt_ids) for seq in self._singles), "prompt tokens are miscounted"
        assert self.unwritten == sum(seq.may_write for seq in everybody), "tokens to write are miscounted"
        assert len({id(seq) for seq in everybody}) == len(everybody) == len(self), "a sequence waits twice"
        assert all(seq.state is SequenceState.WAITING for seq in everybody), "one that does not wait is in the queue"
        waiting: list[Sequence | _Flow] = [*self._singles, *self._flows]
        if waiting:
            assert self._oldest[0][2] is min(waiting, key=lambda one: one.rank), "the oldest is another one"

    # -- graphs ------------------------------------------------------------------------------------------------------

    def _add_to_flow(self, seq: Sequence, graph: Graph) -> None:
        key = (graph, seq.priority)
        back = seq.rank if seq.rank[0] >= 0 else (seq.arrival, 0)
        flow = self._flow_of.get(key)
        if flow is None:
            flow = self._flow_of[key] = _Flow(graph, seq.priority, back)
            bisect.insort(self._flows, flow, key=_flow_key)
            self._push_oldest(flow)
        elif back < flow.rank:
            self._move(flow, back)
        bisect.insort(flow.members, seq, key=_place_key)
        flow.peeked = _NOT_PEEKED
        self._turns.add(seq)

    def _serve(self, flow: _Flow) -> None:
        """One of the graph was admitted: it waits anew, behind all that are here and before those that come."""
        flow.peeked = _NOT_PEEKED
        if flow.members:
            self._move(flow, (self._latest, next(self._serials)))

    def _move(self, flow: _Flow, rank: tuple[int, int]) -> None:
        self._flows.remove(flow)
        flow.rank = rank
        bisect.insort(self._flows, flow, key=_flow_key)
        self._push_oldest(flow)

    def _best_of_graphs(self, flows: list[_Flow]) -> Sequence:
        if self.in_order is None:
            self.in_order = self._has_room()
        return self._turns.next() if self.in_order else self._best_of_flows(flows)

    def _best_of_flows(self, flows: list[_Flow]) -> Sequence:
        """The first of the graph with the longest cached prefix; of several, of the one that waits longest."""
        top = [flow for flow in flows[: self._config.match_window] if flow.priority == flows[0].priority]
        if len(top) == 1:
            return top[0].members[0]
        for flow in top:
            if flow.peeked is _NOT_PEEKED:
                flow.peeked = self._peek(flow.members[0])
        return max(top, key=lambda flow: flow.peeked[0]).members[0]

    # -- singles -----------------------------------------------------------------------------------------------------

    def _best_single(self) -> Sequence:
        if self._config.policy == "fcfs":
            return self._singles[0]
        if not self._window:
            self._window = self._ranked_window()
        return self._window[-1]

    def _ranked_window(self) -> list[Sequence]:
        priority = self._singles[0].priority
        window = [seq for seq in self._singles[: self._config.match_window] if seq.priority == priority]
        if len(window) == 1:
            return window
        ranked = []
        for seq in window:
            length, node = self._peek(seq)
            ranked.append((length, -node, -seq.arrival, seq))
        ranked.sort(key=lambda entry: entry[:3])
        return [seq for *_, seq in ranked]

    # -- both --------------------------------------------------------------------------------------------------------

    def _drop(self, seq: Sequence, *, served: bool = False) -> _Flow | None:
        """Takes it out, as it is `served` or gone; the flow it was in, if any."""
        flow = None if seq.graph is None else self._flow_of.get((seq.graph, seq.priority))
        members, key = (self._singles, _order_key) if flow is None else (flow.members, _place_key)
        index = bisect.bisect_left(members, key(seq), key=key)
        if index == len(members) or members[index] is not seq:
            raise ValueError(f"sequence {seq.id} does not wait")
        del members[index]
        self._count -= 1
        self.unwritten -= seq.may_write
        if flow is None:
            self.unleased -= len(seq.prompt_ids)
            if seq in self._window:
                self._window.remove(seq)
            return None
        self._turns.remove(seq, served=served)
        if not members:
            self._flows.remove(flow)
            del self._flow_of[flow.graph, flow.priority]
        elif index == 0:
            flow.peeked = _NOT_PEEKED
        return flow

    def _push_oldest(self, who: Sequence | _Flow) -> None:
        if self._oldest and who.rank < self._oldest[0][0]:
            self._overtaken = 0
        heapq.heappush(self._oldest, (who.rank, next(self._serials), who))

    def _is_due(self, seq: Sequence) -> bool:
        """Whether it, or its graph, waits longest of all; where graphs are served as they came, or its run."""
        who = self._oldest[0][2]
        if isinstance(who, Sequence) or seq.graph is None:
            return who is seq
        return who is self._flow_of.get((seq.graph, seq.priority)) or (
            self.in_order is True and line_of(who.members[0]) == line_of(seq)
        )

    def _longest_waiting(self) -> Sequence | None:
        who = self._oldest[0][2] if self._oldest else None
        if isinstance(who, _Flow):
            return None if self._held else who.members[0]
        return who

    def _settle_oldest(self) -> None:
        """Entries of those that left or were served go; where another one is the oldest now, nobody overtook it."""
        while self._oldest and not self._still_waits(*self._oldest[0]):
            heapq.heappop(self._oldest)
            self._overtaken = 0

    def _still_waits(self, rank: tuple[int, int], serial: int, who: Sequence | _Flow) -> bool:
        if isinstance(who, _Flow):
            return bool(who.members) and who.rank == rank
        index = bisect.bisect_left(self._singles, _order_key(who), key=_order_key)
        return index < len(self._singles) and self._singles[index] is who


def _order_key(seq: Sequence) -> tuple[int, int]:
    return -seq.priority, seq.arrival


def _place_key(seq: Sequence) -> tuple[int, int]:
    return seq.place, seq.arrival


def _flow_key(flow: _Flow) -> tuple[int, tuple[int, int]]:
    return -flow.priority, flow.rank
