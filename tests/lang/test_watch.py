"""Which functions are watched in a trace, and what becomes of those that cannot be."""

from __future__ import annotations

import contextlib
import linecache
import logging
import textwrap
import traceback

import pytest
from radicel import Program, assistant, function, gen, user
from radicel.ir import Op
from radicel.rewrite import HOOKS, Rewriter


def texts(trace):
    return [str(node) for node in trace.nodes if node.op is Op.TEXT]


def made(source: str, **names) -> Program:
    """The program `program` of a source that no file has."""
    space = {"function": function, "gen": gen, "user": user, "assistant": assistant, **names}
    exec(compile(textwrap.dedent(source), "<made up>", "exec"), space)
    return space["program"]


HARMLESS = """
    @function
    def program(s, q):
        s += user(q) + assistant(gen("x"))
        with s.fork(2) as branches:
            for number, branch in enumerate(branches):
                branch += f"{number}: {s['x']}" + gen("y")
        s += " ".join(s["y"]) + "{}!".format(s["x"])
    """


def test_a_body_without_a_source_is_traced_where_it_does_nothing_that_needs_watching():
    trace = made(HARMLESS).trace("Q")
    assert trace.opens == []
    assert texts(trace) == ["text 'Q'", "text '0: ' {x}", "text '1: ' {x}", "text {y} ' ' {y} {x} '!'"]
    assert texts(made(HARMLESS).trace())[0] == "text {q}"


LOOKS = {
    "compares": """s += "a" if f"{s['x']}!" == "b!" else "c" """,
    "searches": """s += "a" if "b" in f"{s['x']}!" else "c" """,
    "calls a method": """s += f"{s['x']}!".upper() """,
    "calls a function": """s += helper(f"{s['x']}!") """,
    "pads by percent": """s += ("%9s" + q) % (s["x"], 1)[:1] """,
    "matches": """
        match f"{s['x']}!":
            case "b!":
                s += "a"
    """,
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_body_without_a_source_that_may_look_inside_opens_at_its_first_value(name):
    head = "@function\ndef program(s, q=''):\n    s += q + gen('x')\n"
    program = made(head + textwrap.indent(textwrap.dedent(LOOKS[name]), "    "), helper=len)
    trace = program.trace("Q")
    assert [end.variable for end in trace.opens] == ["x"]
    assert "source is not there" in trace.opens[0].reason
    assert texts(trace) == ["text 'Q'"]


def test_an_argument_that_was_not_given_opens_such_a_body_at_once():
    program = made("@function\ndef program(s, q):\n    s += 'a' if 'b' in f'{q}!' else 'c'\n")
    trace = program.trace()
    assert [end.variable for end in trace.opens] == ["q"]
    assert texts(trace) == []


def test_a_source_that_has_changed_is_not_taken(tmp_path):
    file = tmp_path / "changing.py"
    before = "def body(s):\n    s += gen('x')\n    s += 'a' if 'b' in f\"{s['x']}!\" else 'c'\n"
    file.write_text(before)
    space = {"gen": gen, "__name__": "changing"}
    exec(compile(before, str(file), "exec"), space)
    (end,) = Program(space["body"]).trace().opens
    assert end.reason == "looks for something in it"
    file.write_text(before.replace("'a' if", "'z' if"))
    linecache.checkcache(str(file))
    (end,) = Program(space["body"]).trace().opens
    assert "source is not there" in end.reason


def test_asserts_that_a_test_runner_rewrote_are_no_hindrance():
    @function
    def program(s, q):
        assert isinstance(q, str)
        s += q + gen("x")
        assert s["x"] is not None
        s += f"<{s['x']}>"

    trace = program.trace("Q")
    assert trace.opens == []
    assert texts(trace) == ["text 'Q'", "text '<' {x} '>'"]


def outer(tag):
    """A decorator of the user's own."""

    def wrap(fn):
        def inner(s, *args):
            s += f"[{tag}]"
            return fn(s, *args)

        return inner

    return wrap


class Helper:
    """Methods of all kinds."""

    def __init__(self, mark):
        self.mark = mark

    def shown(self, text):
        return f"{self.mark}{text}{self.mark}"

    @classmethod
    def of_class(cls, text):
        return f"({text})"

    @staticmethod
    def plain(text, *, end="."):
        return f"{text}{end}"


def test_functions_of_the_users_own_are_watched_along():
    def nested(text):
        def deeper(again):
            return f"<{again}>"

        return deeper(text) + Helper("*").shown(text)

    @function
    @outer("tag")
    def program(s):
        s += gen("x")
        s += nested(s["x"]) + Helper.of_class(s["x"]) + Helper.plain(s["x"], end="!")
        logging.getLogger("quiet").debug("%s", s["x"])
        if "a" in Helper("*").shown(s["x"]):
            s += "unreached"

    trace = program.trace()
    assert texts(trace) == ["text '[tag]'", "text '<' {x} '>*' {x} '*(' {x} ')' {x} '!'"]
    assert [(end.variable, end.reason) for end in trace.opens] == [("x", "looks for something in it")]


def test_a_body_keeps_its_closures_defaults_and_globals():
    count = 0

    def body(s, a, /, b="B", *rest, c="C", **others):
        nonlocal count
        count += 1
        s += f"{a}{b}{rest}{c}{others}{__name__}{count}" + gen("x")
        return [super, locals()["a"]][1]

    trace = function(body).trace("A", c="D", e="E")
    assert texts(trace) == [f"text \"AB()D{{'e': 'E'}}{__name__}1\""]
    assert trace.ret_value == "A"


def test_a_traceback_shows_the_bodys_own_lines():
    @function
    def program(s):
        s += gen("x")
        raise LookupError("mine", f"about {s['x']!r:.3}")

    with pytest.raises(LookupError) as caught:
        program.trace()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (__file__, program.__wrapped__.__code__.co_firstlineno + 3)
    assert "mine" in (last.line or "")


def test_twins_do_the_same():
    seen = []

    def note(name):
        def hook(*args, **kwargs):
            seen.append(name)
            if name == "call":
                return args[0](*args[1:], **kwargs)
            return args[0] % args[1] if name == "percent" else ascii(args[0]) if name == "ascii" else args[0]

        return hook

    def body(a, items):
        total = [f"{a:>{len(items)}}", f"{a!a}", "%d%%" % len(items), a in items, a not in {a}]  # noqa: UP031
        with contextlib.suppress(ZeroDivisionError):
            total.append(1 // 0)
        return total + [x % 2 for x in range(3) if x in (1, 2)] + [eval("a")]

    twin = Rewriter({name: note(name) for name in HOOKS}).twin(body)
    assert twin("é", "aéb") == body("é", "aéb")
    assert {name: seen.count(name) for name in HOOKS} == {
        "text": 2, "call": 4, "percent": 3, "sought": 5, "ascii": 1, "evaluated": 1,
    }  # fmt: skip
