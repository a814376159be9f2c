"""What leases save: prompt tokens computed again because the KV pool was too small, without a model.

    python examples/bench/leases.py                     the table, as Markdown
    python examples/bench/leases.py --markdown FILE     the same, written to a file
    python examples/bench/leases.py --scale 0.2         smaller shapes

Three shapes run on the engine with a runner that computes nothing, so every figure is exact and repeats. The pool
holds 100 %, 50 %, 25 % and 12 % of the working set (all prompts and outputs, shared tokens once). Recomputed are the
prompt tokens beyond those that a pool without limits computes. Compared are

    leases      the engine as it is
    LRU         the same scheduler and order, `leases=False`
    FCFS LRU    `policy="fcfs", leases=False`: in the order of arrival
    reference   clairvoyant: the leases run's own order of admission, one request after the other, token by token,
                dropping what is needed again last (Belady), with nothing else held

and, beside them, how many model steps the three runs took: with leases, an admission waits where it would cost a
prefix that is needed again.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radicel.backend import Keep
from radicel.runtime.batch import SampleBatch, StepBatch, StepResult
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.leases import Graph
from radicel.runtime.request import ResolvedSampling, Sequence, SequenceResult

VOCAB = 1 << 26
CHUNK = 256
RUNNING = 32
SHARES = (1.0, 0.5, 0.25, 0.12)


@dataclass
class Item:
    """One request: its prompt is literal tokens and what other items wrote (their names); it writes `length` tokens."""

    name: str
    prompt: list[int | str]
    length: int
    place: int = -1

    @functools.cached_property  # asked at every step of a run, and prompts are thousands of tokens
    def needs(self) -> list[str]:
        return [part for part in self.prompt if isinstance(part, str)]


# -- shapes ----------------------------------------------------------------------------------------------------------


class Text:
    """Fresh tokens, none twice."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.next = itertools.count(1)

    def __call__(self, least: int, most: int | None = None) -> list[int]:
        return list(itertools.islice(self.next, self.rng.randint(least, most or least)))


def few_shot(scale: float) -> list[Item]:
    """A prefix of 1,200 tokens with examples, and 200 questions after it."""
    text = Text(1)
    shots = text(1200)
    return [Item(f"q{i}", [*shots, *text(30, 120)], text.rng.randint(40, 120)) for i in range(int(200 * scale))]


def tree_of_thought(scale: float) -> list[Item]:
    """A problem with a tree of thoughts, depth 4, branch 4: a thought goes on from what its parent wrote."""
    text = Text(2)
    items = []
    level: list[tuple[str, list[int | str]]] = [("t", [*text(400)])]
    for _ in range(4):
        below = []
        for name, before in level:
            for branch in range(max(2, round(4 * scale))):
                item = Item(f"{name}.{branch}", [*before, *text(10, 30)], text.rng.randint(40, 90))
                items.append(item)
                below.append((item.name, [*item.prompt, item.name]))
        level = below
    return items


def documents(scale: float) -> list[Item]:
    """16 documents of 600 to 1,500 tokens and 12 questions: each is asked to each document, then answered from all
    that was found; then every document is asked whether it supports the answer.

    The requests arrive question by question.
    """
    text = Text(3)
    rules, close, support = text(100), text(60), text(25)
    papers = [[*rules, *text(600, 1500)] for _ in range(max(3, int(16 * scale)))]
    items = []
    for question in range(12):
        asked = text(20, 50)
        found = [f"d{number}q{question}" for number in range(len(papers))]
        items += [Item(name, [*paper, *asked], text.rng.randint(30, 80)) for name, paper in zip(found, papers)]
        items.append(Item(f"q{question}", [*close, *asked, *found], 100))
        items += [Item(f"s{n}q{question}", [*paper, *support, f"q{question}"], 20) for n, paper in enumerate(papers)]
    return items


SHAPES: dict[str, Callable[[float], list[Item]]] = {
    "few-shot batch": few_shot,
    "tree of thought, 4 deep, 4 wide": tree_of_thought,
    "multi-document questions": documents,
}


def put_in_order(items: list[Item]) -> None:
    """Places: depth first over the tree of prompts, each item after what it needs (as `RequestGraph.order`)."""
    firsts: dict[int | str, int] = {}
    ranked = sorted(items, key=lambda item: [firsts.setdefault(part, len(firsts)) for part in item.prompt])
    rank = {item.name: number for number, item in enumerate(ranked)}
    missing = {item.name: len(set(item.needs)) for item in items}
    after: dict[str, list[str]] = {}
    for item in items:
        for need in set(item.needs):
            after.setdefault(need, []).append(item.name)
    ready = [(rank[name], name) for name, count in missing.items() if not count]
    heapq.heapify(ready)
    by_name = {item.name: item for item in items}
    for place in range(len(items)):
        _, name = heapq.heappop(ready)
        by_name[name].place = place
        for later in after.get(name, []):
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, (rank[later], later))


def keeps_of(items: list[Item]) -> dict[str, tuple[Keep, ...]]:
    """What of each item later ones need: those that go on from all that it has and writes, and those that wait for
    something else and begin as it does. Each names the first item that has the longest beginning in common with it."""
    uses: dict[str, dict[int | None, list[int]]] = {}
    numbers: dict[tuple[int, int | str], int] = {}
    makers: list[str] = []  # per node of the tree of prompts, the first item that has it
    for item in sorted(items, key=lambda item: item.place):
        at, maker, length = -1, None, 0
        for depth, part in enumerate(item.prompt):
            at = numbers.setdefault((at, part), len(numbers))
            if at == len(makers):
                makers.append(item.name)
            if makers[at] != item.name and not isinstance(part, str):
                maker, length = makers[at], depth + 1
        if not item.needs:
            continue
        first = item.prompt.index(item.needs[0])
        writer = next(other for other in items if other.name == item.needs[0])
        if item.prompt[:first] == writer.prompt:
            uses.setdefault(writer.name, {}).setdefault(None, []).append(item.place)
        elif maker is not None and length <= first:
            uses.setdefault(maker, {}).setdefault(length, []).append(item.place)
    return {name: tuple(Keep(length, tuple(places)) for length, places in kept.items()) for name, kept in uses.items()}


# -- the engine, without a model -------------------------------------------------------------------------------------


@dataclass
class Step:
    result: StepResult

    def read(self) -> StepResult:
        return self.result


class Runner:
    """Computes nothing; what a sequence writes depends on its seed alone."""

    asynchronous = False
    vocab_size = VOCAB
    context_length = 1 << 16

    def __init__(self, num_slots: int) -> None:
        self.num_slots, self.num_rows = num_slots, RUNNING

    def forward(self, batch: StepBatch) -> None:
        pass

    def sample(self, output: Any, batch: SampleBatch) -> Step:
        ids = [VOCAB // 2 + int(s) * 1000 + int(d) for s, d in zip(batch.seed, batch.draw_index)]
        return Step(StepResult(ids, [math.nan] * len(ids), {}, [], {}, []))

    def penalty_state(self, prompt_ids: Any, output_ids: Any) -> Any:
        raise NotImplementedError("no item has penalties")

    def close(self) -> None:
        pass


@dataclass
class Run:
    """What happened: prompt tokens computed, items in order of their first admission, model steps."""

    computed: int
    order: list[str]
    prompts: dict[str, list[int]]
    outputs: dict[str, list[int]]
    steps: int


@dataclass
class Sender:
    """Sends items as what they need is written, in the order of arrival; hears of their ends."""

    items: list[Item]
    engine: Engine
    keeps: dict[str, tuple[Keep, ...]]
    graph: Graph = field(default_factory=Graph)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    prompts: dict[str, list[int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def send_ready(self) -> None:
        ready = [i for i in self.items if i.name not in self.prompts and all(n in self.outputs for n in i.needs)]
        made = [self.make(item) for item in ready]
        if made:
            self.engine.submit(made)

    def make(self, item: Item) -> Sequence:
        ids: list[int] = []
        for part in item.prompt:
            ids += self.outputs[part] if isinstance(part, str) else [part]
        self.prompts[item.name] = ids
        sampling = ResolvedSampling(max_tokens=item.length, seed=item.place)
        seq = Sequence(ids, sampling, self, graph=self.graph, place=item.place, keeps=self.keeps.get(item.name, ()))
        self.names[seq.id] = item.name
        return seq

    def on_finish(self, seq: Sequence, result: SequenceResult) -> None:
        self.outputs[self.names[seq.id]] = result.output_ids

    def on_error(self, seq: Sequence, error: BaseException) -> None:
        raise error


def run(items: list[Item], slots: int, **config: Any) -> Run:
    """The items on an engine whose pool has so many slots."""
    runner = Runner(slots + 1)
    engine = Engine(runner, EngineConfig(prefill_chunk=CHUNK, max_running=RUNNING, **config))
    sender = Sender(items, engine, keeps_of(items))
    order: list[str] = []
    admitted = engine.scheduler.leases.admitted

    def note(seq: Sequence) -> None:
        order.append(sender.names[seq.id])
        admitted(seq)

    engine.scheduler.leases.admitted = note  # type: ignore[method-assign]
    sender.send_ready()
    while engine.step():
        sender.send_ready()
    engine.close_graph(sender.graph)
    engine.step()
    assert len(engine.scheduler.leases) == 0, "a lease is left"
    assert len(sender.outputs) == len(items), "not everything ran"
    stats = engine.stats()
    first_times = list(dict.fromkeys(order))
    return Run(stats.computed_tokens, first_times, sender.prompts, sender.outputs, stats.steps)


# -- the reference ---------------------------------------------------------------------------------------------------


def clairvoyant(order: Iterable[str], prompts: dict[str, list[int]], outputs: dict[str, list[int]], slots: int) -> int:
    """Prompt tokens computed, one request after the other, when the tokens needed again last are dropped first."""
    numbers: dict[tuple[int, int], int] = {}
    paths: list[tuple[list[int], list[int]]] = []
    for name in order:
        at, path = -1, []
        for token in (*prompts[name], *outputs[name][:-1]):  # the last token written is never run
            at = numbers.setdefault((at, token), len(numbers))
            path.append(at)
        paths.append((path[: len(prompts[name])], path[len(prompts[name]) :]))
    uses: list[list[int]] = [[] for _ in numbers]
    for time in range(len(paths) - 1, -1, -1):
        for node in paths[time][0]:
            uses[node].append(time)  # the next one last
    held: set[int] = set()
    heap: list[tuple[int, int]] = []  # (-next use, -node): of equal ones the deepest, which came last
    computed = 0
    for prompt, output in paths:
        here = {*prompt, *output}
        computed += sum(node not in held for node in prompt)
        for node in prompt:
            uses[node].pop()
        held |= here
        if len(here) > slots:
            raise ValueError(f"a request of {len(here)} tokens does not fit into {slots}")
        back = []
        while len(held) > slots:
            entry = heapq.heappop(heap)
            node = -entry[1]
            if node not in held or entry[0] != -(uses[node][-1] if uses[node] else 1 << 60):
                continue
            if node in here:
                back.append(entry)
            else:
                held.remove(node)
        for entry in back:
            heapq.heappush(heap, entry)
        for node in here:
            heapq.heappush(heap, (-(uses[node][-1] if uses[node] else 1 << 60), -node))
    return computed


TITLE = "# What leases save"
ABOUT = """Made by `python examples/bench/leases.py --markdown docs/benchmarks/leases.md`, which says what is measured
and how. No model runs, so the figures are exact and the same everywhere. They are prompt tokens that were computed
again, beyond those that a pool without limits computes. *Allowed* is what leases may take: 1.1 times the clairvoyant
reference and one prefill chunk of 256 tokens. *Steps* are model steps with leases / LRU / first come, first served:
where the pool is small, leases trade breadth for tokens (`EngineConfig.lease_price`, `least_running`)."""


# -- the table -------------------------------------------------------------------------------------------------------


def working_set(run: Run) -> tuple[int, int]:
    """Tokens that all prompts and outputs have, shared ones once; those of the longest one."""
    numbers: dict[tuple[int, int], int] = {}
    longest = 0
    for name, prompt in run.prompts.items():
        at = -1
        whole = [*prompt, *run.outputs[name]]
        longest = max(longest, len(whole))
        for token in whole:
            at = numbers.setdefault((at, token), len(numbers))
    return len(numbers), longest


@dataclass
class Row:
    """One line of the table: recomputed tokens, and model steps of the three runs."""

    shape: str
    share: float
    slots: int
    leases: int
    lru: int
    fcfs: int
    reference: int
    steps: tuple[int, int, int]

    @property
    def bound(self) -> float:
        return 1.1 * self.reference + CHUNK


def measure(shape: str, scale: float = 1.0, shares: Iterable[float] = SHARES) -> Iterator[Row]:
    """The rows of one shape, one after the other."""
    items = SHAPES[shape](scale)
    put_in_order(items)
    free = run(items, 1 << 22)
    unique = free.computed
    size, longest = working_set(free)
    for share in shares:
        slots = max(int(size * share), longest)
        leased = run(items, slots)
        lru = run(items, slots, leases=False)
        fcfs = run(items, slots, leases=False, policy="fcfs")
        best = clairvoyant(leased.order, leased.prompts, leased.outputs, slots)
        counts = [one - unique for one in (leased.computed, lru.computed, fcfs.computed, best)]
        yield Row(shape, share, slots, *counts, (leased.steps, lru.steps, fcfs.steps))


def line(row: Row) -> str:
    """A row in Markdown."""
    counts = (row.slots, row.leases, row.lru, row.fcfs, row.reference, round(row.bound))
    cells = [row.shape, f"{row.share:.0%}", *(f"{count:,}" for count in counts)]
    return f"| {' | '.join(cells)} | {' / '.join(f'{count:,}' for count in row.steps)} |"


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    heads = ("shape", "pool", "slots", "leases", "LRU", "FCFS LRU", "reference", "allowed", "steps")
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *map(line, rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    rows = []
    for shape in SHAPES:
        for row in measure(shape, args.scale):
            rows.append(row)
            print(line(row), flush=True)
    if args.markdown:
        args.markdown.write_text(f"{TITLE}\n\n{ABOUT}\n\n{table(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
