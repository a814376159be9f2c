"""The recording: which nodes a body makes, how they print, and the rules they keep."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from radicel import MockBackend, assistant, function, gen, ir, select, special, system, user, verify
from radicel.errors import ProgramError
from radicel.ir import Branch, Node, Op, frontier, prompt_of
from radicel.prompt import Generated, Text, TurnBegin, TurnEnd
from radicel.template import Template, Value


@function
def everything(s, topic):
    s += system("S") + user(topic)
    s += assistant("A: " + gen("a", max_tokens=4))
    with s.fork(2) as branches:
        branches += user("more") + assistant(gen("note"))
    s += special("<x>") + select("c", ["yes", "no"])
    return s.format()


def test_program_prints_as_numbered_nodes():
    state = everything.run("T", backend=MockBackend({"a": "A", "note": "n", "c": "no"}))
    assert state.ret_value == state.format()
    assert state.format().splitlines() == [
        "%0 begin system",
        "%1 text 'S' after %0",
        "%2 end after %1",
        "%3 begin user after %2",
        "%4 text 'T' after %3",
        "%5 end after %4",
        "%6 begin assistant after %5",
        "%7 text 'A: ' after %6",
        "%8 gen a max_tokens=4 after %7",
        "%9 end after %8",
        "%10 branch 0 of 2 after %9",
        "%11 begin user after %10",
        "%12 text 'more' after %11",
        "%13 end after %12",
        "%14 begin assistant after %13",
        "%15 gen note after %14",
        "%16 end after %15",
        "%17 branch 1 of 2 after %9",
        "%18 begin user after %17",
        "%19 text 'more' after %18",
        "%20 end after %19",
        "%21 begin assistant after %20",
        "%22 gen note after %21",
        "%23 end after %22",
        "%24 join gather_variable after %9 of %16 %23",
        "%25 text special('<x>') after %24",
        "%26 select c of ['yes', 'no'] by joint_likelihood after %25",
    ]


def test_nodes_are_frozen_compared_by_identity_and_know_where_they_were_made():
    @function
    def p(s):
        s += "x" + gen("v")  # the site

    state = p.run(backend=MockBackend(["y"]))
    node = state._stream.tip
    assert node is not None
    assert node.site is not None
    assert (node.site.file, node.site.variable) == (__file__, "v")
    assert "# the site" in Path(__file__).read_text().splitlines()[node.site.line - 1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.op = Op.TEXT  # type: ignore[misc]
    assert Node(Op.TURN_END) != Node(Op.TURN_END)
    assert str(node.site) == f"{__file__}:{node.site.line} ('v')"


def chain_of(*steps: tuple[Op, object]) -> Node:
    node = None
    for op, payload in steps:
        node = Node(op, payload, node)
    assert node is not None
    return node


def test_prompt_of_walks_the_chain_and_goes_into_appended_branches():
    root = chain_of((Op.TURN_BEGIN, "user"), (Op.TEXT, Text("hi")), (Op.TURN_END, None))
    starts = [Node(Op.BRANCH, Branch(i, 2), root) for i in range(2)]
    call = ir.GenCall("g", everything.sampling)
    ends = [Node(Op.GEN, call, start) for start in starts]
    joined = Node(Op.TEXT, Text("!"), Node(Op.APPEND, tuple(starts), root, tuple(ends)))
    texts = dict(zip(ends, "ab"))
    assert frontier(joined) == ends
    assert prompt_of(joined, lambda node: Generated(texts[node])) == (
        TurnBegin("user"),
        Text("hi"),
        TurnEnd(),
        Generated("a"),
        Generated("b"),
        Text("!"),
    )
    assert prompt_of(None, lambda node: Generated("")) == ()


def test_frontier_is_the_nearest_generating_node():
    call = ir.GenCall("g", everything.sampling)
    first = chain_of((Op.TEXT, Text("a")), (Op.GEN, call))
    second = Node(Op.GEN, call, Node(Op.TEXT, Text("b"), first))
    assert frontier(second) == [second]
    assert frontier(second.prefix) == [first]
    assert frontier(first.prefix) == []


BAD_NODES = {
    "the payload belongs to the op": Node(Op.TEXT, "plain"),
    "a turn begins outside a turn": Node(Op.TURN_BEGIN, "user", Node(Op.TURN_BEGIN, "user")),
    "a turn ends inside a turn": Node(Op.TURN_END, None, Node(Op.TEXT, Text("x"))),
    "only joins and texts with values have data edges": Node(Op.TURN_BEGIN, "user", None, (Node(Op.TEXT, Text("y")),)),
    "a text needs what makes the values in it": Node(Op.TEXT, Text("x"), None, (Node(Op.ARGUMENT, "y"),)),
    "a value in a text comes from a node that makes one": Node(
        Op.TEXT,
        Template((Value("y", made_nothing := Node(Op.TEXT, Text("y"))),)),
        None,
        (made_nothing,),
    ),
    "an argument stands alone": Node(Op.ARGUMENT, "x", Node(Op.TEXT, Text("y"))),
    "joined branches hang on the stream that joins them": Node(
        Op.JOIN, "first", Node(Op.TEXT, Text("x")), (Node(Op.TEXT, Text("y")),)
    ),
    "an append knows where each branch starts": Node(Op.APPEND, (), None, (Node(Op.BRANCH, Branch(0, 1)),)),
    "an append keeps turns whole": Node(
        Op.APPEND,
        (start := Node(Op.BRANCH, Branch(0, 1)),),
        None,
        (Node(Op.TURN_BEGIN, "user", start),),
    ),
}


def test_every_rule_has_a_node_that_breaks_it():
    assert set(BAD_NODES) == {rule.name for rule in verify.RULES}


@pytest.mark.parametrize("rule", BAD_NODES)
def test_rule_refuses_the_node_that_breaks_it(rule):
    with pytest.raises(ProgramError, match=rule):
        verify.check(BAD_NODES[rule])


def test_checks_can_be_switched_off():
    assert verify.enable(False) is True
    try:
        assert verify.check(BAD_NODES["a turn ends inside a turn"]).op is Op.TURN_END
    finally:
        verify.enable(True)


def test_a_chain_of_thousands_of_nodes_is_walked_and_freed():
    @function
    def long(s):
        for i in range(20_000):
            s += str(i)
        s += gen("v")

    verify.enable(False)  # the rules walk the chain at every node
    try:
        state = long.run(backend=MockBackend(["end"]))
    finally:
        verify.enable(True)
    assert state.text() == "".join(map(str, range(20_000))) + "end"
    del state
