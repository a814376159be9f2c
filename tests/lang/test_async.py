"""`arun` and `arun_batch`: in flight together, never blocking the loop, cancelled with their task."""

from __future__ import annotations

import asyncio
import contextvars
import time

import pytest
from radicel import MockBackend, Reply, errors, function, gen

pytestmark = pytest.mark.usefixtures("no_threads_left")


@function
def straight(s, x):
    s += f"{x}" + gen("a")
    return x


@function
def reads(s, x):
    s += f"{x}" + gen("a")
    return s["a"]


@pytest.mark.parametrize("program", [straight, reads])
def test_a_hundred_programs_are_in_flight_together(program, held):  # B15
    async def main():
        tasks = asyncio.gather(*(program.arun(i, backend=held) for i in range(100)))
        while len(held.held) < 100:
            await asyncio.sleep(0.005)
        for request in held.held:
            request.answer(request.text)
        return await tasks

    states = asyncio.run(asyncio.wait_for(main(), 20))
    assert [state["a"] for state in states] == [str(i) for i in range(100)]


def test_wall_time_is_that_of_one_not_of_a_hundred():
    async def main():
        mock = MockBackend(lambda request: Reply("x", delay=0.1))
        started = time.monotonic()
        await asyncio.gather(*(reads.arun(i, backend=mock) for i in range(100)))
        return time.monotonic() - started

    assert asyncio.run(main()) < 3.0


@pytest.mark.parametrize("program", [straight, reads])
def test_cancelling_the_gather_cancels_the_requests(program, held, until):
    async def main():
        tasks = asyncio.gather(*(program.arun(i, backend=held) for i in range(20)))
        while len(held.held) < 20:
            await asyncio.sleep(0.005)
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks

    asyncio.run(main())
    assert until(lambda: all(request.cancelled for request in held.held))


def test_a_timeout_cancels_the_request(held, until):
    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reads.arun(1, backend=held), 0.05)

    asyncio.run(main())
    assert until(lambda: held.held[0].cancelled)


def test_the_loop_is_never_blocked():
    async def main():
        mock = MockBackend(lambda request: Reply("x", delay=1.0))
        longest, last = 0.0, time.monotonic()
        task = asyncio.gather(*(reads.arun(i, backend=mock) for i in range(50)))
        while not task.done():
            await asyncio.sleep(0.001)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        await task
        return longest

    assert asyncio.run(main()) < 0.5  # half of what one read takes


def test_errors_are_the_original_exceptions():
    boom = RuntimeError("boom")

    @function
    def body(s):
        raise ValueError("body")

    async def main():
        with pytest.raises(RuntimeError) as raised:
            await straight.arun(1, backend=MockBackend([boom]))
        assert raised.value is boom
        with pytest.raises(ValueError, match="body"):
            await body.arun(backend=MockBackend([]))
        with pytest.raises(TypeError, match="straight"):
            await straight.arun(backend=MockBackend([]))
        results = await asyncio.gather(
            *(straight.arun(i, backend=MockBackend([boom if i == 1 else "ok"])) for i in range(3)),
            return_exceptions=True,
        )
        return [r if isinstance(r, Exception) else r["a"] for r in results]

    assert asyncio.run(main()) == ["ok", boom, "ok"]


def test_arun_takes_sampling_and_streams():
    async def main():
        mock = MockBackend([Reply(pieces=["a", "b"]), "c"])
        state = await straight.arun("x", backend=mock, stream=True, temperature=0)
        pieces = [piece async for piece in state.text_async_iter("a")]
        await straight.arun("x", backend=mock, max_tokens=3)
        return pieces, [r.sampling for r in mock.requests]

    pieces, sampling = asyncio.run(main())
    assert "".join(pieces) == "ab"
    assert (sampling[0].temperature, sampling[1].max_tokens) == (0, 3)


def test_arun_batch_in_order_with_errors_of_their_own():
    async def main(**options):
        mock = MockBackend(lambda request: RuntimeError("three") if request.prompt == "3" else request.prompt)
        return await reads.arun_batch([(i,) for i in range(6)], backend=mock, **options)

    states = asyncio.run(main())
    assert [s["a"] for s in states if s.error() is None] == ["0", "1", "2", "4", "5"]
    assert str(states[3].error()) == "three"
    with pytest.raises(errors.BatchError, match="1 of 6"):
        asyncio.run(main(on_error="raise", num_threads=2, progress_bar=True))


def test_cancelling_arun_batch_cancels_every_item(held, until):
    async def main():
        task = asyncio.ensure_future(reads.arun_batch([(i,) for i in range(20)], backend=held, num_threads=5))
        while len(held.held) < 5:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert until(lambda: all(request.cancelled for request in held.held))
    assert len(held.held) == 5


def test_two_event_loops_one_after_the_other_share_a_backend():
    mock = MockBackend(lambda request: request.prompt)

    async def main():
        return (await reads.arun("x", backend=mock)).ret_value

    assert [asyncio.run(main()) for _ in range(2)] == ["x", "x"]


def test_context_variables_reach_the_body():
    user_id = contextvars.ContextVar("user_id", default="nobody")

    @function
    def p(s):
        s += gen("a")
        return user_id.get()

    async def one(name):
        user_id.set(name)
        return (await p.arun(backend=MockBackend(["x"]))).ret_value

    async def main():
        return await asyncio.gather(one("ann"), one("bob"))

    assert asyncio.run(main()) == ["ann", "bob"]
