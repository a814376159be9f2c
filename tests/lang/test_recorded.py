"""`record` and `replay`: the same values without what answered, and what is said where a program changed."""

from __future__ import annotations

import json
import math
import threading

import pydantic
import pytest
from radicel import (
    MockBackend,
    Reply,
    assistant,
    errors,
    function,
    gen,
    get_default_backend,
    select,
    set_default_backend,
    user,
)
from radicel.backend import GraphBackend, PlannedRequest
from radicel.testing import check_snapshot, record, replay

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Size(pydantic.BaseModel):
    width: int


@function
def measure(s, thing, branches=3, temperature=0.7):
    s += user(f"How wide is a {thing}?") + assistant(gen("size", schema=Size, max_tokens=20))
    with s.fork(branches) as forks:
        for fork in forks:
            fork += user("A word?") + assistant(gen("word", temperature=temperature))
    s += user("Sure?") + assistant(select("sure", ["yes", "no"]))
    return s["size"].width


def answering():
    """Answers that no two calls share."""
    count = iter(range(1000))

    def answer(request):
        if request.name == "size":
            return f'{{"width": {next(count)}}}'
        return {"yes": -0.5, "no": -1.5} if request.kind == "select" else f"word {next(count)} of many"

    return MockBackend(answer)


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "folder" / "run.jsonl"
    with answering() as mock, record(path, mock):
        state = measure.run("desk")
    return path, state


def test_a_replay_gives_the_same(recording):
    path, before = recording
    with replay(path) as backend:
        state = measure.run("desk")
        assert backend.unused() == []
    assert state["size"] == before["size"] == Size(width=0)
    assert state["word"] == before["word"] == [f"word {i} of many" for i in (1, 2, 3)]
    assert state["sure"] == "yes"
    assert state.meta("sure").probabilities == before.meta("sure").probabilities
    assert state.meta("size") == before.meta("size")
    assert state.text() == before.text()
    assert [request.name for request in backend.requests] == ["size", "word", "word", "word", "sure"]


def test_it_is_given_or_is_the_default(tmp_path):
    path = tmp_path / "run.jsonl"
    mock = answering()
    set_default_backend(mock)
    try:
        with record(path) as recorder:
            assert get_default_backend() is recorder
            measure.run("desk")
            measure.run("chair", backend=recorder)
        assert get_default_backend() is mock
        with replay(path) as backend:
            assert get_default_backend() is backend
            assert measure.run("chair", backend=backend)["word"][0].startswith("word 5")
            measure.run("desk")
        assert get_default_backend() is mock
    finally:
        set_default_backend(None)
        mock.close()
    with pytest.raises(errors.NoBackendError):
        record(path)


def test_without_a_block(tmp_path):
    path = tmp_path / "run.jsonl"
    with answering() as mock:
        recorder = record(path, mock)
        measure.run("desk", backend=recorder)
        recorder.close()
        assert mock.requests
        assert recorder.requests is mock.requests  # what it does not have itself is the other backend's
    with replay(path) as backend:
        assert measure.run("desk", backend=backend).ret_value == 0


def test_a_batch_and_equal_calls(tmp_path):
    path = tmp_path / "run.jsonl"
    items = [{"thing": thing} for thing in ("desk", "chair", "desk")]
    with answering() as mock, record(path, mock):
        before = measure.run_batch(items)
    for _ in range(2):
        with replay(path):
            after = measure.run_batch(items)
        assert [state.ret_value for state in after] == [state.ret_value for state in before]
        assert [state["word"] for state in after] == [state["word"] for state in before]


def test_streams_samples_logprobs_and_raw_text(tmp_path):
    @function
    def tell(s):
        s += "Once " + gen("a", n=2, logprobs=True, stop="!", stop_regex="x+") + " and " + gen("b", regex="[a-z]+")

    path = tmp_path / "run.jsonl"
    mock = MockBackend({"a": Reply(texts=["upon a! time", "again a!"]), "b": "word"})
    with mock, record(path, mock):
        before = tell.run()
    with replay(path):
        state = tell.run(stream=True)
        assert "".join(state.text_iter("a")) == "upon a"
        assert state["a"] == before["a"] == ["upon a", "again a"]
        assert state["b"] == "word"
    assert [meta.matched_stop for meta in state.meta("a")] == ["!", "!"]
    assert state.meta("a") == before.meta("a")


def test_errors_are_recorded_too(tmp_path):
    @function
    def fail(s, x):
        s += user(x) + assistant(gen("a"))

    raised = [
        errors.ContextLengthError("too long"),
        errors.OutputValidationError("no", text="t", name="a"),
        OSError("x"),
    ]
    path = tmp_path / "run.jsonl"
    mock = MockBackend(list(raised))
    with mock, record(path, mock):
        before = fail.run_batch([{"x": "0"}, {"x": "1"}, {"x": "2"}])
    assert [type(state.error()) for state in before] == [type(error) for error in raised]
    with replay(path):
        after = fail.run_batch([{"x": "0"}, {"x": "1"}, {"x": "2"}])
    assert isinstance(after[0].error(), errors.ContextLengthError)
    assert (after[1].error().text, after[1].error().name) == ("t", "a")
    assert isinstance(after[2].error(), errors.BackendError)
    assert str(after[2].error()) == "OSError: x"


def test_what_was_cancelled_is_cancelled_again(tmp_path):
    @function
    def race(s):
        with s.fork(2) as forks:
            for i, fork in enumerate(forks):
                fork += f"{i}" + gen("a")
            forks.join("first")

    path = tmp_path / "run.jsonl"
    mock = MockBackend(lambda request: Reply("slow", delay=30) if request.prompt == "0" else "quick")
    with mock, record(path, mock):
        assert race.run()["a"] == "quick"
    rows = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert [("cancelled" in row, "answer" in row) for row in rows] == [(True, False), (False, True)]
    with replay(path):
        assert race.run()["a"] == "quick"


# ---- a changed program


@pytest.mark.parametrize(
    ("arguments", "call", "expected", "got", "words"),
    [
        ({"thing": "lamp"}, "gen 'size'", "desk", "lamp", r"the prompt differs from character 31 on"),
        ({"temperature": 0.1}, "gen 'word'", "temperature=0.7", "temperature=0.1", "temperature differs"),
        ({"branches": 4}, "gen 'word'", "3 times", "once more", "asked for more often than it was recorded"),
        ({"branches": 2}, "gen 'word'", "gen 'word'", None, "a recorded call was not asked for"),
    ],
)
def test_a_changed_program_is_told_what_changed(arguments, call, expected, got, words, recording):
    path, _ = recording
    with pytest.raises(errors.ReplayError, match=words) as raised, replay(path):
        measure.run(**{"thing": "desk", **arguments})
    error = raised.value
    assert error.call == call
    assert expected in error.expected
    assert error.got is got or got in error.got
    assert str(path) in str(error)
    assert call in str(error)


def test_another_constraint_other_choices_another_call(recording):
    path, _ = recording

    @function
    def other(s, what):
        if what == "name":
            s += user("x") + assistant(gen("unheard"))
            return
        s += user("How wide is a desk?")
        s += (
            assistant(gen("size", regex="[0-9]+", max_tokens=20))
            if what == "constraint"
            else assistant(select("sure", ["yes", "perhaps"]))
        )

    for what, words in {
        "name": r"gen 'unheard': no such call was recorded; recorded: \"gen 'size', gen 'word', select 'sure'\"",
        "constraint": "gen 'size': the constraint differs; recorded: .*schema.*asked: .*regex",
        "choices": "select 'sure': the prompt differs",
    }.items():
        with pytest.raises(errors.ReplayError, match=words), replay(path):
            other.run(what)


def test_an_item_of_a_batch_does_not_keep_it_to_itself(recording):
    path, _ = recording
    backend = replay(path, all_used=False)
    (state,) = measure.run_batch([{"thing": "lamp"}], backend=backend)
    assert isinstance(state.error(), errors.ReplayError)
    with pytest.raises(errors.ReplayError, match="the prompt differs"):
        backend.__exit__()


def test_calls_that_are_not_needed_may_stay(recording):
    path, _ = recording
    with replay(path, all_used=False) as backend:
        pass
    assert backend.unused() == ["gen 'size'", "gen 'word'", "gen 'word'", "gen 'word'", "select 'sure'"]


def test_an_error_in_the_block_is_the_one_that_is_raised(recording):
    path, _ = recording
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), replay(path):
        1 / 0  # noqa: B018
    mock = MockBackend([ZeroDivisionError])
    with mock, pytest.raises(ZeroDivisionError), record(path, mock):
        measure.run("lamp")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["run.jsonl"]


def test_how_a_program_cuts_its_literals_is_no_change(tmp_path):
    @function
    def cut(s, parts):
        for part in parts:
            s += part
        s += gen("a")

    path = tmp_path / "run.jsonl"
    with MockBackend({"a": "A"}) as mock, record(path, mock):
        cut.run(["one", " two"])
    with replay(path):
        assert cut.run(["o", "ne t", "wo"])["a"] == "A"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no recording .*with record"),
        ('{"a": 1}\n', "is no file that record"),
        ("", "is no file that record"),
        ("no JSON\n", "line 1 is no JSON"),
        ('{"radicel": "recording"}\n{"call"', "line 2 is no JSON"),
    ],
)
def test_files_that_are_no_recordings(text, words, tmp_path):
    if text is not None:
        (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(errors.ReplayError, match=words):
        replay(tmp_path / "run.jsonl")


def test_a_block_that_recorded_nothing_says_so(tmp_path):
    mock, other = answering(), answering()
    with mock, other, pytest.raises(errors.ReplayError, match="nothing was"), record(tmp_path / "r.jsonl", mock):
        measure.run("desk", backend=other)
    assert list(tmp_path.iterdir()) == []


# ---- backends that make use of the future


class Graphs(MockBackend):
    """A mock with graphs of requests."""

    def __init__(self, replies):
        super().__init__(replies)
        self.waves = []
        self.kv_bytes_per_token = 7

    def open_graph(self):
        outer = self

        class Session:
            def submit(self, requests):
                outer.waves.append(len(requests))
                return [
                    outer.submit(p.request, p.on_text) if p.request.__class__.__name__ == "GenerateRequest"
                    else outer.submit_prefill(p.request.prompt)
                    for p in requests
                ]  # fmt: skip

            def withdraw(self, places): ...

            def close(self):
                outer.waves.append("closed")

        return Session()


def test_graphs_stay_graphs(tmp_path):
    from radicel.backend import GenerateRequest, PrefillRequest
    from radicel.prompt import Text

    with Graphs({"a": "A"}) as graphs, answering() as plain:
        recorder = record(tmp_path / "r.jsonl", graphs)
        assert isinstance(recorder, GraphBackend)
        assert not isinstance(record(tmp_path / "x.jsonl", plain), GraphBackend)
        assert recorder.kv_bytes_per_token == 7
        session = recorder.open_graph()
        request = GenerateRequest((Text("p"),), name="a")
        handles = session.submit([PlannedRequest(PrefillRequest((Text("p"),)), 0), PlannedRequest(request, 1)])
        assert handles[1].result(5)[0].text == "A"
        session.withdraw([2])
        session.close()
        assert graphs.waves == [2, "closed"]
        recorder.close()
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert rows[1]["answer"][0]["text"] == "A"


def test_values_that_json_has_no_word_for(tmp_path):
    @function
    def choose(s):
        s += user("?") + assistant(select("a", ["x", "y"]))

    with MockBackend({"a": {"x": -1.0}}) as mock, record(tmp_path / "r.jsonl", mock):
        before = choose.run()
    with replay(tmp_path / "r.jsonl"):
        after = choose.run()
    assert after.meta("a").choice_logprobs == before.meta("a").choice_logprobs
    assert after.meta("a").choice_logprobs["y"] == -math.inf


def test_many_threads_record_one_file(tmp_path):
    path = tmp_path / "r.jsonl"
    with MockBackend(lambda request: request.prompt[::-1]) as mock, record(path, mock) as recorder:

        @function
        def say(s, x):
            s += f"{x}" + gen("a")

        threads = [threading.Thread(target=lambda i=i: say.run(i, backend=recorder)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with replay(path):
        assert [state["a"] for state in say.run_batch([(i,) for i in range(20)])] == [str(i)[::-1] for i in range(20)]


# ---- snapshots


def test_a_plan_is_compared_with_a_file(tmp_path, monkeypatch):
    file = tmp_path / "snapshots" / "measure.txt"
    graph = measure.plan([{"thing": "desk"}, {"thing": "door"}])
    with pytest.raises(AssertionError, match="no snapshot .*RADICEL_UPDATE_SNAPSHOTS=1"):
        check_snapshot(file, graph)
    monkeypatch.setenv("RADICEL_UPDATE_SNAPSHOTS", "1")
    check_snapshot(file, graph)
    monkeypatch.delenv("RADICEL_UPDATE_SNAPSHOTS")
    check_snapshot(file, measure.plan([{"thing": "desk"}, {"thing": "door"}]))
    text = file.read_text()
    assert "10 requests of 2 calls" in text
    assert "gen word: requests 6, waves [2], prompt " in text
    assert "line " not in text
    with pytest.raises(AssertionError, match=r"(?s)differs from what.*-gen word: requests 6.*\+gen word: r"):
        check_snapshot(file, measure.plan([{"thing": "desk", "branches": 2}, {"thing": "door"}]))


def test_a_trace_and_a_text_are_compared_without_places(tmp_path, monkeypatch):
    @function
    def opens(s):
        s += gen("a")
        if s["a"]:
            s += "more"

    monkeypatch.setenv("RADICEL_UPDATE_SNAPSHOTS", "1")
    check_snapshot(tmp_path / "trace.txt", opens.trace())
    check_snapshot(tmp_path / "text.txt", "a text")
    monkeypatch.delenv("RADICEL_UPDATE_SNAPSHOTS")
    check_snapshot(tmp_path / "trace.txt", opens.trace())
    check_snapshot(tmp_path / "text.txt", "a text\n")
    text = (tmp_path / "trace.txt").read_text()
    assert "open end of opens 'a': " in text
    assert "test_recorded.py" not in text
    with pytest.raises(TypeError, match="not a int"):
        check_snapshot(tmp_path / "text.txt", 5)
