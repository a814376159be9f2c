"""Static checks: what is wrong with a program before it runs, where, and what to do."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from radicel import MockBackend, assistant, function, gen, gen_int, select, user
from radicel.errors import UnsupportedError
from radicel.problems import Problem
from radicel.prompt import EncodedPrompt, Generated, Text


class Contact(BaseModel):
    name: str
    age: int


class Counting:
    """A backend that only counts: four characters a token, spaces at the ends of turns dropped."""

    vocabulary = frozenset([b"abcd", *(bytes([i]) for i in range(256))])

    def __init__(self, context_length=64):
        self.context_length = context_length

    def submit(self, *args):
        raise AssertionError("asked")

    def encode(self, prompt):
        text = "".join(part.text.rstrip() for part in prompt if isinstance(part, (Text, Generated)))
        return EncodedPrompt(tuple(hash(text[i : i + 4]) for i in range(0, len(text), 4)))


class Untold(Counting):
    vocabulary = frozenset()

    def encode(self, prompt):
        raise UnsupportedError("no tokenizer here")


def line_of(program, offset):
    return program.__wrapped__.__code__.co_firstlineno + offset


def test_a_sound_program_has_no_problems():
    @function
    def program(s, q):
        s += user(q) + assistant(gen("a", max_tokens=50, schema=Contact))
        with s.fork(2) as branches:
            branches += gen("b", stop="\n")
        s += " ".join(s["b"]) + gen("c", regex="[0-9]+x", stop="x") + select("d", ["yes", "no"])

    assert program.trace("Q").problems == []
    assert program.trace("Q").check(Counting()) == []


def test_a_variable_that_is_never_made():
    @function
    def program(s):
        s += gen("answer") + gen("other")
        s += s["anwser"]
        s += "goes on" + gen("more")

    trace = program.trace()
    (problem,) = trace.problems
    assert problem == Problem(
        "error", "the variable 'anwser' is read and never made", __file__, line_of(program, 3), "did you mean 'answer'?"
    )
    assert str(problem) in str(trace)
    assert [str(node) for node in trace.nodes] == ["gen answer", "gen other"]


def test_a_variable_that_is_read_before_it_is_made():
    @function
    def program(s):
        s += "so: " + s["late"]
        s += gen("late") + s["nothing"]

    problems = program.trace().problems
    assert [(p.severity, p.message, p.line) for p in problems] == [
        ("error", f"the variable 'late' is read before it is made (line {line_of(program, 3)})", line_of(program, 2)),
        ("error", "the variable 'nothing' is read and never made", line_of(program, 3)),
    ]
    assert problems[0].fix == "read it after the gen or select that makes it"
    assert problems[1].fix == "the variables made so far are: 'late'"


def test_a_variable_that_a_branch_does_not_have():
    @function
    def program(s):
        branches = s.fork(2)
        branches[0] += gen("x")
        s += branches[1]["x"]

    assert next(p.message for p in program.trace().problems) == "the variable 'x' is read and never made"


def test_a_variable_overwritten_before_anything_read_it():
    @function
    def program(s, read):
        s += gen("a")
        if read:
            s += s["a"]
        s += gen("a")

    assert program.trace(read=True).problems == []
    (problem,) = program.trace(read=False).problems
    assert problem == Problem(
        "warning",
        f"the variable 'a', made at line {line_of(program, 2)}, is overwritten before anything read it",
        __file__,
        line_of(program, 5),
        "give one of the two another name",
    )


@pytest.mark.parametrize(
    ("join", "name", "read", "fix"),
    [
        (None, "x", False, "join the branches, or read their variables"),
        ("gather_variable", None, False, "give its gens names"),
        ("gather_variable", "x", False, None),
        ("append", None, False, None),
        ("first", None, False, None),
        (None, "x", True, None),
    ],
)
def test_a_fork_whose_results_nothing_reads(join, name, read, fix):
    @function
    def program(s):
        branches = s.fork(2)
        branches += gen(name)
        if read:
            s += branches["x"][1]
        if join:
            branches.join(join)

    found = [(p.severity, p.message, p.line, p.fix) for p in program.trace().problems]
    wanted = ("warning", "nothing reads what the fork's branches write", line_of(program, 2), fix)
    assert found == ([wanted] if fix else [])


def test_a_budget_below_the_shortest_text():
    @function
    def program(s, budget):
        s += user("u") + assistant(gen("c", schema=Contact, max_tokens=budget))

    size = len('{"name": "", "age": 0}')
    (warning,) = program.trace(5).problems
    assert (warning.severity, warning.line) == ("warning", line_of(program, 2))
    assert (
        warning.message == f"max_tokens=5 of gen 'c' may be too few: the shortest text of its schema has {size} bytes"
    )
    assert program.trace(5).check(MockBackend()) == [warning]
    assert program.trace(5).check(Untold()) == [warning]
    (error,) = program.trace(5).check(Counting())
    assert error.severity == "error"
    assert error.message == (
        f"max_tokens=5 of gen 'c' is too few: the shortest text of its schema has {size} bytes, which is at least 6 "
        "tokens"
    )
    assert error.fix == "give it max_tokens=6 or more"
    assert program.trace(6).check(Counting()) == []
    assert program.trace(size).problems == []
    assert program.trace(0).problems == []


def test_the_budget_of_few_choices_is_exact():
    @function
    def program(s, budget, in_turn):
        choice = gen("c", choices=["abcdabcdxy", "yyyyyy"], max_tokens=budget)
        s += assistant(choice) if in_turn else choice

    assert [p.fix for p in program.trace(3, True).check(Counting())] == ["give it max_tokens=4 or more"]
    assert program.trace(4, True).check(Counting()) == []
    assert program.trace(3, False).check(Counting()) == []  # a healed token may hold more


def test_a_stop_that_never_comes():
    @function
    def program(s):
        s += gen("c", schema=Contact, stop=["\n", "}"])
        s += gen_int("n", stop=".") + gen("free", stop="\n")

    assert [(p.severity, p.message, p.line) for p in program.trace().problems] == [
        ("warning", "stop='\\n' never ends gen 'c': no text of its schema has it inside", line_of(program, 2)),
        ("warning", "stop='.' never ends gen 'n': no text of its dtype has it inside", line_of(program, 3)),
    ]


def test_choices_that_have_the_same_tokens():
    @function
    def program(s):
        s += "pick: " + select("c", ["yes", "no", "yes ", "no\n"])

    assert program.trace().problems == []
    assert program.trace().check(Untold()) == []
    problems = program.trace().check(Counting())
    assert [p.severity for p in problems] == ["error", "error"]
    assert problems[0].message == (
        "the choices 'yes' and 'yes ' of select 'c' cannot be told apart: they have the same tokens there"
    )


def test_a_prompt_that_does_not_fit():
    @function
    def program(s, text):
        s += text + gen("a") + text + gen("b")

    assert program.trace("x" * 30 * 4).check(Counting(64)) == []
    problems = program.trace("x" * 40 * 4).check(Counting(64))
    assert [(p.severity, p.message, p.line) for p in problems] == [
        (
            "error",
            "the prompt of gen 'b' has at least 78 tokens and does not fit into the context of 64",
            line_of(program, 2),
        )
    ]
    both = program.trace("x" * 64 * 4).check(Counting(64))
    assert (
        next(p.message for p in both) == "the prompt of gen 'a' has 64 tokens and does not fit into the context of 64"
    )


def test_errors_come_first_and_each_once():
    @function
    def program(s):
        for _ in range(3):
            s += gen("a", schema=Contact, max_tokens=1, stop="\n")
        s += s["b"]

    problems = program.trace().problems
    assert [p.severity for p in problems] == ["error", "warning", "warning", "warning"]
    assert len({p.message for p in problems}) == 4
