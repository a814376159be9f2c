"""Waves: what bodies record together is one graph, sent in its order, with its hints, as values arrive."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from radicel import MockBackend, Reply, errors, function, gen, select, waves
from radicel.backend import Handle
from radicel.executor import current
from radicel.pool import bodies, dispatcher

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Session:
    """A graph's session that checks its contract."""

    def __init__(self, backend):
        self.backend = backend
        self.planned = []  # one list per `submit`
        self.withdrawn = []
        self.closed = 0

    def submit(self, requests):
        assert not self.closed
        assert requests
        seen = {p.place for wave in self.planned for p in wave}
        places = [p.place for p in requests]
        assert places == sorted(set(places))
        assert not seen & set(places)
        assert not set(self.withdrawn) & set(places)
        self.planned.append(list(requests))
        return [self.backend._hold(p.request, p.on_text) for p in requests]

    def withdraw(self, places):
        assert not self.closed
        self.withdrawn += places

    def close(self):
        self.closed += 1

    def names(self):
        return [[p.request.name for p in wave] for wave in self.planned]

    def keeps(self):
        return {p.place: [(k.length, k.uses) for k in p.keeps] for wave in self.planned for p in wave if p.keeps}


@pytest.fixture
def graphs(held):
    """A held backend that takes graphs; `graphs.sessions` are those opened."""
    held.sessions = []

    def open_graph():
        held.sessions.append(Session(held))
        return held.sessions[-1]

    held.open_graph = open_graph
    return held


@pytest.fixture
def patient(monkeypatch):
    """Waves are not closed because of the time."""
    monkeypatch.setattr(waves, "TICK_S", 30.0)


class Run:
    """Something that runs on another thread."""

    def __init__(self, call):
        self.result = self.error = None
        self.thread = threading.Thread(target=self._run, args=(call,))
        self.thread.start()

    def _run(self, call):
        try:
            self.result = call()
        except BaseException as error:
            self.error = error

    def join(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def texts(held_requests):
    return [held.text for held in held_requests]


# --- when a wave closes ---------------------------------------------------------------------------------------------


@function
def straight(s, x):
    s += f"q:{x}" + gen("a") + ":" + gen("b")


@function
def reads(s, x):
    s += f"q:{x}" + gen("a")
    s += f" {s['a']}" + gen("b")
    s += f" {s['b']}" + gen("c")


@pytest.mark.usefixtures("patient")
def test_a_straight_batch_is_one_graph_and_its_calls_go_depth_first(graphs):
    run = Run(lambda: straight.run_batch([("aa",), ("b",), ("ab",), ("aa",)], backend=graphs))
    graphs.wait(4)
    (session,) = graphs.sessions
    assert texts(graphs.held) == ["q:aa", "q:aa", "q:ab", "q:b"]
    assert len(session.planned) == 1
    assert all(planned.awaited for planned in session.planned[0]), "others go on from them"
    for request in graphs.held[:4]:
        request.answer("!")
    graphs.wait(8)
    for request in graphs.held[4:]:
        request.answer("?")
    assert [state.text() for state in run.join()] == ["q:aa!:?", "q:b!:?", "q:ab!:?", "q:aa!:?"]
    assert len(graphs.sessions) == 1
    assert session.closed == 1
    assert session.withdrawn == []


@pytest.mark.usefixtures("patient")
def test_bodies_that_read_are_as_many_waves_as_reads(graphs):
    run = Run(lambda: reads.run_batch([(i,) for i in range(20)], backend=graphs))
    for wave in range(3):
        requests = graphs.wait(20 * (wave + 1))[20 * wave :]
        assert len(graphs.held) == 20 * (wave + 1)
        all_there = threading.Event()
        dispatcher.put(all_there.wait)  # no answer is taken in before the last one is there, as at the end of a step
        for request in requests:
            request.answer(str(wave))
        all_there.set()
    run.join()
    assert [session.names() for session in graphs.sessions] == [[["a"] * 20], [["b"] * 20], [["c"] * 20]]
    assert all(session.closed == 1 for session in graphs.sessions)
    sent = [[planned for wave in session.planned for planned in wave] for session in graphs.sessions]
    assert len({planned.run for wave in sent for planned in wave}) == 1, "all are of one run"
    assert [{planned.awaited for planned in wave} for wave in sent] == [{True}, {True}, {False}]


@pytest.mark.usefixtures("patient")
def test_a_single_run_waits_for_no_clock(graphs):
    run = Run(lambda: reads.run(1, backend=graphs))
    for i in range(3):
        graphs.wait(i + 1)[i].answer("v")
    assert run.join().text() == "q:1v vv vv"
    assert graphs.sessions == []  # one node alone is no graph


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("threads", [1, 3])
def test_few_threads_wait_for_no_clock(threads):
    states = reads.run_batch([(i,) for i in range(12)], backend=MockBackend(lambda r: "v"), num_threads=threads)
    assert [state["c"] for state in states] == ["v"] * 12


def test_a_body_busy_in_its_own_code_holds_nobody_back(held):
    go_on = threading.Event()

    @function
    def p(s, x):
        s += f"q:{x}" + gen("a")
        if x == 3:
            go_on.wait(20)
        return s["a"]

    run = Run(lambda: p.run_batch([(i,) for i in range(6)], backend=held))
    held.wait(6, timeout=5.0)
    assert not go_on.is_set()
    for request in held.held:
        request.answer("v")
    go_on.set()
    assert [state.ret_value for state in run.join()] == ["v"] * 6


@pytest.mark.parametrize(("items", "ticks"), [(1, 3), (2, 7)])
@pytest.mark.usefixtures("patient")
def test_the_first_wave_is_quiet_for_longer_while_bodies_wait_to_begin(held, items, ticks):
    there, hold, found = threading.Event(), threading.Event(), []

    @function
    def busy(s):
        s += "q:" + gen("a")
        found.append(current().waves)
        there.set()
        hold.wait(20)

    run = Run(lambda: busy.run_batch([()] * items, backend=held, num_threads=1))
    assert there.wait(20)
    counts = []
    while not (counts and counts[-1]):
        found[0]._tick()
        counts.append(found[0].count)
    assert len(counts) == ticks, "the first only sees that there is a node"
    hold.set()
    for i in range(items):
        held.wait(i + 1)[i].answer("v")
    run.join()


def test_a_busy_body_s_own_nodes_are_sent_meanwhile(held):
    @function
    def p(s):
        s += gen("a")
        held.wait(1, timeout=5.0)[0].answer("v")
        s += gen("b")
        held.wait(2, timeout=5.0)[1].answer("w")
        return s["a"] + s["b"]

    assert p.run(backend=held).ret_value == "vw"


def test_nodes_that_keep_coming_do_not_keep_a_wave_open(monkeypatch, held):
    monkeypatch.setattr(waves, "FIRST_OPEN_S", 0.05)
    stop = threading.Event()
    branches = []

    @function
    def p(s):
        while not stop.is_set():
            branches.extend(s.fork(1))
            branches[-1].__iadd__(gen())
            time.sleep(0.001)

    state = p.run(backend=held, stream=True)
    try:
        held.wait(2, timeout=5.0)
    finally:
        stop.set()
        state.cancel()


@pytest.mark.usefixtures("patient")
def test_what_is_recorded_after_the_run_is_sent_at_once(held):
    @function
    def p(s):
        s += "x"

    state = p.run(backend=held)
    state += gen("late")
    held.wait(1)[0].answer("v")
    assert state["late"] == "v"


# --- threads --------------------------------------------------------------------------------------------------------


def test_two_thousand_straight_programs_take_few_threads():
    before = threading.active_count()
    most = []

    def reply(request):
        most.append(threading.active_count())
        return Reply("v", delay=0.005)

    states = straight.run_batch([(i,) for i in range(2000)], backend=MockBackend(reply))
    assert all(state.text() == f"q:{i}v:v" for i, state in enumerate(states))
    assert max(most) - before <= 32


def test_a_straight_program_holds_no_thread_while_it_waits(held, until):
    run = Run(lambda: straight.run_batch([(i,) for i in range(300)], backend=held))
    held.wait(300)
    assert until(lambda: not any(t.name == "radicel-body" for t in threading.enumerate()))
    for i in range(600):
        held.wait(i + 1)[i].answer("v")
    run.join()


@pytest.mark.usefixtures("patient")
def test_more_bodies_than_may_wait_all_make_progress():
    states = reads.run_batch([(i,) for i in range(600)], backend=MockBackend(lambda r: Reply("v", delay=0.002)))
    assert all(state.text() == f"q:{i}v vv vv" for i, state in enumerate(states))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("threads", [1, 2, "auto"])
def test_a_body_that_waits_for_a_program_it_started_gives_its_place(threads):
    @function
    def inner(s, x):
        s += f"{x}" + gen("v")
        return s["v"]

    @function
    def outer(s, x):
        first, second = inner(f"{x}a"), inner(f"{x}b")
        s += second["v"] + gen("w")
        (third,) = inner.run_batch([(s["w"],)])
        return first["v"] + third["v"] + inner.run(x=x)["v"]

    states = outer.run_batch([(i,) for i in range(40)], backend=MockBackend(lambda r: "v"), num_threads=threads)
    assert [state.error() for state in states] == [None] * 40
    assert [state.ret_value for state in states] == ["vvv"] * 40


def test_bodies_may_wait_as_many_as_the_backend_runs(held, monkeypatch):
    monkeypatch.setattr(bodies, "_limit", bodies._limit)
    held.max_running = 300
    run = Run(lambda: reads.run_batch([(i,) for i in range(300)], backend=held))
    held.wait(300)
    for i in range(900):
        held.wait(i + 1)[i].answer("v")
    run.join()


# --- order and hints ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_dependents_go_at_once_with_their_places_and_hints(graphs):
    @function
    def p(s, x):
        s += f"{x}" + gen("a")
        with s.fork(2) as b:
            b[0] += "l" + gen("b")
            b[1] += "r" + gen("c")

    run = Run(lambda: p.run_batch([("x",), ("y",)], backend=graphs))
    graphs.wait(2)[1].answer("v")  # y's comes first
    graphs.wait(4)
    (session,) = graphs.sessions
    assert session.names() == [["a", "a"], ["b", "c"]]
    assert [[p.place for p in wave] for wave in session.planned] == [[0, 3], [4, 5]]
    assert session.keeps() == {0: [(None, (1, 2))], 3: [(None, (4, 5))]}
    graphs.held[0].answer("v")
    for request in graphs.wait(6)[2:]:
        request.answer("w")
    run.join()
    assert session.closed == 1


@pytest.mark.usefixtures("patient")
def test_a_prefix_that_later_requests_need_is_named_once(graphs):
    @function
    def p(s):
        s += "shared "
        with s.fork(2) as b:
            b[0] += "l" + gen("a") + gen("b")
            b[1] += select("c", ["x", "y"]) + "r" + gen("d")

    run = Run(lambda: p.run(backend=graphs))
    graphs.wait(2)
    (session,) = graphs.sessions
    (first,) = session.planned
    named = [keep for planned in first for keep in planned.keeps if keep.length is not None]
    assert len(named) <= 1
    for i, text in enumerate(["v", "x", "v", "v"]):
        graphs.wait(i + 1)
        next(h for h in graphs.held if not h.future.done()).answer(text)
    run.join()


def test_a_mock_s_replies_are_used_by_item_and_then_as_written():
    @function
    def forks(s, x):
        with s.fork(12) as b:
            b += lambda i: f"{i}" + gen("v")

    @function
    def p(s, x):
        s += f"{x}" + gen("v")

    state = forks.run(1, backend=MockBackend([str(i) for i in range(12)]))
    assert state["v"] == [str(i) for i in range(12)]
    states = p.run_batch([(i,) for i in range(50)], backend=MockBackend([str(i) for i in range(50)]))
    assert [state["v"] for state in states] == [str(i) for i in range(50)]


def test_independent_gens_of_one_program_run_side_by_side(held):
    @function
    def helper(s, x):
        s += f"{x}" + gen("v")

    @function
    def p(s):
        one, two = helper("one"), helper("two")
        b = s.fork(2)
        b += gen("f")
        return one["v"] + two["v"] + "".join(b["f"])

    run = Run(lambda: p.run(backend=held))
    for request in held.wait(4):
        request.answer("v")
    assert run.join().ret_value == "vvvv"


# --- failure and cancellation ---------------------------------------------------------------------------------------


class Boom(Exception):
    pass


@pytest.mark.usefixtures("patient")
def test_a_failed_node_fails_what_depends_on_it_and_nothing_else(graphs):
    @function
    def p(s, x):
        b = s.fork(2)
        b[0] += f"{x}" + gen("bad") + gen("after") + gen("last")
        b[1] += f"{x}" + gen("good")
        line.append(sys._getframe().f_lineno - 2)
        return b[1]["good"], b  # a branch that nobody can read any more would be cancelled

    line = []
    run = Run(lambda: p.run_batch([(1,), (2,)], backend=graphs, on_error="raise"))
    for request in graphs.wait(4):
        if request.request.name == "bad" and request.text == "2":
            request.fail(Boom("no"))
        else:
            request.answer("v")
    for i in (4, 5):
        graphs.wait(i + 1)[i].answer("v")
    with pytest.raises(errors.BatchError) as raised:
        run.join()
    where = f"gen 'bad' at {__file__}:{line[0]}"
    assert f"1 of 2 items failed (all states are in `.states`):\n  item 1: Boom: no ({where})" in str(raised.value)
    good, bad = raised.value.states
    assert good.error() is None
    assert [state.ret_value[0] for state in (good, bad)] == ["v", "v"]
    assert f"{where}, item 1 of the batch" in bad.error().__notes__
    assert sorted(graphs.names()) == sorted(["bad", "good"] * 2 + ["after", "last"])
    (session,) = [session for session in graphs.sessions if session.withdrawn]
    assert len(session.withdrawn) == 2
    assert all(session.closed == 1 for session in graphs.sessions)


def test_the_error_of_a_single_run_names_node_and_line():
    @function
    def p(s):
        s += gen("a")

    with pytest.raises(Boom, match=rf"no\ngen 'a' at {__file__}:\d+$"):
        p.run(backend=MockBackend([Boom("no")]))


@pytest.mark.usefixtures("patient")
def test_the_losers_of_a_race_are_cancelled_and_withdrawn(graphs):
    @function
    def p(s):
        b = s.fork(3)
        b += gen("a") + gen("b")
        b.join("first")
        return s["b"]

    run = Run(lambda: p.run(backend=graphs))
    graphs.wait(3)[1].answer("v")
    graphs.wait(4)[3].answer("w")
    assert run.join().ret_value == "w"
    (session,) = graphs.sessions
    assert [graphs.held[i].cancelled for i in (0, 1, 2)] == [True, False, True]
    assert len(session.withdrawn) == 1  # closing the session withdraws the rest
    assert session.closed == 1
    assert len(graphs.held) == 4


@pytest.mark.parametrize("program", [straight, reads])
def test_a_cancelled_program_leaves_nothing_behind(program, graphs, until):
    state = program.run(1, backend=graphs, stream=True)
    (request,) = graphs.wait(1)
    state.cancel()
    assert request.cancelled
    executor = state._stream.executor
    assert until(lambda: executor.finished)
    assert all(session.closed == 1 for session in graphs.sessions)
    assert until(lambda: executor.waves._at_work == 0)
    assert executor.waves._recorded == []
    assert not executor.waves._queued
    assert len(graphs.held) == 1


def test_what_is_cancelled_before_its_wave_closes_is_never_asked_for(held):
    @function
    def p(s):
        b = s.fork(2)
        b += gen("x")
        b[0].cancel()
        s += gen("y")
        return b[1]["x"]

    run = Run(lambda: p.run(backend=held))
    for request in held.wait(2):
        request.answer("v")
    with pytest.raises(errors.CancelledError):
        run.join()
    assert sorted(held.names()) == ["x", "y"]


def test_a_batch_that_is_interrupted_while_it_is_compiled_ends(monkeypatch, held):
    from radicel import sending

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    @function
    def p(s):
        s += gen("a")
        s.fork(1).__iadd__(gen("b"))

    monkeypatch.setattr(sending, "lower", interrupted)
    with pytest.raises(KeyboardInterrupt):
        p.run(backend=held)
    assert held.held == []


def test_a_graph_that_cannot_be_made_costs_only_the_order(monkeypatch, held, caplog):
    from radicel import sending

    def broken(*args, **kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(sending, "lower", broken)
    run = Run(lambda: straight.run_batch([("b",), ("a",)], backend=held, num_threads=1))
    for i in range(4):
        held.wait(i + 1)[i].answer("v")
    run.join()
    assert texts(held.held)[:2] == ["q:b", "q:a"]
    assert "no graph can be made of 4 requests" in caplog.text


def test_a_backend_that_returns_no_handle_fails_its_nodes_and_hangs_nobody(held):
    held.submit = lambda request, on_text=None: None

    @function
    def p(s, x):
        s += gen("a")
        s.fork(1).__iadd__(gen("b"))

    states = p.run_batch([(1,), (2,)], backend=held)
    assert [type(state.error()) for state in states] == [AttributeError] * 2


# --- the off switch -------------------------------------------------------------------------------------------------


def test_without_waves_each_node_goes_by_itself(monkeypatch, graphs):
    monkeypatch.setenv("RADICEL_WAVES", "0")

    @function
    def p(s):
        s += gen("a")
        graphs.wait(1)[0].answer("v")
        s += gen("b")
        graphs.wait(2)[1].answer("w")
        return s["b"]

    monkeypatch.setattr(waves, "TICK_S", 30.0)
    assert p.run(backend=graphs).ret_value == "w"
    assert graphs.sessions == []


@pytest.mark.parametrize("switch", ["0", "1"])
def test_backends_that_answer_on_the_spot(monkeypatch, switch):
    monkeypatch.setenv("RADICEL_WAVES", switch)

    class Instant(MockBackend):
        def submit(self, request, on_text=None):
            handle = super().submit(request, on_text)
            handle.future.result(10)
            return Handle(handle.future)

    states = reads.run_batch([(i,) for i in range(20)], backend=Instant(lambda r: "v"))
    assert [state["c"] for state in states] == ["v"] * 20
    assert straight.run(1, backend=Instant(lambda r: "v")).text() == "q:1v:v"
