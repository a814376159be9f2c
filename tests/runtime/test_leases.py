"""Leases: who takes them, until when, what eviction and admission do with them; and that nothing is computed twice.

On the pseudo-model, step by step. `test_leases_bench.py` has the figures under pressure.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from radicel.backend import Keep
from radicel.runtime.demand_tree import Demand, DemandTree, Need
from radicel.runtime.engine import Engine, EngineConfig
from radicel.runtime.leases import Graph
from radicel.runtime.request import Sequence, SequenceState

from .fake_runner import END, FakeRunner, reference, sequence

NO_END = {"end_ids": frozenset()}


def make(slots: int = 4096, rows: int = 64, **config) -> Engine:
    return Engine(FakeRunner(num_slots=slots, num_rows=rows), EngineConfig(check_invariants=True, **config))


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(END) for _ in range(count)]


def drain(engine: Engine, limit: int = 5_000) -> int:
    for done in range(limit):
        if not engine.step():
            return done
    raise AssertionError("the engine does not come to an end")


def one(graph: Graph | None, place: int, prompt: list[int], length: int = 4, **more) -> Sequence:
    return sequence(prompt, length, sampling=NO_END, graph=graph, place=place, **more)


def assert_right(sequences: list[Sequence]) -> None:
    for seq in sequences:
        assert seq.listener.error is None, seq.listener.error
        assert seq.listener.result.output_ids == reference(seq.prompt_ids, seq.sampling).output_ids


def cached(engine: Engine, prompt: list[int]) -> int:
    return engine.scheduler.placement.tree.peek(("user", ""), np.array(prompt, dtype=np.int32))[0]


# -- what is needed of a run of tokens -------------------------------------------------------------------------------


def demand(ids: list[int], time: int) -> Demand:
    return Demand(("user", ""), np.array(ids, dtype=np.int32), time)


def test_need_is_the_longest_demanded_beginning_and_the_time_of_its_end():
    tree = DemandTree()
    long, short = demand([1, 2, 3, 4], 9), demand([1, 2], 5)
    tree.add(long)
    tree.add(short)
    ask = lambda *ids: tree.need(np.array(ids, dtype=np.int32))
    assert ask(1, 2, 3, 4, 5, 6) == Need(4, 2, 9)
    assert ask(1, 2, 3) == Need(3, 2, 9)
    assert ask(1, 2) == Need(2, 0, 5)
    assert ask(1, 7) == Need(1, 0, 5)
    assert ask(7) == Need(0, 0, None)
    tree.remove(short)
    assert ask(1, 2, 3, 4) == Need(4, 0, 9)
    tree.remove(long)
    tree.remove(long)
    assert ask(1, 2) == Need(0, 0, None)
    assert len(tree) == 0


@pytest.mark.parametrize("seed", range(5))
def test_need_is_what_a_list_of_demands_says(seed):
    rng = random.Random(seed)
    tree, live = DemandTree(), []
    for _ in range(400):
        if rng.random() < 0.6 or not live:
            base = list(rng.choice(live).tokens) if live and rng.random() < 0.7 else []
            ids = [*base[: rng.randint(0, len(base))], *(rng.randrange(3) for _ in range(rng.randint(0, 6)))]
            live.append(demand(ids, rng.randrange(50)))
            tree.add(live[-1])
        else:
            tree.remove(live.pop(rng.randrange(len(live))))
        tree.check()
        asked = [rng.randrange(3) for _ in range(rng.randint(0, 8))]
        times = [
            min((d.time for d in live if d.tokens[: i + 1].tolist() == asked[: i + 1]), default=None)
            for i in range(len(asked))
        ]
        length = next((i for i, time in enumerate(times) if time is None), len(times))
        found = tree.need(np.array(asked, dtype=np.int32))
        assert found.length == length
        assert found.time == (times[length - 1] if length else None)
        assert found.since == (times.index(found.time) if length else 0)
    assert len(tree) == len(live)


# -- how long a lease lives ------------------------------------------------------------------------------------------


def test_a_lease_lives_from_submission_to_the_admission_of_its_last_user():
    engine, graph, leases = make(rows=1), Graph(), None
    leases = engine.scheduler.leases
    first = one(graph, 0, [1, 2, 3, 4], keeps=(Keep(3, (1, 2)), Keep(None, (1,))))
    engine.submit([first])
    engine.step()
    assert len(leases) == 3, "the prompt's own is over, three are expected"
    drain(engine)
    written = reference([1, 2, 3, 4], first.sampling).output_ids
    assert len(leases) == 4, "what it wrote is needed, too"
    second = one(graph, 1, [1, 2, 3, 4, *written, 7])
    third = one(graph, 2, [1, 2, 3, 9])
    engine.submit([second, third])
    engine.step()
    assert second.state is SequenceState.RUNNING
    assert len(leases) == 1, "the third's prompt"
    drain(engine)
    assert len(leases) == 0
    assert second.cached_tokens == 4 + len(written) - 1
    assert_right([first, second, third])


def test_leases_end_by_withdrawal_cancellation_and_with_their_graph():
    engine, graph, other = make(rows=1), Graph(), Graph()
    leases = engine.scheduler.leases
    maker = one(graph, 0, [1, 2, 3], keeps=(Keep(None, (3,)), Keep(2, (4, 5))))
    waiting = [one(graph, 1, [1, 2, 8]), one(graph, 2, [1, 2, 9])]
    engine.submit([maker, *waiting, one(other, 0, [5, 6], keeps=(Keep(1, (9,)),))])
    engine.step()
    assert len(leases) == 3 + 2 + 2
    engine.withdraw(graph, [4])
    engine.step()
    assert len(leases) == 2 + 2 + 2
    engine.cancel(waiting[0])
    engine.step()
    assert len(leases) == 2 + 1 + 2
    engine.close_graph(graph)
    engine.step()
    assert len(leases) == 2, "only the other graph's are left"
    assert drain(engine) > 0
    assert waiting[1].listener.result.finish_reason == "length", "requests go on without their graph"
    engine.close_graph(other)
    engine.step()
    assert len(leases) == 0


def test_a_place_that_was_withdrawn_or_came_is_leased_for_no_more():
    engine, graph = make(), Graph()
    engine.withdraw(graph, [7])
    engine.step()
    engine.submit([one(graph, 5, [1, 2]), one(graph, 3, [1, 4], keeps=(Keep(1, (5, 7)),))])
    drain(engine)
    assert len(engine.scheduler.leases) == 0


def test_without_leases_nothing_is_leased_and_the_texts_are_the_same():
    engine, graph = make(slots=60, leases=False), Graph()
    rng = random.Random(3)
    seqs = [one(graph, i, tokens(rng, 20), 6, keeps=(Keep(None, (99,)),)) for i in range(12)]
    engine.submit(seqs)
    engine.step()
    assert len(engine.scheduler.leases) == 0
    drain(engine)
    assert_right(seqs)


# -- eviction --------------------------------------------------------------------------------------------------------


def fill(engine: Engine, graph: Graph, uses: dict[int, tuple[int, ...]]) -> dict[int, list[int]]:
    """Runs one prompt of 20 tokens for each key, kept for the uses; the prompts."""
    prompts = {first: [first, *range(10, 29)] for first in uses}
    keeps = {first: (Keep(20, places),) if places else () for first, places in uses.items()}
    for place, first in enumerate(uses):
        engine.submit([one(graph, place, prompts[first], 0, keeps=keeps[first])])
        drain(engine)
    return prompts


def test_what_nothing_needs_goes_first_and_then_what_is_needed_last():
    engine, graph = make(slots=81), Graph()
    prompts = fill(engine, graph, {1: (50,), 2: (90, 60), 3: (), 4: (70,)})
    left = lambda: {first: cached(engine, prompt) for first, prompt in prompts.items()}
    tree = engine.scheduler.placement.tree
    give = lambda count: engine.scheduler.placement.pool.give_back(tree.evict(count))
    give(25)
    assert left() == {1: 20, 2: 20, 3: 0, 4: 15}, "the third has no future, the fourth is needed after the others"
    give(20)
    assert left() == {1: 20, 2: 15, 3: 0, 4: 0}
    engine.withdraw(graph, [60])
    engine.step()
    give(15)
    assert left() == {1: 20, 2: 0, 3: 0, 4: 0}, "needed at 90 only"
    engine.withdraw(graph, [50])
    engine.step()
    give(5)
    assert left()[1] == 15
    engine.check()


def test_a_leaf_loses_what_is_needed_last_first():
    """One edge of the tree: its first 5 tokens are needed at 1, 5 more at 8, the rest never."""
    engine, graph = make(slots=81), Graph()
    engine.submit([one(graph, 0, list(range(20)), 0, keeps=(Keep(5, (1,)), Keep(10, (8,))))])
    engine.submit([one(graph, 20, [30, *range(9)], 0, keeps=(Keep(10, (6,)),))])
    drain(engine)
    placement = engine.scheduler.placement
    for count, left in ((10, (10, 10)), (5, (5, 10)), (10, (5, 0)), (2, (3, 0))):
        placement.pool.give_back(placement.tree.evict(count))
        assert (cached(engine, list(range(20))), cached(engine, [30, *range(9)])) == left


def test_flush_drops_leased_prefixes_too():
    engine, graph = make(slots=81), Graph()
    fill(engine, graph, {1: (50,), 2: ()})
    engine.flush_cache()
    stats = engine.stats()
    assert (stats.kv_cached, stats.kv_free) == (0, 80)


# -- admission -------------------------------------------------------------------------------------------------------


def test_a_graph_is_admitted_in_the_order_of_its_places():
    engine, graph = make(rows=1), Graph()
    places = [3, 0, 2, 5, 1, 4]
    seqs = {place: one(graph, place, [place + 1, 7], 2) for place in places}
    engine.submit(list(seqs.values()))
    order = []
    while engine.step():
        order += [p for p, s in seqs.items() if s.state is SequenceState.FINISHED and p not in order]
    assert order == sorted(places)


@pytest.mark.parametrize(("slots", "expected"), [(23, [0, 1, 2, 3, 4, 5, 6]), (4096, [0, 3, 6, 1, 2, 4, 5])])
def test_children_come_before_the_siblings_of_their_parent(slots, expected):
    """Depth first: what a finished thought makes possible is admitted before the next thought begins; but as they came
    where there is room for all."""
    engine, graph, order = make(slots=slots, rows=1), Graph(), []
    waiting = {place: one(graph, place, [place + 1, *range(9)], 1) for place in (0, 3, 6)}
    children = {0: (1, 2), 3: (4, 5)}
    engine.submit(list(waiting.values()))
    while engine.step():
        for place in [p for p, seq in waiting.items() if seq.state is SequenceState.FINISHED]:
            order.append(place)
            text = [*waiting.pop(place).tokens.view(0, 11).tolist()]
            later = {child: one(graph, child, [*text, child], 1) for child in children.get(place, ())}
            waiting |= later
            if later:
                engine.submit(list(later.values()))
    assert order == expected


@pytest.mark.parametrize("priority", [0, 1])
@pytest.mark.parametrize("slots", [4096, 200])
def test_an_interactive_request_beside_a_big_batch_is_served_soon(priority, slots):
    """It takes the first row that gets free, whatever the batch: at most one generation, its own and a prefill."""
    engine, graph = make(slots=slots, rows=4), Graph()
    rng = random.Random(1)
    prefix = tokens(rng, 60)
    batch = [one(graph, i, [*prefix, *tokens(rng, 3)], 20) for i in range(200)]
    engine.submit(batch)
    for _ in range(30):
        engine.step()
    asked = one(None, 0, tokens(rng, 10), 10, priority=priority)
    engine.submit([asked])
    steps = 0
    while asked.state is not SequenceState.FINISHED:
        engine.step()
        steps += 1
    assert steps <= 20 + 10 + 3
    assert sum(seq.state is SequenceState.FINISHED for seq in batch) < 20
    assert asked.listener.result.output_ids == reference(asked.prompt_ids, asked.sampling).output_ids
    drain(engine, 20_000)
    assert_right(batch[::20])


def test_a_batch_goes_on_beside_a_stream_of_single_requests():
    engine, graph = make(rows=1), Graph()
    batch = [one(graph, i, [5, i], 1) for i in range(20)]
    engine.submit(batch)
    rng = random.Random(2)
    for _ in range(60):
        engine.submit([one(None, 0, tokens(rng, 3), 1)])
        engine.step()
        engine.step()
    assert all(seq.state is SequenceState.FINISHED for seq in batch), "they take turns"


def test_two_graphs_both_go_on():
    engine = make(rows=1, max_overtakes=3)
    graphs = [Graph(), Graph()]
    batches = [[one(graph, i, [n + 1, i], 1) for i in range(30)] for n, graph in enumerate(graphs)]
    for batch in batches:
        engine.submit(batch)
    for _ in range(30):
        engine.step()
    done = [sum(seq.state is SequenceState.FINISHED for seq in batch) for batch in batches]
    assert min(done) >= 5, done


def test_a_graph_waits_rather_than_drop_what_it_needs_and_singles_do_not():
    engine, graph = make(slots=101, rows=8, lease_price=0), Graph()
    engine.submit([one(graph, 0, list(range(39)), 0, keeps=(Keep(39, (9,)),))])
    drain(engine)
    running = one(graph, 1, [30, 31], 40)
    engine.submit([running])
    engine.step()
    later = one(graph, 2, [32, *range(20)], 10)
    engine.submit([later])
    engine.step()
    assert later.state is SequenceState.WAITING, "60 are left beside the lease, 42 of them are spoken for"
    single = one(None, 0, [33, *range(20)], 2)
    engine.submit([single])
    engine.step()
    assert single.state is SequenceState.RUNNING
    drain(engine)
    assert cached(engine, list(range(39))) == 39
    assert_right([running, later, single])


@pytest.mark.parametrize(("price", "least", "side_by_side"), [(30, 2, True), (12, 2, False), (30, 1, False)])
def test_a_few_run_side_by_side_where_that_costs_little(price, least, side_by_side):
    engine, graph = make(slots=101, rows=8, lease_price=price, least_running=least), Graph()
    engine.submit([one(graph, 0, list(range(39)), 0, keeps=(Keep(39, (9,)),))])
    drain(engine)
    first, second = one(graph, 1, [30, 31], 40), one(graph, 2, [32, *range(20)], 11)
    engine.submit([first, second])  # 42 and 32 of the 61 slots beside the lease: 13 too many
    engine.step()
    assert (second.state is SequenceState.RUNNING) == side_by_side
    drain(engine)
    assert_right([first, second])


def test_leased_prefixes_stop_nobody_who_runs_alone():
    engine, graph = make(slots=101), Graph()
    engine.submit([one(graph, 0, list(range(39)), 0, keeps=(Keep(39, (9,)),))])
    drain(engine)
    big = one(graph, 1, [30, *range(39), *range(39)], 20)
    engine.submit([big])
    drain(engine)
    assert_right([big])
    assert cached(engine, list(range(39))) < 39


def test_short_texts_make_room_for_more_at_a_time():
    """How much sequences write of what they may is learnt, so that a loose `max_tokens` does not cost breadth."""
    engine, graph = make(slots=401, rows=32), Graph()
    keep = one(graph, 0, list(range(39)) * 3, 0, keeps=(Keep(117, (10_000,)),))
    engine.submit([keep])
    drain(engine)
    ends = frozenset(range(40))
    seqs = [
        sequence([i % 39, i // 39, 3], 250, sampling={"end_ids": ends}, graph=graph, place=i) for i in range(1, 300)
    ]
    engine.submit(seqs)
    widths = []
    while engine.step():
        widths.append(len(engine.runner.steps[-1].rows))
    assert widths[0] <= 2
    assert max(widths) > 10
    assert cached(engine, keep.prompt_ids) == 117


# -- leader first ----------------------------------------------------------------------------------------------------


def random_tree(rng: random.Random, texts: int) -> list[list[int]]:
    """Prompts that fork from one another anywhere, none a prefix of another."""
    prompts = [tokens(rng, rng.randint(1, 30))]
    for _ in range(texts - 1):
        base = rng.choice(prompts)
        prompts.append([*base[: rng.randint(1, len(base))], *tokens(rng, rng.randint(1, 25))])
    return list({tuple(prompt): [*prompt, END] for prompt in prompts}.values())


@pytest.mark.parametrize("rows", [2, 64])
@pytest.mark.parametrize("chunk", [3, 40, 8192])
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_computes_each_token_of_its_tree_once(seed, chunk, rows):
    rng = random.Random(seed)
    prompts = random_tree(rng, 60)
    prompts.sort(key=lambda _: rng.random())
    places = {tuple(prompt): place for place, prompt in enumerate(sorted(prompts))}
    distinct = {tuple(prompt[:n]) for prompt in prompts for n in range(1, len(prompt) + 1)}
    engine, graph = make(rows=rows, prefill_chunk=chunk), Graph()
    seqs = [one(graph, places[tuple(prompt)], prompt, rng.randint(1, 4)) for prompt in prompts]
    engine.submit(seqs)
    drain(engine, 20_000)
    stats = engine.stats()
    assert stats.computed_tokens == len(distinct)
    assert stats.preemptions == 0
    assert_right(seqs)


@pytest.mark.parametrize("seed", range(4))
def test_so_does_a_graph_of_forks_that_go_on_from_what_was_written(seed):
    """Any tree of forks: the tokens written are not computed again, but the last of each, which nobody ran."""
    rng = random.Random(seed)
    engine, graph = make(prefill_chunk=rng.choice([5, 8192]), rows=rng.choice([3, 64])), Graph()
    live = [one(graph, 0, tokens(rng, 30), 5)]
    every, place = list(live), 1
    engine.submit(live)
    while engine.step():
        for seq in [seq for seq in live if seq.state is SequenceState.FINISHED]:
            live.remove(seq)
            text = seq.tokens.view(0, len(seq)).tolist()
            forks = [
                one(graph, place + i, [*text, i, *tokens(rng, 3)], rng.randint(1, 6)) for i in range(rng.randint(0, 3))
            ]
            if len(every) < 60 and forks:
                place += len(forks)
                every += forks
                live += forks
                engine.submit(forks)
    ran = {tuple(seq.tokens.view(0, n).tolist()) for seq in every for n in range(1, len(seq))}
    asked = {tuple(seq.prompt_ids[:n]) for seq in every for n in range(1, len(seq.prompt_ids) + 1)}
    written = {tuple(seq.tokens.view(0, n).tolist()) for seq in every for n in range(len(seq.prompt_ids) + 1, len(seq))}
    assert engine.stats().computed_tokens == len(asked - written)
    assert ran >= written
    assert_right(every)


def test_prompts_that_are_there_whole_run_their_last_token_only():
    engine, graph = make(), Graph()
    prompt = tokens(random.Random(1), 50)
    engine.submit([one(graph, i, prompt, 3) for i in range(20)])
    drain(engine)
    assert engine.stats().computed_tokens == 50 + 19


def test_first_come_first_served_knows_no_graphs():
    engine, graph = make(slots=80, rows=4, policy="fcfs"), Graph()
    rng = random.Random(1)
    seqs = [one(graph, 9 - i, tokens(rng, 30), 12, keeps=(Keep(None, (20 + i,)),)) for i in range(10)]
    engine.submit(seqs)
    order = []
    while engine.step():
        order += [i for i, seq in enumerate(seqs) if seq.state is SequenceState.FINISHED and i not in order]
    assert order == list(range(10))
    assert_right(seqs)
