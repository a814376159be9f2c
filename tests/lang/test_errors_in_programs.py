"""What goes wrong in a program: whose exception is raised where, what is cancelled, what is left behind."""

from __future__ import annotations

import threading
import traceback

import pytest
from pydantic import BaseModel, field_validator
from radicel import MockBackend, Reply, assistant, errors, function, gen, select, user

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Boom(Exception):
    pass


def body_a(s):
    s += "p " + gen("a") + " then " + gen("b")


def test_backend_error_is_raised_by_run_and_by_every_read_that_needs_it():  # A10
    boom = Boom("backend")
    mock = MockBackend([boom, "never"])
    with pytest.raises(Boom) as raised:
        function(body_a).run(backend=mock)
    assert raised.value is boom
    assert len(mock.requests) == 1  # b depends on a
    (state,) = function(body_a).run_batch([{}], backend=MockBackend([boom]))
    assert state.error() is boom
    for read in (
        lambda: state["a"],
        lambda: state["b"],
        lambda: state.meta("a"),
        state.text,
        state.messages,
        state.sync,
    ):
        with pytest.raises(Boom) as raised:
            read()
        assert raised.value is boom


def test_the_traceback_shows_the_line_of_the_body_and_that_of_the_backend():
    def body(s):
        s += gen("a")
        return s["a"]  # the read

    with pytest.raises(Boom) as raised:
        function(body).run(backend=MockBackend([Boom()]))
    shown = "".join(traceback.format_exception(raised.value))
    assert 'return s["a"]  # the read' in shown
    assert "delivery.py" in shown


def test_what_does_not_depend_on_the_failed_node_goes_on():
    def body(s):
        b = s.fork(2)
        b[0] += gen("x") + gen("y")
        b[1] += gen("x") + gen("y")
        values = b[1]["y"]
        with pytest.raises(Boom):
            b[0]["y"]
        return values

    replies = {"x": ["ok", Boom("x")], "y": "Y"}
    mock = MockBackend(lambda r: replies["x"].pop() if r.name == "x" else "Y")
    assert function(body).run(backend=mock).ret_value == "Y"


def test_an_error_nobody_saw_is_raised_by_run_also_in_a_branch_without_join():
    kept = []

    def body(s):
        kept.append(s.fork(1))
        kept[0] += gen("x")

    with pytest.raises(Boom):
        function(body).run(backend=MockBackend([Boom()]))


def test_an_error_on_the_programs_own_text_is_never_dealt_with():
    def body(s):
        s += gen("a")
        with pytest.raises(Boom):
            s["a"]
        return "went on"

    with pytest.raises(Boom):
        function(body).run(backend=MockBackend([Boom()]))


def test_the_body_that_raises_cancels_its_requests(held):
    @function
    def p(s):
        s += gen("a") + gen("b")
        held.wait(1)
        raise ValueError("body")

    with pytest.raises(ValueError, match="body") as raised:
        p.run(backend=held)
    assert held.names() == ["a"]
    assert held.held[0].cancelled
    shown = "".join(traceback.format_exception(raised.value))
    assert 'raise ValueError("body")' in shown


def test_reading_after_the_body_raised(held):
    @function
    def p(s):
        s["set"] = 1
        s += gen("a")
        raise ValueError("body")

    (state,) = p.run_batch([{}], backend=held)
    assert state["set"] == 1
    with pytest.raises(errors.CancelledError) as raised:
        state["a"]
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(ValueError, match="body"):
        state["never made"]
    with pytest.raises(ValueError, match="body"):
        state.text()


def test_the_traceback_of_a_read_does_not_grow():
    (state,) = function(body_a).run_batch([{}], backend=MockBackend([Boom()]))

    def depth():
        try:
            state["a"]
        except Boom as error:
            return len(traceback.extract_tb(error.__traceback__))
        return None

    assert len({depth() for _ in range(5)}) == 1


def test_a_value_cut_short_raises_on_run_and_on_reading_with_its_text():
    class Person(BaseModel):
        name: str
        age: int

    def body(s):
        s += user("who") + assistant(gen("person", schema=Person, max_tokens=2))

    text = '{"name": "Ann", "age": 3}'
    with pytest.raises(errors.IncompleteOutputError, match="'person' was cut short after 2 tokens") as raised:
        function(body).run(backend=MockBackend([text]))
    assert (raised.value.text, raised.value.name) == ('{"name": "Ann",', "person")
    (state,) = function(body).run_batch([{}], backend=MockBackend([text]))
    with pytest.raises(errors.IncompleteOutputError):
        state["person"]
    assert state.meta("person").finish_reason == "length"  # the text is there, the value is not
    assert state.text().endswith('{"name": "Ann",<|im_end|>\n')


@pytest.mark.parametrize(
    "keywords", [{"regex": "[a-z ]+"}, {"dtype": int}, {"choices": ["a b c", "d"]}, {"json_schema": True}]
)
def test_every_kind_of_constraint_cut_short(keywords):
    text = "12" if "dtype" in keywords else "a b c"

    def body(s):
        s += gen("x", **keywords)

    with pytest.raises(errors.IncompleteOutputError):
        function(body).run(backend=MockBackend([Reply(text, finish_reason="length")]))


def test_an_unconstrained_text_cut_short_is_a_value():
    state = function(lambda s: s.assistant(gen("x", max_tokens=2))).run(backend=MockBackend(["a b c"]))
    assert (state["x"], state.meta("x").finish_reason) == ("a b", "length")


def test_a_validator_that_refuses_the_value():
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            assert n % 2 == 0, "odd"
            return n

    def body(s):
        s += gen("x", schema=Even)

    with pytest.raises(errors.OutputValidationError) as raised:
        function(body).run(backend=MockBackend(['{"n": 3}']))
    assert (raised.value.name, raised.value.text) == ("x", '{"n": 3}')


def test_a_body_may_deal_with_an_incomplete_value_and_go_on():
    def body(s):
        s += gen("long", schema=int, max_tokens=1)
        try:
            return s["long"]
        except errors.IncompleteOutputError:
            s += " again: " + gen("short", schema=int)
            return s["short"]

    mock = MockBackend([Reply(pieces=["1", "2"]), "7"])
    state = function(body).run(backend=mock)
    assert state.ret_value == 7
    assert mock.requests[1].prompt == "1 again: "


def test_cancel_from_outside(held):
    @function
    def p(s):
        s += gen("a") + gen("b")
        return s["b"]

    state = p.run(backend=held, stream=True)
    (request,) = held.wait(1)
    state.cancel()
    assert request.cancelled
    for read in (lambda: state["a"], lambda: state["b"], state.text):
        with pytest.raises(errors.CancelledError):
            read()
    assert isinstance(state.error(), errors.CancelledError)
    assert held.names() == ["a"]
    state.cancel()  # again: nothing


def test_cancel_keeps_what_was_finished(held):
    @function
    def p(s):
        s += gen("a") + gen("b")

    state = p.run(backend=held, stream=True)
    held.wait(1)[0].answer("A")
    held.wait(2)
    state.cancel()
    assert state["a"] == "A"
    with pytest.raises(errors.CancelledError):
        state["b"]


def test_cancel_stops_a_body_that_only_appends(held, until):
    @function
    def p(s):
        while True:
            s += gen()

    state = p.run(backend=held, stream=True)
    held.wait(1)
    state.cancel()
    assert until(lambda: state._stream.executor.finished)
    assert isinstance(state.error(), errors.CancelledError)


def test_cancel_inside_the_body():
    @function
    def p(s):
        s += gen("a")
        s.cancel()
        return s["a"]

    with pytest.raises(errors.CancelledError):
        p.run(backend=MockBackend([Reply("x", delay=5)]))


def test_cancel_reaches_the_programs_that_a_program_started(held, until):
    @function
    def inner(s):
        s += gen("i")

    @function
    def outer(s):
        part = inner()
        return part["i"]

    state = outer.run(backend=held, stream=True)
    (request,) = held.wait(1)
    state.cancel()
    assert request.cancelled
    assert until(lambda: state._stream.executor.finished)


def test_a_request_that_the_backend_cancels():
    def body(s):
        s += gen("a")

    with pytest.raises(errors.CancelledError):
        function(body).run(backend=MockBackend([errors.CancelledError("by the backend")]))
    with pytest.raises(errors.DeadlineError):
        function(body).run(backend=MockBackend([Reply("x", delay=5)]), timeout=0.05)


@pytest.mark.parametrize("where", ["body", "wait"])
def test_interrupt_cancels_the_run(where, held, interrupt_soon):
    @function
    def p(s):
        s += gen("a")
        if where == "body":
            s["a"]

    with interrupt_soon(), pytest.raises(KeyboardInterrupt):
        p.run(backend=held)
    assert held.held[0].cancelled


class Broken:
    """A backend whose methods raise or break the contract."""

    def __init__(self, result=None, error=None):
        self.result, self.error = result, error

    def submit(self, request, on_text=None):
        from radicel.backend import Handle

        if self.error is not None:
            raise self.error
        handle = Handle()
        handle.future.set_result(self.result)
        return handle

    submit_score = submit


def test_a_submit_that_raises_fails_that_node_alone():
    def body(s):
        s += "x" + gen("a")
        s += select("c", ["y", "n"])

    (state,) = function(body).run_batch([{}], backend=Broken(error=errors.ContextLengthError("too long")))
    assert isinstance(state.error(), errors.ContextLengthError)
    with pytest.raises(ValueError, match="too long"):
        state["a"]


@pytest.mark.parametrize("make", [lambda s: gen("a", n=2), lambda s: select("c", ["y", "n"])])
def test_a_backend_that_gives_too_little_is_an_error(make):
    def body(s):
        s += make(s)

    with pytest.raises(errors.BackendError):
        function(body).run(backend=Broken(result=[]))


def test_backend_closed_while_it_runs(until):
    mock = MockBackend([Reply("x", delay=5), "never"])
    state = function(body_a).run(backend=mock, stream=True)
    assert until(lambda: len(mock.requests) == 1)
    mock.close()
    with pytest.raises(errors.BackendClosedError):
        state["b"]
    with pytest.raises(errors.BackendClosedError):
        function(body_a).run(backend=mock)


def test_many_runs_leave_no_thread_and_few_objects():
    for i in range(200):
        state = function(body_a).run(backend=MockBackend(["a", "b"]), stream=bool(i % 2))
        assert state["b"] == "b"
    names = [t.name for t in threading.enumerate() if t.name == "radicel-body"]
    assert len(names) <= 1
