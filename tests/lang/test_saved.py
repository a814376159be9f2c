"""`run_batch(save=path)`: what is in the file, going on from it, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pydantic
import pytest
from filelock import FileLock
from radicel import MockBackend, Reply, assistant, errors, function, gen, select, user
from radicel.saved.file import JsonLines
from radicel.saved.fingerprint import digest_of, program_print
from radicel.saved.values import Unsaved, decode, encode

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Order(pydantic.BaseModel):
    product: str
    due: datetime.date


@dataclasses.dataclass
class Point:
    x: int
    colour: Colour = Colour.RED


ORDER = '{"product": "mug\u2028é", "due": "2030-01-02"}'


@function
def review(s, text):
    s += user(f"Read {text}") + assistant(gen("order", schema=Order))
    with s.fork(2) as branches:
        for i, branch in enumerate(branches):
            branch += user(f"Aspect {i}") + assistant(gen("note", logprobs=True))
    s += user("Good?") + assistant(select("good", ["yes", "no"]))
    s["point"] = Point(3, Colour.BLUE)
    return s["order"].due, s["note"]


def answers(request):
    fixed = {"order": ORDER, "good": "yes"}
    return fixed.get(request.name) or Reply(f"note on {request.prompt[-30:-25]}", logprobs=None)


ITEMS = [{"text": f"mail {i}"} for i in range(4)]


def rows(path):
    return [json.loads(line) for line in path.read_bytes().splitlines() if line]


def test_a_second_run_asks_nothing_and_says_the_same(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    first = review.run_batch(ITEMS, backend=MockBackend(answers), save=path)
    silent = MockBackend([])
    second = review.run_batch(ITEMS, backend=silent, save=str(path))
    assert silent.requests == []
    for before, after in zip(first, second):
        assert after["order"] == before["order"] == Order(product="mug\u2028é", due=datetime.date(2030, 1, 2))
        assert after["note"] == before["note"]
        assert after["point"] == Point(3, Colour.BLUE)
        assert after.ret_value == before.ret_value
        assert (after.text(), after.messages()) == (before.text(), before.messages())
        assert after.variables() == before.variables() == ["order", "note", "good", "point"]
        assert after.meta("good") == before.meta("good")
        assert after.meta("good").probabilities == {"yes": 1.0, "no": 0.0}
        assert after.meta("note") == before.meta("note")
        assert "".join(after.text_iter("order")) == ORDER
        assert "".join(after.text_iter()) == before.text()
        assert after.error() is None
        assert "order" in after
        with pytest.raises(errors.UnknownVariableError):
            after["nothing"]
        with pytest.raises(errors.ProgramError, match="restored from the file"):
            after += "more"


def test_the_file(tmp_path):
    path = tmp_path / "results.jsonl"
    review.run_batch(ITEMS[:2], backend=MockBackend(answers), save=path)
    header, *items = rows(path)
    assert (header["radicel"], header["version"], header["program"]) == ("batch", 1, "review")
    assert set(header["parts"]) == {"review", "Order", "Point", "Colour"}
    assert sorted(row["item"] for row in items) == [0, 1]
    assert items[0]["variables"]["good"]["value"] == "yes"
    assert items[0]["text"][:3] == [["begin", "user"], ["text", f"Read mail {items[0]['item']}"], ["end"]]


def test_further_items_run_and_failed_ones_run_again(tmp_path):
    path = tmp_path / "results.jsonl"
    broken = MockBackend(lambda r: ValueError("no") if "mail 1" in r.prompt else answers(r))
    states = review.run_batch(ITEMS[:2], backend=broken, save=path)
    assert isinstance(states[1].error(), ValueError)
    assert next(row for row in rows(path) if "error" in row)["error"] == {"type": "ValueError", "message": "no"}
    mock = MockBackend(answers)
    states = review.run_batch(ITEMS, backend=mock, save=path)
    assert [state["good"] for state in states] == ["yes"] * 4
    assert {request.messages[0]["content"] for request in mock.requests} == {
        "Read mail 1",
        "Read mail 2",
        "Read mail 3",
    }
    silent = MockBackend([])
    assert all(state.error() is None for state in review.run_batch(ITEMS, backend=silent, save=path))
    assert silent.requests == []


def test_iterators_and_event_loops_save_too(tmp_path):
    path = tmp_path / "results.jsonl"
    states = review.run_batch(ITEMS, backend=MockBackend(answers), save=path, generator_style=True)
    assert next(states)["good"] == "yes"
    states.close()
    done = asyncio.run(review.arun_batch(ITEMS, backend=MockBackend(answers), save=path))
    assert [state["good"] for state in done] == ["yes"] * 4
    silent = MockBackend([])
    assert len(asyncio.run(review.arun_batch(ITEMS, backend=silent, save=path))) == 4
    assert silent.requests == []


def test_items_that_were_cancelled_are_not_in_the_file(tmp_path):
    path = tmp_path / "results.jsonl"
    slow = MockBackend(lambda r: Reply("x", delay=20 if "mail 1" in r.prompt else 0))

    @function
    def say(s, text):
        s += user(text) + assistant(gen("x"))

    states = say.run_batch(ITEMS, backend=slow, save=path, generator_style=True)
    next(states)
    states.close()
    assert 1 not in [row.get("item") for row in rows(path)]


def test_a_value_that_is_no_data_says_so_when_it_is_read(tmp_path):
    class Handle:
        pass

    @function
    def odd(s, x):
        s += gen("a")
        s["handle"] = Handle()
        return Handle()

    for _ in range(2):
        (state,) = odd.run_batch([{"x": 1}], backend=MockBackend({"a": "A"}), save=tmp_path / "r.jsonl")
    assert state["a"] == "A"
    with pytest.raises(errors.SavedRunError, match="variable 'handle' was not saved: a .*Handle is no data"):
        state["handle"]
    with pytest.raises(errors.SavedRunError, match="what the program returned was not saved"):
        _ = state.ret_value


def test_an_error_that_the_body_dealt_with_comes_back(tmp_path):
    @function
    def careful(s):
        s += gen("a", dtype=int)
        try:
            s["a"]
        except errors.RadicelError:
            s["dealt"] = True

    mock = MockBackend({"a": Reply("1", finish_reason="length")})
    for backend in (mock, MockBackend([])):
        (state,) = careful.run_batch([{}], backend=backend, save=tmp_path / "r.jsonl")
        assert state.error() is None
        assert state["dealt"] is True
        with pytest.raises(errors.IncompleteOutputError) as raised:
            state["a"]
        assert (raised.value.text, raised.value.name) == ("1", "a")


# ---- what is refused


@function
def plain(s, x, y=0):
    s += f"{x}" + gen("a")


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        ([{"x": 1}], {}, r"has item 1, and this batch has 1 items"),
        ([{"x": 1}, {"x": 3}], {}, r"item 1 was saved with other arguments"),
        ([{"x": 1}, {"x": 2, "y": 1}], {}, r"item 1 was saved with other arguments"),
        ([{"x": 1}, {"x": 2}], {"temperature": 0.5}, r"another version of 'plain'; changed since: sampling\. Give"),
    ],
)
def test_another_batch_is_refused(batch, options, message, tmp_path):
    path = tmp_path / "r.jsonl"
    plain.run_batch([{"x": 1}, {"x": 2}], backend=MockBackend({"a": "A"}), save=path)
    before = path.read_bytes()
    mock = MockBackend([])
    with pytest.raises(errors.SavedRunError, match=message):
        plain.run_batch(batch, backend=mock, save=path, **options)
    assert (path.read_bytes(), mock.requests) == (before, [])


PROGRAM = """
from radicel import function, gen
ASPECTS = ["a", "b"]
def helper(x):
    return x + 1   # a comment
@function
def p(s, x):
    s += f"{helper(x)} {ASPECTS}" + gen("a")
"""


def parts(text, tmp_path, name):
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    space = {"__name__": name}
    exec(compile(text, str(file), "exec"), space)
    return program_print(space["p"]).parts


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("# a comment", "# another\n", []),
        ("def helper(x):", "def helper( x ):", []),
        ("x + 1", "x + 2", ["helper"]),
        ('"b"', '"c"', ["ASPECTS"]),
        ("{ASPECTS}", "{ASPECTS}!", ["p"]),
        ("{helper(x)}", "{x}", ["p", "helper"]),
    ],
)
def test_a_program_is_its_source_and_what_the_source_names(old, new, changed, tmp_path):
    before = parts(PROGRAM, tmp_path, "before")
    assert set(before) == {"p", "helper", "ASPECTS"}
    parts(PROGRAM.replace(old, new), tmp_path, "after")
    now = program_print_of(PROGRAM.replace(old, new), tmp_path)
    assert now.changed(before) == changed


def program_print_of(text, tmp_path):
    file = tmp_path / "now.py"
    file.write_text(text)
    space = {"__name__": "now"}
    exec(compile(text, str(file), "exec"), space)
    return program_print(space["p"])


COUNTED = 0


def test_what_a_program_counts_is_no_part_of_it(tmp_path):
    inner = 0

    @function
    def counts(s, x):
        global COUNTED
        nonlocal inner
        COUNTED += 1
        inner += 1
        s += f"{x}" + gen("a")

    for _ in range(2):
        counts.run_batch([{"x": 1}], backend=MockBackend({"a": "A"}), save=tmp_path / "r.jsonl")
    assert (COUNTED, inner) == (1, 1)
    assert set(rows(tmp_path / "r.jsonl")[0]["parts"]) == {counts.__qualname__}


def test_a_trace_writes_nothing(tmp_path):
    @function
    def outer(s):
        states = plain.run_batch([{"x": 1}], save=tmp_path / "r.jsonl")
        s += states[0]["a"] + gen("b")

    assert [node.payload.name for node in outer.trace().generating] == ["a", "b"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, "1"), ([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), (b"a", "a"), (Point(1), Point(2)), ({1, 2}, {1}),
     (Path("a"), "a"), (None, False), (Colour.RED, Colour.BLUE), (Colour.RED, "red"), (len, max), (0.1, 0.2)],
)  # fmt: skip
def test_digests_tell_values_apart(one, other):
    assert digest_of(one) != digest_of(other)
    assert digest_of([one, {"k": one}]) == digest_of([one, {"k": one}])


def test_equal_values_have_one_digest():
    assert digest_of({"a": 1, "b": {1, 2}}) == digest_of({"b": {2, 1}, "a": 1})
    assert digest_of((1, 2)) == digest_of([1, 2])
    with pytest.raises(TypeError, match="a object has no fingerprint"):
        digest_of(object())


def test_an_argument_without_a_fingerprint_is_refused(tmp_path):
    with pytest.raises(TypeError, match="item 1 of the batch: a object has no fingerprint"):
        plain.run_batch([{"x": 1}, {"x": object()}], backend=MockBackend([]), save=tmp_path / "r.jsonl")
    assert list(tmp_path.iterdir()) == []


# ---- the file itself


@pytest.mark.parametrize("keep", [3, 40, -1, -30])
def test_a_torn_last_line_is_cut_off(keep, tmp_path):
    path = tmp_path / "r.jsonl"
    plain.run_batch([{"x": 1}, {"x": 2}], backend=MockBackend({"a": "A"}), save=path)
    path.write_bytes(path.read_bytes()[:keep])
    mock = MockBackend({"a": "A"})
    states = plain.run_batch([{"x": 1}, {"x": 2}], backend=mock, save=path)
    assert [state["a"] for state in states] == ["A", "A"]
    assert len(mock.requests) == (2 if keep > 0 else 1)
    assert next(row.get("item") for row in rows(path)) is None
    assert sorted(row["item"] for row in rows(path)[1:]) == [0, 1]


def test_wherever_it_is_torn_whole_lines_stay(tmp_path):
    path = tmp_path / "r.jsonl"
    items = [{"x": "é"}, {"x": 2}, {"x": 3}]
    plain.run_batch(items, backend=MockBackend({"a": "A\u2028é"}), save=path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 17):
        path.write_bytes(whole[:cut])
        kept = max(0, whole[:cut].count(b"\n") - 1)
        mock = MockBackend({"a": "A\u2028é"})
        assert [state["a"] for state in plain.run_batch(items, backend=mock, save=path)] == ["A\u2028é"] * 3
        assert len(mock.requests) == 3 - kept
        assert sorted(row["item"] for row in rows(path)[1:]) == [0, 1, 2]


@pytest.mark.parametrize("text", ["notes\n", "a line without an end", '{"a": 1}\n', "[1]\n", "\xff\n"])
def test_a_file_of_something_else_is_left_alone(text, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(errors.SavedRunError, match=r"notes\.txt"):
        plain.run_batch([{"x": 1}], backend=MockBackend([]), save=path)
    assert path.read_text(encoding="latin-1") == text


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "r.jsonl"
    plain.run_batch([{"x": 1}, {"x": 2}], backend=MockBackend({"a": "A"}), save=path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:9] + b"\n" + lines[2])
    with pytest.raises(errors.SavedRunError, match=r"r\.jsonl, line 2 is no JSON"):
        plain.run_batch([{"x": 1}, {"x": 2}], backend=MockBackend([]), save=path)


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "r.jsonl"
    with FileLock(f"{path}.lock"), pytest.raises(errors.SavedRunError, match="being written by another process"):
        plain.run_batch([{"x": 1}], backend=MockBackend({"a": "A"}), save=path)
    plain.run_batch([{"x": 1}], backend=MockBackend({"a": "A"}), save=path)


def test_one_batch_of_a_process_at_a_time(tmp_path):
    path = tmp_path / "r.jsonl"
    states = plain.run_batch([{"x": 1}], backend=MockBackend({"a": "A"}), save=path, generator_style=True)
    next(states)
    with pytest.raises(errors.SavedRunError, match="being written"):
        plain.run_batch([{"x": 1}], backend=MockBackend({"a": "A"}), save=path)
    states.close()
    plain.run_batch([{"x": 1}], backend=MockBackend([]), save=path)


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.SavedRunError, match="cannot be written"):
        plain.run_batch([{"x": 1}], backend=MockBackend([]), save=tmp_path / "file" / "r.jsonl")
    with pytest.raises(errors.SavedRunError, match="cannot be written"):
        plain.run_batch([{"x": 1}], backend=MockBackend([]), save=tmp_path)


def test_a_full_disk_is_told_and_no_state_is_lost(tmp_path, monkeypatch):
    def append(self, row):
        if "item" in row:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonLines, "append", append)
    with pytest.raises(errors.SavedRunError, match="No space left") as raised:
        plain.run_batch([{"x": 1}], backend=MockBackend({"a": "A"}), save=tmp_path / "r.jsonl")
    assert [state["a"] for state in raised.value.states] == ["A"]


SCRIPT = """
import signal, sys
from radicel import MockBackend, Reply, function, gen
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
@function
def p(s, x):
    s += f"{x}" + gen("a")
mock = MockBackend(lambda r: Reply("A", delay=60 if r.prompt == "3" else 0))
if sys.argv[2] == "again":
    mock = MockBackend({"a": "B"})
states = p.run_batch([{"x": i} for i in range(6)], backend=mock, save=sys.argv[1])
print([state["a"] for state in states])
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_what_was_done_before_the_end_of_the_process_is_kept(how, tmp_path):
    script, path = tmp_path / "script.py", tmp_path / "r.jsonl"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, script, path, "once"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < 6):
        time.sleep(0.02)
    process.send_signal(how)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert (b"KeyboardInterrupt" in err) == (how is signal.SIGINT)
    assert sorted(row["item"] for row in rows(path)[1:]) == [0, 1, 2, 4, 5]
    done = subprocess.run([sys.executable, script, path, "again"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['A', 'A', 'A', 'B', 'A', 'A']\n", done.stderr


# ---- values


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 1.5, "a\ud800", [1, [2]], {"a": {"b": 1}}, {"$": 1}, {1: "a", (2,): "b"}, (1, 2), {3}, frozenset(),
     b"\x00", float("inf"), Colour.RED, Point(1), datetime.datetime(2030, 1, 2, 3), Path("a/b"),
     Order(product="x", due=datetime.date(2030, 1, 2)), [Point(1), (Colour.BLUE,)]],
    ids=repr,
)  # fmt: skip
def test_values_come_back_equal_and_of_their_type(value):
    back = decode(json.loads(json.dumps(encode(value))), lambda name: None)
    assert back == value
    assert type(back) is type(value)


def test_types_that_are_gone_or_changed_are_told_apart_from_values():
    data = encode([Point(1)])
    data[0]["t"] = "nowhere:Point"
    gone = decode(data, lambda name: None)
    assert isinstance(gone, Unsaved)
    assert "nowhere.Point is not there" in gone.reason
    assert decode(data, lambda name: Point) == [Point(1)]
    data[0]["v"] = {"x": "text"}
    assert "takes it no longer" in decode(data, lambda name: Point).reason
    assert isinstance(decode({"$": "type", "t": "os:_Environ", "v": {}}, lambda name: None), Unsaved)


@pytest.mark.parametrize("value", [object(), {1: object()}, Point, lambda: 1])
def test_what_is_no_data_is_refused(value):
    with pytest.raises(TypeError):
        encode(value)
