"""`select` in programs: values byte for byte, probabilities, temperature and seeds, wrong choices refused."""

import math

import pytest
from radicel import (
    MockBackend,
    function,
    gen,
    greedy_token_selection,
    joint_likelihood,
    select,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radicel.errors import ChoicesError, InvalidValueError

METHODS = [joint_likelihood, token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized]


@function
def pick(s, choices, before="", **options):
    s += before
    s += select("x", choices, **options)
    s += "!"


@pytest.mark.parametrize("before", ["", "Use: ", "[/INST]", "[/INST] "])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_value_is_the_choice_and_nothing_of_the_text_before(method, before):
    choices = ["WEB_SEARCH", "OTHER", " spaced", "John", "John Doe"]
    for choice in choices:
        state = pick.run(choices, before, choices_method=method, backend=MockBackend({"x": choice}))
        assert state["x"] == choice
        assert state.text() == before + choice + "!"


def test_probabilities_of_the_choices():
    logprobs = {"yes": math.log(0.6), "no": math.log(0.2)}
    state = pick.run(["yes", "no"], backend=MockBackend([logprobs]))
    assert state["x"] == "yes"
    assert state.meta("x").probabilities == pytest.approx({"yes": 0.75, "no": 0.25})
    assert state.meta("x").choice_logprobs == pytest.approx(logprobs)


def test_temperature_draws_and_a_seed_repeats_the_draw():
    logprobs = {"yes": math.log(0.6), "no": math.log(0.4)}

    def drawn(seed):
        @function
        def one(s):
            s += select("x", ["yes", "no"], temperature=0.7, seed=seed)

        return one.run(backend=MockBackend({"x": logprobs}))["x"]

    first = [drawn(seed) for seed in range(60)]
    assert 0 < first.count("no") < 60
    assert [drawn(seed) for seed in range(60)] == first


def test_gen_with_a_choices_method_is_a_select():
    @function
    def chosen(s):
        s += gen("x", choices=["a", "b"], choices_method=token_length_normalized)

    backend = MockBackend(["b"])
    assert chosen.run(backend=backend)["x"] == "b"
    assert backend.requests[0].kind == "select"


@pytest.mark.parametrize("choices", [[], ["a", "a"], "ab", ["a", 1], None], ids=repr)
def test_wrong_choices_are_refused_where_they_are_written(choices):
    backend = MockBackend()
    with pytest.raises(ChoicesError):
        pick.run(choices, backend=backend)
    assert backend.requests == []


def test_a_negative_temperature_is_refused():
    with pytest.raises(InvalidValueError):
        pick.run(["a", "b"], temperature=-1.0, backend=MockBackend(["a"]))
