"""Values that are not known yet: what may be done to them, and what ends the trace."""

from __future__ import annotations

import ast
import base64
import contextlib
import copy
import dataclasses
import decimal
import functools
import html
import itertools
import json
import pickle
import re
import string
import textwrap
import unicodedata
import urllib.parse
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict

import pytest
from pydantic import BaseModel
from radicel import MockBackend, assistant, function, gen, gen_int, select, user
from radicel.errors import InvalidValueError, ProgramError
from radicel.ir import Op
from radicel.marks import DamagedMark, Marks
from radicel.template import Value
from radicel.trace import Trace


def texts(trace: Trace) -> list[str]:
    return [str(node) for node in trace.nodes if node.op is Op.TEXT]


def traced(use: Callable[[Any], Any], **gen_options: Any) -> Trace:
    """The trace of a program that appends what `use` makes of a value."""

    @function
    def program(s):
        s += gen("x", **gen_options)
        s += use(s["x"])

    return program.trace()


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Pair:
    a: Any


def quoted(text):
    return f"'{text}'"


class Quoter:
    def quote(self, text):
        return f"'{text}'"


MAKES_TEXT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "alone": (lambda v: v, "text {x}"),
    "str": (lambda v: str(v), "text {x}"),
    "format function": (lambda v: format(v, ">4"), "text {x:>4}"),
    "added": (lambda v: "a" + v + "b", "text 'a' {x} 'b'"),
    "f-string": (lambda v: f"a{v}b{v!s}", "text 'a' {x} 'b' {x}"),
    "f-string of it alone": (lambda v: f"{v}", "text {x}"),
    "padded": (lambda v: f"{v:>10}|{v:.3}|{v!s:^5}", "text {x:>10} '|' {x:.3} '|' {x:^5}"),
    "repr": (lambda v: f"{v!r} {v!a} {[v]}", "text {x!r} ' ' {x!a} ' [' {x!r} ']'"),
    "built text padded": (lambda v: f"{'<' + v + '>':>9}", "text {('<' {x} '>'):>9}"),
    "built text quoted": (lambda v: repr("<" + v), "text {('<' {x})!r}"),
    "str.format": (lambda v: "{} {0:>3}".replace("{} ", "{0} ").format(v), "text {x} ' ' {x:>3}"),
    "format_map": (lambda v: "{k}!".format_map({"k": v}), "text {x} '!'"),
    "percent": (lambda v: "%s!" % v, "text {x} '!'"),  # noqa: UP031
    "percent of several": (lambda v: "%s %r %%" % (v, 1), "text {x} ' 1 %'"),  # noqa: UP031
    "percent of a dict": (lambda v: "%(a)s" % {"a": v}, None),  # noqa: UP031
    "joined": (lambda v: ", ".join([v, "b", v]), "text {x} ', b, ' {x}"),
    "joins": (lambda v: v.join(["a", "b"]), "text 'a' {x} 'b'"),
    "repeated": (lambda v: v * 2 + 2 * v, "text {x} {x} {x} {x}"),
    "helper": (quoted, 'text "\'" {x} "\'"'),
    "method": (Quoter().quote, 'text "\'" {x} "\'"'),
    "lambda": (lambda v: (lambda t: f"<{t}>")(v), "text '<' {x} '>'"),
    "partial": (functools.partial("{}{}".format, "p"), "text 'p' {x}"),
    "map": (lambda v: "\n".join(map(quoted, [v])), 'text "\'" {x} "\'"'),
    "comprehension": (lambda v: " ".join(f"- {t}" for t in [v, "b"]), "text '- ' {x} ' - b'"),
    "replaced into": (lambda v: "a {b} c".replace("{b}", v), "text 'a ' {x} ' c'"),
    "through containers": (lambda v: {"a": [v]}.copy()["a"][0], "text {x}"),
    "through a dataclass": (lambda v: Pair(v).a, "text {x}"),
    "through a named tuple": (lambda v: Point(v, 1).x, "text {x}"),
    "copied": (lambda v: copy.deepcopy([v])[0], "text {x}"),
    "chained": (lambda v: "".join(itertools.chain([v], ["b"])), "text {x} 'b'"),
    "is it text": (lambda v: v if isinstance(v, str) else "no", "text {x}"),
    "is it there": (lambda v: v if v is not None else "no", "text {x}"),
    "template": (lambda v: [user(v), assistant("a" + v)], None),
    "walrus": (lambda v: (t := f"<{v}>") + t, "text '<' {x} '><' {x} '>'"),
}


@pytest.mark.parametrize("name", MAKES_TEXT)
def test_makes_text(name):
    use, wanted = MAKES_TEXT[name]
    trace = traced(use)
    if name == "percent of a dict":
        assert [end.variable for end in trace.opens] == ["x"]
        return
    assert trace.opens == []
    if wanted is not None:
        assert texts(trace) == [wanted]
    with MockBackend(lambda request: "it's\n") as backend:

        @function
        def program(s):
            s += gen("x")
            s += use(s["x"])
            s += gen("y")

        state = program.run(backend=backend)
    values = "".join(node.payload.text(lambda _: "it's\n") if node.data else node.payload.text for node in trace.nodes
                     if node.op is Op.TEXT)  # fmt: skip
    contents = "".join(m["content"] for m in state.messages()) or backend.requests[-1].prompt.removeprefix("it's\n")
    assert values == contents


def searches(text):
    return re.search("a", f"<{text}>")


def decides(text):
    shown = f"<{text}>"
    return "long" if len(shown) > 10 else "short"


def has_letter(text):
    return "yes" if "q" in f"{text}!" else "no"


LOOKS_INSIDE: dict[str, Callable[[Any], Any]] = {
    "==": lambda v: "1" if v == "a" else "2",
    "== the other way": lambda v: "1" if "a" == v else "2",  # noqa: SIM300
    "!=": lambda v: "1" if v != "a" else "2",
    "<": lambda v: "1" if v < "a" else "2",
    "in it": lambda v: "1" if "a" in v else "2",
    "it in text": lambda v: "1" if v in "yes no" else "2",
    "it in a list": lambda v: "1" if v in ["yes"] else "2",
    "it in a dict": lambda v: "1" if v in {"yes": 1} else "2",
    "dict key": lambda v: {"a": "1"}[v],
    "dict get": lambda v: {"a": "1"}.get(v, "2"),
    "set": lambda v: str({v}),
    "bool": lambda v: "1" if v else "2",
    "not": lambda v: "1" if not v else "2",
    "or": lambda v: v or "2",
    "len": lambda v: str(len(v)),
    "index": lambda v: v[0],
    "slice": lambda v: v[:3],
    "iteration": lambda v: " ".join(c for c in v),
    "unpacking": lambda v: (lambda a, *b: a)(*v),
    "list": lambda v: str(list(v)),
    "join of it": lambda v: " ".join(v),
    "sorted": lambda v: str(sorted([v, "a"])),
    "max": lambda v: max(v, "a"),
    "int": lambda v: str(int(v)),
    "float": lambda v: str(float(v)),
    "complex": lambda v: str(complex(v)),
    "decimal": lambda v: str(decimal.Decimal(v)),
    "split": lambda v: v.split()[0],
    "strip": lambda v: v.strip(),
    "upper": lambda v: v.upper(),
    "replace": lambda v: v.replace("a", "b"),
    "startswith": lambda v: "1" if v.startswith("a") else "2",
    "text that starts with it": lambda v: "1" if "abc".startswith(v) else "2",
    "text that has it": lambda v: str("abc".find(v)),
    "text replaced where it is": lambda v: "abc".replace(v, "z"),
    "text split at it": lambda v: "abc".split(v)[0],
    "class method of str": lambda v: str.upper(v),
    "encode": lambda v: str(v.encode()),
    "template of it": lambda v: v.format(1),
    "percent template of it": lambda v: v % 1,
    "percent with a width": lambda v: "%10s" % v,  # noqa: UP031
    "percent with a width, of several": lambda v: "%s %10s" % (1, v),  # noqa: UP031
    "re.match": lambda v: str(re.match("a", v)),
    "pattern.sub": lambda v: re.compile("a").sub("b", v),
    "pattern.sub of built text": lambda v: re.compile("a").sub("b", f"<{v}>"),
    "json.loads": lambda v: json.loads(v),
    "json.dumps": lambda v: json.dumps(v),
    "json.dumps of a dict": lambda v: json.dumps({"a": [v]}),
    "literal_eval": lambda v: str(ast.literal_eval(v)),
    "html": lambda v: html.escape(v),
    "url": lambda v: urllib.parse.quote(v),
    "dedent": lambda v: textwrap.dedent(f"  {v}"),
    "normalize": lambda v: unicodedata.normalize("NFC", v),
    "base64": lambda v: str(base64.b64encode(v.encode())),
    "string.Template": lambda v: string.Template(v).substitute(),
    "Counter": lambda v: str(Counter([v])),
    "pickle": lambda v: str(pickle.dumps(v)),
    "lru_cache": lambda v: functools.lru_cache(lambda t: t)(v),
    "built text ==": lambda v: "1" if f"<{v}>" == "<a>" else "2",
    "built text in": lambda v: "1" if "a" in "{}!".format(v) else "2",  # noqa: UP032
    "built text len": lambda v: str(len(" ".join([v, "a"]))),
    "built text strip": lambda v: f"<{v}".strip(),
    "built text split": lambda v: f"<{v}".split("<")[1],
    "built text lines": lambda v: f"a\n{v}".splitlines()[0],
    "built text in a helper": decides,
    "built text searched in a helper": has_letter,
    "regex in a helper": lambda v: str(searches(v)),
    "eval": lambda v: str(eval(v)),
    "match": lambda v: _matched(v),
    "call": lambda v: v(),
}


def _matched(text):
    match text:
        case "yes":
            return "1"
        case _:
            return "2"


@pytest.mark.parametrize("name", LOOKS_INSIDE)
def test_what_looks_inside_ends_the_trace(name):
    trace = traced(LOOKS_INSIDE[name])
    (end,) = trace.opens
    assert end.variable == "x"
    assert end.file == __file__
    assert end.line > 0
    assert end.reason
    assert texts(trace) == []


def test_an_open_end_says_where_and_which():
    @function
    def program(s):
        s += gen("answer")
        text = f"The answer: {s['answer']}"
        s += text
        if "yes" in text:
            s += "unreached"
        s += gen("more")

    trace = program.trace()
    (end,) = trace.opens
    assert (end.variable, end.reason, end.program) == ("answer", "looks for something in it", "program")
    line = program.__wrapped__.__code__.co_firstlineno + 5
    assert end.line == line
    assert str(end) == f"open end of program 'answer' at {__file__}:{line}: looks for something in it"
    assert texts(trace) == ["text 'The answer: ' {answer}"]
    assert [str(node) for node in trace.generating] == ["gen answer"]


def test_nothing_is_recorded_after_an_open_end():
    @function
    def program(s):
        s += gen("x")
        with contextlib.suppress(BaseException):
            s += "a" if s["x"] == "b" else "c"
        try:
            s += "later"
        finally:
            with s.user():
                s += gen("y")

    trace = program.trace()
    assert len(trace.opens) == 1
    assert [str(node) for node in trace.nodes] == ["gen x"]


def test_a_format_that_makes_no_sense_says_so():
    for use, message in [
        (lambda v: f"{v:d}", "'x', which is text: Unknown format code 'd'"),
        (lambda v: f"{v:>>>}", "'x', which is text"),
    ]:
        with pytest.raises(InvalidValueError, match=message):
            traced(use)
    with pytest.raises(InvalidValueError, match="'x', which is int: Unknown format code 's'"):
        traced(lambda v: f"{v:s}", dtype=int)


# --- damaged marks ---------------------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[str], str]] = {
    "strip": lambda t: t.strip(),
    "upper": lambda t: t.upper(),
    "lower": lambda t: t.lower(),
    "title": lambda t: t.title(),
    "split": lambda t: t.split()[0],
    "lines": lambda t: t.splitlines()[0],
    "cut": lambda t: t[:7],
    "cut end": lambda t: t[9:],
    "escaped": lambda t: html.escape(t),
    "json": lambda t: json.dumps(t),
    "json as it is": lambda t: json.dumps(t, ensure_ascii=False),
    "repr": repr,
    "ascii": ascii,
    "url": urllib.parse.quote,
    "line ends out": lambda t: t.replace("\n", " "),
    "commas out": lambda t: t.replace(",", ";"),
    "dedent": lambda t: textwrap.dedent("\n  " + t),
    "fill": textwrap.fill,
    "only ASCII": lambda t: t.encode("ascii", "ignore").decode(),
    "only words": lambda t: re.sub(r"\W", "", t),
    "only ASCII words": lambda t: re.sub(r"[^a-zA-Z0-9]", "", t),
    "NFC": lambda t: unicodedata.normalize("NFC", t),
    "NFD": lambda t: unicodedata.normalize("NFD", t),
    "NFKC": lambda t: unicodedata.normalize("NFKC", t),
    "reversed": lambda t: t[::-1],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_mark_is_no_text(name):
    marks = Marks()
    text = marks.mark(Value("x", None))  # type: ignore[arg-type]
    with pytest.raises(DamagedMark, match="cut or changed"):
        marks.pieces(DAMAGES[name](text))


def test_marks_are_whole_and_of_one_trace():
    marks, others = Marks(), Marks()
    value = Value("x", None)  # type: ignore[arg-type]
    one, two = marks.mark(value), marks.mark(Value("y", None))  # type: ignore[arg-type]
    assert marks.pieces(f"a{one}{two} b") == ("a", value, Value("y", None), " b")  # type: ignore[arg-type]
    assert marks.pieces("") == ()
    assert marks.pieces("Ünï \u1681 \\u0041 %EF x") == ("Ünï \u1681 \\u0041 %EF x",)
    with pytest.raises(DamagedMark, match="another trace"):
        others.pieces(one)
    for start in range(len(one) - 3):  # any four characters show it
        assert Marks.touched(one[start : start + 4])


def test_damage_done_out_of_sight_ends_the_trace():
    class Cut(str):
        def __str__(self):
            return str.__getitem__(self, slice(0, 6))

    trace = traced(lambda v: Cut(str.__str__(v)).__str__())
    (end,) = trace.opens
    assert "cut or changed" in end.reason or "may look inside" in end.reason
    assert texts(trace) == []


def test_a_value_is_of_no_use_outside_of_its_trace():
    kept = []

    @function
    def program(s):
        s += gen("x")
        kept.append(s["x"])

    program.trace()
    with pytest.raises(ProgramError, match="outside of it"):
        assert kept[0] == "a"

    @function
    def other(s):
        s += kept[0]

    (end,) = other.trace().opens
    assert "another trace" in end.reason


# --- values of other types -------------------------------------------------------------------------------------------


class Mood(Enum):
    good = "good"
    bad = "bad"


class Inner(BaseModel):
    words: list[str]
    mood: Mood


class Verdict(BaseModel):
    score: int
    text: str
    inner: Inner
    maybe: str | None = None


class Keys(TypedDict):
    name: str
    size: float


TYPED: list[tuple[Any, Callable[[Any], Any], str]] = [
    (Verdict, lambda v: f"{v.score:>3} {v.text} {v.inner.mood}", "text {x.score:>3} ' ' {x.text} ' ' {x.inner.mood}"),
    (Verdict, lambda v: "a" + v.text + str(v.score), "text 'a' {x.text} {x.score!s}"),
    (Verdict, lambda v: f"{v.inner.words} {v.maybe!r:>9}", "text {x.inner.words} ' ' {x.maybe!r:>9}"),
    (Verdict, lambda v: f"{v}", "text {x}"),
    (Verdict, lambda v: v.text if isinstance(v, Verdict) else "no", "text {x.text}"),
    (Keys, lambda v: v["name"] + f" {v['size']:.2f}", "text {x['name']} ' ' {x['size']:.2f}"),
    (Literal["yes", "no"], lambda v: "-" + v, "text '-' {x}"),
    (list[int], lambda v: f"{v}", "text {x}"),
    ({"type": "object"}, lambda v: f"{v}", "text {x}"),
]


@pytest.mark.parametrize("case", range(len(TYPED)))
def test_typed_values_are_text_where_their_type_is_sure(case):
    type_, use, wanted = TYPED[case]
    trace = traced(use, schema=type_)
    assert trace.opens == []
    assert texts(trace) == [wanted]


OPENS_TYPED: list[tuple[Any, Callable[[Any], Any], str]] = [
    (Verdict, lambda v: "1" if v.score > 3 else "2", "x.score"),
    (Verdict, lambda v: str(v.score + 1), "x.score"),
    (Verdict, lambda v: v.model_dump_json(), "x"),
    (Verdict, lambda v: ", ".join(v.inner.words), "x.inner.words"),
    (Verdict, lambda v: v.inner.words[0], "x.inner.words"),
    (Verdict, lambda v: v.text.upper(), "x.text"),
    (Verdict, lambda v: v.inner.mood.value, "x.inner.mood"),
    (Verdict, lambda v: json.dumps({"score": v.score}), "x.score"),
    (Keys, lambda v: str(v.get("name")), "x"),
    (Keys, lambda v: v["other"], "x"),
    (bool, lambda v: "1" if v else "2", "x"),
    (int, lambda v: "#" * v, "x"),
    (list[str], lambda v: " ".join(v), "x"),
    (list[str], lambda v: "".join(f"{i}{t}" for i, t in enumerate(v)), "x"),
    (str | None, lambda v: "a" + v, "x"),
    (str | None, lambda v: "a" if isinstance(v, str) else "b", "x"),
    ({"type": "object"}, lambda v: v["a"], "x"),
]


@pytest.mark.parametrize("case", range(len(OPENS_TYPED)))
def test_typed_values_open_where_it_is_not(case):
    type_, use, variable = OPENS_TYPED[case]
    (end,) = traced(use, schema=type_).opens
    assert end.variable == variable


def test_a_typed_value_is_no_text_as_in_a_run():
    with pytest.raises(TypeError, match="cannot be appended"):
        traced(lambda v: v, schema=Verdict)

    @function
    def program(s):
        s += gen_int("n")
        s += select("c", ["a", "b"]) + gen("t", max_tokens=3)
        s += f"{s['n']:03d} {s['c']}"

    trace = program.trace()
    assert trace.opens == []
    assert texts(trace)[-1] == "text {n:03d} ' ' {c}"
