"""Masks computed side by side: the same as one by one, from lanes of one grammar, and each failing for itself."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.runtime import cores
from radicel.runtime.grammar import GrammarCompiler, llguidance_engine
from radicel.runtime.grammar.ahead import MaskPool
from radicel.runtime.grammar.closing import ClosingMatcher

from .test_grammar_engines import ENGINES, SIZE, allowed, compiler_of, feed

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
GRAMMAR = r'''root ::= "{\"name\": \"" [a-z(]{1,9} "\", \"count\": " [0-9]+ "}"'''
TEXT = '{"name": "ab(", "count": 12}'


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> GrammarCompiler:
    monkeypatch.setattr(llguidance_engine, "usable_cores", lambda: 4)
    return compiler_of()


def compiled(compiler: GrammarCompiler, on_budget: str = "truncate") -> Any:
    return compiler.compile(Constraint.from_gen(json_schema=SCHEMA, on_budget=on_budget))


def of_both(engine: str) -> Any:
    return compiler_of(engine).compile(Constraint.from_gen(grammar=GRAMMAR, on_budget="truncate"))


def at_all_places(compiler: GrammarCompiler, on_budget: str = "truncate") -> list[Any]:
    grammar = compiled(compiler, on_budget)
    matchers = [grammar.matcher() for _ in range(len(TEXT) + 1)]
    assert all(feed(matcher, TEXT[:place]) for place, matcher in enumerate(matchers))
    return matchers


def rows(count: int) -> np.ndarray:
    return np.full((count, (SIZE + 31) // 32), 7, np.int32)


def bits(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def test_rows_are_what_each_matcher_writes_itself(compiler: GrammarCompiler) -> None:
    matchers = at_all_places(compiler)
    for matcher in matchers:
        matcher.forced_tokens()  # some hold text back: what the engine says is narrowed then
    want = [allowed(matcher) for matcher in matchers]
    got = rows(len(matchers))
    done = MaskPool(threads=3).compute(matchers, got)
    assert done.sum() > len(matchers) // 2
    assert (got[~done] == 7).all()
    for row, matcher, computed in zip(got, matchers, done):
        (matcher.finish_mask if computed else matcher.fill_mask)(row)
    assert [bits(row) for row in got] == want


def test_one_thread_and_few_matchers_are_left_to_themselves(compiler: GrammarCompiler) -> None:
    matchers, got = at_all_places(compiler), rows(len(TEXT) + 1)
    assert not MaskPool(threads=1).compute(matchers, got).any()
    assert not MaskPool(threads=4).compute(matchers[:3], got[:3]).any()
    assert (got == 7).all()


def test_where_the_threads_fail_each_is_asked_for_its_own(compiler: GrammarCompiler) -> None:
    matchers = at_all_places(compiler)
    twice = [matchers[3], *matchers]  # one engine state cannot be computed twice at once
    assert not MaskPool(threads=4).compute(twice, rows(len(twice))).any()


def test_a_matcher_that_closes_in_time_narrows_what_was_computed(compiler: GrammarCompiler) -> None:
    matchers = at_all_places(compiler, on_budget="close")
    assert all(isinstance(matcher, ClosingMatcher) for matcher in matchers)
    want, got = rows(len(matchers)), rows(len(matchers))
    for row, matcher in zip(want, matchers):
        matcher.fill_mask_within(row, 30)
    done = MaskPool(threads=3).compute(matchers, got)
    for row, matcher, computed in zip(got, matchers, done):
        (matcher.finish_mask_within if computed else matcher.fill_mask_within)(row, 30)
    assert (got == want).all()


def test_matchers_that_live_together_are_spread_over_lanes(compiler: GrammarCompiler) -> None:
    grammar = compiled(compiler)
    for _ in range(20):
        assert feed(grammar.matcher(), TEXT[:9])
    assert len(grammar._lanes) == 1  # one after the other need no more
    matchers = [grammar.matcher() for _ in range(16)]
    gc.collect()
    assert [len(lane) for lane in grammar._lanes] == [4, 4, 4, 4]
    assert len({matcher.mask_state().lane for matcher in matchers}) == 4
    fork = matchers[0].fork()
    assert fork.mask_state().lane == matchers[0].mask_state().lane
    assert all(feed(matcher, TEXT) for matcher in [*matchers, fork])
    assert all(allowed(matcher) == allowed(fork) for matcher in matchers)


def test_what_compiles_slowly_has_one_lane(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance_engine, "_QUICK_S", 0.0)
    grammar = compiled(compiler)
    assert {grammar.matcher().mask_state().lane for _ in range(12)} == {id(grammar._lanes[0])}


def test_the_one_that_broke_says_so_when_its_row_is_finished(compiler: GrammarCompiler) -> None:
    matchers = at_all_places(compiler)
    matchers[5]._core._matcher.consume_token(ord("~"))  # an error for good
    got = rows(len(matchers))
    done = MaskPool(threads=2).compute(matchers, got)
    for place, (row, matcher, computed) in enumerate(zip(got, matchers, done)):
        if place == 5:
            with pytest.raises(ConstraintError, match="cannot go on"):
                (matcher.finish_mask if computed else matcher.fill_mask)(row)
        else:
            (matcher.finish_mask if computed else matcher.fill_mask)(row)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_is_accepted_whole_or_not_at_all(engine: str) -> None:
    made = of_both(engine)
    one, other = made.matcher(), made.matcher()
    ids = list(TEXT.encode())
    assert feed(one, TEXT[:12])
    assert not other.accept_run(ids[:12] + [ord("\n")])
    assert not other.accept_run([SIZE - 1])
    assert other.accept_run([])
    assert other.accept_run(ids[:12])
    assert allowed(one) == allowed(other)
    assert other.accept_run(ids[12:])
    assert other.is_terminated()
    other.rollback(len(ids) - 12)
    assert allowed(one) == allowed(other)


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_known_from_looking_ahead_are_those_of_the_text(engine: str) -> None:
    """Whatever was asked ahead or taken back, a mask is that of a fresh matcher with the same text."""
    made = of_both(engine)
    rng = random.Random(5)
    matcher: Any = made.matcher()
    text: list[int] = []
    for _ in range(300):
        kind = rng.randrange(4)
        if kind == 0 and len(text) < len(TEXT):
            size = rng.randrange(1, 4)
            ahead = list(TEXT.encode()[len(text) : len(text) + size])
            matcher.mask_after(ahead)
            if rng.random() < 0.7:
                assert matcher.accept_run(ahead)
                text += ahead
        elif kind == 1 and text:
            count = rng.randrange(1, min(4, len(text)) + 1)
            matcher.rollback(count)
            del text[-count:]
        elif kind == 2 and len(text) < len(TEXT):
            text.append(TEXT.encode()[len(text)])
            assert matcher.accept(text[-1])
        fresh = made.matcher()
        assert all(map(fresh.accept, text))
        assert allowed(matcher) == allowed(fresh)


def test_a_share_of_time_counts_in_whole_cores(tmp_path: Path) -> None:
    root, groups = tmp_path / "cgroup", tmp_path / "groups"

    def share(lines: str, files: dict[str, str]) -> list[float]:
        groups.write_text(lines)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return list(cores._shares(groups, root))

    assert share("0::/\n", {}) == []
    assert share("0::/a/b\n", {"cpu.max": "max 100000\n", "a/b/cpu.max": "250000 100000\n"}) == [2.5]
    old = {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert share("3:cpuset:/\n2:cpu,cpuacct:/docker/x\n", old) == [4.0]
    assert share("2:cpu:/\n", {**old, "cpu/cpu.cfs_quota_us": "-1\n"}) == []
    assert list(cores._shares(tmp_path / "none", root)) == []
    assert cores.usable_cores() >= 1
