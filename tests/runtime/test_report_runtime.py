"""Reports of runs on a real engine: why tokens were computed, times, the tree of prefixes, tokens with logprobs."""

from __future__ import annotations

import json
import math

import pytest
from radicel import assistant, batch_report, function, gen, select, system, user
from radicel.runtime import LocalRuntime


@pytest.fixture
def runtime(tiny_llama):
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=4096, check_invariants=True) as made:
        yield made


@function
def judge(s, essay):
    s += system("You judge essays.") + user(f"Essay: {essay}")
    with s.fork(3) as branches:
        for index, branch in enumerate(branches):
            branch += user(f"Side {index}?") + assistant(gen("note", max_tokens=6, temperature=0, ignore_eos=True))
    s += user("Which grade?") + assistant(select("grade", ["A", "B", "C"]))


def tokens_of(report, name):
    return [node for node in report.nodes if node.name == name]


def test_reasons_account_for_every_prompt_token(runtime):
    before = runtime.stats()
    report = batch_report(judge.run_batch([{"essay": "rivers " * 9}, {"essay": "clocks " * 9}], backend=runtime))
    for node in tokens_of(report, "note"):
        assert node.cached_tokens + node.computed_tokens == node.prompt_tokens
        assert node.state == "done"
    computed = sum(node.computed_tokens for node in report.nodes)
    assert computed == runtime.stats().computed_tokens - before.computed_tokens
    assert set(report.computed()) <= {"new", "logits"}
    leaders = [node for node in tokens_of(report, "note") if node.cached_tokens == 0]
    assert len(leaders) == 1, "whoever came first computed what all share"


def test_the_tree_holds_every_distinct_token_once_and_each_was_computed_once(runtime):
    report = batch_report(judge.run_batch([{"essay": "rivers " * 9}, {"essay": "clocks " * 9}], backend=runtime))
    root, *stretches = report.costs.stretches
    assert (root.parent, root.length, report.costs.unit) == (None, 0, "tokens")
    prompts = [one for one in stretches if not one.written]
    assert all(one.computed == one.length for one in prompts)
    longest = max(prompts, key=lambda one: len(one.calls) * one.length)
    assert len(longest.calls) >= 4
    assert "You judge essays." in "".join(one.text for one in stretches)
    texts = {one.text for one in stretches if one.written}
    assert texts
    for node in tokens_of(report, "note"):
        assert any(text.startswith(node.text[:1]) for text in texts)
    for at, one in enumerate(report.costs.stretches):
        for child in one.children:
            below = report.costs.stretches[child]
            assert (below.parent, below.begin) == (at, one.begin + one.length)
            assert set(below.calls) <= set(one.calls) or at == 0


def test_evicted_and_flushed_tokens_say_so(runtime):
    judge.run(essay="rivers " * 9, backend=runtime)
    runtime.flush_cache()
    again = judge.run(essay="rivers " * 9, backend=runtime).report()
    assert again.computed().keys() <= {"evicted", "logits"}
    assert again.computed()["evicted"] > 60
    assert "evicted" in str(again)


def test_a_pool_that_is_too_small_drops_prefixes_and_the_report_tells(tiny_llama):
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=260, leases=False, check_invariants=True) as runtime:
        essays = ["rivers " * 12, "clocks " * 12, "rivers " * 12]
        states = [judge.run(essay=essay, backend=runtime) for essay in essays]
        report = batch_report(states)
    by_program = [sum(n.computed.get("evicted", 0) for n in report.nodes if n.program == p) for p in range(3)]
    assert by_program[0] == 0
    assert by_program[2] > 30
    again = [one for one in report.costs.stretches if not one.written and one.computed > 1.5 * one.length]
    assert again, "the tree shows what was computed again"


def test_the_same_text_in_other_tokens_is_lost_at_a_boundary(runtime):
    @function
    def whole(s):
        s += "say the end of the story" + gen("x", max_tokens=1, temperature=0)

    @function
    def spelled(s):
        s += "say " + gen("t", regex="t", token_healing=False) + "he end of the story"
        s += gen("x", max_tokens=1, temperature=0)

    first = whole.run(backend=runtime, token_healing=False)
    second = spelled.run(backend=runtime, token_healing=False)
    report = batch_report([first, second])
    (_, last) = tokens_of(report, "x")
    ids = runtime.encode(second._stream.executor.prompt(report_tip(second))).token_ids
    assert last.computed.get("boundary", 0) > 10
    assert last.computed.get("boundary", 0) <= len(ids)
    assert sum(last.computed.values()) + last.cached_tokens == last.prompt_tokens
    assert "boundary" not in tokens_of(report, "x")[0].computed
    assert "boundary" in str(report)


def report_tip(state):
    return list(state._stream.executor.cells)[-1].prefix


def test_texts_that_part_are_new_and_not_a_boundary(runtime):
    report = batch_report(judge.run_batch([{"essay": "rivers"}, {"essay": "ponds"}], backend=runtime))
    assert "boundary" not in report.computed()


def test_times_of_gens_and_selects(runtime):
    report = judge.run(essay="rivers", backend=runtime).report()
    for node in report.nodes:
        assert 0 <= node.recorded_s <= node.sent_s <= node.started_s <= node.ended_s <= report.costs.now_s
    for node in tokens_of(report, "note"):
        assert node.prefill_s > 0
        assert node.decode_s > 0
    (grade,) = tokens_of(report, "grade")
    assert grade.first_token_s is None
    assert grade.prefill_s > 0, "its choices were scored"
    assert math.isclose(sum(grade.probabilities.values()), 1.0)


def test_logprobs_colour_exactly_the_text(runtime):
    @function
    def p(s):
        s += user("go") + assistant(gen("x", max_tokens=12, temperature=0, logprobs=True, top_logprobs=2))

    state = p.run(backend=runtime)
    (node,) = state.report().nodes
    assert "".join(piece.text for piece in node.pieces) == state["x"]
    assert [piece.logprob for piece in node.pieces] == list(state.meta("x").logprobs)
    assert all(len(piece.others) == 2 for piece in node.pieces)
    assert node.pieces[0].others[0][1] == pytest.approx(node.pieces[0].logprob, abs=1e-4), "greedy: the likeliest"


def test_a_report_can_be_made_after_the_runtime_was_closed(tiny_llama, tmp_path):
    with LocalRuntime(tiny_llama, device="cpu", kv_tokens=4096) as runtime:
        states = judge.run_batch([{"essay": "rivers"}, {"essay": "ponds"}], backend=runtime)
    report = batch_report(states)
    assert len(report.costs.stretches) > 5
    page = report.save_html(tmp_path / "run.html").read_text(encoding="utf-8")
    assert "You judge essays." in page
    assert json.loads(report.save_trace(tmp_path / "run.json").read_text(encoding="utf-8"))["traceEvents"]


def test_a_progress_line_reads_the_engine(runtime):
    from radicel.seeing.progress import Meter

    meter = Meter([], runtime)
    state = judge.run(essay="rivers", backend=runtime)
    reading = Meter([state._stream.executor], runtime).read()
    assert (reading.done, reading.total, reading.running, reading.waiting) == (1, 1, 0, 0)
    assert 0 < meter.read(last=True).hit_rate < 1
    assert meter.read(last=True).tokens_per_s > 0
