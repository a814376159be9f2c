"""The OpenAIBackend against a small server that speaks the protocol over HTTP."""

import datetime
import math
import os
import re
import subprocess
import sys
import threading
import time
from typing import Annotated

import pydantic
import pytest
from openai_server import Server, chat, chunk, echo, text_completion, usage_chunk
from radicel.backend import Backend, GenerateRequest, ScoreRequest
from radicel.backends.openai import OpenAIBackend
from radicel.choices import greedy_token_selection, joint_likelihood, token_length_normalized
from radicel.constraint import Constraint
from radicel.errors import (
    BackendClosedError,
    BackendError,
    CancelledError,
    ChatTemplateError,
    ContextLengthError,
    DeadlineError,
    OutputValidationError,
    RemoteError,
    SamplingError,
    UnsupportedError,
)
from radicel.prompt import Generated, Text, TurnBegin, TurnEnd
from radicel.sampling import SamplingParams

pytest.importorskip("openai")
WAIT = 20.0


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def backend(server):
    with OpenAIBackend("m", base_url=server.url) as backend:
        yield backend
    assert not [t for t in threading.enumerate() if t.name == "radicel-openai"]


@pytest.fixture
def completions(server):
    with OpenAIBackend("m", base_url=server.url, chat=False) as backend:
        yield backend


HELLO = (TurnBegin("user"), Text("Hi"), TurnEnd(), TurnBegin("assistant"))


def ask(backend, prompt=HELLO, constraint=None, on_text=None, **sampling):
    return backend.submit(GenerateRequest(prompt, SamplingParams.of(**sampling), constraint, "x"), on_text)


class TestChat:
    def test_a_turn(self, server, backend):
        server.answer = lambda path, body: chat("Hello!")
        prompt = (TurnBegin("system"), Text("Be "), Text("kind."), TurnEnd(), *HELLO)
        (generation,) = ask(backend, prompt, max_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop="\n").result(WAIT)
        assert generation.text == "Hello!"
        meta = generation.meta
        assert (meta.finish_reason, meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens) == (
            "stop",
            11,
            4,
            5,
        )
        assert meta.total_s > 0
        assert server.calls == [
            (
                "/v1/chat/completions",
                {
                    "model": "m",
                    "messages": [
                        {"role": "system", "content": "Be kind."},
                        {"role": "user", "content": "Hi"},
                    ],
                    "max_tokens": 7,
                    "temperature": 0.5,
                    "top_p": 0.9,
                    "seed": 3,
                    "stop": ["\n"],
                },
            )
        ]
        assert isinstance(backend, Backend)

    def test_what_the_model_wrote_before_is_sent_back(self, server, backend):
        server.answer = lambda path, body: chat("ok")
        prompt = (*HELLO, Generated("Hello!"), TurnEnd(), *HELLO)
        ask(backend, prompt).result(WAIT)
        assert [m["content"] for m in server.calls[0][1]["messages"]] == ["Hi", "Hello!", "Hi"]

    def test_openais_own_names(self, server):
        with OpenAIBackend("m", base_url=server.url, extended=False) as backend:
            server.answer = lambda path, body: chat("cut", reason="length")
            (generation,) = ask(backend, max_tokens=1).result(WAIT)
            assert server.calls[0][1]["max_completion_tokens"] == 1
            assert generation.meta.finish_reason == "length"

    def test_streaming(self, server, backend):
        server.answer = lambda path, body: [chunk("Hel"), chunk("lo wo"), chunk("rld", reason="stop"), usage_chunk()]
        shown = []
        (generation,) = ask(backend, on_text=lambda i, t: shown.append((i, t))).result(WAIT)
        assert shown == [(0, "Hel"), (0, "lo wo"), (0, "rld")]
        assert generation.text == "Hello world"
        assert generation.meta.completion_tokens == 5
        assert generation.meta.first_token_s <= generation.meta.total_s
        body = server.calls[0][1]
        assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})

    def test_samples(self, server, backend):
        server.answer = lambda path, body: chat("a", "b", "c")
        generations = ask(backend, n=3).result(WAIT)
        assert [g.text for g in generations] == ["a", "b", "c"]
        assert [g.meta.completion_tokens for g in generations] == [5, 0, 0]
        assert server.calls[0][1]["n"] == 3
        server.answer = lambda path, body: [
            chunk("1", 1), chunk("0", 0), chunk("1", 1, "stop"), chunk(None, 0, "length"),
        ]  # fmt: skip
        shown = []
        generations = ask(backend, n=2, on_text=lambda i, t: shown.append((i, t))).result(WAIT)
        assert [(g.text, g.meta.finish_reason) for g in generations] == [("0", "length"), ("11", "stop")]
        assert shown == [(1, "1"), (0, "0"), (1, "1")]

    def test_logprobs(self, server, backend):
        content = [{"token": t, "logprob": p, "bytes": None, "top_logprobs": []} for t, p in (("a", -1.0), ("b", -0.5))]
        server.answer = lambda path, body: chat("ab", logprobs={"content": content})
        (generation,) = ask(backend, logprobs=True, return_text_in_logprobs=True).result(WAIT)
        assert generation.meta.logprobs == (-1.0, -0.5)
        assert generation.meta.token_texts == ("a", "b")
        assert generation.meta.completion_tokens == 2
        assert server.calls[0][1]["logprobs"] is True

    @pytest.mark.parametrize(
        ("sampling", "text", "matched"),
        [
            ({"stop": ".", "keep_stop": True}, "Lily.", "."),
            ({"stop_regex": r"\d\d"}, "Lily. ", "12"),
            ({"stop": [*"!?;:", ". 1"]}, "Lily", ". 1"),
        ],
    )
    def test_stops_that_the_server_cannot_be_told_of_are_found_here(self, server, backend, sampling, text, matched):
        server.answer = lambda path, body: [
            chunk("Li"),
            chunk("ly."),
            chunk(" 1"),
            chunk("2"),
            chunk("3"),
            5.0,
            chunk(),
        ]
        begin = time.monotonic()
        (generation,) = ask(backend, **sampling).result(WAIT)
        assert (generation.text, generation.meta.matched_stop, generation.meta.finish_reason) == (text, matched, "stop")
        assert "stop" not in server.calls[0][1]
        assert time.monotonic() - begin < 4.0  # the call was left at the stop

    def test_a_server_that_names_the_stop(self, server, backend):
        server.answer = lambda path, body: chat("a", matched_stop="\n")
        assert ask(backend, stop="\n").result(WAIT)[0].meta.matched_stop == "\n"
        server.answer = lambda path, body: chat("a", stop_reason=7)
        assert ask(backend, stop_token_ids=7).result(WAIT)[0].meta.matched_stop == 7
        assert server.calls[1][1]["stop_token_ids"] == [7]

    def test_extended_servers_take_more(self, server, backend):
        server.answer = lambda path, body: chat("b")
        (generation,) = ask(backend, (*HELLO, Text("a")), top_k=5, min_p=0.1, min_tokens=2).result(WAIT)
        body = server.calls[0][1]
        assert generation.text == "b"
        assert body["messages"][-1] == {"role": "assistant", "content": "a"}
        extra = {"continue_final_message": True, "add_generation_prompt": False, "top_k": 5, "min_p": 0.1}
        assert body.items() >= {**extra, "min_tokens": 2}.items()

    def test_max_tokens_0_makes_no_call(self, server, backend):
        (generation,) = ask(backend, max_tokens=0).result(WAIT)
        assert (generation.text, generation.meta.finish_reason, server.calls) == ("", "length", [])


class TestRefused:
    @pytest.mark.parametrize(
        ("prompt", "sampling", "constraint", "named"),
        [
            (HELLO, {"top_k": 5}, None, "top_k=5.*extended=True"),
            (HELLO, {"stop_token_ids": 5}, None, "stop_token_ids"),
            (HELLO, {"top_logprobs": 2}, None, "top_logprobs=2"),
            (HELLO, {"logprob_start_len": 1}, None, "logprob_start_len"),
            ((*HELLO, Text("Sure: ")), {}, None, "'Sure: '.*cannot continue"),
            ((Text("raw"), *HELLO), {}, None, "'raw' stands outside"),
            ((TurnBegin("user"),), {}, None, "'user' turn"),
            (HELLO[:3], {}, None, "outside of every role"),
            (HELLO, {}, Constraint.regex("a+"), "regex constraint.*JSON schema only"),
            (HELLO, {}, Constraint.grammar('root ::= "a"'), "grammar constraint"),
        ],
    )
    def test_before_anything_is_sent(self, server, prompt, sampling, constraint, named):
        with OpenAIBackend("m", base_url=server.url, extended=False) as backend:
            with pytest.raises(UnsupportedError, match=named):
                ask(backend, prompt, constraint, **sampling)
            assert server.calls == []

    def test_by_the_completions_endpoint(self, completions):
        with pytest.raises(SamplingError, match="max_tokens is not given"):
            ask(completions, (Text("p"),))
        with pytest.raises(ChatTemplateError, match="chat=True"):
            ask(completions, HELLO, max_tokens=1)
        with pytest.raises(UnsupportedError, match="cannot bind a text"):
            ask(completions, (Text("p"),), Constraint.of(dict), max_tokens=1)

    def test_encode(self, backend):
        with pytest.raises(UnsupportedError, match="tokenizer"):
            backend.encode(HELLO)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class TestConstraints:
    def test_a_schema_binds_the_text_and_is_checked(self, server, backend):
        constraint = Constraint.of(SCHEMA)
        server.answer = lambda path, body: chat('{"a": 1}')
        (generation,) = ask(backend, constraint=constraint).result(WAIT)
        assert generation.text == '{"a": 1}'
        sent = server.calls[0][1]["response_format"]
        assert sent["type"] == "json_schema"
        assert sent["json_schema"]["schema"].items() >= SCHEMA.items()
        assert sent["json_schema"]["strict"] is False  # it allows other properties
        server.answer = lambda path, body: chat('{"a": "1"}')
        with pytest.raises(OutputValidationError, match=r"did not keep to the constraint of gen\('x'\)") as raised:
            ask(backend, constraint=constraint).result(WAIT)
        assert (raised.value.text, raised.value.name) == ('{"a": "1"}', "x")

    def test_the_schema_that_is_sent_is_one_that_any_server_reads(self, server, backend):
        class Person(pydantic.BaseModel):
            born: datetime.date
            code: Annotated[str, pydantic.Field(pattern="^[a-z]-.$")]

        server.answer = lambda path, body: chat('{"born": "1815-12-10", "code": "a-b"}')
        ask(backend, constraint=Constraint.of(Person)).result(WAIT)
        sent = server.calls[0][1]["response_format"]["json_schema"]
        assert sent["strict"] is True
        assert sent["schema"]["additionalProperties"] is False
        for name, value in (("born", "1815-12-10"), ("code", "a-b")):
            pattern = sent["schema"]["properties"][name]["pattern"]
            assert re.search(pattern, value)
            assert not re.search(pattern, value + "x")

    def test_cut_short_is_not_looked_at(self, server, backend):
        server.answer = lambda path, body: chat('{"a', reason="length")
        (generation,) = ask(backend, constraint=Constraint.of(SCHEMA)).result(WAIT)
        assert (generation.text, generation.meta.finish_reason) == ('{"a', "length")

    @pytest.mark.parametrize(
        ("constraint", "wrote", "text", "value"),
        [
            (Constraint.choices(["yes", "no"]), '{"value": "no"}', "no", "no"),
            (Constraint.dtype(int), '{"value": 42}', "42", 42),
            (Constraint.dtype(float), '{"value": 2}', "2.0", 2.0),
            (Constraint.dtype(bool), '{ "value": true }', "True", True),
            (Constraint.of(list[str]), '{"value": ["é", "b"]}', '["é", "b"]', ["é", "b"]),
        ],
    )
    def test_values_that_are_no_objects_come_inside_one(self, server, backend, constraint, wrote, text, value):
        half = len(wrote) // 2
        server.answer = lambda path, body: [chunk(wrote[:half]), chunk(wrote[half:], reason="stop")]
        shown = []
        (generation,) = ask(backend, constraint=constraint, on_text=lambda i, t: shown.append(t)).result(WAIT)
        assert (generation.text, shown) == (text, [text])
        assert constraint.parse(text) == value
        schema = server.calls[0][1]["response_format"]["json_schema"]["schema"]
        assert (schema["type"], schema["required"]) == ("object", ["value"])

    def test_a_refusal_is_an_error(self, server, backend):
        answer = chat(None)
        answer["choices"][0]["message"]["refusal"] = "I cannot."
        server.answer = lambda path, body: answer
        with pytest.raises(OutputValidationError, match="I cannot"):
            ask(backend).result(WAIT)

    def test_a_content_filter_is_an_error(self, server, backend):
        server.answer = lambda path, body: chat("a", reason="content_filter")
        with pytest.raises(RemoteError, match="content_filter"):
            ask(backend).result(WAIT)


class TestSelect:
    def score(self, backend, prompt, choices, ends=(), unconditional=False):
        return backend.submit_score(ScoreRequest(prompt, choices, ends, unconditional, name="s")).result(WAIT)

    @pytest.mark.parametrize("bos", [False, True])
    def test_completions_sum_exactly_the_choices_tokens(self, server, completions, bos):
        first = None if not bos else -7.0
        server.answer = lambda path, body: text_completion(
            *body["prompt"],
            logprobs=[
                echo("Is it? ", ["Is", " it?", " ", "yes"], [first, -5.0, -4.0, -1.0], bos),
                echo("Is it? ", ["Is", " it?", " ", "no", "pe"], [first, -5.0, -4.0, -0.5, -2.0], bos),
            ],
        )
        scores = self.score(completions, (Text("Is it? "),), ("yes", "nope"))
        assert [s.token_logprobs for s in scores] == [(-1.0,), (-0.5, -2.0)]
        assert [s.logprob for s in scores] == [-1.0, -2.5]
        assert len({*scores[0].token_ids, *scores[1].token_ids}) == 3
        assert server.calls[0] == (
            "/v1/completions",
            {
                "model": "m",
                "prompt": ["Is it? yes", "Is it? nope"],
                "max_tokens": 0,
                "echo": True,
                "logprobs": 1,
                "temperature": 0,
            },
        )
        assert joint_likelihood.decide(("yes", "nope"), scores).index == 0
        assert greedy_token_selection.decide(("yes", "nope"), scores).index == 1
        assert token_length_normalized.decide(("yes", "nope"), scores).scores == {"yes": -1.0, "nope": -1.25}

    def test_a_token_that_straddles_the_prompts_end_counts_into_every_choice(self, server, completions):
        server.answer = lambda path, body: text_completion(
            *body["prompt"],
            logprobs=[
                echo("use: ", ["use", ":", " WEB"], [None, -1.0, -2.0]),
                echo("use: ", ["use", ":", " ", "42"], [None, -1.0, -3.0, -0.5]),
            ],
        )
        scores = self.score(completions, (Text("use: "),), ("WEB", "42"))
        assert [s.token_logprobs for s in scores] == [(-2.0,), (-3.0, -0.5)]

    def test_what_completions_do_not_tell(self, server, completions):
        prompt = (Text("p"),)
        with pytest.raises(UnsupportedError, match=r"\['John', 'John Doe'\].*prefix"):
            self.score(completions, prompt, ("John", "John Doe"), (True, True))
        with pytest.raises(UnsupportedError, match="unconditional"):
            self.score(completions, prompt, ("a", "b"), unconditional=True)
        server.answer = lambda path, body: text_completion(*body["prompt"])
        with pytest.raises(RemoteError, match="echoed no logprobs"):
            self.score(completions, prompt, ("a", "b"))
        server.answer = lambda path, body: text_completion("a", "b", logprobs=[echo("", [t], [None]) for t in "ab"])
        with pytest.raises(RemoteError, match="prompt is empty"):
            self.score(completions, (), ("a", "b"))

    def test_chat_takes_one_of_the_choices(self, server, backend):
        server.answer = lambda path, body: chat('{"value": "John Doe"}')
        choices = ("John", "John Doe")
        scores = self.score(backend, HELLO, choices, (True, True))
        assert [s.logprob for s in scores] == [-math.inf, 0.0]
        decision = joint_likelihood.decide(choices, scores)
        assert (decision.index, decision.probabilities) == (1, {"John": 0.0, "John Doe": 1.0})
        schema = server.calls[0][1]["response_format"]["json_schema"]["schema"]
        assert schema["properties"]["value"]["enum"] == ["John", "John Doe"]
        server.answer = lambda path, body: chat("Jane")
        with pytest.raises(OutputValidationError, match="'Jane', which is not one of"):
            self.score(backend, HELLO, choices)


class TestErrors:
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_passing_errors_are_tried_again(self, server, backend, status):
        server.answer = lambda path, body: chat("ok") if len(server.calls) == 3 else (status, "busy")
        assert ask(backend).result(WAIT)[0].text == "ok"
        assert len(server.calls) == 3

    def test_and_given_up_in_the_end(self, server):
        with OpenAIBackend("m", base_url=server.url, max_retries=1) as backend:
            server.answer = lambda path, body: (503, "down for good")
            with pytest.raises(RemoteError, match="HTTP 503.*down for good") as raised:
                ask(backend).result(WAIT)
            assert len(server.calls) == 2
            assert type(raised.value.__cause__).__name__ == "InternalServerError"

    def test_lasting_errors_are_not(self, server, backend):
        server.answer = lambda path, body: (400, "no such thing")
        with pytest.raises(RemoteError, match="'m' at http.*HTTP 400.*no such thing"):
            ask(backend).result(WAIT)
        assert len(server.calls) == 1
        server.answer = lambda path, body: (400, "This model's maximum context length is 10 tokens")
        with pytest.raises(ContextLengthError):
            ask(backend).result(WAIT)

    def test_no_server(self):
        backend = OpenAIBackend("m", base_url="http://127.0.0.1:9/v1", max_retries=0)
        with backend, pytest.raises(RemoteError, match="APIConnectionError"):
            ask(backend).result(WAIT)

    def test_a_stream_that_breaks_off_is_no_result(self, server, backend):
        server.answer = lambda path, body: [chunk("half a th"), "break"]
        with pytest.raises(RemoteError, match="broke off after 'half a th'"):
            ask(backend, on_text=lambda i, t: None).result(WAIT)
        assert len(server.calls) == 1

    def test_timeout(self, server, backend):
        server.answer = lambda path, body: [chunk("a"), 4.0, chunk("b", reason="stop")]
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match=r"gen\('x'\).*timeout of 0\.2 s"):
            ask(backend, on_text=lambda i, t: None, timeout=0.2).result(WAIT)
        assert time.monotonic() - begin < 3.5

    def test_cancel_leaves_the_server(self, server, backend):
        server.answer = lambda path, body: [chunk("a"), *[0.02, chunk("b")] * 500]
        started = threading.Event()
        handle = ask(backend, on_text=lambda i, t: started.set())
        assert started.wait(WAIT)
        assert not handle.future.cancel()
        handle.cancel()
        with pytest.raises(CancelledError, match=r"gen\('x'\)"):
            handle.result(WAIT)
        assert server.left.wait(WAIT)
        handle.cancel()

    def test_cancel_at_once(self, server, backend):
        server.answer = lambda path, body: chat("a")
        handles = [ask(backend) for _ in range(20)]
        for handle in handles:
            handle.cancel()
        for handle in handles:
            with pytest.raises(CancelledError):
                handle.result(WAIT)

    def test_close(self, server):
        server.answer = lambda path, body: [chunk("a"), *[0.02, chunk("b")] * 500]
        backend = OpenAIBackend("m", base_url=server.url)
        started = threading.Event()
        handles = [ask(backend, on_text=lambda i, t: started.set()) for _ in range(3)]
        assert started.wait(WAIT)
        backend.close()
        backend.close()
        for handle in handles:
            with pytest.raises(BackendClosedError, match="closed before it ended"):
                handle.result(WAIT)
            handle.cancel()
        with pytest.raises(BackendClosedError):
            ask(backend)

    def test_a_callback_that_raises_fails_its_own_request(self, server, backend):
        server.answer = lambda path, body: [chunk("a"), chunk("b", reason="stop")]
        with pytest.raises(ZeroDivisionError):
            ask(backend, on_text=lambda i, t: 1 / 0).result(WAIT)
        assert ask(backend, on_text=lambda i, t: None).result(WAIT)[0].text == "ab"

    def test_many_at_once(self, server):
        running, most, lock = 0, 0, threading.Lock()

        def answer(path, body):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.05)
            with lock:
                running -= 1
            return chat(body["messages"][0]["content"][::-1])

        server.answer = answer
        with OpenAIBackend("m", base_url=server.url, max_concurrency=8) as backend:
            prompts = [(TurnBegin("user"), Text(f"q{i}"), TurnEnd(), TurnBegin("assistant")) for i in range(24)]
            handles = [ask(backend, prompt) for prompt in prompts]
            assert [h.result(WAIT)[0].text for h in handles] == [f"q{i}"[::-1] for i in range(24)]
        assert 2 <= most <= 8


class TestMaking:
    def test_no_key(self, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        with pytest.raises(BackendError, match="OPENAI_API_KEY"):
            OpenAIBackend("m")
        with pytest.raises(BackendError, match="name of a model"):
            OpenAIBackend()
        OpenAIBackend(model_name="gpt-3.5-turbo-instruct", api_key="k").close()

    def test_without_the_package(self, tmp_path):
        (tmp_path / "openai.py").write_text("raise ImportError('no openai here')")
        code = (
            "from radicel.backends.openai import OpenAIBackend\n"
            "try: OpenAIBackend('m', api_key='k')\n"
            "except Exception as error: print(type(error).__name__, error)\n"
        )
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
        assert out.stdout.strip() == (
            "BackendError OpenAIBackend needs the `openai` package: pip install 'radicel[openai]'"
        ), out.stderr


class TestCompletions:
    def test_plain_text(self, server, completions):
        logprobs = [{"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "text_offset": [0, 1]}]
        server.answer = lambda path, body: text_completion("ab", reason="length", logprobs=logprobs)
        (generation,) = ask(completions, (Text("p"), Generated("g")), max_tokens=2, logprobs=True).result(WAIT)
        assert (generation.text, generation.meta.finish_reason) == ("ab", "length")
        assert generation.meta.logprobs == (-1.0, -2.0)
        body = {"model": "m", "prompt": "pg", "max_tokens": 2, "logprobs": 1}
        assert server.calls == [("/v1/completions", body)]

    def test_streaming(self, server, completions):
        def part(text, reason=None):
            return {**text_completion(text, reason=reason), "usage": None}

        server.answer = lambda path, body: [part("1\n"), part("2"), part("", "stop"), usage_chunk()]
        shown = []
        (generation,) = ask(completions, (Text("p"),), max_tokens=9, on_text=lambda i, t: shown.append(t)).result(WAIT)
        assert (generation.text, shown) == ("1\n2", ["1\n", "2"])
