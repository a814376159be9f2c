"""Text as it appears: `text_iter`, `text_async_iter`, and what happens when they are dropped."""

from __future__ import annotations

import asyncio
import time

import pytest
from radicel import MockBackend, Reply, assistant, errors, function, gen, select, user


@function
def chat(s):
    s += user("hi")
    s += assistant("Sure, " + gen("a") + "." + gen("b"))


@function
def plain(s):
    s += "Say: " + gen("a") + " / " + gen("b")


def replies(**more):
    return MockBackend(
        [
            Reply(pieces=["Hel", "lo wo", "rld"], piece_delay=0.01, **more),
            Reply(pieces=["😀", "客", "单价"], piece_delay=0.01),
        ]
    )


@pytest.mark.parametrize("program", [chat, plain])
def test_the_whole_text_in_pieces(program):
    state = program.run(backend=replies(), stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text()
    assert "Hello world" in state.text()
    assert len(pieces) >= 5
    assert list(state.text_iter()) == [state.text()]  # again, now at once


def test_one_variable_in_pieces():  # B31
    state = plain.run(backend=replies(), stream=True)
    assert list(state.text_iter("a")) == ["Hel", "lo wo", "rld"]
    assert "".join(state.text_iter(var_name="b")) == "😀客单价"
    assert list(state.text_iter("a")) == ["Hello world"]


def test_streamed_and_unstreamed_values_are_the_same():
    streamed = plain.run(backend=replies(), stream=True)
    assert (streamed["a"], streamed.text()) == ("Hello world", "Say: Hello world / 😀客单价")
    assert plain.run(backend=replies()).text() == streamed.text()


def test_run_with_stream_returns_before_the_values_are_there(held):
    state = plain.run(backend=held, stream=True)
    (request,) = held.wait(1)
    pieces = state.text_iter()
    assert next(pieces) == "Say: "
    request.piece("Hel")
    assert next(pieces) == "Hel"
    request.piece("lo")
    request.answer("Hello")
    assert next(pieces) == "lo"
    assert next(pieces) == " / "
    held.wait(2)[1].answer("b")
    assert list(pieces) == ["b"]


def test_unfinished_pieces_are_completed_by_the_final_text(held):
    state = plain.run(backend=held, stream=True)
    (request,) = held.wait(1)
    pieces = state.text_iter("a")
    request.piece("He")
    assert next(pieces) == "He"
    request.answer("Hello")
    assert list(pieces) == ["llo"]
    state.cancel()


def test_text_is_in_one_piece_without_stream():
    state = plain.run(backend=replies())
    assert list(state.text_iter("a")) == ["Hello world"]


def test_select_and_typed_values_stream_their_text():
    @function
    def p(s):
        s += select("c", ["yes", "no"]) + gen("n", schema=int)

    state = p.run(backend=MockBackend(["no", "42"]), stream=True)
    assert "".join(state.text_iter("c")) == "no"
    assert "".join(state.text_iter("n")) == "42"
    assert "".join(state.text_iter()) == "no42"
    assert state["n"] == 42


def test_iterating_inside_the_body():
    @function
    def p(s):
        s += "x" + gen("a")
        return list(s.text_iter("a")), list(s.text_iter())

    state = p.run(backend=replies(), stream=True)
    pieces, whole = state.ret_value
    assert ("".join(pieces), "".join(whole)) == ("Hello world", "xHello world")


def test_an_unknown_name_raises_at_once_and_costs_nothing():  # A13
    state = plain.run(backend=replies())
    with pytest.raises(errors.UnknownVariableError, match="'typo'"):
        state.text_iter("typo")
    with pytest.raises(KeyError):
        state.text_async_iter("typo")


def test_an_unknown_name_of_a_running_program_raises_when_its_body_ended(held):
    state = plain.run(backend=held, stream=True)
    held.wait(1)
    started, cpu = time.monotonic(), time.process_time()
    with pytest.raises(KeyError):
        next(state.text_iter("typo"))
    assert time.monotonic() - started < 5.0
    assert time.process_time() - cpu < 1.0
    state.cancel()


def test_a_variable_that_the_body_has_yet_to_make(held):
    @function
    def p(s):
        s += gen("a")
        if s["a"] == "go":
            s += gen("late")

    state = p.run(backend=held, stream=True)
    pieces = state.text_iter("late")
    held.wait(1)[0].answer("go")
    held.wait(2)[1].answer("made")
    assert list(pieces) == ["made"]


def test_backend_error_is_raised_after_the_text_before_it():  # A12
    boom = RuntimeError("boom")
    state = plain.run(backend=MockBackend(["Hello", boom]), stream=True)
    seen = []
    with pytest.raises(RuntimeError) as raised:
        seen.extend(iter_into(state.text_iter(), seen))
    assert raised.value is boom
    assert "".join(seen) == "Say: Hello / "
    with pytest.raises(RuntimeError, match="boom"):
        list(state.text_iter("b"))
    assert list(state.text_iter("a")) == ["Hello"]
    assert state.error() is boom


def iter_into(pieces, seen):
    for piece in pieces:
        seen.append(piece)
    return []


def test_body_error_is_raised_by_the_iterators():
    @function
    def p(s):
        s += "text " + gen("a")
        raise ValueError("body")

    for name in (None, "a", "never"):
        state = p.run(backend=MockBackend([Reply("x", delay=5)]), stream=True)
        with pytest.raises(ValueError, match="body"):
            list(state.text_iter(name))
        assert isinstance(state.error(), ValueError)


def test_incomplete_value_is_raised_after_its_text():
    @function
    def p(s):
        s += gen("n", regex="[a-z ]+", max_tokens=2)

    state = p.run(backend=MockBackend(["a b c d"]), stream=True)
    seen = []
    with pytest.raises(errors.IncompleteOutputError):
        iter_into(state.text_iter("n"), seen)
    assert "".join(seen) == "a b"


@pytest.mark.parametrize("name", [None, "a"])
def test_closing_an_iterator_early_cancels_the_program(held, name, until):  # B32
    state = plain.run(backend=held, stream=True)
    (request,) = held.wait(1)
    for i in range(5):
        request.piece(str(i))
    pieces = state.text_iter(name)
    next(pieces)
    pieces.close()
    assert request.cancelled
    assert until(lambda: state._stream.executor.finished)
    with pytest.raises(errors.CancelledError):
        state["a"]
    assert isinstance(state.error(), errors.CancelledError)
    assert held.names() == ["a"]  # b was never asked for


def test_an_exception_in_the_loop_cancels_once_the_iterator_is_gone(held):
    def consume():
        state = plain.run(backend=held, stream=True)
        held.wait(1)
        for _ in state.text_iter():
            raise LookupError("the consumer's own")

    with pytest.raises(LookupError):
        consume()
    assert held.wait(1)[0].cancelled


def test_closing_a_finished_iterator_cancels_nothing():
    state = plain.run(backend=replies(), stream=True)
    pieces = state.text_iter("a")
    assert "".join(pieces) == "Hello world"
    pieces.close()
    assert state["b"] == "😀客单价"


def test_breaking_out_inside_the_body_does_not_cancel_the_program():
    @function
    def p(s):
        s += gen("a")
        for _ in s.text_iter("a"):
            break
        return s["a"]

    assert p.run(backend=replies(), stream=True).ret_value == "Hello world"


# --- asynchronously --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [chat, plain])
def test_async_pieces(program):
    async def main():
        state = program.run(backend=replies(), stream=True)
        whole = [piece async for piece in state.text_async_iter()]
        return state, whole, [piece async for piece in state.text_async_iter("b")]

    state, whole, b = asyncio.run(main())
    assert ("".join(whole), "".join(b)) == (state.text(), "😀客单价")
    assert len(whole) >= 5


def test_async_pieces_with_meta():
    async def main():
        state = plain.run(backend=replies(), stream=True)
        return [pair async for pair in state.text_async_iter(var_name="a", return_meta_data=True)]

    pairs = asyncio.run(main())
    assert "".join(text for text, _ in pairs) == "Hello world"
    assert pairs[-1][1].completion_tokens == 3
    assert pairs[0][1] is None


def test_async_errors_are_raised():
    async def main(name):
        state = plain.run(backend=MockBackend(["Hello", RuntimeError("boom")]), stream=True)
        with pytest.raises(RuntimeError, match="boom"):
            async for _ in state.text_async_iter(name):
                pass

    asyncio.run(main(None))
    asyncio.run(main("b"))


def test_async_iterator_never_blocks_the_loop_and_its_end_cancels(held, until):
    async def main():
        state = plain.run(backend=held, stream=True)
        pieces = state.text_async_iter()
        assert await pieces.__anext__() == "Say: "
        waiting = asyncio.ensure_future(pieces.__anext__())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        held.wait(1)[0].piece("He")
        assert await waiting == "He"
        await pieces.aclose()
        return state

    state = asyncio.run(main())
    assert held.held[0].cancelled
    assert until(lambda: state._stream.executor.finished)


def test_cancelling_the_task_that_iterates_cancels_the_program(held):
    async def main():
        state = plain.run(backend=held, stream=True)

        async def consume():
            async for _ in state.text_async_iter("a"):
                pass

        task = asyncio.ensure_future(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert held.held[0].cancelled


def test_sixteen_streams_at_once():
    async def main():
        states = [plain.run(backend=replies(), stream=True) for _ in range(16)]

        async def collect(state):
            return "".join([piece async for piece in state.text_async_iter()])

        return await asyncio.gather(*map(collect, states))

    assert set(asyncio.run(main())) == {"Say: Hello world / 😀客单价"}
