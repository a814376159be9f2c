"""Long compiling is done in another process, is killed there in time, and holds no step up."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hard_schema import hard_schema
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.runtime.grammar import GrammarCompiler
from radicel.runtime.grammar.choice import engine_for
from radicel.runtime.grammar.outline import Outline
from radicel.schema import apart, hurry
from radicel.schema.constraint_rules import constraint_lark, constraint_rules, rules_in_turns
from radicel.schema.front import _normal_form
from radicel.schema.processes import Pool
from radicel.schema.shortest import shortest_bytes
from radicel.testing import accepts

BYTES = [bytes([byte]) for byte in range(256)]


@pytest.fixture(autouse=True)
def pool() -> Iterator[None]:
    """Processes of this test alone: other tests may have left an engine open."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apart, "_pool", Pool())
        yield


@pytest.fixture
def engine() -> Iterator[GrammarCompiler]:
    """A compiler that says that an engine runs."""
    made = GrammarCompiler(BYTES, vocab_size=257, end_ids={256})
    made.submit(Constraint.regex("a")).result(timeout=60)
    yield made
    made.close()


def test_without_an_engine_everything_is_done_in_place() -> None:
    assert apart._pool.users == 0
    assert apart.run(os.getpid, 1_000_000) == os.getpid()


def test_large_work_is_done_in_another_process_which_is_kept(engine: GrammarCompiler) -> None:
    assert apart.run(os.getpid, 10) == os.getpid()
    first = apart.run(os.getpid, 1_000_000)
    assert first != os.getpid()
    assert apart.run(os.getpid, 1_000_000) == first


def test_work_that_turns_out_long_moves_to_another_process(engine: GrammarCompiler) -> None:
    texts = [{"anyOf": [{"pattern": f"^[a-z]*{a}{b}"} for b in "uvwxyz"]} for a in "abcd"]
    source = json.dumps({"type": "object", "properties": {"text": {"type": "string", "allOf": texts[:3]}}})
    assert len(source) < 4_000
    with pytest.raises(hurry.TooLongError), hurry.limited(0.002):
        _normal_form(source, None, False, False)
    assert not apart.goes(len(source), source)
    made = Constraint.json_schema(source)
    assert apart.goes(len(source), source)  # and is not tried here again
    assert accepts(made, '{"text": "bauavb"}') is False
    assert accepts(made, '{"text": "aubvcz"}') is True


def test_the_answer_is_the_same_there(engine: GrammarCompiler) -> None:
    schema = hard_schema(40)
    there = Constraint.json_schema(schema)
    rules, root = constraint_rules(there)
    least = shortest_bytes(there)
    engine.close()
    assert apart._pool.users == 0
    assert Constraint.json_schema({**schema, "title": "anew"}).text == there.text
    assert constraint_rules(there) == (rules, root)
    shortest_bytes.cache_clear()
    assert shortest_bytes(there) == least == len("{}")


def test_errors_come_back_as_they_are(engine: GrammarCompiler) -> None:
    schema = {**hard_schema(60), "uniqueItems": True, "items": {"type": "string"}, "type": ["object", "array"]}
    with pytest.raises(ConstraintError) as there:
        Constraint.json_schema(schema)
    engine.close()
    with pytest.raises(ConstraintError) as here:
        Constraint.json_schema({**schema, "title": "anew"})
    assert (str(there.value), there.value.keyword, there.value.pointer) == (
        str(here.value),
        here.value.keyword,
        here.value.pointer,
    )
    assert there.value.keyword == "uniqueItems"


def test_what_takes_too_long_is_killed_and_the_limit_named(engine: GrammarCompiler) -> None:
    first = apart._elsewhere(os.getpid, (), 60)
    began = time.monotonic()
    with pytest.raises(ConstraintError, match=r"took more than 0\.3 s, the limit"):
        apart._elsewhere(time.sleep, (60,), 0.3)
    assert time.monotonic() - began < 20
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert apart._elsewhere(os.getpid, (), 60) not in (first, os.getpid())


def test_a_process_that_dies_is_an_error_of_that_constraint_alone(engine: GrammarCompiler) -> None:
    apart._elsewhere(os.getpid, (), 60)
    with pytest.raises(ConstraintError, match="ended the process"):
        apart._elsewhere(os._exit, (3,), 60)
    assert apart._elsewhere(len, ("abc",), 60) == 3


@pytest.mark.parametrize("missing", ["package", "interpreter"])
def test_where_no_process_starts_it_is_done_in_place(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, *{"package": ("path", []), "interpreter": ("executable", "")}[missing])
    apart.start()
    for _ in range(2):
        assert apart.run(os.getpid, 1_000_000) == os.getpid()
        assert apart._pool._busy == 0
    apart.stop()


def test_the_first_process_is_started_with_the_engine_and_not_by_who_needs_it(engine: GrammarCompiler) -> None:
    end = time.monotonic() + 60
    while not apart._pool._idle and time.monotonic() < end:
        time.sleep(0.01)
    assert len(apart._pool._idle) == 1


def test_an_engine_that_is_closed_at_once_waits_for_no_process() -> None:
    began = time.monotonic()
    apart.start()
    apart.stop()
    assert time.monotonic() - began < 0.5  # less than one takes to start
    assert (apart._pool._idle, apart._pool._starting) == ([], None)


def test_who_asks_while_all_are_busy_takes_the_first_that_is_done(engine: GrammarCompiler) -> None:
    """Another process that is started meanwhile is not waited for."""
    first = apart._elsewhere(os.getpid, (), 60)
    busy = threading.Thread(target=lambda: apart._elsewhere(time.sleep, (0.15,), 60))
    busy.start()
    while not apart._pool._busy:
        time.sleep(0.001)
    assert apart._elsewhere(os.getpid, (), 60) == first
    busy.join()


def test_a_process_that_died_while_it_had_nothing_to_do_is_not_asked(engine: GrammarCompiler) -> None:
    first = apart._elsewhere(os.getpid, (), 60)
    os.kill(first, signal.SIGKILL)
    time.sleep(0.1)
    assert apart._elsewhere(os.getpid, (), 60) not in (first, os.getpid())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not bound the memory")
def test_too_much_memory_is_refused(engine: GrammarCompiler) -> None:
    with pytest.raises(ConstraintError, match="4 GiB"):
        apart._elsewhere(bytearray, (apart.MEMORY + 1,), 60)


def test_many_threads_ask_at_once(engine: GrammarCompiler) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(apart._elsewhere(abs, (-n,), 60)))  # type: ignore[misc]
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == list(range(12))
    assert 1 <= len(apart._pool._idle) <= 2


def test_with_the_last_engine_the_processes_go(engine: GrammarCompiler) -> None:
    other = GrammarCompiler(BYTES, vocab_size=257, end_ids={256})
    other.submit(Constraint.regex("b")).result(timeout=60)
    number = apart._elsewhere(os.getpid, (), 60)
    other.close()
    os.kill(number, 0)
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_hard_schema_costs_this_process_next_to_nothing(engine: GrammarCompiler) -> None:
    """Of the two parts that are Python; the engine's own part lets other threads run."""
    apart._elsewhere(os.getpid, (), 60)  # started: that is once in a process
    schema = hard_schema()

    def read_and_written() -> float:
        began = time.thread_time()
        constraint_lark(Constraint.json_schema(schema))
        return time.thread_time() - began

    there = read_and_written()
    schema["title"] = "anew"
    engine.close()
    assert there < 0.2 * read_and_written()


def test_what_a_budget_is_reckoned_with_is_made_in_turns(engine: GrammarCompiler) -> None:
    made = Constraint.json_schema(hard_schema(399))
    turns: list[float] = []
    began = 0.0

    def pause() -> None:
        nonlocal began
        turns.append(time.thread_time() - began)
        began = time.thread_time()

    began = time.thread_time()
    rules, root = rules_in_turns(made, "hermes", pause)
    assert (rules, root) == constraint_rules(made)
    turns.clear()
    began = time.thread_time()
    outline = Outline(rules, root, pause)
    assert outline.completion(outline.start) == "{}"
    assert len(turns) > 300
    turns.sort()
    assert turns[-1 - len(turns) // 100] < 0.002  # of a hundred one may hold the garbage collector's turn


def test_steps_go_on_while_a_hard_schema_compiles(engine: GrammarCompiler) -> None:
    """A thread that takes turns as an engine's does: nine turns of ten come in time, as on an idle machine."""
    apart._elsewhere(os.getpid, (), 60)
    idle = gaps_while(lambda: time.sleep(0.3))
    took: list[float] = []

    def compiling() -> None:
        began = time.perf_counter()
        engine.submit(Constraint.json_schema(hard_schema(398))).result(timeout=120)
        took.append(time.perf_counter() - began)

    busy = gaps_while(compiling)
    assert took[0] > 0.05
    assert sorted(busy)[int(0.9 * len(busy))] < 0.005 + 2 * sorted(idle)[int(0.9 * len(idle))]


def gaps_while(work: Callable[[], None]) -> list[float]:
    """Times between the turns of a thread that gives up its turn every millisecond, while `work` runs in another."""
    worker = threading.Thread(target=work)
    gaps: list[float] = []
    worker.start()
    last = time.perf_counter()
    while worker.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    worker.join()
    return gaps


def test_a_grammar_that_takes_seconds_is_not_given_to_the_engine_that_takes_them() -> None:
    def grammar(size: int) -> Constraint:
        rules = "".join(f'r{i} ::= "k{i}" [^x]* "e"\n' for i in range(size))
        return Constraint.grammar(f"root ::= {' | '.join(f'r{i}' for i in range(size))}\n{rules}")

    assert engine_for(grammar(20)) == "xgrammar"
    assert engine_for(grammar(300)) == "llguidance"
    assert accepts(grammar(300), "k299ue")
    assert not accepts(grammar(300), "k299uxe")


def test_while_an_engine_runs_what_was_there_before_is_not_collected() -> None:
    before = gc.get_freeze_count()
    made = GrammarCompiler(BYTES, vocab_size=257, end_ids={256})
    made.submit(Constraint.regex("a")).result(timeout=60)
    assert gc.get_freeze_count() > before + 1000
    made.close()
    assert gc.get_freeze_count() == 0
