"""Programs on a real runtime: as graphs, node by node, and without any cache they give the same; a batch computes
each shared token once and lets others through."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from radicel import assistant, function, gen, select, user
from radicel.errors import ContextLengthError
from radicel.runtime import LocalRuntime

from .shared_prefix_bodies import TEXT, chat, choose, forks, raw

# --- random programs ------------------------------------------------------------------------------------------------
#
# A program is a list of steps, run by `walk`; what a step reads it reads in the middle of the body.

texts = st.sampled_from(["the ", "in the end", "\n\n", "a b", " on, ", "x"])
modes = st.sampled_from(["gather_variable", "append"])
names = st.sampled_from(["a", "b", "c"])
values = st.one_of(
    st.tuples(st.just("gen"), names, st.integers(1, 4)),
    st.tuples(st.just("select"), names, st.sampled_from([("the", "on"), ("in", "inner", "on")])),
)
flat = st.one_of(
    st.tuples(st.just("text"), texts),
    values,
    st.tuples(st.just("turn"), texts, st.integers(1, 3)),
    st.tuples(st.just("read"), names, st.integers(1, 3)),
    st.tuples(st.just("scope"), values),
)


def nested(steps: Any) -> Any:
    body = st.lists(steps, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(
            st.just("fork"), st.sampled_from(["gather_variable", "append"]), st.lists(body, min_size=1, max_size=3)
        ),
        st.tuples(st.just("first"), body, st.integers(1, 2)),
        st.tuples(st.just("copy"), body),
        st.tuples(st.just("inline"), body),
        st.tuples(st.just("call"), body),
    )


programs = st.lists(st.one_of(flat, nested(st.one_of(flat, nested(flat)))), min_size=1, max_size=4)


@function(temperature=0)  # a program that is called has its own sampling parameters
def helper(s: Any, steps: Any) -> None:
    walk(s, steps)


@function
def program(s: Any, i: int, steps: Any) -> str:
    s += f"{i % 2}: the other one. "
    walk(s, steps)
    return str(s.text())


def walk(s: Any, steps: Any) -> None:
    for kind, *of in steps:
        STEPS[kind](s, *of)


def _gen(s: Any, name: str, length: int) -> None:
    s += gen(name, max_tokens=length)


def _select(s: Any, name: str, choices: tuple[str, ...]) -> None:
    s += select(name, list(choices))


def _turn(s: Any, text: str, length: int) -> None:
    s += user(text) + assistant(gen("t", max_tokens=length))


def _read(s: Any, name: str, length: int) -> None:
    s += gen(name, max_tokens=length)
    s += "=" + s[name]


def _scope(s: Any, value: Any) -> None:
    with s.var_scope("scope"):
        walk(s, [("text", "|"), value])


def _fork(s: Any, mode: str, bodies: Any) -> None:
    branches = s.fork(len(bodies))
    for branch, body in zip(branches, bodies):
        walk(branch, body)
    branches.join(mode)
    if mode == "gather_variable":
        s += " ".join(str(s[name]) for name in "abc" if name in s)


def _first(s: Any, body: Any, count: int) -> None:
    branches = s.fork(count)  # all alike: whichever ends first, the text is the same
    for branch in branches:
        walk(branch, body)
    branches.join("first")


def _copy(s: Any, body: Any) -> None:
    with s.copy() as c:
        walk(c, body)


def _inline(s: Any, body: Any) -> None:
    s += helper(body)


def _call(s: Any, body: Any) -> None:
    one, two = helper([("text", "a b"), *body]), helper([("text", "the "), *body])
    s += one.text() + two.text()


STEPS: dict[str, Any] = {
    "text": lambda s, text: s.__iadd__(text),
    "gen": _gen,
    "select": _select,
    "turn": _turn,
    "read": _read,
    "scope": _scope,
    "fork": _fork,
    "first": _first,
    "copy": _copy,
    "inline": _inline,
    "call": _call,
}


def outcome(state: Any) -> Any:
    assert state.error() is None, state.error()
    variables = {name: state[name] for name in state.variables()}
    return state.text(), state.ret_value, state.messages(), variables


@pytest.fixture(scope="module")
def runtime(tiny_llama: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tiny_llama, device="cpu", dtype="float64", kv_tokens=20_000, check_invariants=True) as made:
        yield made


@pytest.fixture(scope="module")
def small(tiny_llama: Path) -> Iterator[LocalRuntime]:
    """One that must drop prefixes, and preempt."""
    options: dict[str, Any] = {"kv_tokens": 1_500, "max_running": 4, "prefill_chunk": 32}
    with LocalRuntime(tiny_llama, device="cpu", dtype="float64", check_invariants=True, **options) as made:
        yield made


@pytest.fixture(scope="module")
def naive(tiny_llama: Path) -> Iterator[LocalRuntime]:
    """One sequence at a time, nothing shared."""
    options: dict[str, Any] = {"prefix_cache": False, "policy": "fcfs", "max_running": 1}
    with LocalRuntime(tiny_llama, device="cpu", dtype="float64", kv_tokens=4_000, **options) as made:
        yield made


def check_alike(steps: Any, runtime: LocalRuntime, small: LocalRuntime, naive: LocalRuntime) -> None:
    items = [(i, steps) for i in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RADICEL_WAVES", "0")
        alone = [outcome(program.run(*item, backend=naive, temperature=0)) for item in items]
        by_node = program.run_batch(items, backend=runtime, temperature=0)
        patch.delenv("RADICEL_WAVES")
        by_graph = program.run_batch(items, backend=runtime, temperature=0)
        squeezed = program.run_batch(items, backend=small, temperature=0)
    assert list(map(outcome, by_node)) == alone
    assert list(map(outcome, by_graph)) == alone
    # A random program may outgrow the little pool: then it says so, and that is all that can be asked.
    if not any(isinstance(state.error(), ContextLengthError) for state in squeezed):
        assert list(map(outcome, squeezed)) == alone


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=25, **QUIET)
@given(programs)
@example([("first", [("gen", "a", 1), ("copy", [("gen", "a", 1)])], 2)])
@example([("fork", "append", [[("read", "a", 3)], [("select", "b", ("the", "on"))]]), ("first", [("gen", "c", 4)], 2)])
def test_a_graph_node_by_node_and_without_a_cache(runtime: Any, small: Any, naive: Any, steps: Any) -> None:
    check_alike(steps, runtime, small, naive)


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # on a slow machine beside another test
@settings(max_examples=120, **QUIET)
@given(programs)
def test_many_graphs_node_by_node_and_without_a_cache(runtime: Any, small: Any, naive: Any, steps: Any) -> None:
    check_alike(steps, runtime, small, naive)


# --- leader first ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [raw, chat, forks, choose])
@pytest.mark.parametrize("chunk", [8192, 48])
def test_a_batch_computes_each_shared_token_once(tiny_llama: Path, body: Any, chunk: int) -> None:
    p = function(body)
    calls = [{"i": i} for i in range(12)]
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=30_000, prefill_chunk=chunk, check_invariants=True) as rt:
        graph = p.plan(calls, backend=rt)
        states = p.run_batch(calls, backend=rt, temperature=0, ignore_eos=True, on_error="raise")
        stats = rt.stats()
        rt.check()
    assert len(states) == 12
    ends = graph.tree.ends
    scored = sum(ends[end] - ends[request.prompt] for request in graph.requests for end in request.ends)
    sequences = sum(max(1, len(request.ends)) for request in graph.requests)
    # The last token of a sequence may be seen again, where it is wholly cached; what choices share is, for its logits.
    assert graph.unique_tokens <= stats.computed_tokens <= graph.unique_tokens + sequences + scored
    assert stats.computed_tokens < graph.total_tokens / 2
    assert stats.generated_tokens == graph.max_generated_tokens


# --- beside others --------------------------------------------------------------------------------------------------


def test_an_interactive_request_is_served_beside_a_batch(tiny_llama: Path) -> None:
    @function
    def big(s: Any, i: int) -> None:
        s += TEXT + f"number {i}:" + gen("a", max_tokens=24, ignore_eos=True)

    @function
    def small(s: Any) -> None:
        s += "a question" + gen("a", max_tokens=4, ignore_eos=True)

    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=3_000, max_running=8) as rt:
        batch: list[Any] = []
        thread = threading.Thread(
            target=lambda: batch.extend(big.run_batch([(i,) for i in range(120)], backend=rt, temperature=0))
        )
        thread.start()
        while rt.stats().waiting < 60:
            time.sleep(0.001)
        before = rt.stats()
        small.run(backend=rt, temperature=0)
        after = rt.stats()
        still_waiting = after.waiting
        thread.join()
    assert after.steps - before.steps <= 2 * 24 + 8  # a place is free after 24 steps at most; then it needs 4
    assert still_waiting > 20
    assert all(state.error() is None for state in batch)


def test_losers_of_a_race_stop_within_a_step_and_their_tokens_can_go(tiny_llama: Path) -> None:
    @function
    def race(s: Any) -> Any:
        s += TEXT
        branches = s.fork(3)
        branches[0] += "0" + gen("x", max_tokens=2000, ignore_eos=True)
        branches[1] += "1" + gen("x", max_tokens=3, ignore_eos=True)
        branches[2] += "2" + gen("x", max_tokens=2000, ignore_eos=True) + gen("y", max_tokens=3)
        branches.join("first")
        return rt.stats()

    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=6_000, check_invariants=True) as rt:
        state = race.run(backend=rt, temperature=0)
        while rt.stats().running:
            time.sleep(0.001)
        stats = rt.stats()
        assert stats.waiting == stats.running == stats.kv_used == 0
        assert stats.steps - state.ret_value.steps <= 2
        assert stats.generated_tokens < 200
        rt.check()
        rt.flush_cache()
        assert rt.stats().kv_cached == 0


def test_a_cancelled_batch_leaves_nothing_in_the_runtime(tiny_llama: Path) -> None:
    @function
    def p(s: Any, i: int) -> None:
        s += TEXT + f"{i}" + gen("a", max_tokens=500, ignore_eos=True)
        s += " then " + gen("b", max_tokens=500, ignore_eos=True)

    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=4_000, max_running=4, check_invariants=True) as rt:
        states = p.run_batch([(i,) for i in range(30)], backend=rt, generator_style=True)
        threading.Timer(0.3, lambda: [s._stream.executor.cancel() for s in kept]).start()
        kept = [launch.state for launch in states.gi_frame.f_locals["self"]._launches]
        assert all(state.error() is not None for state in states)
        until = time.monotonic() + 20  # the graph is closed when its last launch is done with it
        while rt.stats().running or rt.stats().waiting or len(rt._engine.scheduler.leases):
            assert time.monotonic() < until, rt.stats()
            time.sleep(0.001)
        assert rt.stats().kv_used == 0
        rt.check()
