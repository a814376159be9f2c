"""The same programs on a MockBackend and on a server of the OpenAI protocol: the same values, texts and errors."""

import asyncio
import json
import time
from typing import NamedTuple

import pydantic
import pytest
from openai_server import Server, chat, chunk, usage_chunk
from radicel import MockBackend, Reply, assistant, function, gen, select, separate_reasoning, system, user
from radicel.backends.openai import OpenAIBackend
from radicel.errors import IncompleteOutputError

pytest.importorskip("openai")

ANSWERS = {
    "Name a fruit.": "An apple.",
    "Is it red or green?": "green",
    "Who are you?": '{"name": "Zoë", "age": 3}',
    "How many?": "42",
    "Count.": "one two three four",
    "Think.": "<think>\nhm, 2+2\n</think>\n\n4",
    "Praise An apple.": "Sweet",
    "Blame An apple.": "Sour",
    "Sum up: Sweet, Sour": "Both",
}


class Person(pydantic.BaseModel):
    name: str
    age: int


class Running(NamedTuple):
    backend: object
    seen: list  # the messages of every request


def on_mock(delay, pause):
    seen = []

    def answer(request):
        seen.append(request.messages)
        return Reply(ANSWERS[request.messages[-1]["content"]], delay=delay, piece_delay=pause)

    return Running(MockBackend(answer), seen)


def on_server(server, delay, pause):
    def answer(path, body):
        time.sleep(delay)
        question = body["messages"][-1]["content"]
        if question not in ANSWERS:
            return 400, f"no answer to {question!r}"
        text = ANSWERS[question]
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        if schema.get("required") == ["value"]:
            text = json.dumps({"value": int(text) if text.isdigit() else text})
        words, limit = text.split(" "), body.get("max_tokens", 99)
        text, reason = " ".join(words[:limit]), "length" if len(words) > limit else "stop"
        for stop in body.get("stop", ()):
            text = text.partition(stop)[0]
        if body.get("stream"):
            return [*[part for c in text for part in (pause, chunk(c))], chunk(reason=reason), usage_chunk()]
        return chat(*[text] * body.get("n", 1), reason=reason)

    server.answer = answer
    return OpenAIBackend("m", base_url=server.url)


class Seen:
    """The messages that a server got, as a list like the mock's."""

    def __init__(self, server):
        self.server = server

    def __getitem__(self, index):
        return self.server.calls[index][1]["messages"]

    def __len__(self):
        return len(self.server.calls)


@pytest.fixture(params=["mock", "openai"])
def run_on(request):
    """Makes the backend; `delay` is the seconds before an answer, `pause` those between its pieces."""
    server = Server() if request.param == "openai" else None
    made = []

    def make(delay=0.0, pause=0.0):
        remote = server and Running(on_server(server, delay, pause), Seen(server))
        made.append(remote or on_mock(delay, pause))
        return made[-1]

    yield make
    for running in made:
        running.backend.close()
    if server is not None:
        server.close()


def ask(question, value):
    return user(question) + assistant(value)


@function
def fruit(s):
    s += system("Be brief.")
    s += ask("Name a fruit.", gen("fruit", max_tokens=8))
    s += ask("Is it red or green?", select("colour", ["red", "green"]))


def test_turns_and_select(run_on):
    running = run_on()
    state = fruit.run(backend=running.backend)
    assert (state["fruit"], state["colour"]) == ("An apple.", "green")
    assert state.meta("colour").probabilities == {"red": 0.0, "green": 1.0}
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a fruit."},
        {"role": "assistant", "content": "An apple."},
        {"role": "user", "content": "Is it red or green?"},
        {"role": "assistant", "content": "green"},
    ]
    assert [running.seen[0], running.seen[1]] == [state.messages()[:2], state.messages()[:4]]


def test_typed_values(run_on):
    @function
    def typed(s):
        s += ask("Who are you?", gen("person", schema=Person))
        s += ask("How many?", gen("number", dtype=int))

    state = typed.run(backend=run_on().backend)
    assert state["person"] == Person(name="Zoë", age=3)
    assert state["number"] == 42


def test_cut_short(run_on):
    @function
    def cut(s, schema):
        s += ask("Who are you?" if schema else "Count.", gen("x", max_tokens=2, schema=schema))

    backend = run_on().backend
    state = cut.run(None, backend=backend)
    assert (state["x"], state.meta("x").finish_reason) == ("one two", "length")
    with pytest.raises(IncompleteOutputError) as raised:
        cut.run(Person, backend=backend)
    assert (raised.value.name, raised.value.text) == ("x", '{"name": "Zoë",')


def test_stops_and_samples(run_on):
    @function
    def stops(s):
        s += ask("Count.", gen("cut", stop=" three"))
        s += ask("Count.", gen("kept", stop="two", keep_stop=True))
        s += ask("Count.", gen("many", n=3))

    state = stops.run(backend=run_on().backend)
    assert (state["cut"], state["kept"]) == ("one two", "one two")
    assert state.meta("kept").matched_stop == "two"
    assert state["many"] == ["one two three four"] * 3
    assert [m.finish_reason for m in state.meta("many")] == ["stop"] * 3


def test_streaming(run_on):
    state = fruit.run(backend=run_on(pause=0.05).backend, stream=True)
    pieces = list(state.text_iter("fruit"))
    assert "".join(pieces) == "An apple."
    assert len(pieces) >= 2
    assert "".join(state.text_iter("colour")) == "green"


def test_streaming_async(run_on):
    async def collect():
        state = fruit.run(backend=run_on().backend, stream=True)
        return [piece async for piece in state.text_async_iter("fruit")]

    assert "".join(asyncio.run(collect())) == "An apple."


def test_fork_and_join(run_on):
    @function
    def judged(s):
        s += ask("Name a fruit.", gen("fruit"))
        with s.fork(2) as branches:
            for branch, verb in zip(branches, ["Praise", "Blame"]):
                branch += ask(f"{verb} {s['fruit']}", gen("note"))
        s += ask("Sum up: " + ", ".join(s["note"]), gen("verdict"))

    running = run_on()
    state = judged.run(backend=running.backend)
    assert (state["note"], state["verdict"]) == (["Sweet", "Sour"], "Both")
    assert len(running.seen) == 4


def test_reasoning(run_on):
    @function
    def thinks(s):
        s += ask("Think.", separate_reasoning(gen("answer"), model_type="qwen3"))

    state = thinks.run(backend=run_on().backend)
    assert (state["answer"], state["answer_reasoning_content"]) == ("4", "hm, 2+2")
    streamed = thinks.run(backend=run_on().backend, stream=True)
    assert "".join(streamed.text_iter("answer")) == "4"


def test_a_batch_is_in_flight_together(run_on):
    running = run_on(delay=0.2)
    begin = time.monotonic()
    states = fruit.run_batch([{}] * 20, backend=running.backend)
    assert time.monotonic() - begin < 4.0  # one after the other it would be 8 s
    assert [s["fruit"] for s in states] == ["An apple."] * 20
    assert all(s.error() is None for s in states)


def test_a_failed_request_is_the_items_own(run_on):
    @function
    def item(s, question):
        s += ask(question, gen("x"))

    questions = [{"question": q} for q in ("Count.", "What?", "Count.")]
    states = item.run_batch(questions, backend=run_on().backend)
    assert [s.error() is None for s in states] == [True, False, True]
    assert states[2]["x"] == "one two three four"
