"""The MockBackend through the backend contract: replies, stops, budgets, streaming, selects, errors, its thread."""

import math
import threading
import time

import pytest
from radicel.backend import Backend, GenerateRequest, ScoreRequest
from radicel.backends.mock import MockBackend, Reply
from radicel.choices import (
    greedy_token_selection,
    joint_likelihood,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radicel.constraint import Constraint
from radicel.errors import (
    BackendClosedError,
    BackendError,
    CancelledError,
    ConstraintError,
    DeadlineError,
    SamplingError,
)
from radicel.prompt import Generated, Text, TurnBegin, TurnEnd
from radicel.sampling import SamplingParams

WAIT = 10.0


PROMPT = (Text("p"),)


def ask(mock, name="x", prompt=PROMPT, constraint=None, on_text=None, **sampling):
    return mock.submit(GenerateRequest(tuple(prompt), SamplingParams.of(**sampling), constraint, name), on_text)


def one(replies, **kwargs):
    """The single generation of the first reply, and the streamed pieces."""
    pieces = []
    with MockBackend(replies if isinstance(replies, list) else [replies]) as mock:
        (generation,) = ask(mock, on_text=lambda i, t: pieces.append((i, t)), **kwargs).result(WAIT)
    assert "".join(text for _, text in pieces) == generation.text
    assert all(index == 0 for index, _ in pieces)
    return generation, [text for _, text in pieces]


def test_is_a_backend():
    assert isinstance(MockBackend(), Backend)


class TestReplies:
    def test_a_list_is_a_queue_in_request_order(self):
        with MockBackend([Reply("first", delay=0.05), "second", "third"]) as mock:
            handles = [ask(mock, name) for name in "abc"]
            assert [h.result(WAIT)[0].text for h in handles] == ["first", "second", "third"]
            with pytest.raises(BackendError, match=r"no reply left for gen\('d'\), request 4"):
                ask(mock, "d").result(WAIT)
            assert [r.name for r in mock.requests] == ["a", "b", "c", "d"]

    def test_a_dict_goes_by_name(self):
        with MockBackend({"a": "always", "b": ["one", Reply("two")]}) as mock:
            assert [ask(mock, n).result(WAIT)[0].text for n in "abab"] == ["always", "one", "always", "two"]
            with pytest.raises(BackendError, match=r"no reply left for gen\('b'\)"):
                ask(mock, "b").result(WAIT)
            with pytest.raises(BackendError, match=r"no reply for gen\('c'\), request 6; it has them for: 'a', 'b'"):
                ask(mock, "c").result(WAIT)

    def test_a_callable_gets_the_request(self):
        threads = set()

        def answer(request):
            threads.add(threading.current_thread())
            return request.prompt.upper() + str(request.sampling.max_tokens)

        with MockBackend(answer) as mock:
            assert ask(mock, prompt=[Text("ab")], max_tokens=3).result(WAIT)[0].text == "AB3"
        assert threading.current_thread() not in threads

    def test_exceptions_are_raised_as_they_are(self):
        error = RuntimeError("gpu on fire")

        def broken(request):
            raise error

        for replies in ([error], {"x": error}, broken):
            with MockBackend(replies) as mock, pytest.raises(RuntimeError) as raised:
                ask(mock).result(WAIT)
            assert raised.value is error
        with MockBackend([KeyError]) as mock, pytest.raises(KeyError):
            ask(mock).result(WAIT)

    @pytest.mark.parametrize(
        ("make", "error", "named"),
        [
            (lambda: MockBackend("text"), TypeError, "a list, a dict by variable name"),
            (lambda: MockBackend([3]), TypeError, "3 is no reply"),
            (lambda: Reply("ab", pieces=["a", "c"]), ValueError, "the pieces make 'ac'"),
            (lambda: Reply("a b", logprobs=[-1.0]), ValueError, "1 logprobs for the 2 tokens"),
            (lambda: Reply("a", texts=["b"]), ValueError, "leave text="),
            (lambda: Reply("a", finish_reason="eos"), ValueError, "'stop' or 'length'"),
            (lambda: Reply(), ValueError, "give text="),
            (lambda: Reply(3), TypeError, "must be a str"),
        ],
    )
    def test_wrong_replies(self, make, error, named):
        with pytest.raises(error, match=named):
            make()

    def test_a_callable_that_returns_no_reply_fails_its_request(self):
        with MockBackend(lambda request: 3) as mock, pytest.raises(TypeError, match="3 is no reply"):
            ask(mock).result(WAIT)


class TestRequests:
    def test_the_prompt_is_chatml_and_raw_text_stands_where_it_was_written(self):
        prompt = [
            Text("raw "),
            TurnBegin("system"),
            Text("Be "),
            Text("brief."),
            TurnEnd(),
            TurnBegin("user"),
            Text("Hi"),
            TurnEnd(),
            Text("between"),
            TurnBegin("assistant"),
            Text("I say: "),
            Generated("yes", (1,)),
            Text(" and "),
        ]
        constraint = Constraint.choices(["no"])
        with MockBackend(["no"]) as mock:
            ask(mock, "v", prompt, constraint, temperature=0.5).result(WAIT)
            (seen,) = mock.requests
        assert seen.prompt == (
            "raw <|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\nbetween"
            "<|im_start|>assistant\nI say: yes and "
        )
        assert seen.messages == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "I say: yes and "},
        ]
        assert (seen.kind, seen.name, seen.sampling.temperature, seen.constraint) == ("gen", "v", 0.5, constraint)
        assert seen.choices is None

    def test_an_open_turn_without_text_is_no_message(self):
        prompt = [TurnBegin("user"), Text("Hi"), TurnEnd(), TurnBegin("assistant")]
        with MockBackend(["x"]) as mock:
            ask(mock, prompt=prompt).result(WAIT)
            assert mock.requests[0].messages == [{"role": "user", "content": "Hi"}]

    def test_prompts_are_counted_in_bytes(self):
        generation, _ = one("x", prompt=[Text("é!")])
        assert generation.meta.prompt_tokens == 3
        assert MockBackend().encode((Text("é!"),)).token_ids == tuple("é!".encode())
        assert MockBackend().render((TurnBegin("user"), Text("é!"))) == "<|im_start|>user\né!"

    def test_prefill(self):
        with MockBackend() as mock:
            assert mock.submit_prefill((Text("constant"),)).result(WAIT) == 0
            assert (mock.prefilled, mock.requests) == (["constant"], [])
            mock.flush_cache()


class TestText:
    def test_streams_words(self):
        generation, pieces = one("Hello, new  world\n")
        assert pieces == ["Hello,", " new", "  world", "\n"]
        assert generation.text == "Hello, new  world\n"
        assert generation.meta.finish_reason == "stop"
        assert generation.meta.completion_tokens == 4
        assert generation.meta.matched_stop is None

    @pytest.mark.parametrize(
        ("pieces", "sampling", "shown", "matched", "count"),
        [
            (["DEF", "G", "HI", "J", "K"], {"stop": "DEFGHIJ"}, [], "DEFGHIJ", 4),
            (["Ob", "serv", "ers"], {"stop": "Observation"}, ["Observers"], None, 3),
            (["a", ",b,", "c,d", "e"], {"stop": "b,c"}, ["a", ","], "b,c", 3),
            ([".\n\nNext"], {"stop": ["\n\n"]}, ["."], "\n\n", 1),
            (["1\n", "2\n", "3"], {"stop": "\n<|endoftext|>"}, ["1", "\n2", "\n3"], None, 3),
            (["Li", "ly.", " She"], {"stop": ".", "keep_stop": True}, ["Li", "ly."], ".", 2),
            (["a1", "2b"], {"stop_regex": r"\d\d"}, ["a"], "12", 2),
            (["x", "\n", "y", "\n", "z"], {"stop": "\n", "min_tokens": 2}, ["x", "\n", "y"], "\n", 4),
            (["Hel", "lo wo", "rld"], {}, ["Hel", "lo wo", "rld"], None, 3),
        ],
    )
    def test_stops(self, pieces, sampling, shown, matched, count):
        generation, streamed = one(Reply(pieces=pieces), **sampling)
        assert streamed == shown
        assert generation.text == "".join(shown)
        assert (generation.meta.finish_reason, generation.meta.matched_stop) == ("stop", matched)
        assert generation.meta.completion_tokens == count

    def test_max_tokens_counts_pieces(self):
        generation, _ = one("one two three", max_tokens=2)
        assert (generation.text, generation.meta.finish_reason) == ("one two", "length")
        assert generation.meta.completion_tokens == 2
        generation, _ = one("one two", max_tokens=2)
        assert generation.meta.finish_reason == "stop"
        generation, _ = one(Reply(pieces=["a", "S", "T"]), max_tokens=2, stop="STOP")
        assert (generation.text, generation.meta.finish_reason) == ("aS", "length")

    def test_max_tokens_0_uses_no_reply(self):
        with MockBackend(["kept"]) as mock:
            (empty,) = ask(mock, max_tokens=0).result(WAIT)
            assert (empty.text, empty.meta.finish_reason, empty.meta.completion_tokens) == ("", "length", 0)
            assert ask(mock).result(WAIT)[0].text == "kept"

    def test_finish_reason_of_the_reply(self):
        generation, _ = one(Reply("cut", finish_reason="length"))
        assert generation.meta.finish_reason == "length"

    def test_logprobs_where_asked_for(self):
        reply = Reply(pieces=["a", "b", "c"], logprobs=[-1.0, -2.0, -3.0])
        assert one(reply)[0].meta.logprobs is None
        generation, _ = one(reply, logprobs=True, max_tokens=2, return_text_in_logprobs=True)
        assert generation.meta.logprobs == (-1.0, -2.0)
        assert generation.meta.token_texts == ("a", "b")
        assert one("x y", logprobs=True)[0].meta.logprobs == (0.0, 0.0)

    def test_times(self):
        generation, _ = one(Reply(pieces=["a", "b"], delay=0.02, piece_delay=0.02))
        meta = generation.meta
        assert 0 <= meta.queue_s <= meta.first_token_s - 0.02 <= meta.total_s - 0.04

    def test_samples(self):
        pieces = []
        with MockBackend([Reply(texts=["a b", "c", ""]), "same", Reply(texts=["a"])]) as mock:
            three = ask(mock, n=3, on_text=lambda i, t: pieces.append((i, t))).result(WAIT)
            assert [g.text for g in three] == ["a b", "c", ""]
            assert [g.meta.completion_tokens for g in three] == [2, 1, 0]
            assert pieces == [(0, "a"), (0, " b"), (1, "c")]
            assert [g.text for g in ask(mock, n=2).result(WAIT)] == ["same", "same"]
            with pytest.raises(BackendError, match="1 texts, the request asks for n=2"):
                ask(mock, n=2).result(WAIT)

    def test_a_bad_stop_fails_its_request_alone(self):
        with MockBackend(["a", "b"]) as mock:
            bad, good = ask(mock, stop_regex="["), ask(mock)
            with pytest.raises(SamplingError, match=r"'\['"):
                bad.result(WAIT)
            assert good.result(WAIT)[0].text == "b"


class TestConstraints:
    @pytest.mark.parametrize(
        ("constraint", "text", "value"),
        [
            (Constraint.dtype(int), "42", 42),
            (Constraint.of({"type": "object"}), '{"a":1}', {"a": 1}),
            (Constraint.choices(["yes", "no"]), "yes", "yes"),
            (Constraint.regex("[a-z]{2}"), "ab", "ab"),
        ],
    )
    def test_a_reply_that_keeps_to_its_constraint(self, constraint, text, value):
        generation, _ = one(text, constraint=constraint)
        assert generation.text == text
        assert constraint.parse(generation.text) == value

    def test_grammars(self):
        constraint = Constraint.grammar('root ::= "(" root ")" | [a-zé]')
        assert one("((é))", constraint=constraint)[0].text == "((é))"
        for wrong in ("((a)", "a)", "A", ""):
            with MockBackend([wrong]) as mock, pytest.raises(ConstraintError, match="does not derive"):
                ask(mock, constraint=constraint).result(WAIT)

    def test_stops_are_cut_before_the_constraint_is_looked_at(self):
        assert one("42\n", constraint=Constraint.dtype(int), stop="\n")[0].text == "42"

    @pytest.mark.parametrize(
        ("constraint", "text"),
        [
            (Constraint.dtype(int), "4x"),
            (Constraint.choices(["yes", "no"]), "maybe"),
            (Constraint.choices(["yes", "no"]), "ye"),
            (Constraint.regex("[a-z]{2}"), "abc"),
            (Constraint.of({"type": "object", "required": ["a"]}), "{}"),
            (Constraint.json_schema({"type": "array", "items": {"type": "integer"}}), '[1, "2"]'),
            (Constraint.of(dict), '{"a": '),
            (Constraint.of(float), "NaN"),
        ],
    )
    def test_a_reply_that_breaks_its_constraint(self, constraint, text):
        with MockBackend([text]) as mock, pytest.raises(ConstraintError) as raised:
            ask(mock, "v", constraint=constraint).result(WAIT)
        assert repr(text) in str(raised.value)
        assert "gen('v')" in str(raised.value)

    @pytest.mark.parametrize(
        ("text", "at_fault"),
        [
            ('{"day": "2024-02-29", "code": "é-😀", "tags": {"n_a": 1}}', None),
            ('{"day": "2023-02-29", "code": "é-😀", "tags": {}}', "/day"),
            ('{"day": "2024-02-29", "code": "é-😀\\n", "tags": {}}', "/code"),
            ('{"day": "2024-02-29", "code": "é_😀", "tags": {}}', "/code"),
            ('{"day": "2024-02-29", "code": "é-😀", "tags": {"a": 1}}', "/tags"),
        ],
    )
    def test_formats_and_patterns(self, text, at_fault):
        constraint = Constraint.json_schema(
            {
                "properties": {
                    "day": {"type": "string", "format": "date"},
                    "code": {"type": "string", "pattern": "^é-[😀-🙏]$"},
                    "tags": {"patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False},
                },
                "required": ["day", "code", "tags"],
            }
        )
        if at_fault is None:
            assert one(text, constraint=constraint)[0].text == text
            return
        with MockBackend([text]) as mock, pytest.raises(ConstraintError) as raised:
            ask(mock, constraint=constraint).result(WAIT)
        assert raised.value.pointer == at_fault

    def test_the_keyword_at_fault_is_named(self):
        schema = {"properties": {"a": {"type": "integer", "minimum": 3}}}
        with MockBackend(['{"a": 1}']) as mock, pytest.raises(ConstraintError) as raised:
            ask(mock, constraint=Constraint.json_schema(schema)).result(WAIT)
        assert (raised.value.keyword, raised.value.pointer) == ("minimum", "/a")

    def test_a_types_own_validator_is_not_the_mocks_to_run(self):
        import pydantic

        class Even(pydantic.BaseModel):
            n: int

            @pydantic.field_validator("n")
            @classmethod
            def even(cls, n):
                raise AssertionError("the user's code ran on the mock's thread")

        assert one('{"n": 3}', constraint=Constraint.of(Even))[0].text == '{"n": 3}'
        with MockBackend(['{"n": "3"}']) as mock, pytest.raises(ConstraintError, match="integer"):
            ask(mock, constraint=Constraint.of(Even)).result(WAIT)

    def test_cut_short_is_not_looked_at(self):
        generation, _ = one(Reply(pieces=['{"a"', ": 1}"]), constraint=Constraint.of(dict), max_tokens=1)
        assert (generation.text, generation.meta.finish_reason) == ('{"a"', "length")


RULES = [
    joint_likelihood,
    token_length_normalized,
    greedy_token_selection,
    unconditional_likelihood_normalized,
]


class TestSelect:
    def score(self, mock, choices=("John", "John Doe", "Mary"), unconditional=False, name="who"):
        request = ScoreRequest((Text("by "),), tuple(choices), (), unconditional, name=name)
        return mock.submit_score(request).result(WAIT)

    @pytest.mark.parametrize("rule", RULES, ids=repr)
    @pytest.mark.parametrize("choice", ["John", "John Doe", "Mary"])
    def test_every_rule_takes_the_choice_of_the_reply(self, rule, choice):
        with MockBackend({"who": choice}) as mock:
            scores = self.score(mock, unconditional=rule.needs_unconditional)
            decision = rule.decide(tuple(s.text for s in scores), scores, temperature=0.9, seed=1)
            assert scores[decision.index].text == choice
            assert decision.probabilities[choice] == 1.0
            assert (mock.requests[0].kind, mock.requests[0].choices) == ("select", ("John", "John Doe", "Mary"))

    @pytest.mark.parametrize("reply", [{"John": -2.0, "Mary": -1.0}, Reply(logprobs={"John": -2.0, "Mary": -1.0})])
    def test_logprobs_of_the_choices(self, reply):
        with MockBackend([reply]) as mock:
            assert [s.logprob for s in self.score(mock)] == [-2.0, -math.inf, -1.0]

    @pytest.mark.parametrize("reply", ["Jane", {"Jane": -1.0}])
    def test_a_reply_that_is_no_choice(self, reply):
        with MockBackend([reply]) as mock, pytest.raises(ConstraintError, match=r"select\('who'\).*'Jane' is not one"):
            self.score(mock)

    def test_logprobs_of_choices_are_no_text(self):
        with MockBackend([{"a": -1.0}]) as mock, pytest.raises(BackendError, match="no select"):
            ask(mock).result(WAIT)


class TestThread:
    def test_callbacks_run_on_the_mocks_thread_and_it_ends_by_itself(self):
        before = set(threading.enumerate())
        seen = []
        mock = MockBackend(["a b"] * 50)
        handles = [ask(mock, on_text=lambda i, t: seen.append(threading.current_thread())) for _ in range(50)]
        for handle in handles:
            handle.result(WAIT)
        assert len(set(seen)) >= 1
        assert threading.current_thread() not in seen
        deadline = time.monotonic() + WAIT
        while set(threading.enumerate()) - before and time.monotonic() < deadline:
            time.sleep(0.001)
        assert set(threading.enumerate()) - before == set()
        mock.close()

    def test_requests_are_in_flight_together(self):
        seen = []
        reply = Reply(pieces=["1", "2", "3"], delay=0.1, piece_delay=0.1)
        begin = time.monotonic()
        with MockBackend([reply] * 100) as mock:
            handles = [ask(mock, on_text=lambda i, t, k=k: seen.append((k, t))) for k in range(100)]
            for handle in handles:
                handle.result(WAIT)
        assert time.monotonic() - begin < 5.0  # one after the other it would be 30 s
        assert all([t for k, t in seen if k == one_of] == ["1", "2", "3"] for one_of in range(100))
        assert [k for k, _ in seen[:10]] == list(range(10))

    def test_cancel_stops_the_stream(self):
        seen = []
        with MockBackend([Reply(pieces=["x"] * 1000, piece_delay=0.01), Reply("late", delay=60.0)]) as mock:
            started = threading.Event()
            long = ask(mock, on_text=lambda i, t: (seen.append(t), started.set()))
            late = ask(mock)
            assert started.wait(WAIT)
            begin = time.monotonic()
            for handle in (long, late):
                handle.cancel()
                with pytest.raises(CancelledError, match=r"gen\('x'\)"):
                    handle.result(WAIT)
            assert time.monotonic() - begin < 5.0
            count = len(seen)
            time.sleep(0.05)
            assert len(seen) == count < 1000
            long.cancel()

    def test_future_cancel_does_nothing(self):
        with MockBackend([Reply("x", delay=0.02)]) as mock:
            handle = ask(mock)
            assert not handle.future.cancel()
            assert handle.result(WAIT)[0].text == "x"

    def test_timeout(self):
        with MockBackend([Reply("x", delay=60.0), Reply(pieces=["a"] * 9999, piece_delay=0.005)]) as mock:
            for _ in range(2):
                begin = time.monotonic()
                with pytest.raises(DeadlineError, match=r"timeout of 0\.05 s"):
                    ask(mock, timeout=0.05).result(WAIT)
                assert 0.05 <= time.monotonic() - begin < 5.0

    def test_close(self):
        mock = MockBackend([Reply("x", delay=60.0)] * 2)
        handles = [ask(mock), ask(mock)]
        mock.close()
        mock.close()
        for handle in handles:
            with pytest.raises(BackendClosedError, match="closed before it ended"):
                handle.result(WAIT)
        for use in (ask, lambda m: m.submit_prefill(())):
            with pytest.raises(BackendClosedError):
                use(mock)
        assert not [t for t in threading.enumerate() if t.name == "radicel-mock"]

    def test_close_from_a_callback(self):
        mock = MockBackend([Reply(pieces=["a", "b"]), Reply("x", delay=60.0)])
        first = ask(mock, on_text=lambda i, t: mock.close())
        with pytest.raises(BackendClosedError):
            first.result(WAIT)

    def test_a_callback_may_submit(self):
        done = []
        with MockBackend(["a", "b"]) as mock:
            ask(mock).future.add_done_callback(lambda f: done.append(ask(mock)))
            deadline = time.monotonic() + WAIT
            while not done and time.monotonic() < deadline:
                time.sleep(0.001)
            assert done[0].result(WAIT)[0].text == "b"

    def test_a_callback_that_raises_fails_its_own_request(self):
        with MockBackend(["a", "b"]) as mock:
            bad, good = ask(mock, on_text=lambda i, t: 1 / 0), ask(mock)
            with pytest.raises(ZeroDivisionError):
                bad.result(WAIT)
            assert good.result(WAIT)[0].text == "b"

    def test_from_many_threads_every_request_gets_its_own_answer(self):
        def answer(request):
            return request.prompt[::-1]

        with MockBackend(answer) as mock:
            results = {}

            def work(k):
                for i in range(50):
                    text = f"{k}-{i}"
                    results[text] = ask(mock, prompt=[Text(text)]).result(WAIT)[0].text

            threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(mock.requests) == len(results) == 400
            assert all(value == key[::-1] for key, value in results.items())
