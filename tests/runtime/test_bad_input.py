"""Every kind of bad input: a clear error from the tree, and the engine and other programs go on, nothing leaked."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from radicel import assistant, errors, function, gen, select, user
from radicel.runtime import LocalRuntime


@pytest.fixture(scope="module")
def runtime(tiny_llama: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=600, context_length=512, check_invariants=True) as made:
        yield made


def program(body: Callable[[Any], Any]) -> Any:
    return function(body)


def good(runtime: LocalRuntime) -> str:
    """A request that must go on working."""
    return runtime.generate("All is well", temperature=0, max_tokens=4).text


def assert_unharmed(runtime: LocalRuntime, want: str) -> None:
    assert good(runtime) == want
    runtime.check()
    stats = runtime.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)


def reads_unknown(s: Any) -> None:
    s += "Hi" + gen("a", max_tokens=2)
    s["b"]


def role_in_role(s: Any) -> None:
    with s.user():
        s += assistant("no")


def two_constraints(s: Any) -> None:
    s += gen("a", regex="a+", choices=["a"])


def negative_tokens(s: Any) -> None:
    s += gen("a", max_tokens=-1)


def negative_temperature(s: Any) -> None:
    s += gen("a", temperature=-0.5)


def bad_regex(s: Any) -> None:
    s += "x" + gen("a", regex="(unclosed", max_tokens=4)


def impossible_schema(s: Any) -> None:
    s += "x" + gen("a", schema={"type": "integer", "minimum": 5, "maximum": 3}, max_tokens=4)


def broken_schema(s: Any) -> None:
    s += "x" + gen("a", json_schema="{", max_tokens=4)


def unknown_type(s: Any) -> None:
    s += "x" + gen("a", schema={"type": "objekt"}, max_tokens=4)


def no_choices(s: Any) -> None:
    s += select("a", [])


def same_choices(s: Any) -> None:
    s += select("a", ["yes", "yes"])


def long_prompt(s: Any) -> None:
    s += "word " * 3_000 + gen("a", max_tokens=2)


def wrong_operand(s: Any) -> None:
    s += 3


def unknown_keyword(s: Any) -> None:
    s += gen("a", temprature=1)


PROGRAMS: list[tuple[Any, type[BaseException], str]] = [
    (reads_unknown, errors.UnknownVariableError, "'b'"),
    (reads_unknown, KeyError, "'b'"),
    (role_in_role, errors.RoleError, "assistant"),
    (two_constraints, errors.ConstraintError, "regex"),
    (two_constraints, errors.ConstraintError, "choices"),
    (negative_tokens, errors.SamplingError, "max_tokens=-1"),
    (negative_temperature, errors.SamplingError, "temperature=-0.5"),
    (bad_regex, errors.ConstraintError, "unclosed"),
    (impossible_schema, errors.ConstraintError, "minimum"),
    (broken_schema, errors.ConstraintError, "JSON"),
    (unknown_type, errors.ConstraintError, "objekt"),
    (no_choices, errors.ChoicesError, "choice"),
    (same_choices, errors.ChoicesError, "'yes'"),
    (long_prompt, errors.ContextLengthError, "512"),
    (wrong_operand, TypeError, "int"),
    (unknown_keyword, TypeError, "temprature"),
]


@pytest.mark.parametrize(("body", "error", "says"), PROGRAMS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_bad_program_fails_alone(runtime: LocalRuntime, body: Any, error: type[BaseException], says: str) -> None:
    want = good(runtime)
    with pytest.raises(error) as caught:
        program(body).run(backend=runtime)
    assert says in str(caught.value)
    assert_unharmed(runtime, want)


DIRECT: list[tuple[dict[str, Any], type[BaseException], str]] = [
    ({"prompt": ""}, errors.InvalidValueError, "empty"),
    ({"prompt": [1, 2, 99_999]}, errors.InvalidValueError, "99999"),
    ({"prompt": [-1]}, errors.InvalidValueError, "-1"),
    ({"prompt": 7}, errors.InvalidValueError, "int"),
    ({"prompt": [{"role": "user"}]}, errors.InvalidValueError, "content"),
    ({"prompt": "a", "max_tokens": -3}, errors.SamplingError, "max_tokens=-3"),
    ({"prompt": "a", "temperature": float("nan")}, errors.SamplingError, "temperature=nan"),
    ({"prompt": "a", "top_p": 0}, errors.SamplingError, "top_p=0"),
    ({"prompt": "a", "stop": ""}, errors.SamplingError, "stop"),
    ({"prompt": "a", "stop_token_ids": [10**6]}, errors.SamplingError, "1000000"),
    ({"prompt": "a", "logit_bias": {10**6: 1.0}}, errors.SamplingError, "1000000"),
    ({"prompt": "a", "max_tokens": 1, "max_new_tokens": 2}, errors.SamplingError, "max_tokens"),
    ({"prompt": "a", "temprature": 1}, errors.InvalidValueError, "temprature"),
    ({"prompt": "a", "regex": "a", "grammar": 'root ::= "a"'}, errors.ConstraintError, "grammar"),
    ({"prompt": ["a", "b"], "stream": True}, errors.InvalidValueError, "stream"),
]


@pytest.mark.parametrize(("call", "error", "says"), DIRECT, ids=lambda v: str(v)[:50])
def test_a_bad_call_fails_alone(runtime: LocalRuntime, call: dict[str, Any], error: Any, says: str) -> None:
    want = good(runtime)
    with pytest.raises(error) as caught:
        runtime.generate(**call)
    assert says in str(caught.value)
    assert_unharmed(runtime, want)


def test_a_bad_item_takes_no_other_with_it(runtime: LocalRuntime) -> None:
    @function
    def answer(s: Any, text: str) -> None:
        s += text + gen("a", max_tokens=3, temperature=0)

    items = [{"text": "one"}, {"text": "x" * 5_000}, {"text": "two"}]
    states = answer.run_batch(items, backend=runtime)
    assert [type(s.error()) for s in states] == [type(None), errors.ContextLengthError, type(None)]
    assert states[0]["a"]
    assert states[2]["a"]
    with pytest.raises(errors.BatchError, match="item 1: ContextLengthError") as caught:
        answer.run_batch(items, backend=runtime, on_error="raise")
    assert caught.value.states[2]["a"] == states[2]["a"]
    results = runtime.generate(["one", "x" * 5_000, "two"], temperature=0, max_tokens=3)
    assert isinstance(results[1].error, errors.ContextLengthError)
    assert results[0].text == states[0]["a"]


def test_a_prompt_longer_than_the_pool(tiny_llama: Path) -> None:
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=64, check_invariants=True) as runtime:
        with pytest.raises(errors.ContextLengthError, match="KV pool of 64"):
            runtime.generate("x" * 200, max_tokens=4)
        # The pool's end is the end of a text, as the context's is.
        cut = runtime.generate("abc", temperature=0, ignore_eos=True)
        assert cut.meta.finish_reason == "length"
        assert cut.meta.prompt_tokens + cut.meta.completion_tokens == 64
        runtime.check()


def test_unknown_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADICEL_HOME", str(tmp_path / "empty"))
    with pytest.raises(errors.ModelNotFoundError, match="radicel pull"):
        LocalRuntime()
    with pytest.raises(errors.ModelNotFoundError, match="no-such-folder"):
        LocalRuntime(tmp_path / "no-such-folder")
    with pytest.raises(errors.InvalidValueError, match="memory_fraction=2"):
        LocalRuntime(memory_fraction=2)
    with pytest.raises(errors.InvalidValueError, match="dtype='int3'"):
        LocalRuntime(dtype="int3")
    with pytest.raises(TypeError, match="modle"):
        LocalRuntime(modle="x")  # type: ignore[call-arg]


def test_corrupted_weights(tiny_llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1_000])
    with pytest.raises(errors.WeightsError, match=r"model\.safetensors"):
        LocalRuntime(folder, device="cpu")


def test_a_closed_runtime(tiny_llama: Path) -> None:
    before = set(threading.enumerate())
    runtime = LocalRuntime(tiny_llama, device="cpu", kv_tokens=600)
    handle = runtime.submit_input(_ids(runtime, "long"), _params(max_tokens=400, ignore_eos=True))
    runtime.close()
    runtime.close()
    with pytest.raises(errors.BackendClosedError):
        handle.result(timeout=10)
    for call in (lambda: runtime.generate("a"), lambda: runtime.score("a", ["b"]), runtime.flush_cache):
        with pytest.raises(errors.BackendClosedError):
            call()

    @function
    def hello(s: Any) -> None:
        s += "Hi" + gen("a", max_tokens=2)

    with pytest.raises(errors.BackendClosedError):
        hello.run(backend=runtime)
    _no_new_threads(before)


def test_a_step_that_raises_tells_every_waiter(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=2_000) as runtime:
        cause = RuntimeError("CUDA error: an illegal memory access was encountered")
        calls = 0
        forward = runtime._runner.forward

        def breaks(batch: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise cause
            return forward(batch)

        monkeypatch.setattr(runtime._runner, "forward", breaks)
        with ThreadPoolExecutor(6) as pool:
            waiting = [
                pool.submit(runtime.generate, f"text {i}", max_tokens=60, ignore_eos=True, timeout=60) for i in range(6)
            ]
            for future in waiting:
                with pytest.raises(errors.EngineDeadError, match="illegal memory access") as caught:
                    future.result(timeout=30)
                assert caught.value.__cause__ is cause
        with pytest.raises(errors.EngineDeadError):
            runtime.generate("later")

        @function
        def hello(s: Any) -> None:
            s += "Hi" + gen("a", max_tokens=2)

        with pytest.raises(errors.EngineDeadError):
            hello.run(backend=runtime)
    _no_new_threads(before)


def test_two_runtimes_in_one_process(tiny_llama: Path, runtime: LocalRuntime) -> None:
    want = good(runtime)
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=600, check_invariants=True) as other:
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda rt: good(rt), [runtime, other] * 4))
        assert set(texts) == {want}
    assert_unharmed(runtime, want)


def test_many_threads_and_event_loops_at_once(runtime: LocalRuntime) -> None:
    want = good(runtime)

    async def several() -> list[str]:
        made = await asyncio.gather(*(runtime.agenerate("All is well", temperature=0, max_tokens=4) for _ in range(6)))
        return [g.text for g in made]

    with ThreadPoolExecutor(6) as pool:
        threads = [pool.submit(good, runtime) for _ in range(12)]
        loops = [pool.submit(lambda: asyncio.run(several())) for _ in range(3)]
        assert {f.result(30) for f in threads} == {want}
        assert all(f.result(30) == [want] * 6 for f in loops)
    assert_unharmed(runtime, want)


def test_cancelling_a_task_cancels_its_request(runtime: LocalRuntime) -> None:
    want = good(runtime)

    async def cancelled() -> None:
        task = asyncio.create_task(runtime.agenerate("abc", max_tokens=400, ignore_eos=True))
        while runtime.stats().running == 0:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    _settles(runtime)
    assert_unharmed(runtime, want)


def test_closing_a_stream_cancels_its_request(runtime: LocalRuntime) -> None:
    want = good(runtime)
    stream = runtime.generate("abc", max_tokens=400, ignore_eos=True, stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    _settles(runtime)
    assert_unharmed(runtime, want)


def test_a_timeout_is_kept(runtime: LocalRuntime) -> None:
    want = good(runtime)
    with pytest.raises(errors.DeadlineError, match=r"0\.05"):
        runtime.generate("abc", max_tokens=480, ignore_eos=True, timeout=0.05)
    with pytest.raises(TimeoutError):
        runtime.generate("abc", max_tokens=480, ignore_eos=True, timeout=0.05)
    assert_unharmed(runtime, want)


def _in_child(runtime: LocalRuntime, answers: Any) -> None:
    try:
        runtime.generate("a", max_tokens=1)
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")
    else:
        answers.put("no error")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork(runtime: LocalRuntime) -> None:
    want = good(runtime)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(runtime, answers))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get().startswith("ForkedProcessError: this runtime was made in process")
    assert_unharmed(runtime, want)


INTERRUPTED = """
import signal, sys, threading, time
from radicel import function, gen
from radicel.runtime import LocalRuntime

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored

@function
def slow(s, text):
    s += text + gen("a", max_tokens=400, ignore_eos=True)

runtime = LocalRuntime(sys.argv[1], device="cpu", kv_tokens=8000, check_invariants=True)
def interrupt():
    while runtime.stats().running == 0:
        time.sleep(0.005)
    signal.raise_signal(signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    slow.run_batch([{"text": f"item {i}"} for i in range(12)], backend=runtime)
except KeyboardInterrupt:
    until = time.monotonic() + 20
    while runtime.stats().running or runtime.stats().waiting:
        assert time.monotonic() < until, runtime.stats()
        time.sleep(0.01)
    runtime.check()
    assert runtime.stats().kv_used == 0
    assert runtime.generate("still here", max_tokens=2, ignore_eos=True).meta.completion_tokens == 2
    runtime.close()
    until = time.monotonic() + 10
    while left := [t.name for t in threading.enumerate() if "radicel" in t.name.lower()]:
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    print("interrupted cleanly" if not left else f"threads left: {left}")
else:
    print("never interrupted")
"""


def test_a_keyboard_interrupt_in_the_middle_of_a_batch(tiny_llama: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tiny_llama)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip().splitlines()[-1:] == ["interrupted cleanly"], done.stderr[-2_000:]
    assert done.returncode == 0


def test_an_exception_in_the_body_cancels_what_it_started(runtime: LocalRuntime) -> None:
    want = good(runtime)

    @function
    def raises(s: Any) -> None:
        s += "abc" + gen("a", max_tokens=480, ignore_eos=True)
        raise ZeroDivisionError("in the body")

    with pytest.raises(ZeroDivisionError, match="in the body"):
        raises.run(backend=runtime)
    _settles(runtime)
    assert_unharmed(runtime, want)


def test_roles_without_a_template(tiny_llama: Path, tmp_path: Path) -> None:
    import json

    folder = shutil.copytree(tiny_llama, tmp_path / "bare")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for file in folder.glob("chat_template*"):
        file.unlink()

    @function
    def chat(s: Any) -> None:
        s += user("hello") + assistant(gen("a", max_tokens=2))

    with LocalRuntime(folder, device="cpu", kv_tokens=600) as runtime:
        with pytest.raises(errors.ChatTemplateError, match="chat_template"):
            chat.run(backend=runtime)
        assert runtime.generate("plain text works", max_tokens=2, ignore_eos=True).meta.completion_tokens == 2


def _ids(runtime: LocalRuntime, text: str) -> list[int]:
    return list(runtime.tokenizer(text).input_ids)


def _params(**keywords: Any) -> Any:
    from radicel import SamplingParams

    return SamplingParams.of(**keywords)


def _settles(runtime: LocalRuntime) -> None:
    until = time.monotonic() + 10
    while runtime.stats().running or runtime.stats().waiting:
        assert time.monotonic() < until, "the engine still runs what was cancelled"
        time.sleep(0.005)


def _no_new_threads(before: set[threading.Thread]) -> None:
    until = time.monotonic() + 5
    while left := [t for t in threading.enumerate() if t not in before and "radicel" in t.name.lower()]:
        assert time.monotonic() < until, f"threads left: {left}"
        time.sleep(0.01)
