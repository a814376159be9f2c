"""Nodes of many calls as one graph: counted as the tokenizer counts, on tokenizers and templates of every style."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from chat_tokenizers import STYLES, TEMPLATES, make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from radicel.choices import joint_likelihood
from radicel.encode import PromptEncoder
from radicel.ir import Branch, GenCall, Node, Op, SelectCall, prompt_of
from radicel.lower import lower
from radicel.prefix_tree import common_prefix
from radicel.prompt import EncodedPrompt, Generated, Part, Prompt, Text, TurnBegin, TurnEnd
from radicel.sampling import SamplingParams
from radicel.template import Template, Value

FEW_SHOT = "The quick brown fox jumps over the lazy dog, and the dog says: Hello there! " * 8


class Encoding:
    """A backend of which only the tokenizer is used."""

    context_length = 500
    kv_bytes_per_token = 10

    def __init__(self, style: str = "byte_level", template: str | None = TEMPLATES["chatml"]) -> None:
        self.tokenizer = make(style, template)
        self.encoder = PromptEncoder(self.tokenizer)
        self.prompts: list[Prompt] = []

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        self.prompts.append(prompt)
        return self.encoder.encode(prompt)


def text(value: str, prefix: Node | None = None) -> Node:
    return Node(Op.TEXT, Text(value), prefix)


def gen(name: str, prefix: Node | None, max_tokens: int | None = 5, n: int | None = None) -> Node:
    return Node(Op.GEN, GenCall(name, SamplingParams(max_tokens=max_tokens, n=n)), prefix)


def select(name: str, choices: tuple[str, ...], prefix: Node | None) -> Node:
    return Node(Op.SELECT, SelectCall(name, choices, joint_likelihood, 0.0, SamplingParams()), prefix)


def turn(role: str, value: str, prefix: Node | None = None) -> Node:
    return Node(Op.TURN_END, None, text(value, Node(Op.TURN_BEGIN, role, prefix)))


def template(pieces: list[str | Node], prefix: Node | None = None) -> Node:
    made = Template(tuple(p if isinstance(p, str) else Value(p.payload.name, p) for p in pieces))
    return Node(Op.TEXT, made, prefix, made.nodes)


def naive(prompts: list[list[int]]) -> int:
    return len({tuple(p[: n + 1]) for p in prompts for n in range(len(p))})


WORDS = st.sampled_from(
    ["Hello", " there", " dog", " Q: ", "\n\n", "12", " ", "é", "Paris", " <|im_end|>", "'s", "yes no"]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map("".join)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from([FEW_SHOT, "Hello", ""]), TEXTS, TEXTS), min_size=1, max_size=6))
def test_the_counts_are_those_of_the_prompts_encoded_one_by_one(style: str, calls: list[tuple[str, ...]]) -> None:
    backend = Encoding(style)
    nodes = []
    for first, second, third in calls:
        start = text(first) if first else None
        nodes += [
            gen("a", text(third, text(second, start))),
            gen("b", Node(Op.TURN_BEGIN, "user", turn("system", second))),
        ]
    graph = lower(nodes, backend)  # type: ignore[arg-type]
    whole = make(style)
    prompts = []
    for first, second, third in calls:
        prompts.append(list(PromptEncoder(whole).encode((Text(first + second + third),)).token_ids))
        chat = (TurnBegin("system"), Text(second), TurnEnd(), TurnBegin("user"))
        prompts.append(list(PromptEncoder(whole).encode(chat).token_ids))
    assert graph.total_tokens == sum(map(len, prompts))
    assert graph.unique_tokens == naive(prompts)
    found = [graph.prompt_ids(request) for request in graph.requests]
    assert [ids.tolist() for ids in found if ids is not None] == prompts


def program(kind: str) -> list[Node]:
    if kind == "raw":
        a = gen("a", text("Question: ", text(FEW_SHOT)))
        b = gen("b", text(" And then? ", text("\n\n", a)))
        return [a, b, gen("c", text("Bye", b))]
    a = gen("a", Node(Op.TURN_BEGIN, "assistant", turn("user", "Hello there", turn("system", FEW_SHOT))))
    again = turn("user", "And then? ", Node(Op.TURN_END, None, a))
    b = gen("b", Node(Op.TURN_BEGIN, "assistant", again))
    return [a, b, gen("c", Node(Op.TURN_BEGIN, "user", Node(Op.TURN_END, None, text("!", b))))]


def written(tokenizer: object, value: str) -> Generated:
    return Generated(value, tuple(tokenizer.encode_run(value, at_start=False)), "stop")  # type: ignore[attr-defined]


def prompt(node: Node | None, values: dict[str, Generated]) -> list[Part]:
    return list(prompt_of(node, lambda n: values[n.payload.name]))


@pytest.mark.parametrize("kind", ["raw", "chat"])
@pytest.mark.parametrize("style", STYLES)
def test_what_is_known_around_values_is_what_will_stand_there(style: str, kind: str) -> None:
    backend = Encoding(style)
    nodes = program(kind)
    graph = lower(nodes, backend)  # type: ignore[arg-type]
    values = {name: written(backend.tokenizer, f"Paris {name}") for name in "abc"}
    marks = {mark: values[graph.requests[index].name].token_ids for mark, index in graph.marks.items()}
    for request in graph.requests:
        predicted: list[int] = []
        for token in graph.tree.sequence(request.prompt).tolist():
            predicted += marks[token] or () if token < 0 else [token]
        real = PromptEncoder(make(style)).encode(tuple(prompt(request.node.prefix, values))).token_ids
        assert predicted == list(real)
    assert [r.wave for r in graph.requests] == [0, 1, 2]
    assert [(r.later, r.next_wave) for r in graph.requests] == [(2, 1), (1, 1), (0, None)]
    assert graph.unique_tokens == graph.requests[-1].prompt_tokens
    assert graph.max_generated_tokens == 15


@pytest.mark.parametrize("name", [n for n in TEMPLATES if n not in ("gemma", "mistral", "llama2")])
def test_templates_that_rewrite_the_history_are_followed(name: str) -> None:
    backend = Encoding("byte_level", TEMPLATES[name])
    graph = lower(program("chat"), backend)  # type: ignore[arg-type]
    values = {n: written(backend.tokenizer, "Paris") for n in "abc"}
    for request in graph.requests[1:]:
        before = [int(t) for t in graph.tree.sequence(request.prompt) if t >= 0]
        real = backend.encoder.encode(tuple(prompt(request.node.prefix, values))).token_ids
        rest = iter(real)
        assert all(token in rest for token in before)  # in this order
        if name not in ("reorder", "peeking"):
            assert len(real) == len(before) + len(values["a"].token_ids or ()) * request.index


def test_the_same_text_in_branches_and_calls_is_one_path() -> None:
    backend = Encoding()
    start = text("Once ", text(FEW_SHOT))
    branches = [Node(Op.BRANCH, Branch(i, 3), start) for i in range(3)]
    nodes = [gen("x", text(f"way {i}", branch)) for i, branch in enumerate(branches)]
    nodes.append(gen("y", text("upon", text("Once ", text(FEW_SHOT)))))
    graph = lower(nodes, backend, items=[0, 0, 0, 1])  # type: ignore[arg-type]
    shared = graph.leases[0]
    assert (graph.items, shared.count, shared.uses) == (2, 3, (0, 1, 2, 3))
    first, last = (backend.encode((Text(FEW_SHOT + "Once " + end),)).token_ids for end in ("way 0", "upon"))
    assert shared.known == common_prefix(np.array(first, np.int32), np.array(last, np.int32))
    assert graph.leases[1].uses == (0, 1, 2)
    assert graph.critical_path == 1


def test_text_that_comes_back_from_branches_is_encoded_where_it_stands() -> None:
    backend = Encoding()
    start = text("Hello ")
    branches = [Node(Op.BRANCH, Branch(i, 2), start) for i in range(2)]
    nodes = [gen(f"x{i}", text(f" the {i} ", branch)) for i, branch in enumerate(branches)]
    joined = Node(Op.APPEND, tuple(branches), start, tuple(nodes))
    last = gen("all", text(" dog", joined))
    graph = lower([*nodes, last], backend)  # type: ignore[arg-type]
    assert graph.requests[2].needs == (0, 1)
    values = {f"x{i}": written(backend.tokenizer, "Paris") for i in range(2)}
    real = backend.encoder.encode(tuple(prompt(last.prefix, values))).token_ids
    assert graph.requests[2].prompt_tokens == len(real) - 2 * len(values["x0"].token_ids or ())


def test_known_values_are_text_as_they_were_sampled() -> None:
    backend = Encoding()
    a, b, c = program("raw")
    known = Generated("Par is", tuple(backend.tokenizer.encode_run("P") + backend.tokenizer.encode_run("ar is")))
    graph = lower([b, c], backend, written=lambda node: known if node is a else None)  # type: ignore[arg-type]
    first = graph.prompt_ids(graph.requests[0])
    real = backend.encoder.encode(tuple(prompt(b.prefix, {"a": known}))).token_ids
    assert first is not None
    assert first.tolist() == list(real)
    assert graph.prompt_ids(graph.requests[1]) is None
    assert [r.needs for r in graph.requests] == [(), (0,)]


@pytest.mark.parametrize("style", STYLES)
def test_a_select_shares_what_its_choices_share(style: str) -> None:
    backend = Encoding(style)
    node = select("x", (" yes", " no", " nobody"), text("Well? Answer:", text(FEW_SHOT)))
    graph = lower([node], backend)  # type: ignore[arg-type]
    prompts = [prompt(node.prefix, {}), *([*prompt(node.prefix, {}), Text(c)] for c in node.payload.choices)]
    wholes = [list(PromptEncoder(make(style)).encode(tuple(p)).token_ids) for p in prompts]
    assert graph.unique_tokens == naive(wholes[1:])
    assert graph.max_generated_tokens == 0
    start = next(i for i in range(1000) if len({tuple(w[: i + 1]) for w in wholes}) > 1)
    assert graph.total_tokens == start + sum(len(w) - start for w in wholes[1:])
    assert len(graph.requests[0].ends) == 3


@pytest.mark.parametrize("choices", [("yes", "no"), (" Paris", " London"), ("a", "b", "", "d")])
def test_after_a_choice_only_what_no_choice_changes_is_known(choices: tuple[str, ...]) -> None:
    backend = Encoding()
    asked = Node(Op.TURN_BEGIN, "assistant", turn("user", "Which? " + FEW_SHOT))
    chosen = select("x", choices, asked)
    last = gen("y", Node(Op.TURN_BEGIN, "assistant", turn("user", "Why?", Node(Op.TURN_END, None, chosen))))
    graph = lower([chosen, last], backend)  # type: ignore[arg-type]
    tokens = graph.tree.sequence(graph.requests[1].prompt)
    (at,) = np.flatnonzero(tokens < 0).tolist()
    for choice in choices:
        real = list(backend.encode(tuple(prompt(last.prefix, {"x": Generated(choice)}))).token_ids)
        assert real[:at] == tokens[:at].tolist()
        assert real[len(real) - (len(tokens) - at - 1) :] == tokens[at + 1 :].tolist()
    assert at >= len(backend.encode(tuple(prompt(asked, {}))).token_ids) - 1
    assert graph.requests[1].needs == (0,)


def test_a_choice_of_one_is_known() -> None:
    backend = Encoding()
    chosen = select("x", ("only",), text("The "))
    last = gen("y", text(" dog", chosen))
    graph = lower([chosen, last], backend)  # type: ignore[arg-type]
    assert graph.requests[1].prompt_tokens == len(backend.encode((Text("The only dog"),)).token_ids)


def test_a_value_inside_a_text_ends_what_is_known_before_it() -> None:
    backend = Encoding()
    a = gen("a", text(FEW_SHOT))
    start = Node(Op.TURN_BEGIN, "user", turn("system", "The dog says:"))
    asked = Node(Op.TURN_END, None, template(["Hello there ", a, " and then?"], start))
    last = gen("b", Node(Op.TURN_BEGIN, "assistant", asked))
    graph = lower([a, last], backend)  # type: ignore[arg-type]
    request = graph.requests[1]
    tokens = graph.tree.sequence(request.prompt)
    (at,) = np.flatnonzero(tokens < 0).tolist()
    for value in ("Paris", " Paris\n", "12", "…"):
        filled = (TurnBegin("system"), Text("The dog says:"), TurnEnd(), TurnBegin("user"))
        whole = (*filled, Text(f"Hello there {value} and then?"), TurnEnd(), TurnBegin("assistant"))
        real = list(backend.encode(whole).token_ids)
        assert real[:at] == tokens[:at].tolist()
        assert real[len(real) - (len(tokens) - at - 1) :] == tokens[at + 1 :].tolist()
    assert request.needs == (0,)
    assert request.prompt_tokens == len(tokens) - 1
    known = lower([a, last], backend, written=lambda n: Generated("12") if n is a else None)  # type: ignore[arg-type]
    assert known.prompt_ids(known.requests[1]) is not None


def test_a_gen_of_nothing_is_no_border() -> None:
    backend = Encoding()
    a = gen("a", text("Hel"), max_tokens=0)
    graph = lower([a, gen("b", text("lo there", a))], backend)  # type: ignore[arg-type]
    ids = graph.prompt_ids(graph.requests[1])
    assert ids is not None
    assert ids.tolist() == list(backend.encode((Text("Hello there"),)).token_ids)


@pytest.mark.parametrize(
    ("max_tokens", "n", "expected"), [(7, None, 7), (7, 3, 21), (None, None, 499), (None, 2, 998), (0, None, 0)]
)
def test_the_most_that_is_generated(max_tokens: int | None, n: int | None, expected: int) -> None:
    graph = lower([gen("a", text("H"), max_tokens, n)], Encoding())  # type: ignore[arg-type]
    assert graph.requests[0].prompt_tokens == 1
    assert graph.max_generated_tokens == expected
    assert graph.kv_tokens == graph.min_kv_tokens == 1 + expected
    assert graph.kv_bytes == 10 * (1 + expected)


def test_without_a_backend_bytes_are_counted() -> None:
    graph = lower([gen("a", text("é", text("ab")), max_tokens=None)])
    assert (graph.unit, graph.total_tokens, graph.kv_bytes, graph.unlimited) == ("bytes", 4, None, 1)


def test_a_prompt_that_cannot_be_encoded_touches_no_other() -> None:
    backend = Encoding(template=None)
    bad = gen("bad", Node(Op.TURN_BEGIN, "user"))
    graph = lower([gen("a", text("Hello")), bad, gen("after", text("!", bad))], backend)  # type: ignore[arg-type]
    assert [request.name for request in graph.errors()] == ["bad", "after"]
    assert graph.total_tokens == len(backend.encode((Text("Hello"),)).token_ids)
    assert graph.prompt_ids(graph.requests[1]) is None
    assert "cannot be encoded" in str(graph)


def test_errors_of_other_kinds_are_raised() -> None:
    class Broken(Encoding):
        def encode(self, prompt: Prompt) -> EncodedPrompt:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lower([gen("a", text("H"))], Broken())  # type: ignore[arg-type]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        lower([gen("a", text("H"))])
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_a_later_raw_prompt_is_not_encoded_from_its_beginning() -> None:
    backend = Encoding()
    node: Node | None = text(FEW_SHOT)
    nodes = []
    for i in range(50):
        node = gen(f"v{i}", text("And then? ", node))
        nodes.append(node)
    graph = lower(nodes, backend)  # type: ignore[arg-type]
    long = [p for p in backend.prompts if any(isinstance(part, Text) and part.text == FEW_SHOT for part in p)]
    assert len(long) == 1
    assert graph.critical_path == 50
