"""`state.report()` and `batch_report`: what each value cost, in which branch it stands, when it waited and ran."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future, ThreadPoolExecutor

import openai_server
import pytest
from radicel import (
    MockBackend,
    OpenAIBackend,
    Reply,
    assistant,
    batch_report,
    errors,
    function,
    gen,
    select,
    system,
    user,
)
from radicel.backend import Generation, Handle, Meta
from radicel.seeing.chrome_trace import chrome_trace
from radicel.seeing.model import Asked, Fork, Joined, Said
from radicel.seeing.page import page

pytestmark = pytest.mark.filterwarnings("error")


@function
def judge(s, essay, sides=2):
    s += system("You judge.") + user(f"Essay: {essay}")
    with s.fork(sides) as branches:
        for index, branch in enumerate(branches):
            branch += user(f"Side {index}?") + assistant(gen("note", max_tokens=8))
    s += user("Notes: " + " ".join(s["note"])) + assistant(select("grade", ["good", "bad"]))


def mock():
    return MockBackend({"note": Reply("fine indeed", delay=0.02), "grade": "good"})


def test_every_value_is_there_with_its_branch_its_tokens_and_its_line():
    report = judge.run(essay="rivers", backend=mock()).report()
    assert [(n.kind, n.name, n.branch, n.text) for n in report.nodes] == [
        ("gen", "note", ("1 of 2",), "fine indeed"),
        ("gen", "note", ("2 of 2",), "fine indeed"),
        ("select", "grade", (), "good"),
    ]
    note = report.nodes[0]
    assert re.fullmatch(r".*test_report\.py:\d+", note.site)
    assert (note.state, note.generated_tokens, note.finish_reason) == ("done", 2, "stop")
    assert note.prompt_tokens == note.computed["unknown"] > 0, "a mock has no cache and gives no reasons"
    assert report.nodes[2].probabilities == {"good": 1.0, "bad": 0.0}
    assert (report.costs.unit, report.costs.stretch_unit) == ("bytes", "bytes")
    assert {one.computed for one in report.costs.stretches if one.length and not one.written} == {None}


def test_times_are_in_order_and_phases_add_up():
    report = judge.run(essay="rivers", backend=mock()).report()
    for node in report.nodes:
        assert 0 <= node.recorded_s <= node.sent_s <= node.started_s <= node.ended_s
    note, grade = report.nodes[0], report.nodes[2]
    assert note.started_s <= note.first_token_s <= note.ended_s
    assert note.waited_s + note.prefill_s + note.decode_s == pytest.approx(note.ended_s - note.recorded_s)
    assert note.ended_s - note.started_s >= 0.02
    assert grade.recorded_s >= note.ended_s, "its prompt reads the notes"
    assert grade.decode_s is None


def test_the_steps_are_the_program():
    report = judge.run(essay="rivers", backend=mock()).report()
    (program,) = report.programs
    assert (program.name, program.item, program.caller, program.error) == ("judge", 0, None, None)
    assert program.steps == (
        Said("system", "You judge."),
        Said("user", "Essay: rivers"),
        Fork(
            (
                (Said("user", "Side 0?"), Asked("assistant", 0)),
                (Said("user", "Side 1?"), Asked("assistant", 1)),
            )
        ),
        Joined("gather_variable"),
        Said("user", "Notes: fine indeed fine indeed"),
        Asked("assistant", 2),
    )


def test_forks_of_one_place_are_told_apart_and_nested_ones_are_inside():
    @function
    def nested(s):
        s += "a"
        first = s.fork(2)
        first += gen("x", max_tokens=1)
        second = s.fork(1)
        second[0] += "b"
        inner = second[0].fork(2)
        inner += gen("y", max_tokens=1)
        inner.join("append")
        second.join("append")

    report = nested.run(backend=MockBackend(["1", "2", "3", "4"])).report()
    said, one, two, joined = report.programs[0].steps
    assert (said, joined) == (Said("", "a"), Joined("append"))
    assert [len(fork.branches) for fork in (one, two)] == [2, 1]
    assert two.branches[0][:2] == (Said("", "b"), Fork(((Asked("", 2),), (Asked("", 3),))))
    assert [n.branch for n in report.nodes] == [("1 of 2",), ("2 of 2",), ("1 of 1", "1 of 2"), ("1 of 1", "2 of 2")]


def test_programs_that_a_program_calls_follow_it():
    @function
    def helper(s, topic):
        s += f"About {topic}:" + gen("tip", max_tokens=3)

    @function
    def outer(s):
        tips = [helper(topic=topic) for topic in ("tea", "salt")]
        s += " ".join(tip["tip"] for tip in tips) + gen("end", max_tokens=3)

    report = outer.run(backend=MockBackend({"tip": "good", "end": "done"})).report()
    assert [(p.name, p.caller) for p in report.programs] == [("outer", None), ("helper", 0), ("helper", 0)]
    assert [(n.name, n.program) for n in report.nodes] == [("end", 0), ("tip", 1), ("tip", 2)]


def test_a_batch_with_failures():
    def reply(request):
        return RuntimeError("no <b>model</b>") if "three" in request.prompt else "fine"

    @function
    def p(s, x):
        s += f"{x}:" + gen("a", max_tokens=3) + "then" + gen("b", max_tokens=3)

    states = p.run_batch([{"x": x} for x in ("one", "two", "three")] + [{"y": 1}], backend=MockBackend(reply))
    report = batch_report(states)
    assert [(program.item, program.name) for program in report.programs] == [(i, "p") for i in range(4)]
    assert [bool(program.error) for program in report.programs] == [False, False, True, True]
    assert [n.state for n in report.nodes] == ["done"] * 4 + ["failed", "failed"]
    assert report.nodes[4].error == "RuntimeError: no <b>model</b>"
    text = str(report)
    assert "4 programs, 2 of them failed; 6 values" in text
    assert "item 2, p: RuntimeError: no <b>model</b>" in text


def test_cancelled_and_unsent_values():
    @function
    def p(s):
        s += gen("a", max_tokens=3) + "x" + gen("b", max_tokens=3)
        s.cancel()

    state = p.run(backend=MockBackend([Reply("slow", delay=30)]), stream=True)
    with pytest.raises(errors.CancelledError):
        state["a"]
    report = state.report()
    assert [node.state for node in report.nodes] == ["cancelled", "cancelled"]
    assert report.nodes[1].sent_s is None
    assert report.nodes[1].waited_s is None


def test_a_report_inside_the_body_shows_what_is_there():
    seen = []

    @function
    def p(s):
        s += "q" + gen("a", max_tokens=3)
        assert s["a"] == "1"
        s += "r" + gen("b", max_tokens=3)
        seen.append(s.report())

    p.run(backend=MockBackend({"a": "1", "b": Reply("2", delay=0.2)}))
    (report,) = seen
    assert report.nodes[0].state == "done"
    assert report.nodes[1].state in ("recorded", "sent")
    assert report.nodes[1].ended_s is None
    assert "gen b" in str(report)


def test_a_program_without_values_and_no_states_at_all():
    @function
    def p(s):
        s += "nothing"

    assert str(p.run(backend=mock()).report()).startswith("1 program; 0 values in 0 µs")
    assert str(batch_report([])).startswith("0 programs; 0 values")


def test_many_values_are_one_row_per_line():
    states = judge.run_batch([{"essay": str(i), "sides": 3} for i in range(30)], backend=mock())
    text = str(batch_report(states))
    (row,) = re.findall(r"^gen note .*$", text, re.M)
    assert re.search(r"\s90\s", row)
    assert len(text.splitlines()) < 16


def test_samples_are_summed():
    @function
    def p(s):
        s += "q" + gen("a", max_tokens=5, n=3)

    (node,) = p.run(backend=MockBackend([Reply(texts=["one", "two words", "three"])])).report().nodes
    assert (node.samples, node.generated_tokens, node.text) == (3, 4, "one")


def test_logprobs_come_as_pieces():
    @function
    def p(s):
        s += "q" + gen("a", max_tokens=5, logprobs=True, return_text_in_logprobs=True)

    reply = Reply("so it", pieces=["so", " it"], logprobs=[-0.5, -2.0])
    (node,) = p.run(backend=MockBackend([reply])).report().nodes
    assert [(piece.text, piece.logprob) for piece in node.pieces] == [("so", -0.5), (" it", -2.0)]
    assert node.mean_logprob == -1.25


def test_times_of_another_process_are_not_believed():
    """A replayed run has the metas of the recorded one."""

    class Replayed(MockBackend):
        def submit(self, request, on_text=None):
            future = Future()
            meta = Meta(finish_reason="stop", submitted_at=self.began, queue_s=1.0, first_token_s=2.0, total_s=9.0)
            future.set_result([Generation("fine", meta=meta)])
            return Handle(future)

    @function
    def p(s):
        s += "q" + gen("a", max_tokens=3)

    for began in (5e9, -5e9, None):
        backend = Replayed()
        backend.began = began
        (node,) = p.run(backend=backend).report().nodes
        assert 0 <= node.sent_s <= node.started_s <= node.ended_s < 5.0


# -- the trace -------------------------------------------------------------------------------------------------------


def test_the_trace_is_chrome_s_format(tmp_path):
    states = judge.run_batch([{"essay": "a"}, {"essay": "b"}], backend=mock())
    path = batch_report(states).save_trace(tmp_path / "run.json")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all(isinstance(e["ts"], int) and isinstance(e["dur"], int) and e["dur"] >= 0 for e in slices)
    assert sum(event["name"] == "gen note" for event in slices) == 4
    assert {event["name"] for event in slices} >= {"gen note", "select grade", "decode", "score"}
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"item 0: judge", "item 1: judge"}
    lanes: dict = {}
    for event in slices:
        lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():  # Perfetto drops slices of one lane that overlap without one being in the other
        for begin, end in spans:
            assert all(not (begin < b < end < e) for b, e in spans)


# -- notebooks -------------------------------------------------------------------------------------------------------


def test_a_state_in_a_notebook_shows_its_conversation():
    state = judge.run(essay="<script>alert(1)</script>", backend=mock())
    html = state._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script" not in html
    assert re.search(r'<mark title="select grade"[^>]*>good</mark>', html)
    assert html.count(">system</span>") == 1
    assert repr(state).startswith("<State: ")


def test_a_running_state_in_a_notebook_does_not_wait():
    @function
    def p(s):
        s += user("q") + assistant(gen("a", max_tokens=3))

    state = p.run(backend=MockBackend([Reply("slow", delay=30)]), stream=True)
    assert state._repr_html_()
    state.cancel()
    assert "CancelledError" in state._repr_html_()


def test_a_report_in_a_notebook_is_the_page_in_a_frame():
    html = judge.run(essay="x", backend=mock()).report()._repr_html_()
    assert html.startswith('<iframe title="Radicel run report"')
    assert "<script" not in html, "it is inside the frame's attribute"


def test_reports_of_a_running_batch_never_stumble():
    backend = MockBackend(lambda request: "good" if request.kind == "select" else Reply("one two", delay=0.001))
    states = judge.run_batch(
        [{"essay": str(i), "sides": 3} for i in range(40)], backend=backend, generator_style=True, progress_bar=False
    )
    seen, all_states = set(), []
    for state in states:
        all_states.append(state)
        report = batch_report(all_states)
        seen.update(node.state for node in report.nodes)
        assert str(report)
        assert page(report.costs)
        assert chrome_trace(report.costs)
    assert seen == {"done"}
    running = judge.run(essay="x", sides=3, backend=backend, stream=True)
    while running.error() is None and not running._stream.executor.finished:
        report = batch_report([running])
        seen.update(node.state for node in report.nodes)
        assert page(report.costs)
    assert seen <= {"done", "sent", "recorded"}


def test_a_report_of_a_remote_server(tmp_path):
    pytest.importorskip("openai")

    def answer(path, body):
        tokens = [{"token": letter, "logprob": -0.5, "bytes": None, "top_logprobs": []} for letter in "fine!"]
        return openai_server.chat("fine!", logprobs={"content": tokens})

    @function
    def note(s, essay):
        s += user(f"Essay: {essay}") + assistant(gen("note", max_tokens=8, logprobs=True))

    server = openai_server.Server()
    server.answer = answer
    try:
        with OpenAIBackend("m", base_url=server.url) as backend:
            states = note.run_batch([{"essay": "a"}, {"essay": "b"}], backend=backend)
    finally:
        server.close()
    report = batch_report(states)
    assert [(n.prompt_tokens, n.cached_tokens, n.generated_tokens) for n in report.nodes] == [(11, 4, 5)] * 2
    assert report.computed() == {"unknown": 14}
    assert [[(p.text, p.logprob) for p in n.pieces] for n in report.nodes] == [
        [(letter, -0.5) for letter in "fine!"]
    ] * 2
    assert "prompt tokens: 22 in all, 8 cached (36.4%), 14 computed" in str(report)
    assert report.save_html(tmp_path / "run.html").stat().st_size > 1_000
    events = json.loads(chrome_trace(report.costs))["traceEvents"]
    assert {"gen note", "prefill", "decode"} <= {event["name"] for event in events}


def test_reports_from_several_threads_say_the_same():
    states = judge.run_batch([{"essay": str(i)} for i in range(8)], backend=mock())
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: (str(batch_report(states)), page(batch_report(states).costs)), range(8)))
    assert len({text for text, _ in found}) == len({html for _, html in found}) == 1
