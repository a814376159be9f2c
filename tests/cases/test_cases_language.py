"""Cases of the language (`cases.md`, table A and the groups FE, FJ, STR, STOP, TPL): the whole kind, not one input."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from radicel import (
    Constraint,
    MockBackend,
    Reply,
    SamplingParams,
    assistant,
    errors,
    function,
    gen,
    gen_int,
    image,
    select,
    system,
    user,
)
from radicel.runtime import LocalRuntime
from radicel.sampling import sampling_field_names

SAMPLING_VALUES: dict[str, Any] = {"stop": "x", "stop_regex": "x", "logit_bias": {1: 1.0}, "timeout": 5.0}


class Boom(Exception):
    """The backend's own error."""


# --- table A --------------------------------------------------------------------------------------------------------


def test_a1_nothing_that_a_caller_gave_is_changed() -> None:
    given: dict[str, Any] = {
        "stop": ["\n"],
        "stop_token_ids": [5],
        "stop_regex": ["z+"],
        "logit_bias": {1: 0.5},
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "choices": ["yes", "no"],
        "items": [{"topic": "tea"}, {"topic": "salt"}],
        "sampling": {"stop": ["END"], "temperature": 0.5},
    }
    before = copy.deepcopy(given)

    @function
    def program(s: Any, topic: str) -> None:
        common = {k: given[k] for k in ("stop", "stop_token_ids", "stop_regex", "logit_bias")}
        s += user(topic) + assistant(gen("a", **common) + gen("b", schema=given["schema"]))
        s += select("c", given["choices"])

    mock = MockBackend({"a": "text", "b": '{"a": 1}', "c": "yes"})
    for _ in range(3):
        program.run_batch(given["items"], backend=mock, sampling=given["sampling"])
        program.run("x", backend=mock, sampling=given["sampling"], stop=given["stop"])
    assert given == before


def test_a7_roles_forks_and_joins_are_traced() -> None:
    @function
    def program(s: Any) -> None:
        with s.user():
            s += "hi"
        with s.assistant():
            s += gen("a")
        branches = s.fork(2)
        branches += user("again") + assistant(gen("b"))
        branches.join()
        s += user("and " + s["b"][0]) + assistant(select("c", ["x", "y"]))

    trace = program.trace()
    assert trace.opens == []
    assert [node.payload.name for node in trace.nodes if node.op.generates] == ["a", "b", "b", "c"]
    assert "join gather_variable" in str(trace)


def test_a8_a_branch_on_a_value_is_an_open_end_or_both_arms() -> None:
    @function
    def program(s: Any) -> None:
        s += "?" + select("c", ["A", "B"])
        if s["c"] == "A":
            s += gen("left")
        else:
            s += gen("right")

    trace = program.trace()
    names = {node.payload.name for node in trace.nodes if node.op.generates}
    if trace.opens:
        assert names == {"c"}
        assert trace.opens[0].line == program.__wrapped__.__code__.co_firstlineno + 3
        assert "c" in str(trace.opens[0].variable)
    else:
        assert names == {"c", "left", "right"}


READERS: dict[str, Callable[[Any], Any]] = {
    "s[name]": lambda s: s["a"],
    "meta": lambda s: s.meta("a"),
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "sync": lambda s: s.sync(),
    "iterator of the variable": lambda s: list(s.text_iter("a")),
    "iterator of the text": lambda s: list(s.text_iter()),
    "async iterator": lambda s: asyncio.run(_drained(s.text_async_iter("a"))),
    "async iterator of the text": lambda s: asyncio.run(_drained(s.text_async_iter())),
}


async def _drained(pieces: Any) -> list[Any]:
    return [piece async for piece in pieces]


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["gen", "select", "typed", "samples", "after another"])
def test_a10_a12_every_reader_gets_the_backends_own_error(kind: str, reader: Callable[[Any], Any]) -> None:
    boom = Boom("no")

    @function
    def program(s: Any) -> None:
        s += user("hi")
        with s.assistant():
            if kind == "after another":
                s += gen("first")
            s += {
                "gen": gen("a"),
                "select": select("a", ["x", "y"]),
                "typed": gen("a", schema=int),
                "samples": gen("a", n=3),
                "after another": gen("a"),
            }[kind]

    mock = MockBackend({"first": "fine", "a": boom})
    state = program.run(backend=mock, stream=True)
    with pytest.raises(Boom) as caught:
        reader(state)
    assert caught.value is boom
    assert state.error() is boom
    with pytest.raises(Boom):
        program.run(backend=mock)


NAMED: dict[str, Callable[[Any], Any]] = {
    "s[name]": lambda s: s["typo"],
    "get_var": lambda s: s.get_var("typo"),
    "meta": lambda s: s.meta("typo"),
    "iterator": lambda s: next(s.text_iter("typo")),
    "async iterator": lambda s: asyncio.run(_drained(s.text_async_iter("typo"))),
}


@pytest.mark.parametrize("reader", NAMED.values(), ids=NAMED)
def test_a13_a_name_that_was_never_made_raises_at_once(reader: Callable[[Any], Any]) -> None:
    @function
    def program(s: Any) -> None:
        s += "x" + gen("a")

    state = program.run(backend=MockBackend(["text"]))
    began = time.process_time()
    with pytest.raises(errors.UnknownVariableError, match="typo"):
        reader(state)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("name", sorted(sampling_field_names()))
def test_a28_a_parameter_named_like_a_sampling_parameter_is_the_programs(name: str) -> None:
    got: list[Any] = []
    space: dict[str, Any] = {"got": got, "gen": gen}
    exec(f"def body(s, {name}):\n    got.append({name})\n    s += gen('a')", space)
    program = function(space["body"])
    value = object()
    mock = MockBackend(lambda _: "text")
    program.run(**{name: value}, backend=mock)
    program.run_batch([{name: value}], backend=mock)
    assert got == [value, value]
    assert mock.requests[0].sampling.said() in ({}, {"n": 1})


def test_a29_any_two_constraints_are_an_error_that_names_both() -> None:
    every: dict[str, Any] = {
        "schema": int, "regex": "a", "json_schema": {}, "grammar": 'root ::= "a"', "choices": ["a"], "dtype": int,
    }  # fmt: skip
    for one, other in itertools.combinations(every, 2):
        with pytest.raises(errors.ConstraintError, match=f"{one}.*{other}"):
            gen("a", **{one: every[one], other: every[other]})


@pytest.mark.parametrize("n", [None, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("dtype", "text", "value"), [(int, "12", 12), (float, "1.5", 1.5), (bool, "True", True), (str, '"a"', "a")], ids=str
)
def test_a22_a_type_works_with_stops_samples_and_streams(
    dtype: type, text: str, value: Any, stream: bool, n: int | None
) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("a", dtype=dtype, stop="\n", n=n)

    reply = Reply(texts=[text + "\nmore"] * n) if n else Reply(text + "\nmore")
    state = program.run(backend=MockBackend([reply]), stream=stream)
    assert state["a"] == (value if n is None else [value] * 3)
    assert type(state["a"] if n is None else state["a"][0]) is dtype
    assert state.text() == text


def test_a33_what_a_copy_made_comes_back_as_it_is() -> None:
    @function
    def program(s: Any) -> None:
        with s.copy() as c:
            c += gen("text") + gen_int("number") + gen("samples", n=2)
            with c.fork(2) as inner:
                inner += gen("forked")
            with c.copy() as d:
                d += select("chosen", ["x", "y"])

    mock = MockBackend(
        {"text": "t", "number": "3", "samples": Reply(texts=["p", "q"]), "forked": ["f", "g"], "chosen": "y"}
    )
    state = program.run(backend=mock)
    found = [state[name] for name in ("text", "number", "samples", "forked", "chosen")]
    assert found == ["t", 3, ["p", "q"], ["f", "g"], "y"]
    assert state.text() == ""


# --- FE, FJ ---------------------------------------------------------------------------------------------------------


def test_b10_samples_are_lists_and_the_first_goes_on(rt: LocalRuntime) -> None:
    @function
    def program(s: Any, n: int) -> None:
        s += "Hi" + gen("a", n=n, max_tokens=4, temperature=1.0, seed=5, logprobs=True, regex="[a-z]{3}")
        s += "." + gen("b", max_tokens=2)

    for n in (2, 3, 7):
        state = program.run(n, backend=rt)
        assert len(state["a"]) == len(state.meta("a")) == n
        assert all(re.fullmatch("[a-z]{3}", text) for text in state["a"])
        assert state.text() == "Hi" + state["a"][0] + "." + state["b"]
        assert all(len(m.logprobs) == m.completion_tokens for m in state.meta("a"))
        assert len({id(m) for m in state.meta("a")}) == n


@pytest.mark.parametrize("before", [None, "", ["", ""]], ids=repr)
def test_b12_a_fork_of_an_empty_state(rt: LocalRuntime, before: Any) -> None:
    @function
    def program(s: Any) -> None:
        if before is not None:
            s += before
        branches = s.fork(2)
        assert [b.text() for b in branches] == ["", ""]
        branches += lambda i: f"n{i}" + gen("a", max_tokens=2, ignore_eos=True)
        branches.join()

    assert len(program.run(backend=rt)["a"]) == 2

    @function
    def nothing_before(s: Any) -> None:
        s.fork(2)[0].__iadd__(gen("a", max_tokens=2)).sync()

    with pytest.raises(errors.InvalidValueError, match="BOS"):  # this tokenizer has none; the engine goes on
        nothing_before.run(backend=rt)
    assert len(program.run(backend=rt)["a"]) == 2


@pytest.mark.model
def test_b12_with_a_bos_an_empty_branch_generates(embedded: LocalRuntime) -> None:
    @function
    def program(s: Any) -> None:
        with s.fork(2) as branches:
            branches += gen("a", max_tokens=2, temperature=0)

    first, second = program.run(backend=embedded)["a"]
    assert first == second != ""


def test_b16_images_are_refused_at_the_call() -> None:
    for call in (lambda: image("a.png"), lambda: user(image("a.png") + image("b.png") + "?")):
        with pytest.raises(errors.UnsupportedError, match="image"):
            call()


def test_b20_a_seed_repeats_a_text_in_any_order(rt: LocalRuntime) -> None:
    @function
    def program(s: Any, seed: int) -> None:
        s += "Hi" + gen("a", max_tokens=6, temperature=1.0, seed=seed, ignore_eos=True)

    alone = {seed: program.run(seed, backend=rt)["a"] for seed in range(12)}
    order = list(alone) * 2
    random.Random(2).shuffle(order)
    states = program.run_batch([{"seed": seed} for seed in order], backend=rt)
    assert [s["a"] for s in states] == [alone[seed] for seed in order]
    assert len(set(alone.values())) > 6


def test_b22_without_a_limit_a_text_goes_on_to_the_context_and_says_so(tiny_path: Path) -> None:
    @function
    def program(s: Any, **options: Any) -> None:
        s += "Hi" + gen("a", ignore_eos=True)

    with LocalRuntime(tiny_path, device="cpu", kv_tokens=2_000, context_length=500) as rt:
        meta = program.run(backend=rt).meta("a")
        assert meta.finish_reason == "length"
        assert meta.prompt_tokens + meta.completion_tokens == 500


# --- STOP, STR ------------------------------------------------------------------------------------------------------


def _cut(text: str, stops: list[str], keep: bool) -> tuple[str, str | None]:
    """The text as it must end: at the stop whose last character comes first (of these the one that began first)."""
    ends = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, begin, stop = min(ends)
    return text[: end if keep else begin], stop


@pytest.mark.parametrize("keep", [False, True])
def test_b23_b24_b26_b27_stops_anywhere_in_a_generated_text(rt: LocalRuntime, keep: bool) -> None:
    """Texts of a model, cut at random stretches of themselves and at stops that almost occur."""
    rng = random.Random(7)
    for seed in range(4):
        options = {"max_tokens": 24, "temperature": 1.0, "seed": seed, "ignore_eos": True}
        whole = rt.generate("Hi", **options).text
        for _ in range(6):
            begin = rng.randrange(len(whole) - 1)
            stop = whole[begin : begin + rng.randint(1, 4)]
            stops = [stop, whole[0] + whole[-1] + "\0never", "\n<|endoftext|>", stop + "\0"]
            rng.shuffle(stops)
            want, matched = _cut(whole, stops, keep)
            got = rt.generate("Hi", stop=stops, keep_stop=keep, **options)
            assert (got.text, got.meta.finish_reason) == (want, "stop")
            assert got.meta.matched_stop == matched
            pieces = list(rt.generate("Hi", stop=stops, keep_stop=keep, stream=True, **options))
            assert "".join(pieces) == want


def test_b26_text_is_held_back_no_longer_than_a_stop_may_still_come(rt: LocalRuntime) -> None:
    options = {"max_tokens": 60, "seed": 3, "temperature": 1.0, "ignore_eos": True}
    bias = dict.fromkeys(rt.tokenizer("\n").input_ids, 4.0)
    whole = rt.generate("Hi", logit_bias=bias, **options).text
    assert whole.count("\n") > 5
    pieces = list(rt.generate("Hi", logit_bias=bias, stop="\n<|endoftext|>", stream=True, **options))
    assert "".join(pieces) == whole
    assert len(pieces) > 10


@pytest.mark.parametrize("text", ["😀", "客单价", "éü", "e\u0301", "👩\u200d👩\u200d👧", "a😀b\u2028c"], ids=ascii)
def test_b28_b29_characters_of_several_tokens_come_whole(rt: LocalRuntime, text: str) -> None:
    """One byte is one token here. A budget that ends inside a character drops its beginning, streamed or not."""
    size = len(text.encode())
    bias = {rt.tokenizer.convert_tokens_to_ids("z"): -100.0}
    for most in range(2, size + 2):
        options = SamplingParams(max_tokens=most, logit_bias=bias)
        pieces: list[str] = []
        prompt, constraint = rt.tokenizer("x").input_ids, Constraint.choices([text, "zz"])
        got = rt.submit_input(prompt, options, constraint, lambda _, piece, to=pieces: to.append(piece)).result(20)[0]
        assert got.text == text.encode()[:most].decode(errors="ignore")
        assert "".join(pieces) == got.text
        assert got.meta.completion_tokens == min(most, size)
        assert got.meta.finish_reason == ("length" if most < size else "stop")


def test_b29_streamed_and_unstreamed_texts_of_random_bytes_are_one(rt: LocalRuntime) -> None:
    for seed in range(25):
        options = {"max_tokens": 1 + seed, "temperature": 1.5, "seed": seed, "ignore_eos": True}
        got = rt.generate("Hi", **options)
        assert "".join(rt.generate("Hi", stream=True, **options)) == got.text
        assert got.meta.completion_tokens == 1 + seed


# --- TPL ------------------------------------------------------------------------------------------------------------


def test_b18_a_template_from_text_or_file_and_none_at_all(tiny_path: Path, tmp_path: Path) -> None:
    turns = "{% for m in messages %}[{{ m['role'] }}|{{ m['content'] }}]{% endfor %}"
    jinja = turns + "{% if add_generation_prompt %}[assistant|{% endif %}"
    file = tmp_path / "own.jinja"
    file.write_text(jinja)

    @function
    def program(s: Any) -> None:
        s += system("S") + user("U")
        s += assistant("p" + gen("a", max_tokens=1))

    for template in (jinja, file, str(file)):
        with LocalRuntime(tiny_path, device="cpu", kv_tokens=500, chat_template=template) as rt:
            assert program.run(backend=rt).text().startswith("[system|S][user|U][assistant|p")
    wrong = LocalRuntime(tiny_path, device="cpu", kv_tokens=500, chat_template="{% for m in %}")
    with wrong, pytest.raises(errors.ChatTemplateError):
        program.run(backend=wrong)


@pytest.mark.model
@pytest.mark.parametrize("where", ["as pulled", "moved"])
def test_b17_the_tokenizers_own_template_wherever_the_model_lies(
    embedded: LocalRuntime, model_dir: Path, tmp_path: Path, where: str
) -> None:
    chats = [
        [("system", "You are brief."), ("user", "Hi <|im_end|> there")],
        [("user", "a"), ("assistant", "b"), ("user", "c\n\n ")],
        [("user", "é 😀")],
    ]
    tokenizer = embedded.tokenizer
    if where == "moved":
        from transformers import AutoTokenizer

        folder = tmp_path / "any name at all"
        folder.symlink_to(model_dir)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    for chat in chats:

        @function
        def program(s: Any, chat: Any = chat) -> None:
            for role, text in chat:
                s += {"system": system, "user": user, "assistant": assistant}[role](text)
            with s.assistant():
                s += gen("a", max_tokens=1, temperature=0)
                s.sync()

        messages = [{"role": role, "content": text} for role, text in chat]
        want = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert program.run(backend=embedded).text().startswith(want)
