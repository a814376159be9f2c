"""Random programs: the prompts of a trace, with the values put in, are the prompts that a run sends."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from radicel import MockBackend, Reply, assistant, function, gen, gen_int, select, separate_reasoning, system, user
from radicel.backends.messages import chatml
from radicel.ir import Op
from radicel.prompt import Generated
from radicel.trace import filled_prompt

KEPT: list[Any] = []
FORMS = ["plain", "padded", "repr", "added", "percent", "joined", "repeated", "twice"]
TEXTS = st.sampled_from(["a", " b", "Ü\n", "", "{x} %s", "<|im_end|>", "x y "])


def written(name: str) -> str:
    """What the model writes, by the variable's name."""
    if name.startswith("i"):
        return "4" + name[1:].replace("_", "")
    if name.startswith("t"):
        return f"<think>why {name}</think>so {name}"
    return "no" if name.startswith("c") else f"«{name}»\n"


def steps(in_turn: bool, depth: int) -> st.SearchStrategy[list[Any]]:
    single = [
        st.tuples(st.just("text"), TEXTS),
        st.tuples(st.just("gen"), st.sampled_from(["g1", "g2", "i3", "t4"])),
        st.tuples(st.just("many"), st.sampled_from(["n1", "n2"])),
        st.tuples(st.just("select"), st.sampled_from(["c1", "c2"])),
        st.tuples(st.just("read"), st.integers(0, 9), st.sampled_from(FORMS)),
        st.tuples(st.just("set"), st.sampled_from(["v1", "v2"]), st.integers(0, 9)),
        st.tuples(st.just("contents")),
    ]
    if depth:
        inner = steps(in_turn, depth - 1)
        single += [
            st.tuples(st.just("fork"), st.integers(1, 3), st.sampled_from(["gather_variable", "append", None]), inner),
            st.tuples(st.just("copy"), inner),
            st.tuples(st.just("scope"), st.sampled_from(["s1", "s2"]), inner),
            st.tuples(st.just("inline"), inner),
            st.tuples(st.just("program"), steps(False, depth - 1)),
        ]
        if not in_turn:
            turn = steps(True, depth - 1)
            single.append(st.tuples(st.just("turn"), st.sampled_from(["expression", "block", "marks"]), turn))
    return st.lists(st.one_of(single), max_size=5)


def flat(value: Any) -> list[Any]:
    return [one for item in value for one in flat(item)] if isinstance(value, list) else [value]


def shaped(value: Any, form: str) -> str:
    if form == "padded":
        return f"[{value!s:>12}|{value!s:^3}]"
    if form == "repr":
        return f"{[value]} {value!r:<9}"
    if form == "added":
        return "<" + str(value) + ">"
    if form == "percent":
        return "%s of %s%%" % ("it", value)  # noqa: UP031
    if form == "joined":
        return "\n".join(["-", str(value), f"{value}"])
    if form == "repeated":
        return f"{value}," * 2
    return f"{'{}/{}'.format(value, value)}" if form == "twice" else f"{value}"  # noqa: UP032


def perform(s: Any, todo: list[Any]) -> None:
    for kind, *rest in todo:
        ACTIONS[kind](s, *rest)


def do_read(s: Any, index: int, form: str) -> None:
    names = s.variables()
    if names:
        for value in flat(s[names[index % len(names)]]):
            s += shaped(value, form)


def do_set(s: Any, name: str, index: int) -> None:
    names = s.variables()
    if names:
        s[name] = shaped(flat(s[names[index % len(names)]])[0], "added")


def do_gen(s: Any, name: str) -> None:
    if name.startswith("t"):
        s += separate_reasoning(gen(name))
    else:
        s += gen_int(name) if name.startswith("i") else gen(name)


def do_many(s: Any, name: str) -> None:
    s += gen(name, n=2)


def do_select(s: Any, name: str) -> None:
    s += select(name, ["yes", "no"])


def do_contents(s: Any) -> None:
    contents = [message["content"] for message in s.messages()]
    if contents:
        s += "(" + contents[-1] + ")"


def do_fork(s: Any, n: int, mode: str | None, inner: list[Any]) -> None:
    branches = s.fork(n)
    KEPT.append(branches)  # a run drops what nobody can read any more
    for index, branch in enumerate(branches):
        branch += f"{index}: "
        perform(branch, inner)
    if mode is not None:
        branches.join(mode)


def do_copy(s: Any, inner: list[Any]) -> None:
    with s.copy() as copy:
        perform(copy, inner)


def do_scope(s: Any, name: str, inner: list[Any]) -> None:
    with s.var_scope(name):
        perform(s, inner)


@function
def part(s, todo):
    perform(s, todo)


def do_inline(s: Any, inner: list[Any]) -> None:
    s += "in " + part(inner)


def do_program(s: Any, inner: list[Any]) -> None:
    other = part(inner)
    s += "beside"
    assert other.ret_value is None  # waits for its body
    for name in other.variables()[:1]:
        s += shaped(flat(other[name])[0], "plain")


def do_turn(s: Any, spelling: str, inner: list[Any]) -> None:
    if spelling == "expression":
        s += system("S") + user(["U", "!"])
        s += assistant(gen("g9"))
    elif spelling == "block":
        with s.user():
            perform(s, inner)
    else:
        with s.role("tool"):
            perform(s, inner)


ACTIONS = {
    "text": lambda s, text: s.__iadd__(text),
    "gen": do_gen,
    "many": do_many,
    "select": do_select,
    "read": do_read,
    "set": do_set,
    "contents": do_contents,
    "fork": do_fork,
    "copy": do_copy,
    "scope": do_scope,
    "inline": do_inline,
    "program": do_program,
    "turn": do_turn,
}


def reply(request: Any) -> Any:
    text = written(request.name)
    return Reply(texts=[text, text + "2"]) if request.sampling is not None and (request.sampling.n or 1) > 1 else text


def value_of(value: Any) -> Any:
    name = value.node.payload.name
    text = written(name)
    if value.written:
        return text
    if name.startswith("n"):
        return [text, text + "2"]
    return int(text) if name.startswith("i") else text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps(False, 3))
def test_a_traces_prompts_are_those_of_a_run(todo):
    trace = part.trace(todo)
    assert trace.opens == []
    predicted = sorted(
        (node.payload.name, chatml(filled_prompt(node.prefix, lambda n: Generated(written(n.payload.name)), value_of)))
        for node in trace.generating
    )
    with MockBackend(reply) as backend:
        state = part.run(todo, backend=backend)
        state.sync()
        KEPT.clear()
    assert sorted((request.name, request.prompt) for request in backend.requests) == predicted
    assert all(node.op is not Op.TEXT or not node.data or node.payload.nodes == node.data for node in trace.nodes)
