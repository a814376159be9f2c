"""The public surface, sentence by sentence: every name as it is documented, on a mock and on a model."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import radicel
from radicel import (
    Constraint,
    MockBackend,
    Reply,
    SamplingParams,
    errors,
    function,
    gen,
    gen_int,
    gen_string,
    select,
    system,
    user,
)
from radicel.runtime import LocalRuntime

NAMES = (
    "function gen gen_int gen_string select system user assistant role system_begin system_end user_begin user_end "
    "assistant_begin assistant_end separate_reasoning image set_default_backend get_default_backend flush_cache "
    "SamplingParams MockBackend Reply Constraint token_length_normalized greedy_token_selection "
    "unconditional_likelihood_normalized joint_likelihood LocalRuntime Runtime Engine OpenAIBackend OpenAI "
    "RuntimeEndpoint special errors"
).split()
GEN = (
    "name max_tokens min_tokens n stop stop_token_ids stop_regex keep_stop temperature top_p top_k min_p "
    "frequency_penalty presence_penalty repetition_penalty logit_bias seed ignore_eos logprobs return_logprob "
    "logprob_start_len top_logprobs top_logprobs_num return_text_in_logprobs priority timeout token_healing schema "
    "regex json_schema grammar ebnf choices choices_method dtype strict any_order validate on_budget thinking "
    "whitespace tools"
).split()
RUNTIME = {
    "model": None, "device": "auto", "dtype": "auto", "memory_fraction": 0.9, "kv_tokens": None,
    "context_length": None, "max_running": 256, "prefill_chunk": 8192, "policy": "prefix", "prefix_cache": True,
    "cuda_graphs": True, "overlap": True, "attention": "auto", "chat_template": None, "seed": None,
    "trust_remote_code": False,
}  # fmt: skip
STATS = (
    "running waiting kv_used kv_cached kv_free prompt_tokens cached_tokens computed_tokens generated_tokens "
    "forced_tokens hit_rate preemptions steps step_s gpu_idle_share"
).split()
META = (
    "finish_reason matched_stop prompt_tokens cached_tokens completion_tokens forced_tokens token_ids reencoded "
    "logprobs top_logprobs prompt_logprobs queue_s first_token_s total_s"
).split()
ERRORS = (
    "EngineDeadError ConstraintError UnknownVariableError IncompleteOutputError ContextLengthError CancelledError "
    "BatchError ModelNotFoundError BackendClosedError"
).split()


@pytest.fixture(params=["mock", pytest.param("model", marks=pytest.mark.model)])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Whatever runs a program: the same program, the same shape of answers."""
    if request.param == "model":
        yield request.getfixturevalue("embedded")
        return
    with MockBackend(lambda r: r.choices[0] if r.choices else "7" if r.constraint else "some words here") as mock:
        yield mock


def test_every_name_is_there() -> None:
    for name in NAMES:
        assert getattr(radicel, name) is not None
    assert radicel.Engine is radicel.Runtime
    assert radicel.OpenAI is radicel.OpenAIBackend
    assert list(inspect.signature(gen).parameters) == GEN
    assert [p.kind for p in inspect.signature(gen).parameters.values()][2:] == [inspect.Parameter.KEYWORD_ONLY] * (
        len(GEN) - 2
    )
    select_defaults = {n: p.default for n, p in inspect.signature(select).parameters.items()}
    assert list(select_defaults)[:2] == ["name", "choices"]
    assert select_defaults["temperature"] == 0
    assert select_defaults["choices_method"] in (None, radicel.joint_likelihood)


def test_every_keyword_of_the_runtime_has_its_default() -> None:
    parameters = inspect.signature(LocalRuntime).parameters
    assert {n: parameters[n].default for n in RUNTIME} == RUNTIME
    assert {"load_format", "template_kwargs"} <= set(parameters)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for n, p in parameters.items() if n != "model")


def test_one_tree_of_errors() -> None:
    for name in ERRORS:
        assert issubclass(getattr(errors, name), errors.RadicelError)
    assert issubclass(errors.UnknownVariableError, KeyError)
    for name in ("ConstraintError", "InvalidValueError", "SamplingError", "ChoicesError"):
        assert issubclass(getattr(errors, name), ValueError)
    every = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, BaseException)]
    assert all(issubclass(v, errors.RadicelError) for v in every)


def test_sampling_spellings() -> None:
    assert SamplingParams.of(max_new_tokens=3) == SamplingParams(max_tokens=3)
    with pytest.raises(errors.SamplingError, match="max_tokens"):
        SamplingParams.of(max_new_tokens=3, max_tokens=3)
    with pytest.raises(errors.ConstraintError, match="regex"):
        gen("a", regex="a", schema=int)


@function
def everything(s: Any, topic: str) -> str:
    s += system("You are brief.") + user(f"Say something about {topic}.")
    with s.assistant():
        s += gen("first", max_tokens=4, temperature=0)
        s += select("pick", ["red", "blue"])
        s += gen("number", schema=Literal[3, 7], max_tokens=5)
    return "returned"


def test_run_and_what_a_state_tells(backend: Any) -> None:
    state = everything.run("tea", backend=backend, max_new_tokens=5)
    assert state.ret_value == "returned"
    assert state.error() is None
    assert isinstance(state["first"], str)
    assert state["first"]
    assert state["pick"] in ("red", "blue")
    assert type(state["number"]) is int
    assert "first" in state
    assert "last" not in state
    with pytest.raises(errors.UnknownVariableError, match="last"):
        state["last"]
    meta = state.meta("first")
    for name in META:
        assert meta[name] == getattr(meta, name)
    assert state.get_meta_info("first").finish_reason == meta.finish_reason
    assert meta.finish_reason in ("stop", "length")
    assert meta.cached_tokens <= meta.prompt_tokens
    assert meta.prompt_tokens > 0
    picked = state.meta("pick")
    assert set(picked.probabilities) == {"red", "blue"}
    assert sum(picked.probabilities.values()) == pytest.approx(1)
    assert [m["role"] for m in state.messages()] == ["system", "user", "assistant"]
    assert state.messages()[2]["content"] == state["first"] + state["pick"] + str(state["number"])
    assert state["first"] in state.text()
    state["mine"] = 5
    assert state.get_var("mine") == 5
    state.set_var("mine", 6)
    assert state["mine"] == 6
    assert state.sync() is None


def test_streams_and_batches(backend: Any) -> None:
    state = everything.run("tea", backend=backend, stream=True)
    assert "".join(state.text_iter("first")) == state["first"]
    assert "".join(state.text_iter()) == state.text()
    with pytest.raises(errors.UnknownVariableError):
        next(iter(state.text_iter("typo")))

    async def read() -> tuple[str, Any]:
        running = everything.run("tea", backend=backend, stream=True)
        text, last = "", None
        async for piece, meta in running.text_async_iter("first", return_meta_data=True):
            text, last = text + piece, meta
        return text, (await everything.arun("tea", backend=backend)).ret_value if last else None

    assert asyncio.run(read()) == (state["first"], "returned")
    items = [{"topic": "tea"}, ("salt",), {"wrong": 1}]
    for states in (
        everything.run_batch(items, backend=backend, temperature=0),
        asyncio.run(everything.arun_batch(items, backend=backend, temperature=0)),
        list(everything.run_batch(items, backend=backend, generator_style=True)),
    ):
        assert [type(s.error()) for s in states[:2]] == [type(None)] * 2
        assert isinstance(states[2].error(), TypeError)
    with pytest.raises(errors.BatchError, match="2") as caught:
        everything.run_batch(items, backend=backend, on_error="raise")
    assert len(caught.value.states) == 3


def test_bind_cache_and_inline(backend: Any) -> None:
    bound = everything.bind(topic="tea")
    assert bound.run(backend=backend).ret_value == "returned"
    with pytest.raises((TypeError, errors.RadicelError), match="topic"):
        bound.run(backend=backend, topic="salt")
    everything.cache(backend=backend)

    @function
    def outer(s: Any) -> Any:
        s += "First. "
        s += everything("tea")
        own = everything(topic="salt")
        return own["pick"], s["pick"]

    state = outer.run(backend=backend)
    assert set(state.ret_value) <= {"red", "blue"}
    assert "First. " in state.text()
    assert len(state.messages()) == 3


def test_scopes_copies_and_forks(backend: Any) -> None:
    @function
    def program(s: Any) -> None:
        s += "The colours are:"
        with s.var_scope("scope"):
            s += " red" + gen("a", max_tokens=2, temperature=0)
        with s.copy() as c:
            c += " and" + gen("tried", max_tokens=2, temperature=0)
        branches = s.fork(3, position_ids_offset=[1, 2, 3])
        branches += lambda i: f" {i}:"
        branches += gen("x", max_tokens=2, temperature=0)
        branches[0] += "!"
        assert branches["x"] == [branch["x"] for branch in branches]
        assert len(branches) == 3
        branches.join()
        with s.fork(2) as two:
            two += [" one", " two"]
        first = s.fork(2)
        first += gen("won", max_tokens=2, temperature=0)
        first.join("first")
        s += " end"
        other = s.fork(2)
        other += [" left", " right"]
        other.join("concate_and_append")

    state = program.run(backend=backend)
    assert state["scope"] == " red" + state["a"]
    assert isinstance(state["tried"], str)
    assert "and" + state["tried"] not in state.text()
    assert len(state["x"]) == len(state.meta("x")) == 3
    assert isinstance(state["won"], str)
    assert state.text().endswith(state["won"] + " end left right")


def test_values_cut_short(backend: Any) -> None:
    @function
    def program(s: Any, regex: str, most: int) -> None:
        s += "List: " + gen("a", max_tokens=most, regex=regex, temperature=0)

    mock = isinstance(backend, MockBackend)
    own = MockBackend([Reply("abc", finish_reason="length")]) if mock else backend
    state = program.run("[a-z]{1,1000}", 2, backend=own, stream=True)
    with pytest.raises(errors.IncompleteOutputError) as caught:
        state["a"]
    assert caught.value.name == "a"
    assert caught.value.text
    with pytest.raises(errors.IncompleteOutputError):
        program.run("[a-z]{1,1000}", 2, backend=MockBackend([Reply("abc", finish_reason="length")]) if mock else own)
    assert isinstance(state.error(), errors.IncompleteOutputError)
    if not mock:
        with pytest.raises(errors.ConstraintError, match="max_tokens=2"):
            program.run("[a-z]{1000}", 2, backend=own)


def test_anonymous_and_empty(backend: Any) -> None:
    @function
    def program(s: Any) -> None:
        s += "Numbers: " + gen(max_tokens=2) + " and " + gen(max_tokens=2) + gen("empty", max_tokens=0)

    state = program.run(backend=backend)
    assert state.variables() == ["empty"]
    assert state["empty"] == ""
    assert state.meta("empty").completion_tokens == 0


def test_typed_by_name() -> None:
    @function
    def program(s: Any) -> None:
        s += gen_int("i") + gen_string("s") + gen("f", dtype=float) + gen("b", dtype="bool")

    state = program.run(backend=MockBackend(["12", '"a\\"b"', "1.5", "True"]))
    assert [state[name] for name in "isfb"] == [12, 'a"b', 1.5, True]


def test_constraints_have_one_form() -> None:
    for made in (
        Constraint.of(int),
        Constraint.of({"type": "integer"}),
        Constraint.json_schema({"type": "integer"}),
        Constraint.regex("[0-9]+"),
        Constraint.grammar("root ::= [0-9]+"),
        Constraint.choices(["7", "8"]),
    ):

        @function
        def program(s: Any, made: Any = made) -> None:
            s += gen("a", schema=made)

        mock = MockBackend({"a": "7"})
        assert program.run(backend=mock)["a"] in (7, "7")
        assert mock.requests[0].constraint is not None
    with pytest.raises(errors.ConstraintError) as caught:
        Constraint.of({"type": "integer", "not": 5})
    assert caught.value.pointer is not None
    assert caught.value.keyword is not None


def test_a_mock_tells_what_was_asked() -> None:
    with pytest.raises(TypeError, match="12"):
        MockBackend({"number": 12})  # a reply is text
    mock = MockBackend({"first": Reply("some words", pieces=["some", " words"]), "pick": "blue", "number": ["7"]})
    state = everything.run("tea", backend=mock, temperature=0.5)
    assert (state["first"], state["pick"], state["number"]) == ("some words", "blue", 7)
    assert [(r.kind, r.name) for r in mock.requests] == [("gen", "first"), ("select", "pick"), ("gen", "number")]
    first = mock.requests[0]
    assert first.prompt.endswith("<|im_start|>assistant\n")
    assert [m["role"] for m in first.messages][:2] == ["system", "user"]
    assert first.sampling.temperature == 0
    assert tuple(mock.requests[1].choices) == ("red", "blue")
    with pytest.raises(LookupError, match="mine"):
        everything.run("tea", backend=MockBackend([LookupError("mine")]))


def test_the_runtime_without_a_program(rt: LocalRuntime) -> None:
    one = rt.generate("Hi", max_tokens=3, temperature=0, ignore_eos=True)
    assert (one.text, one.value, len(one.token_ids)) == (one.value, one.text, 3)
    assert rt.generate(["Hi", "Ho"], max_tokens=3, temperature=0, ignore_eos=True)[0].text == one.text
    assert "".join(rt.generate("Hi", max_tokens=3, temperature=0, ignore_eos=True, stream=True)) == one.text
    ids = rt.tokenizer("Hi").input_ids
    assert rt.generate(ids, SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)).text == one.text
    assert rt.generate([{"role": "user", "content": "Hi"}], max_tokens=1).meta.prompt_tokens > len(ids)
    assert asyncio.run(rt.agenerate("Hi", max_tokens=3, temperature=0, ignore_eos=True)).text == one.text
    scores = rt.score("Hi", [one.text, "x"])
    assert scores[0].logprob == pytest.approx(sum(scores[0].token_logprobs))
    assert len(scores[0].token_ids) == len(scores[0].token_logprobs)
    assert rt.generate("Hi", schema=bool, max_tokens=5).value in (True, False)
    stats = rt.stats()
    assert dataclasses.is_dataclass(stats)
    for name in STATS:
        assert isinstance(getattr(stats, name), (int, float))
    rt.flush_cache()
    assert rt.stats().kv_cached == 0


def test_checking_from_outside() -> None:
    from radicel.testing import accepts

    assert accepts(Constraint.regex("a+"), "aa")
    assert not accepts(regex="a+", text="ab")
    assert accepts(schema={"type": "integer"}, text="12")
    assert accepts(grammar='root ::= "x"', text="x")
    assert accepts(choices=["x", "y"], token_ids=[ord("y")])
    with pytest.raises(errors.ConstraintError):
        accepts(regex="(", text="")


def test_what_does_not_exist_yet_says_so() -> None:
    with pytest.raises(errors.UnsupportedError):
        radicel.image("x.png")
    with pytest.raises(errors.RadicelError):
        radicel.RuntimeEndpoint("http://localhost:1")
