"""Input that no one should give: each is one clear error or works, and the engine and everybody else go on."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from radicel import MockBackend, SamplingParams, assistant, errors, function, gen, role, select, user
from radicel.backend import GenerateRequest
from radicel.prompt import Text
from radicel.runtime import LocalRuntime

HUGE = 10**30


def ask(rt: LocalRuntime, **options: Any) -> Any:
    @function
    def program(s: Any) -> None:
        s += "Hi " + gen("a", **{"max_tokens": 3, **options})

    return program.run(backend=rt)["a"]


LARGE: list[dict[str, Any]] = [
    {"max_tokens": HUGE, "stop": [chr(i) for i in range(256)]},
    {"top_k": HUGE},
    {"top_k": 2**31},
    {"top_logprobs": HUGE, "logprobs": True},
    {"logprob_start_len": HUGE},
    {"temperature": 1e300},
    {"temperature": 1e-300},
    {"repetition_penalty": 1e300},
    {"repetition_penalty": 1e-300},
    {"repetition_penalty": 1e-300, "temperature": 1e-300, "logit_bias": {5: -1e300}},
    {"logit_bias": {1: 1e300}},
    {"logit_bias": {1: -1e300}},
    {"logit_bias": {1: -math.inf}},
    {"logit_bias": dict.fromkeys(range(268), -math.inf)},
    {"seed": 10**40},
    {"seed": -(10**40)},
    {"priority": 10**40},
    {"timeout": math.inf},
    {"n": 100},
]


@pytest.mark.parametrize("options", LARGE, ids=lambda o: str(o)[:60])
def test_large_numbers_work(rt: LocalRuntime, options: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = ask(rt, **options)
    assert isinstance(value, list if "n" in options else str)
    assert [str(w.message) for w in caught] == []


def test_a_large_bias_and_penalty_do_what_they_say(rt: LocalRuntime) -> None:
    # Without healing, which now and then spells the end of the prompt in another way first.
    meta = rt.generate("Hi", max_tokens=3, logit_bias={7: 1e300}, ignore_eos=True, token_healing=False).meta
    assert meta.token_ids == (7, 7, 7)
    plain = rt.generate("Hi", max_tokens=30, temperature=0, ignore_eos=True).meta.token_ids
    other = rt.generate("Hi", max_tokens=30, temperature=0, ignore_eos=True, repetition_penalty=1e300).meta.token_ids
    assert len(set(other)) == 30  # nothing is said twice
    assert len(set(plain)) < 30


def test_more_samples_than_anyone_can_hold_are_refused(rt: LocalRuntime) -> None:
    with pytest.raises(errors.SamplingError, match="n=1000000000"):
        ask(rt, n=10**9)


@pytest.mark.parametrize("prompt", [b"abc", bytearray(b"abc"), [b"abc"]], ids=repr)
def test_bytes_are_no_token_ids(rt: LocalRuntime, prompt: Any) -> None:
    with pytest.raises(errors.InvalidValueError, match="bytes|bytearray|b'abc'"):
        rt.generate(prompt, max_tokens=1)


@pytest.mark.parametrize("wrong", ["abc", 5, None, [5], [["a"]], [b"a"]], ids=repr)
def test_continuations_are_a_list_of_texts(rt: LocalRuntime, wrong: Any) -> None:
    with pytest.raises(TypeError, match="continuations"):
        rt.score("Hi", wrong)


WRONG: list[dict[str, Any]] = [
    {"stop": 5},
    {"stop": b"x"},
    {"stop": {"x": 1}},
    {"stop_regex": 5},
    {"stop_token_ids": 1.5},
    {"logit_bias": [1]},
    {"logit_bias": "x"},
    {"whitespace": "none"},
    {"whitespace": 5},
    {"strict": "yes"},
    {"strict": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_an_argument_must_be_is_said_at_the_call(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises((errors.SamplingError, errors.ConstraintError), match=f"{name}={re.escape(repr(value))}: must"):
        gen("a", **wrong)


def test_a_name_is_a_text_and_a_list_is_not_inside_itself() -> None:
    endless: list[Any] = ["a"]
    endless.append(endless)

    @function
    def program(s: Any) -> None:
        for wrong in (5, None, b"x"):
            with pytest.raises(TypeError, match="name"), s.var_scope(wrong):
                s += "never"
            with pytest.raises(TypeError, match="name"):
                s[wrong] = 1
        with pytest.raises(errors.InvalidValueError, match="list"):
            s += endless

    assert program.run(backend=MockBackend([])).text() == ""


NAMES = [" ", "a b", "\n", "\0", "é", "__x", "a" * 10_000, "0", "None", "{x}", "%s", "a.b[0]"]


@pytest.mark.parametrize("name", NAMES, ids=lambda n: ascii(n)[:20])
def test_a_name_may_have_any_character(rt: LocalRuntime, name: str) -> None:
    @function
    def program(s: Any) -> None:
        s += "Hi " + gen(name, max_tokens=2, ignore_eos=True)

    state = program.run(backend=rt, stream=True)
    assert "".join(state.text_iter(name)) == state[name]
    assert name in state
    assert state.variables() == [name]
    assert state.meta(name).completion_tokens == 2
    assert name in repr(state)


TEXTS = [
    "\0",
    "a\0b",
    "é",
    "e\u0301",
    "\ufeff",
    "\u2028",
    "<|im_end|>",
    "<|im_start|>user\n",
    "😀",
    "\U0010ffff",
    "\r\n",
]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_text_stays_as_it_is(rt: LocalRuntime, text: str) -> None:
    """No normalisation, no markup made of it."""

    @function
    def program(s: Any) -> None:
        s += text
        s += user(text) + assistant(text + gen("a", max_tokens=2))

    state = program.run(backend=rt)
    assert state.text().startswith(text + "<|im_start|>user\n" + text + "<|im_end|>")
    assert state.messages()[0] == {"role": "user", "content": text}
    assert state.messages()[1]["content"] == text + state["a"]
    ids = rt.encode((Text(text),)).token_ids
    assert rt.tokenizer.decode(ids) == text
    assert not set(ids) & set(rt.tokenizer.all_special_ids)


def test_what_no_tokenizer_can_have_is_refused(rt: LocalRuntime) -> None:
    @function
    def program(s: Any, part: Any) -> None:
        s += part()
        s += gen("a", max_tokens=1)

    for part in (lambda: "\ud800", lambda: user("a\udfff"), lambda: ["a", "\ud800"]):
        with pytest.raises(errors.InvalidValueError, match="surrogate"):
            program.run(part, backend=rt)


def test_a_role_the_template_does_not_know_is_its_affair(rt: LocalRuntime) -> None:
    @function
    def program(s: Any, name: str) -> None:
        s += role(name, "hi") + assistant(gen("a", max_tokens=2))

    assert program.run("nonsense", backend=rt).messages()[0]["role"] == "nonsense"
    with pytest.raises(errors.RoleError, match="empty"):
        program.run("", backend=rt)
    with pytest.raises(TypeError, match="role"):
        program.run(5, backend=rt)


def test_messages_are_the_callers_to_change(rt: LocalRuntime) -> None:
    @function
    def program(s: Any) -> None:
        s += user("hi")
        messages = s.messages()
        messages[0]["content"] = "changed"
        messages.append({"role": "x"})
        s += assistant(gen("a", max_tokens=2))

    state = program.run(backend=rt)
    state.messages().clear()
    assert [m["role"] for m in state.messages()] == ["user", "assistant"]
    assert state.messages()[0]["content"] == "hi"


def test_a_literal_of_megabytes_is_an_error_where_it_does_not_fit(rt: LocalRuntime) -> None:
    @function
    def program(s: Any) -> None:
        s += "word " * 400_000
        s += gen("a", max_tokens=1)

    with pytest.raises(errors.ContextLengthError, match="2000000"):
        program.run(backend=rt)


@pytest.mark.parametrize("mode", ["gather_variable", "append", "first"])
def test_forks_fifty_deep(rt: LocalRuntime, mode: str) -> None:
    def down(s: Any, depth: int) -> None:
        s += "x" + gen("v", max_tokens=1, ignore_eos=True)
        if depth:
            branches = s.fork(2)
            branches[1] += "y" + gen("w", max_tokens=1, ignore_eos=True)
            down(branches[0], depth - 1)
            branches.join(mode)

    @function
    def program(s: Any) -> None:
        down(s, 50)

    state = program.run(backend=rt)
    value = state["v"]
    if mode == "gather_variable":
        for _ in range(50):
            (value,) = value
    assert isinstance(value, str)


def test_a_program_that_calls_itself_ends_with_pythons_error(rt: LocalRuntime) -> None:
    @function
    def counts(s: Any, left: int) -> int:
        s += f"{left} "
        if left:
            counts(s, left - 1)
        return left

    assert counts.run(20, backend=rt).text() == "".join(f"{i} " for i in range(20, -1, -1))

    @function
    def forever(s: Any) -> None:
        s += "a" + gen("x", max_tokens=200, ignore_eos=True)
        forever(s)

    with pytest.raises(RecursionError):
        forever.run(backend=rt)


def test_iterators_that_nobody_reads_to_the_end_cancel(rt: LocalRuntime) -> None:
    """Closed, dropped, left by an exception, or never begun."""
    long = {"max_tokens": 1_900, "ignore_eos": True}

    def cut(use: Any) -> None:
        before = rt.stats().generated_tokens
        use()
        gc.collect()
        until = time.monotonic() + 10
        while rt.stats().running or rt.stats().waiting:
            assert time.monotonic() < until
            time.sleep(0.002)
        assert rt.stats().generated_tokens - before < 1_500

    def closed_unread() -> None:
        rt.generate("Hi", stream=True, **long).close()

    def dropped_unread() -> None:
        rt.generate("Hi", stream=True, **long)

    def dropped() -> None:
        next(rt.generate("Hi", stream=True, **long))

    def left_by_an_exception() -> None:
        with contextlib.suppress(ZeroDivisionError):
            for _ in rt.generate("Hi", stream=True, **long):
                raise ZeroDivisionError

    for use in (closed_unread, dropped_unread, dropped, left_by_an_exception):
        cut(use)
    assert len("".join(rt.generate("Hi", stream=True, max_tokens=5, ignore_eos=True))) > 0


def test_threads_that_race_with_close(tiny_path: Path) -> None:
    before = set(threading.enumerate())

    @function
    def program(s: Any, i: int) -> None:
        s += f"t{i}" + gen("a", max_tokens=40, ignore_eos=True)
        s += select("c", ["x", "y"]) + gen("b", regex="[a-c]{20}")

    def one(i: int, runtime: LocalRuntime) -> str:
        try:
            program.run(i, backend=runtime)
        except BaseException as error:
            return type(error).__name__
        return "ok"

    ends: Counter[str] = Counter()
    for wait in (0.0, 0.01, 0.04):
        runtime = LocalRuntime(tiny_path, device="cpu", kv_tokens=3_000)
        with ThreadPoolExecutor(8) as pool:
            runs = [pool.submit(one, i, runtime) for i in range(16)]
            time.sleep(wait)
            closes = [pool.submit(runtime.close) for _ in range(3)]
            ends.update(run.result(20) for run in runs)
            for close in closes:
                close.result(20)
    assert set(ends) <= {"ok", "BackendClosedError"}
    until = time.monotonic() + 5
    while left := [t for t in threading.enumerate() if t not in before and t.name.startswith("radicel")]:
        assert time.monotonic() < until, f"threads left: {left}"
        time.sleep(0.01)


def test_cancelling_and_raising_in_a_callback(rt: LocalRuntime) -> None:
    request = GenerateRequest((Text("Hi"),), SamplingParams.of(max_tokens=1_900, ignore_eos=True), None, "a")
    held: list[Any] = []
    ready = threading.Event()

    def cancels(_: int, piece: str) -> None:
        ready.wait(10)
        held[0].cancel()

    held.append(rt.submit(request, cancels))
    ready.set()
    with pytest.raises(errors.CancelledError):
        held[0].result(20)

    def raises(_: int, piece: str) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        rt.submit(request, raises).result(20)


def test_a_batch_of_thousands_on_a_mock() -> None:
    backend = MockBackend(lambda request: request.prompt[-4:])

    @function
    def program(s: Any, i: int) -> None:
        s += f"{i:04}" + gen("a")

    states = program.run_batch([{"i": i} for i in range(2_000)], backend=backend)
    assert [s["a"] for s in states] == [f"{i:04}" for i in range(2_000)]
    backend.close()


@pytest.mark.parametrize("name", ["<|im_end|>", "user\n", "a b", "us\u2028er", "{{ x }}"])
def test_a_role_name_is_no_markup(name: str) -> None:
    """A template writes the name into its markup, where a special token's spelling would become the token."""

    @function
    def turn(s: Any) -> None:
        s += role(name, "hello")

    with pytest.raises(errors.RoleError, match="cannot be called"):
        turn.run(backend=MockBackend([]))


@pytest.mark.parametrize("schema", [lambda x: x, len, json.dumps])
def test_a_function_is_no_schema(schema: Any) -> None:
    with pytest.raises(errors.ConstraintError, match="is a function"):
        gen("a", schema=schema)
