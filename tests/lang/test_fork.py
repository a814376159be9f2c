"""Forks and joins in their three modes."""

from __future__ import annotations

import gc
import time

import pytest
from radicel import MockBackend, Reply, assistant, errors, function, gen, system, user


def run(body, replies=(), **keywords):
    mock = MockBackend(replies)
    return function(body).run(backend=mock, **keywords), mock


def test_branches_are_in_flight_together_and_share_the_prefix(held):
    @function
    def p(s):
        s += "prefix "
        with s.fork(3) as b:
            b += lambda i: f"{i}: " + gen("x")
        s += "joined " + gen("y")

    state = p.run(backend=held, stream=True)
    requests = held.wait(3)
    assert [r.text for r in requests] == ["prefix 0: ", "prefix 1: ", "prefix 2: "]
    assert len({id(r.request.prompt[0]) for r in requests}) == 1
    for request in reversed(requests):
        request.answer("x" + request.text[-3])
    last = held.wait(4)[3]
    assert last.text == "prefix joined "
    last.answer("!")
    assert state["x"] == ["x0", "x1", "x2"]  # branch order, not the order of arrival


def test_sequence_protocol_of_branches():
    def body(s):
        b = s.fork(2)
        b[0] += "zero" + gen("x")
        b[1] += "one" + gen("x")
        for i, branch in enumerate(b):
            branch += f" {i} " + gen("y")
        b += "!"
        b += ["a", "b"]
        b += lambda i: str(i)
        b += [gen("z"), gen("z")]
        assert (len(b), len(list(b)), len(b[0:1]), b[-1] is b[1]) == (2, 2, 1, True)
        assert b["y"] == [b[0]["y"], b[1]["y"]]
        with pytest.raises(errors.InvalidValueError, match="3 items for 2 branches"):
            b += ["a", "b", "c"]
        with pytest.raises(TypeError, match="cannot be replaced"):
            b[0] = b[1]
        with pytest.raises(TypeError, match="int"):
            b += 3
        with pytest.raises(IndexError):
            b[2]
        return [branch.text() for branch in b]

    state, _ = run(body, MockReplies := {"x": "X", "y": "Y", "z": "Z"})
    assert MockReplies
    assert state.ret_value == ["zeroX 0 Y!a0Z", "oneX 1 Y!b1Z"]


def test_gather_makes_lists_also_of_names_the_parent_had_and_of_meta():  # A16
    def body(s):
        s += gen("x") + gen("kept")
        b = s.fork(3)
        b[0] += gen("x")
        b[2] += gen("x")
        b[1]["own"] = 1
        assert b[1]["x"] == "parent"  # inherited
        b.join()
        return s["x"], s["kept"], s["own"]

    state, _ = run(body, ["parent", "k", "zero", "two words"])
    assert state.ret_value == (["zero", "two words"], "k", [1])
    assert [m.completion_tokens for m in state.meta("x")] == [1, 2]
    assert [m.completion_tokens for m in state.get_meta_info("x")] == [1, 2]


def test_nested_forks_gather_lists_of_lists():
    def body(s):
        with s.fork(2) as outer:
            for i, branch in enumerate(outer):
                branch += str(i)
                with branch.fork(2) as inner:
                    inner += lambda j: str(j) + gen("x")

    state, mock = run(body, lambda request: request.prompt)
    assert state["x"] == [["00", "01"], ["10", "11"]]
    assert len(mock.requests) == 4


def test_a_failed_branch_makes_the_join_raise_naming_the_branch():
    boom = RuntimeError("boom")

    def body(s):
        with s.fork(3) as b:
            b += gen("x")

    with pytest.raises(RuntimeError, match=r"in branch 1 of 3 of the fork at .*test_fork\.py:\d+") as raised:
        run(body, ["a", boom, "c"])
    assert raised.value is boom

    def dealing(s):
        b = s.fork(3)
        b += gen("x")
        try:
            b.join()
        except RuntimeError as error:
            s += f"dealt with {error}"
            return list(error.__notes__)
        return None

    state, _ = run(dealing, ["a", RuntimeError("boom"), "c"])
    assert state.text() == "dealt with boom"
    assert "branch 1 of 3" in state.ret_value[0]


def test_append_adds_the_branches_text_in_order_without_waiting(held):
    @function
    def p(s):
        s += "start "
        b = s.fork(2)
        b += lambda i: f"[{i}:" + gen("x") + "]"
        b.join("concate_and_append")
        s += " end " + gen("y")
        appended.append(True)

    appended = []
    state = p.run(backend=held, stream=True)
    first, second = held.wait(2)
    second.answer("B")
    first.answer("A")
    last = held.wait(3)[2]
    assert last.text == "start [0:A][1:B] end "
    assert appended
    last.answer("!")
    assert state.text() == "start [0:A][1:B] end !"
    assert "x" not in state


def test_append_of_whole_turns_and_of_nested_forks():
    def body(s):
        s += system("S")
        b = s.fork(2)
        b += lambda i: user(str(i)) + assistant(gen("x"))
        inner = b[1].fork(1)
        inner += user("inner") + assistant(gen("x"))
        inner.join("append")
        b.join("append")
        s += user("last")

    state, _ = run(body, lambda request: "x")
    assert [m["content"] for m in state.messages()] == ["S", "0", "x", "1", "x", "inner", "x", "last"]
    assert list(state.text_iter()) == [state.text()]


def test_append_of_a_branch_that_left_a_turn_open_is_refused():
    def body(s):
        b = s.fork(2)
        with b[1].user():
            b[1] += "x"
            with pytest.raises(errors.RoleError, match="branch 1 ends in a turn of 'user'"):
                b.join("append")

    run(body)


def test_append_of_a_failed_branch_fails_what_comes_after():
    boom = RuntimeError("boom")

    def body(s):
        b = s.fork(2)
        b += gen("x")
        b.join("append")
        s += gen("y")

    with pytest.raises(RuntimeError) as raised:
        run(body, ["a", boom, "never"])
    assert raised.value is boom


def test_first_continues_as_the_branch_that_ended_first_and_cancels_the_others(held):
    @function
    def p(s):
        s += "base "
        b = s.fork(3)
        b += lambda i: f"{i} " + gen("x") + gen("z")
        b[1]["mark"] = "one"
        b.join("first")
        s += "! " + gen("y")
        return s["x"], s["mark"]

    state = p.run(backend=held, stream=True)
    requests = held.wait(3)
    requests[1].answer("quick")
    held.wait(4)[3].answer("er")
    last = held.wait(5)[4]
    assert last.text == "base 1 quicker! "
    assert [r.cancelled for r in requests] == [True, False, True]
    last.answer("end")
    assert state.ret_value == ("quick", "one")
    assert state.text() == "base 1 quicker! end"
    assert "".join(state.text_iter()) == state.text()
    assert state.error() is None


def test_what_a_loser_started_below_it_fails_nobody(held):
    @function
    def p(s):
        branches = s.fork(2)
        for branch in branches:
            branch += gen("a")
            with branch.copy() as c:
                c += gen("b")
            twigs.append(branch.fork(2))
            twigs[-1] += gen("c")
        branches.join("first")

    twigs = []
    state = p.run(backend=held, stream=True)
    held.wait(2)[0].answer("won")
    for request in held.wait(5)[2:]:
        request.answer("v")
    assert (state["a"], state["b"]) == ("won", "v")
    assert state.error() is None
    assert [request.cancelled for request in held.held] == [False, True, False, False, False]


def test_first_passes_over_failed_branches_and_raises_when_all_failed():
    def body(s):
        b = s.fork(2)
        b += gen("x")
        b.join("first")
        return s["x"]

    assert run(body, [RuntimeError("0"), Reply("b", delay=0.05)])[0].ret_value == "b"
    with pytest.raises(RuntimeError, match="in branch 0 of 2"):
        run(body, [RuntimeError("0"), RuntimeError("1")])


def test_first_with_text_in_the_parent_after_the_fork_is_refused():
    def body(s):
        b = s.fork(2)
        s += "meanwhile"
        with pytest.raises(errors.ProgramError, match="after the fork"):
            b.join("first")

    run(body)


def test_the_parent_may_write_between_fork_and_gather():
    def body(s):
        b = s.fork(2)
        b += gen("x")
        s += "meanwhile "
        b.join()
        s += " ".join(s["x"])

    assert run(body, ["a", "b"])[0].text() == "meanwhile a b"


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True])
def test_fork_takes_a_positive_integer(n):
    def body(s):
        with pytest.raises(errors.InvalidValueError, match="≥ 1"):
            s.fork(n)

    run(body)


def test_fork_of_an_empty_state_and_after_an_empty_text():  # B12
    def body(s):
        a = s.fork(2, position_ids_offset=[1, 2])
        a += gen("x")
        a.join()
        s += ""
        b = s.fork()
        b += gen("y")
        b.join()

    state, mock = run(body, ["1", "2", "3"])
    assert [r.prompt for r in mock.requests] == ["", "", ""]
    assert (state["x"], state["y"], state.text()) == (["1", "2"], ["3"], "")


def test_joining_twice_unknown_modes_and_appending_after_the_join():
    def body(s):
        b = s.fork(2)
        with pytest.raises(errors.InvalidValueError, match="'gather_variable', 'concate_and_append'"):
            b.join("zip")
        b += gen("x")
        b.join()
        with pytest.raises(errors.ProgramError, match="joined before"):
            b.join("append")
        with pytest.raises(errors.ProgramError, match="the branch was joined"):
            b[0] += "more"
        return b[0]["x"], b["x"]  # still readable

    assert run(body, ["1", "2"])[0].ret_value == ("1", ["1", "2"])


def test_join_inside_the_block_is_the_join():
    def body(s):
        with s.fork(2) as b:
            b += "t" + gen("x")
            b.join("append")

    assert run(body, ["1", "2"])[0].text() == "t1t2"


def test_fork_inside_a_turn_continues_the_turn():
    def body(s):
        s += user("q")
        with s.assistant():
            s += "A: "
            with s.fork(2) as b:
                b += gen("x")
            s += "/".join(s["x"])

    state, mock = run(body, ["1", "2"])
    assert state.messages()[-1]["content"] == "A: 1/2"
    assert mock.requests[0].prompt.endswith("assistant\nA: ")


def test_exception_in_the_block_cancels_the_branches(held):
    @function
    def p(s):
        with s.fork(2) as b:
            b += gen("x")
            held.wait(2)
            raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"):
        p.run(backend=held)
    assert [h.cancelled for h in held.held] == [True, True]


def test_a_dropped_fork_is_cancelled_and_nobody_waits_for_it(held, until):  # B32
    @function
    def p(s):
        b = s.fork(2)
        b += gen("x") + gen("never")
        held.wait(2)
        del b
        gc.collect()
        s += gen("y")

    state = p.run(backend=held, stream=True)
    requests = held.wait(3)
    assert until(lambda: requests[0].cancelled and requests[1].cancelled)
    requests[2].answer("Y")
    assert state["y"] == "Y"
    assert until(lambda: state._stream.executor.finished)
    assert state.error() is None
    assert held.names() == ["x", "x", "y"]


def test_a_fork_that_something_still_hangs_on_is_not_dropped(held):
    @function
    def p(s):
        b = s.fork(1)
        b += "b" + gen("x")
        (inner,) = b[0].fork(1)
        del b
        gc.collect()
        inner += gen("y")
        return inner["y"]

    state = p.run(backend=held, stream=True)
    held.wait(1)[0].answer("X")
    assert held.wait(2)[1].text == "bX"
    held.held[1].answer("Y")
    assert state.ret_value == "Y"


def test_cancelling_one_branch(held):
    @function
    def p(s):
        b = s.fork(2)
        b += gen("x")
        held.wait(2)
        b[0].cancel()
        with pytest.raises(errors.CancelledError):
            b[0]["x"]
        return b[1]["x"], b[0].error()

    state = p.run(backend=held, stream=True)
    first, second = held.wait(2)
    second.answer("ok")
    assert state.ret_value[0] == "ok"
    assert isinstance(state.ret_value[1], errors.CancelledError)
    assert (first.cancelled, second.cancelled) == (True, False)
    assert state.error() is None


def test_hundred_branches_end_together():
    def body(s):
        with s.fork(100) as b:
            b += lambda i: str(i) + gen("x")

    started = time.monotonic()
    state, _ = run(body, lambda request: Reply(request.prompt, delay=0.2))
    assert state["x"] == [str(i) for i in range(100)]
    assert time.monotonic() - started < 5.0  # one after the other it would be 20
