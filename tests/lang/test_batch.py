"""`run_batch`: order, errors, threads, thousands of items, interrupts."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from radicel import MockBackend, Reply, assistant, errors, function, gen, user

pytestmark = pytest.mark.usefixtures("no_threads_left")


def echo(request):
    """Answers with the end of the prompt."""
    return request.prompt.rpartition(":")[2] or "?"


@function
def straight(s, x):
    s += f"q:{x}" + gen("a")
    s += ":" + str(x) + gen("b")
    return x


@function
def reads(s, x):
    s += f"q:{x}" + gen("a")
    s += f"again:{s['a']}" + gen("b")
    return s["b"]


class Threads:
    """The most threads of the language at a time, sampled when a request comes."""

    def __init__(self):
        self.most = 0

    def __call__(self, request):
        return echo(request)

    def look(self):
        self.most = max(self.most, sum(t.name == "radicel-body" for t in threading.enumerate()))


@pytest.mark.parametrize("form", [lambda i: {"x": i}, lambda i: (i,), lambda i: [i]])
def test_items_are_dicts_or_tuples_and_results_are_in_input_order(form):
    states = straight.run_batch([form(i) for i in range(20)], backend=MockBackend(echo))
    assert [state["b"] for state in states] == [str(i) for i in range(20)]
    assert [state.ret_value for state in states] == list(range(20))
    assert straight.run_batch([], backend=MockBackend(echo)) == []


def test_each_body_runs_once_with_its_own_arguments():  # A4
    calls = []

    @function
    def p(s, x):
        calls.append(x)
        s += f"{x}" + gen("a")

    p.run_batch([{"x": 1}, {"x": 2}], backend=MockBackend(["a", "b"]))
    assert sorted(calls) == [1, 2]


def test_an_error_belongs_to_its_item():  # A20
    boom = RuntimeError("boom")

    @function
    def p(s, x):
        if x == 3:
            raise ValueError("item three")
        s += f":{x}" + gen("a")
        return s["a"]

    def reply(request):
        return boom if request.prompt == ":4" else "ok"

    states = p.run_batch([{"x": i} for i in range(6)] + [{"y": 1}], backend=MockBackend(reply))
    found = [state.error() for state in states]
    assert [type(e) for e in found] == [type(None)] * 3 + [ValueError, RuntimeError, type(None), TypeError]
    assert found[4] is boom
    assert [s["a"] for s, e in zip(states, found) if e is None] == ["ok"] * 4
    with pytest.raises(ValueError, match="item three"):
        states[3]["a"]


def test_on_error_raise_names_the_items_and_has_the_states():
    @function
    def p(s, x):
        s += gen("a")
        if x % 2:
            raise ValueError(f"item {x}")

    with pytest.raises(errors.BatchError, match="2 of 5 items failed") as raised:
        p.run_batch([(i,) for i in range(5)], backend=MockBackend(lambda r: "ok"), on_error="raise")
    assert list(raised.value.failures) == [1, 3]
    assert [state["a"] for state in raised.value.states[::2]] == ["ok"] * 3
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("batch", "options", "error", "words"),
    [
        ("text", {}, TypeError, "list of dicts or tuples, not a str"),
        ({"x": 1}, {}, TypeError, "not a dict"),
        ([{"x": 1}, 5], {}, TypeError, r"batch\[1\] is a int"),
        ([], {"num_threads": 0}, errors.InvalidValueError, "num_threads=0"),
        ([], {"num_threads": "many"}, errors.InvalidValueError, "num_threads='many'"),
        ([], {"on_error": "ignore"}, errors.InvalidValueError, "on_error='ignore'"),
        ([], {"save": 5}, TypeError, "save=5: give the path of a file"),
        ([], {"colour": 1}, TypeError, "'colour' is not a sampling parameter"),
    ],
)
def test_bad_batches_are_refused_as_a_whole(batch, options, error, words):
    mock = MockBackend([])
    with pytest.raises(error, match=words):
        straight.run_batch(batch, backend=mock, **options)
    assert mock.requests == []


def test_sampling_of_a_batch_and_of_an_item():
    mock = MockBackend(echo)
    straight.run_batch([{"x": 1}, {"x": 2, "temperature": 0.9}], backend=mock, temperature=0.1, max_new_tokens=8)
    said = {r.prompt[2]: r.sampling for r in mock.requests}
    assert (said["1"].temperature, said["2"].temperature) == (0.1, 0.9)
    assert {s.max_tokens for s in said.values()} == {8}


def test_a_thousand_straight_items_take_few_threads():  # A19
    threads = Threads()

    def reply(request):
        threads.look()
        return echo(request)

    started = time.monotonic()
    states = straight.run_batch([(i,) for i in range(1000)], backend=MockBackend(reply))
    assert [state["b"] for state in states] == [str(i) for i in range(1000)]
    assert threads.most <= 32
    assert time.monotonic() - started < 20.0


def test_a_thousand_waiting_items_take_bounded_threads_and_all_end():
    threads = Threads()

    def reply(request):
        threads.look()
        return Reply(echo(request), delay=0.02)

    states = reads.run_batch([(i,) for i in range(1000)], backend=MockBackend(reply))
    assert [state.ret_value for state in states] == [str(i) for i in range(1000)]
    assert 1 < threads.most <= 256


def test_waiting_bodies_make_room_for_others(held):
    @function
    def p(s, x):
        s += f"{x}" + gen("a")
        return s["a"]

    done = []
    thread = threading.Thread(target=lambda: done.extend(p.run_batch([(i,) for i in range(100)], backend=held)))
    thread.start()
    requests = held.wait(100)  # all in flight though every body waits
    for request in requests:
        request.answer(request.text)
    thread.join(10)
    assert [state.ret_value for state in done] == [str(i) for i in range(100)]


def test_num_threads_bounds_the_bodies():
    now = itertools.count()
    running: list[int] = []
    most = []

    @function
    def p(s, x):
        running.append(next(now))
        most.append(len(running))
        s += f"{x}" + gen("a")
        value = s["a"]
        running.pop()
        return value

    for limit in (1, 3):
        most.clear()
        states = p.run_batch([(i,) for i in range(12)], backend=MockBackend(lambda r: r.prompt), num_threads=limit)
        assert [state.ret_value for state in states] == [str(i) for i in range(12)]
        assert max(most) <= limit


def test_generator_style_yields_in_order_as_they_end(held):
    batch = straight.run_batch([(i,) for i in range(3)], backend=held, generator_style=True)
    iterator = iter(batch)
    thread = threading.Thread(
        target=lambda: [r.answer("a") for r in held.wait(3)] and [r.answer("b") for r in held.wait(6)[3:]]
    )
    thread.start()
    assert [next(iterator).ret_value for _ in range(3)] == [0, 1, 2]
    assert list(iterator) == []
    thread.join()


def test_closing_the_generator_cancels_the_rest(held, until):
    batch = straight.run_batch([(i,) for i in range(3)], backend=held, generator_style=True)
    threading.Timer(0.05, lambda: answer_item_zero(held)).start()
    first = next(batch)
    assert first.ret_value == 0
    batch.close()
    assert until(lambda: all(r.cancelled for r in held.held if r.text != "q:0" and not r.text.startswith("q:0a")))


def answer_item_zero(held):
    for request in held.wait(3):
        if request.text == "q:0":
            request.answer("a")
    for request in held.wait(4):
        if request.text.startswith("q:0a"):
            request.answer("b")


def test_programs_started_by_many_waiting_bodies_cannot_lock_the_pool():
    @function
    def inner(s, x):
        s += f":{x}" + gen("v")
        return s["v"]

    @function
    def outer(s, x):
        parts = [inner(f"{x}-{i}") for i in range(3)]
        batch = inner.run_batch([(f"{x}+{i}",) for i in range(2)])
        return [part["v"] for part in parts] + [state["v"] for state in batch]

    mock = MockBackend(lambda request: Reply(echo(request), delay=0.01))
    states = outer.run_batch([(i,) for i in range(300)], backend=mock)
    assert [state.ret_value for state in states] == [
        [f"{x}-0", f"{x}-1", f"{x}-2", f"{x}+0", f"{x}+1"] for x in range(300)
    ]


@pytest.mark.parametrize("program", [straight, reads])
def test_interrupt_cancels_everything_and_leaves_nothing_behind(program, held, interrupt_soon):
    with interrupt_soon(), pytest.raises(KeyboardInterrupt):
        program.run_batch([(i,) for i in range(50)], backend=held)
    assert len(held.held) == 50
    assert all(request.cancelled for request in held.held)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_bar_is_quiet_without_a_terminal(terminal, monkeypatch, capsys):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
    states = straight.run_batch([(i,) for i in range(3)], backend=MockBackend(echo), progress_bar=True)
    shown = capsys.readouterr()
    assert len(states) == 3
    assert shown.out == ""
    assert ("3 of 3 programs" in shown.err) is terminal


def test_batches_in_many_threads_share_one_backend():
    mock = MockBackend(echo)
    results = {}

    def work(k):
        states = reads.run_batch([(f"{k}-{i}",) for i in range(30)], backend=mock)
        results[k] = [state.ret_value for state in states]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: [f"{k}-{i}" for i in range(30)] for k in range(6)}


def test_a_batch_with_forks_and_roles():
    @function
    def p(s, x):
        s += user(str(x))
        with s.fork(3) as b:
            b += lambda i: assistant(f"{i}:{x}.{i}" + gen("n"))
        s += assistant(":" + ",".join(s["n"]) + gen("v"))

    states = p.run_batch([(i,) for i in range(40)], backend=MockBackend(echo))
    assert [state["v"] for state in states] == [f"{i}.0,{i}.1,{i}.2" for i in range(40)]
