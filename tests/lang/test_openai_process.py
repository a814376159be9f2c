"""Programs on `OpenAIBackend`, against a server in a process of its own: what a user sees, over the wire and back."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from radicel import assistant, errors, function, gen, select, system, user
from radicel.backends.openai import OpenAIBackend
from radicel.backends.openai_limits import RateLimit, retry_after

pytest.importorskip("openai")
SERVER = Path(__file__).resolve().parents[1] / "support" / "openai_process.py"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    process.terminate()
    process.wait(20)
    process.stdout.close()


def calls(url: str, model: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url.removesuffix("/v1") + "/calls", timeout=10) as response:
        return [call for call in json.load(response) if call["model"] == model]


class Mail(pydantic.BaseModel):
    kind: Literal["letter", "bill"]
    pages: int
    people: list[str]


@function
def read(s, text, branches=2):
    s += system("You sort mails.") + user(text) + assistant(gen("said", max_tokens=20))
    with s.fork(branches) as forks:
        for i, fork in enumerate(forks):
            fork += user(f"Aspect {i}") + assistant(gen("note"))
    s += user("As JSON?") + assistant(gen("mail", schema=Mail))
    s += user("Urgent?") + assistant(select("urgent", ["yes", "no"]))
    return s["mail"].kind


def test_a_program_of_everything(url: str) -> None:
    with OpenAIBackend("everything", base_url=url, extended=False) as backend:
        states = read.run_batch([{"text": f"mail {i}"} for i in range(8)], backend=backend, on_error="raise")
    for i, state in enumerate(states):
        assert state["said"] == f"You said: mail {i}"
        assert state["note"] == ["You said: Aspect 0", "You said: Aspect 1"]
        assert isinstance(state["mail"], Mail)
        assert state["urgent"] in ("yes", "no")
        assert state.ret_value in ("letter", "bill")
    assert {call["path"] for call in calls(url, "everything")} == {"/v1/chat/completions"}
    assert len(calls(url, "everything")) == 8 * 5


def test_usage_is_in_meta(url: str) -> None:
    with OpenAIBackend("usage", base_url=url) as backend:
        state = read.run("a mail", backend=backend)
        streamed = read.run("a mail", backend=backend, stream=True)
        streamed.sync()
        for run in (state, streamed):
            meta = run.meta("said")
            assert (meta.completion_tokens, meta.finish_reason) == (4, "stop")
            assert meta.prompt_tokens > 4
            assert meta.cached_tokens == meta.prompt_tokens // 2
            assert 0 < meta.first_token_s <= meta.total_s
            assert run.meta("urgent").prompt_tokens > meta.prompt_tokens


def test_text_is_streamed_as_it_comes(url: str) -> None:
    @function
    def ask(s):
        s += user("one two") + assistant(gen("a"))

    with OpenAIBackend("slow", base_url=url) as backend:
        begun = time.monotonic()
        pieces = []
        for piece in ask.run(backend=backend, stream=True).text_iter("a"):
            pieces.append((piece, time.monotonic() - begun))
            if len(pieces) == 2:
                break
    assert [piece for piece, _ in pieces] == ["You", " said:"]
    assert pieces[1][1] - pieces[0][1] > 0.5


def test_completions(url: str) -> None:
    @function
    def go_on(s, text):
        s += text + gen("a", max_tokens=3, stop="\n") + "!" + gen("b", max_tokens=2)

    with OpenAIBackend("completions", base_url=url, chat=False) as backend:
        state = go_on.run("Once upon a time", backend=backend)
        assert (state["a"], state.meta("a").finish_reason) == ("You said: Once", "length")
        assert state["b"] == "You said:"
        assert "".join(go_on.run("x\ny", backend=backend, stream=True).text_iter("a")) == "You said: x"
    assert {call["path"] for call in calls(url, "completions")} == {"/v1/completions"}


# ---- constraints


@function
def number(s, **constraint):
    s += user("A number?") + assistant(gen("a", **constraint))


def test_a_regex_is_refused_with_the_reason(url: str) -> None:
    with OpenAIBackend("refuses", base_url=url) as backend:
        with pytest.raises(errors.UnsupportedError, match="JSON schema only; use schema=, a local model, or .*server="):
            number.run(regex="[0-9]{3}", backend=backend)
        with pytest.raises(errors.UnsupportedError, match="a grammar constraint"):
            number.run(grammar='root ::= "a" | "b"', backend=backend)
    assert calls(url, "refuses") == []


@pytest.mark.parametrize("server", ["vllm", "sglang"])
@pytest.mark.parametrize("chat", [True, False])
def test_servers_with_words_for_it_are_asked_in_theirs(server: str, chat: bool, url: str) -> None:
    @function
    def every(s):
        for name, constraint in {
            "regex": {"regex": r"[a-c]{2}\d"},
            "grammar": {"grammar": 'root ::= "x" [0-9] "y"'},
            "choice": {"choices": ["a|b", "c"]},
            "mail": {"schema": Mail},
            "dtype": {"dtype": int},
        }.items():
            s += (
                (user(name) + assistant(gen(name, **constraint, max_tokens=90)))
                if chat
                else (name + gen(name, **constraint, max_tokens=90))
            )

    with OpenAIBackend(f"own{chat}/{server}", base_url=url, chat=chat, server=server) as backend:
        state = every.run(backend=backend)
    assert len(state["regex"]) == 3
    assert state["grammar"][::2] == "xy"
    assert state["choice"] in ("a|b", "c")
    assert isinstance(state["mail"], Mail)
    assert isinstance(state["dtype"], int)


def test_another_server_would_not_understand_them(url: str) -> None:
    backend = OpenAIBackend("plain", base_url=url, server="vllm")
    with backend, pytest.raises(errors.RemoteError, match="HTTP 400: .*structured_outputs"):
        number.run(regex="[0-9]{3}", backend=backend)


# ---- retries, limits, timeouts


@function
def ask(s, x=0):
    s += user(f"{x}") + assistant(gen("a"))


def test_a_busy_server_is_asked_again_later_each_time(url: str) -> None:
    with OpenAIBackend("busy-2", base_url=url) as backend:
        assert ask.run(backend=backend)["a"] == "You said: 0"
    first, second, third = (call["at"] for call in calls(url, "busy-2"))
    assert second - first > 0.3
    assert third - second > 0.7


def test_a_rate_limit_is_waited_for_as_long_as_the_server_says(url: str) -> None:
    with OpenAIBackend("limited-2", base_url=url) as backend:
        assert ask.run(backend=backend)["a"] == "You said: 0"
    times = [call["at"] for call in calls(url, "limited-2")]
    assert len(times) == 3
    assert all(later - earlier > 0.95 for earlier, later in itertools.pairwise(times))


def test_and_longer_than_the_retries_reach(url: str) -> None:
    with OpenAIBackend("limited-3", base_url=url, max_retries=1) as backend:
        assert ask.run(backend=backend)["a"] == "You said: 0"
    assert len(calls(url, "limited-3")) == 4


@pytest.mark.parametrize(("options", "tries"), [({"rate_limit_wait": 0, "max_retries": 1}, 2), ({"max_retries": 0}, 1)])
def test_but_not_for_ever(options: dict[str, Any], tries: int, url: str) -> None:
    model = f"limited-99{tries}"
    with OpenAIBackend(model, base_url=url, **options) as backend, pytest.raises(errors.RemoteError, match="HTTP 429"):
        ask.run(backend=backend)
    assert len(calls(url, model)) == tries


def test_a_spent_quota_is_not_waited_for(url: str) -> None:
    backend = OpenAIBackend("quota", base_url=url, max_retries=1)
    with backend, pytest.raises(errors.RemoteError, match=r"HTTP 429: .*quota"):
        ask.run(backend=backend)
    assert len(calls(url, "quota")) == 2  # the client's own try, and no more


def test_calls_of_a_minute_are_spread(url: str) -> None:
    with OpenAIBackend("spread", base_url=url, requests_per_minute=600) as backend:
        ask.run_batch([{"x": i} for i in range(6)], backend=backend, on_error="raise")
    times = [call["at"] for call in calls(url, "spread")]
    assert times[-1] - times[0] > 0.4


def test_timeouts(url: str) -> None:
    backend = OpenAIBackend("slow", base_url=url, timeout=0.2, max_retries=0)
    with backend, pytest.raises(errors.RemoteError, match="APITimeoutError"):
        ask.run(backend=backend)
    backend = OpenAIBackend("slow", base_url=url)
    with backend, pytest.raises(errors.DeadlineError, match=r"timeout of 0\.2 s"):
        ask.run(backend=backend, timeout=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server": "llama"}, "server='llama': must be 'vllm' or 'sglang'"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"requests_per_minute": 0}, "requests_per_minute=0"),
        ({"rate_limit_wait": -1}, "rate_limit_wait=-1"),
        ({"timeout": 0}, "timeout=0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidValueError, match=message):
        OpenAIBackend("m", base_url="http://127.0.0.1:9/v1", **options)


# ---- the gate alone


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_what_a_response_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_date_to_wait_for() -> None:
    from email.utils import formatdate

    found = retry_after({"retry-after": formatdate(time.time() + 30)})
    assert found is not None
    assert 25 < found <= 31


def test_all_calls_wait_when_one_is_refused() -> None:
    async def enter(gate: RateLimit) -> float:
        await gate.enter()
        return time.monotonic()

    async def refuse() -> None:
        gate = RateLimit(None, 10.0)
        begun = time.monotonic()
        refused = asyncio.ensure_future(gate.refused(0.0, 0, 0.2))
        await asyncio.sleep(0)
        entered = await asyncio.gather(enter(gate), enter(gate))
        assert await refused == pytest.approx(0.2)
        assert all(at - begun > 0.19 for at in entered)
        assert await gate.refused(9.9, 0, 0.2) is None
        assert await gate.refused(9.5, 3, None) is None  # eight seconds would be next

    asyncio.run(refuse())
