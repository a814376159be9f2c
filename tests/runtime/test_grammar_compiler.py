"""The compiler: cached with bounds, off the caller's thread, errors alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from radicel.constraint import Constraint
from radicel.errors import BackendClosedError, ConstraintError, InvalidValueError
from radicel.runtime import LocalRuntime
from radicel.runtime.grammar import GrammarCompiler
from radicel.runtime.grammar.cache import BoundedCache
from radicel.runtime.grammar.closing import Steering

BYTES = [bytes([byte]) for byte in range(256)]


def compiler_of(**kwargs: Any) -> GrammarCompiler:
    return GrammarCompiler(BYTES, vocab_size=257, end_ids={256}, **kwargs)


def test_the_same_grammar_compiles_once() -> None:
    compiler = compiler_of()
    one = compiler.compile(Constraint.of({"type": "integer"}))
    assert compiler.compile(Constraint.json_schema({"type": "integer"})) is one
    assert compiler.submit(Constraint.of(int)).result() is one
    assert compiler.cached == 1


def test_many_grammars_stay_within_the_bound() -> None:
    compiler = compiler_of(cache_entries=20)
    for number in range(300):
        compiler.compile(Constraint.choices([str(number)]))
    assert compiler.cached == 20


def test_the_cache_drops_the_oldest_by_count_and_by_bytes() -> None:
    cache: BoundedCache[int] = BoundedCache(3, 100)
    for number in range(3):
        cache.put(str(number), number, 10)
    assert cache.get("0") == 0
    cache.put("3", 3, 10)
    assert [cache.get(key) for key in "0123"] == [0, None, 2, 3]
    cache.put("4", 4, 85)
    assert (len(cache), cache.bytes) == (2, 95)
    cache.put("5", 5, 101)
    assert (len(cache), cache.bytes) == (0, 0)


def test_compiling_runs_on_another_thread() -> None:
    compiler = compiler_of()
    names: list[str] = []
    compile_ = compiler.compile

    def watched(constraint: Constraint) -> Any:
        names.append(threading.current_thread().name)
        return compile_(constraint)

    compiler.compile = watched  # type: ignore[method-assign]
    compiler.submit(Constraint.regex("a+")).result(timeout=30)
    assert names[0].startswith("radicel-grammar")
    compiler.close()


def test_an_error_is_of_that_constraint_alone() -> None:
    compiler = compiler_of()
    bad = Constraint("regex", "[")
    with pytest.raises(ConstraintError) as caught:
        compiler.submit(bad).result(timeout=30)
    assert caught.value.keyword == "regex"
    assert compiler.submit(Constraint.regex("a")).result(timeout=30).matcher().accept(ord("a"))
    compiler.close()


def test_many_threads_share_one_compiler() -> None:
    compiler = compiler_of(cache_entries=4)
    constraints = [Constraint.of({"type": "object", "properties": {f"k{n}": {"type": "integer"}}}) for n in range(8)]

    def work(number: int) -> bool:
        matcher = compiler.compile(constraints[number % 8]).matcher()
        text = f'{{"k{number % 8}": {number}}}'.encode()
        return all(matcher.accept(byte) for byte in text) and matcher.is_complete()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


def test_after_close_nothing_compiles_and_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    compiler = compiler_of()
    compiler.submit(Constraint.regex("a")).result(timeout=30)
    compiler.close()
    compiler.close()
    with pytest.raises(BackendClosedError):
        compiler.submit(Constraint.regex("b"))
    with pytest.raises(BackendClosedError):
        compiler.compile(Constraint.regex("b"))
    assert not [t for t in threading.enumerate() if t not in before and t.is_alive()]


@pytest.mark.parametrize("ends", [set(), {300}])
def test_a_vocabulary_without_an_end_is_refused(ends: set[int]) -> None:
    with pytest.raises(InvalidValueError, match="end_ids"):
        GrammarCompiler(BYTES, vocab_size=257, end_ids=ends)


# -- in a running engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["say", "say a th"])  # the second one is healed: its end is spelled anew
def test_steps_do_not_wait_for_what_budgets_take(
    prompt: str, tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is made, slowly here, others go on; then the text is what it would have been."""
    made_in_turns = Steering._made_in_turns
    slow = threading.Event()
    waited: list[float] = []

    def slowly(self: Steering, pause: Any) -> Any:
        if slow.is_set():
            time.sleep(1)
        return made_in_turns(self, pause)

    prepare = Steering.prepare

    def watched(self: Steering, pause: Any = None) -> Any:
        began = time.perf_counter()
        found = prepare(self, pause)
        if threading.current_thread().name == "radicel-engine":
            waited.append(time.perf_counter() - began)
        return found

    monkeypatch.setattr(Steering, "_made_in_turns", slowly)
    monkeypatch.setattr(Steering, "prepare", watched)
    closed = {"properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}
    folder = tiny.make_tiny_model(tmp_path, "llama", seed=2)
    with LocalRuntime(folder, device="cpu", kv_tokens=2_000, check_invariants=True) as runtime:

        def write(**kw: Any) -> Any:
            return runtime.generate(prompt, temperature=0, max_tokens=40, token_healing=True, **kw)

        want = write(json_schema=closed)
        slow.set()
        waited.clear()
        runtime._grammars._cache.clear()
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(write, json_schema=closed)
            runtime.generate(prompt, temperature=0, max_tokens=3)
            assert not held.done()
            found = held.result(timeout=60)
    assert (found.text, found.token_ids, found.meta.forced_tokens) == (
        want.text,
        want.token_ids,
        want.meta.forced_tokens,
    )
    assert waited
    assert max(waited) < 0.5
