"""Tracing: the nodes of a body without a run, text with values in it, and where a trace ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from radicel import (
    MockBackend,
    assistant,
    assistant_begin,
    assistant_end,
    flush_cache,
    function,
    gen,
    get_default_backend,
    role,
    select,
    separate_reasoning,
    set_default_backend,
    special,
    system,
    user,
    user_begin,
    user_end,
)
from radicel.executor import current
from radicel.ir import Op, chain, open_role
from radicel.pool import dispatcher
from radicel.tracer import trace_call


def lines(trace):
    """The trace's nodes as they print, without the edges."""
    return [str(node) for node in trace.nodes]


def texts(trace):
    return [str(node) for node in trace.nodes if node.op is Op.TEXT]


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


# --- every kind of program -------------------------------------------------------------------------------------------


def test_roles_in_all_spellings():
    @function
    def program(s, q):
        s += system("S") + user(q + gen("a"))
        with s.user():
            s += s["a"]
        s.assistant(s["a"])
        s += user_begin() + "u" + user_end()
        s += assistant_begin()
        s += gen("b") + assistant_end()
        s += role("tool", [s["b"], special("<x>")])
        with s.role("critic"):
            s += "c"

    trace = program.trace("Q")
    assert trace.opens == trace.problems == []
    assert [open_role(node) for node in trace.nodes if node.op is Op.TEXT] == [
        "system", "user", "user", "assistant", "user", "tool", "tool", "critic",
    ]  # fmt: skip
    assert texts(trace)[2:4] == ["text {a}", "text {a}"]
    assert "text special('<x>')" in texts(trace)


def test_scopes_and_copies():
    @function
    def program(s):
        with s.var_scope("both"):
            s += "a" + gen("x") + "b"
        with s.copy() as c:
            c += "try " + s["both"] + gen("tried")
        s += "<" + s["both"] + s["tried"] + ">"

    trace = program.trace()
    assert texts(trace) == ["text 'a'", "text 'b'", "text 'try a' {x} 'b'", "text '<a' {x} 'b' {tried} '>'"]
    assert trace.opens == trace.problems == []


def test_nested_forks_and_their_lists():
    @function
    def program(s):
        s += "root"
        with s.fork(2) as outer:
            for branch in outer:
                with branch.fork(2) as inner:
                    inner += gen("x")
                branch += "-".join(branch["x"]) + gen("y")
        s += "|".join(s["y"]) + str(len(s["x"])) + s["x"][1][0]

    trace = program.trace()
    assert trace.opens == trace.problems == []
    assert [node.payload.name for node in trace.generating] == ["x", "x", "y", "x", "x", "y"]
    final = trace.nodes[-1]
    assert str(final) == "text {y} '|' {y} '2' {x}"
    assert final.data == tuple(trace.generating[i] for i in (2, 5, 3))


def test_append_joins_in_order():
    @function
    def program(s):
        branches = s.fork(2)
        branches += lambda i: f"{i}:" + gen("x")
        branches.join("append")
        s += gen("end")

    trace = program.trace()
    append = next(node for node in trace.nodes if node.op is Op.APPEND)
    assert [str(node) for node in append.data] == ["gen x", "gen x"]
    assert trace.generating[-1].prefix is append


def test_join_first_may_go_on_from_any_branch():
    @function
    def program(s, read):
        branches = s.fork(2)
        branches[0] += "a" + gen("x") + gen("only")
        branches[1] += "bb" + gen("x")
        branches.join("first")
        s += "then " + s[read] + gen("end")

    trace = program.trace("x")
    assert trace.opens == []
    join = next(node for node in trace.nodes if node.op is Op.JOIN)
    assert len(join.data) == 2
    then = next(node for node in trace.nodes if node.data and node.op is Op.TEXT)
    assert str(then) == "text 'then ' {x}"
    assert then.data == (join,)
    (end,) = program.trace("only").opens
    assert "not every branch makes it" in end.reason


def test_inlined_programs_and_those_started_inside():
    @function
    def helper(s, topic):
        s += f"about {topic}: " + gen("fact", max_tokens=5)
        return "done"

    @function
    def program(s):
        s += "A " + helper("one")
        helper(s, topic="two")
        other = helper(topic=s["fact"])
        third = helper.run("four")
        s += gen("x") + other["fact"] + third["fact"] + third.ret_value

    trace = program.trace()
    assert trace.opens == []
    assert texts(trace) == [
        "text 'A '",
        "text 'about one: '",
        "text 'about two: '",
        "text 'about four: '",
        "text 'about ' {fact} ': '",
        "text {fact}",
        "text {fact}",
        "text 'done'",
    ]
    starts = [node for node in trace.nodes if node.prefix is None]
    assert [str(node) for node in starts] == ["text 'A '", "text 'about four: '", "text 'about ' {fact} ': '"]


def test_programs_in_a_batch_inside_are_traced():
    @function
    def helper(s, topic):
        s += topic + gen("fact")

    @function
    def program(s, topics):
        states = helper.run_batch([(topic,) for topic in topics])
        s += ", ".join(state["fact"] for state in states) + gen("x")

    trace = program.trace(["a", "b"])
    assert texts(trace) == ["text 'a'", "text 'b'", "text {fact} ', ' {fact}"]
    assert trace.generating[-1].prefix.data == tuple(trace.generating[:2])


def test_loops_over_arguments():
    @function
    def program(s, questions, shots=()):
        for number, (question, answer) in enumerate(shots):
            s += f"{number}. {question} {answer}\n"
        for question in questions:
            s += question + gen("answer")

    trace = program.trace(["q1", "q2"], shots=[("a", "b")])
    assert texts(trace) == ["text '0. a b\\n'", "text 'q1'", "text 'q2'"]
    (end,) = program.trace().opens
    assert (end.variable, end.reason) == ("questions", "iterates over it")


def test_samples_selects_set_variables_and_reasoning():
    @function
    def program(s):
        s += gen("many", n=2) + select("c", ["a", "b"]) + separate_reasoning(gen("t"))
        s["note"] = f"{s['c']}!"
        s.set_var("count", len(s["many"]))
        s += " ".join(s["many"]) + s["note"] + str(s["count"]) + s["t"] + s["t_reasoning_content"]

    assert texts(program.trace()) == [
        "text {many[0]} ' ' {many[1]} {c} '!2' {t.answer} {t.reasoning}",
    ]


def test_unbound_arguments_stay_symbolic():
    @function
    def program(s, topic, style="plain", *more, tone, **others):
        s += f"Write about {topic:>5} in a {style} {tone} way." + gen("x")

    trace = program.trace()
    assert trace.arguments == ["topic", "tone"]
    assert lines(trace) == [
        "argument topic",
        "argument tone",
        "text 'Write about ' {topic:>5} ' in a plain ' {tone} ' way.'",
        "gen x",
    ]
    assert program.bind(tone="dry").trace("T").arguments == []
    with pytest.raises(TypeError, match="unexpected"):
        review.trace(essays="E")


def test_what_a_trace_says_about_itself():
    @function
    def program(s, topic):
        s += topic + gen("x", max_tokens=4)
        return s.text() + str(s.variables()) + str("x" in s) + str("y" in s)

    trace = program.trace("T", temperature=0.5, sampling={"seed": 1})
    assert trace.generating[0].payload.sampling.said() == {"max_tokens": 4, "temperature": 0.5, "seed": 1}
    assert repr(trace) == "<Trace of program: 2 nodes, 0 open ends>"
    assert trace.tip is trace.nodes[-1]
    assert trace.ret_value.endswith is not None


# --- what only a run has ---------------------------------------------------------------------------------------------

ONLY_A_RUN = {
    "meta": lambda s: s.meta("x").prompt_tokens,
    "text with roles": lambda s: (s.__iadd__(user("u")), s.text()),
    "stream": lambda s: list(s.text_iter("x")),
    "whole stream": lambda s: list(s.text_iter()),
    "async stream": lambda s: asyncio.run(_first(s.text_async_iter("x"))),
    "cancel": lambda s: s.cancel(),
    "cancel a branch": lambda s: s.fork(2)[0].cancel(),
    "cache": lambda s: review.cache(),
    "flush": lambda s: flush_cache(),
    "another backend": lambda s: review.run("E", backend=MockBackend(["a"] * 3)),
    "a stream inside": lambda s: review.run("E", stream=True),
    "a value as a stop": lambda s: s.__iadd__(gen("y", stop=f"{s['x']}!")),
    "a value as a choice": lambda s: s.__iadd__(select("y", ["a", f"{s['x']}!"])),
    "a value as a pattern": lambda s: s.__iadd__(gen("y", regex=f"{s['x']}!")),
    "a value as a name": lambda s: s.__iadd__(gen(f"{s['x']}!")),
    "a value as a role": lambda s: s.__iadd__(role(f"{s['x']}!", "a")),
    "a value as a variable": lambda s: s[s["x"]],
    "a value as a number": lambda s: s.__iadd__(gen("y", max_tokens=s["n"])),
}


async def _first(pieces):
    return [piece async for piece in pieces]


@pytest.mark.parametrize("name", ONLY_A_RUN)
def test_what_only_a_run_has_opens(name):
    use = ONLY_A_RUN[name]

    @function
    def program(s):
        s += gen("x") + gen("n", dtype=int)
        use(s)
        s += "unreached"

    trace = program.trace()
    assert len(trace.opens) == 1
    assert "text 'unreached'" not in lines(trace)
    assert [str(node) for node in trace.generating[:1]] == ["gen x"]


def test_an_open_end_inside_a_started_program_is_its_own():
    @function
    def helper(s):
        s += gen("before")
        s += "yes" if s["before"] == "a" else "no"
        s += gen("after")

    @function
    def program(s, name):
        other = helper()
        s += "main" + gen("x")
        s += other[name] + gen("y")

    trace = program.trace("before")
    assert [(end.program, end.variable) for end in trace.opens] == [("helper", "before")]
    assert [node.payload.name for node in trace.generating] == ["before", "x", "y"]
    trace = program.trace("after")
    assert [(end.program, end.variable) for end in trace.opens] == [("helper", "before"), ("program", "after")]


# --- branches on a select --------------------------------------------------------------------------------------------


@function
def router(s, q):
    s += q + select("tool", ["search", "sum", "none"])
    if s["tool"] == "search":
        s += " query:" + gen("query")
    elif s["tool"].startswith("s"):
        s += f" {s['tool']}:" + gen("term") + select("more", ["yes", "no"])
        s += "!" if s["more"] == "yes" else "."
    s += gen("answer")


def test_a_branch_on_a_select_opens_unless_arms_are_asked_for():
    (end,) = router.trace("Q").opens
    assert (end.variable, end.reason) == ("tool", "compares it")


def test_arms_trace_every_choice():
    trace = router.trace("Q", arms=8)
    assert trace.opens == []
    assert [arm.taken_text for arm in trace.arms] == [
        "arm tool='search'",
        "arm tool='sum', more='yes'",
        "arm tool='sum', more='no'",
        "arm tool='none'",
    ]
    assert [texts(arm) for arm in trace.arms] == [
        ["text 'Q'", "text ' query:'"],
        ["text 'Q'", "text ' ' {tool} ':'", "text '!'"],
        ["text 'Q'", "text ' ' {tool} ':'", "text '.'"],
        ["text 'Q'"],
    ]
    first = trace.arms[0].nodes[1]
    assert all(arm.nodes[1] is first for arm in trace.arms)  # one node before the decision, not one for each arm
    assert len(trace.nodes) == len({*trace.nodes})
    assert sum(str(node) == "gen term" for node in trace.nodes) == 1
    assert "arm tool='none': 3 nodes" in str(trace)


def test_arms_are_bounded():
    trace = router.trace("Q", arms=3)
    assert [(end.variable, end.reason) for end in trace.opens] == [("more", "compares it")]
    assert len(trace.arms) == 3
    assert [end.variable for end in router.trace("Q", arms=2).opens] == ["tool"]


def test_a_program_may_have_a_parameter_of_that_name():
    @function
    def program(s, arms):
        s += f"{arms} arms" + gen("x")

    assert texts(program.trace(arms=2)) == ["text '2 arms'"]


# --- leaving nothing behind ------------------------------------------------------------------------------------------


class Loud:
    """A backend that must not be asked."""

    def submit(self, *args, **kwargs):
        raise AssertionError("asked")

    submit_score = submit_prefill = encode = flush_cache = close = submit


@pytest.fixture
def loud():
    backend = Loud()
    set_default_backend(backend)
    yield backend
    set_default_backend(None)


def failing(s, how):
    s += gen("a") + select("c", ["x", "y"])
    with s.fork(2) as branches:
        branches += gen("b")
        if how == "in a fork":
            raise ValueError("mine")
    with s.user():
        s += "u"
        if how == "in a turn":
            raise ValueError("mine")
    if how == "interrupt":
        raise KeyboardInterrupt("mine")
    if how == "open":
        s += "x" if s["a"] else "y"
    review("E")
    if how == "beside a program":
        raise ValueError("mine")


@pytest.mark.parametrize("how", ["in a fork", "in a turn", "interrupt", "open", "beside a program", "not at all"])
def test_a_trace_leaves_nothing_behind(how, loud):
    threads, users = set(threading.enumerate()), dispatcher._users
    raises = contextlib.nullcontext() if how in ("open", "not at all") else pytest.raises(BaseException, match="mine")
    with raises:
        function(failing).trace(how)
    assert current() is None
    assert get_default_backend() is loud
    assert set(threading.enumerate()) == threads
    assert dispatcher._users == users


def test_what_a_started_program_raises_is_raised():
    @function
    def helper(s):
        raise LookupError("inside")

    @function
    def program(s):
        helper()
        s += gen("x")

    with pytest.raises(LookupError, match="inside"):
        program.trace()


def test_a_body_may_catch_its_own_errors():
    @function
    def program(s):
        try:
            s += user(user("a"))
        except ValueError:
            s += "caught" + gen("x")
        try:
            s += s["y"]
        except KeyError:
            s += "no y"

    trace = program.trace()
    assert texts(trace) == ["text 'caught'", "text 'no y'"]
    assert trace.problems == []


def test_a_trace_is_repeatable_and_the_body_is_run_once():
    ran = []

    @function
    def program(s):
        ran.append(1)
        s += gen("x") + "a"
        s += s["x"]

    one, two = program.trace(), program.trace()
    assert len(ran) == 2
    assert str(one) == str(two)
    assert chain(one.tip)[0] is not chain(two.tip)[0]
