"""Random programs on a backend that answers late, fails and is cancelled: every run ends, and good ones are right."""

from __future__ import annotations

import random
import threading
import time

import pytest
from radicel import MockBackend, Reply, errors, function, gen, select

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Boom(Exception):
    pass


def backend(seed: int, failing: float) -> MockBackend:
    dice = random.Random(seed)

    def reply(request):
        if dice.random() < failing:
            return Boom(request.prompt)
        text = request.choices[0] if request.kind == "select" else f"<{len(request.prompt)}>"
        return Reply(text, delay=dice.choice([0.0, 0.0, 0.001, 0.004]))

    return MockBackend(reply)


def checked(dice: random.Random, s, name: str, before: str) -> str:
    """Appends a value, and the text it must have."""
    if dice.random() < 0.2:
        s += select(name, ["yes", "no"])
        return before + "yes"
    s += gen(name)
    return f"{before}<{len(before)}>"


@function
def inner(s, seed):
    walk(random.Random(seed), s, "", 1)


def walk(dice: random.Random, s, text: str, depth: int) -> str:
    """Writes at random; returns the text that the state must then have."""
    for _ in range(dice.randint(1, 4)):
        kind = dice.choice(["text", "gen", "read", "fork", "append", "first", "copy", "call", "drop", "inline"])
        if kind == "text":
            s += "t"
            text += "t"
        elif kind == "gen" or depth == 0:
            text = checked(dice, s, f"v{dice.randint(0, 2)}", text)
        elif kind == "read":
            text = checked(dice, s, "r", text)
            assert text.endswith(s["r"])
        elif kind in ("fork", "append"):
            branches = s.fork(dice.randint(1, 3))
            ends = [walk(dice, branch, text, depth - 1) for branch in branches]
            branches.join("gather_variable" if kind == "fork" else "append")
            if kind == "append":
                text += "".join(end[len(text) :] for end in ends)
        elif kind == "first":
            branches = s.fork(2)
            ends = [walk(dice, branch, text, depth - 1) for branch in branches]
            branches.join("first")
            text = ends[ends.index(s.text())]
        elif kind == "copy":
            with s.copy() as c:
                checked(dice, c, "copied", text)
            assert s["copied"] in ("yes", f"<{len(text)}>")
        elif kind == "call":
            state = inner(dice.random())
            if dice.random() < 0.5:
                state.text()
        elif kind == "drop":
            s.fork(2).__iadd__(gen("dropped") + gen("dropped"))
        else:
            s += inner_text()
            text += "i"
    return text


@function
def inner_text(s):
    s += "i"


@function
def outer(s, seed):
    return walk(random.Random(seed), s, "", 2)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_that_go_well_have_the_text_they_must(seed):
    states = outer.run_batch([(seed * 100 + i,) for i in range(40)], backend=backend(seed, 0.0))
    for state in states:
        assert state.error() is None, state.error()
        assert state.text() == state.ret_value
        assert "".join(state.text_iter()) == state.ret_value


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_that_fail_end_with_the_backends_error(seed):
    states = outer.run_batch([(seed * 100 + i,) for i in range(40)], backend=backend(seed, 0.05))
    assert {type(state.error()) for state in states} == {type(None), Boom}
    assert all(state.text() == state.ret_value for state in states if state.error() is None)


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_cancelled_at_random_end(seed):
    dice = random.Random(seed)
    mock = backend(seed, 0.01)
    states = [outer.run(dice.random(), backend=mock, stream=True) for _ in range(40)]

    def cancel():
        for state in dice.sample(states, 20):
            time.sleep(dice.random() * 0.002)
            state.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    for state in states:
        state._stream.executor.wait_finished(timeout=20.0)
        assert state._stream.executor.finished
        assert isinstance(state.error(), (type(None), Boom, errors.CancelledError))
    canceller.join()
