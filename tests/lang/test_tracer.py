"""Tracing: the nodes of a body without a run, text with values in it, and where a trace ends."""

from __future__ import annotations

import threading

import pytest
from radicel import assistant, function, gen, get_default_backend, system, user
from radicel.executor import current
from radicel.tracer import trace_call


@function
def review(s, essay, aspects=("plot", "style")):
    s += system("You are a careful reviewer.") + user(essay)
    with s.fork(len(aspects)) as branches:
        for branch, aspect in zip(branches, aspects):
            branch += user(f"Judge the {aspect}.") + assistant(gen("note", max_tokens=80))
    s += user("Summarise: " + " ".join(s["note"]))
    s += assistant(gen("verdict"))


def test_a_trace_prints_its_nodes():
    trace = review.trace(essay="E")
    assert str(trace).splitlines() == [
        "trace of review",
        "%0 begin system",
        "%1 text 'You are a careful reviewer.' after %0",
        "%2 end after %1",
        "%3 begin user after %2",
        "%4 text 'E' after %3",
        "%5 end after %4",
        "%6 branch 0 of 2 after %5",
        "%7 branch 1 of 2 after %5",
        "%8 begin user after %6",
        "%9 text 'Judge the plot.' after %8",
        "%10 end after %9",
        "%11 begin assistant after %10",
        "%12 gen note max_tokens=80 after %11",
        "%13 end after %12",
        "%14 begin user after %7",
        "%15 text 'Judge the style.' after %14",
        "%16 end after %15",
        "%17 begin assistant after %16",
        "%18 gen note max_tokens=80 after %17",
        "%19 end after %18",
        "%20 join gather_variable after %5 of %13 %19",
        "%21 begin user after %20",
        "%22 text 'Summarise: ' {note} ' ' {note} after %21 of %12 %18",
        "%23 end after %22",
        "%24 begin assistant after %23",
        "%25 gen verdict after %24",
        "%26 end after %25",
    ]
    assert trace.opens == []
    assert trace.problems == []


def test_the_body_of_a_trace_that_fails_raises_and_leaves_nothing():
    before = set(threading.enumerate())

    @function
    def bad(s):
        s += gen("a")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        bad.trace()
    assert current() is None
    assert get_default_backend() is None
    assert set(threading.enumerate()) == before


def test_the_function_for_graphs():
    trace = trace_call(review, ("E",), {"aspects": ("plot",)})
    assert [str(node) for node in trace.generating] == ["gen note max_tokens=80", "gen verdict"]
    assert list(trace.stream_nodes) == list(trace.nodes)
