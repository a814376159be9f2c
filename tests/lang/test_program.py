"""`@function`: arguments, sampling parameters, binding, caching, backends, inlining and programs inside programs."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import radicel
from radicel import (
    MockBackend,
    SamplingParams,
    State,
    assistant,
    errors,
    function,
    gen,
    gen_int,
    gen_string,
    get_default_backend,
    select,
    set_default_backend,
    user,
)


@function
def ask(s, question, hint="none"):
    s += f"Q: {question} ({hint}) A: " + gen("answer")
    return question.upper()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [(("q", "h"), {}), (("q",), {"hint": "h"}), ((), {"question": "q", "hint": "h"})],
)
def test_run_takes_arguments_like_the_function(args, kwargs):
    mock = MockBackend(["a"])
    state = ask.run(*args, backend=mock, **kwargs)
    assert (state["answer"], state.ret_value, mock.requests[0].prompt) == ("a", "Q", "Q: q (h) A: ")


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, r"ask\(\): missing a required argument: 'question'"),
        (("q",), {"colour": 1}, "unexpected keyword argument 'colour'"),
        (("a", "b", "c"), {}, "too many positional arguments"),
        (("q",), {"question": "again"}, "multiple values"),
    ],
)
def test_wrong_arguments_are_a_type_error_before_anything_runs(args, kwargs, words):
    mock = MockBackend([])
    with pytest.raises(TypeError, match=words):
        ask.run(*args, backend=mock, **kwargs)
    assert mock.requests == []


def test_first_parameter_may_have_any_name_and_a_program_keeps_its_functions_face():
    @function
    def poem(this_is_the_state, n: int):
        """Writes."""
        this_is_the_state += gen("p")

    assert poem.run(3, backend=MockBackend(["x"]))["p"] == "x"
    assert (poem.name, poem.__name__, poem.__doc__) == ("poem", "poem", "Writes.")
    assert repr(poem) == "<program poem(this_is_the_state, n: 'int')>"
    assert function(name="ode")(poem._fn).name == "ode"


@pytest.mark.parametrize("bad", [3, "text", gen("x")])
def test_only_functions_become_programs(bad):
    with pytest.raises(TypeError, match="takes a Python function"):
        function(bad)


def test_functions_that_cannot_be_bodies_are_refused_where_they_are_decorated():
    async def a(s):
        pass

    def g(s):
        yield

    def nothing():
        pass

    for fn in (a, g, nothing):
        with pytest.raises(TypeError, match=fn.__name__):
            function(fn)

    def clash(s, backend):
        pass

    with pytest.raises(errors.ProgramError, match="'backend'"):
        function(clash)
    with pytest.raises(TypeError, match="'colour' is not a sampling parameter"):
        function(colour="red")


# --- sampling parameters ---------------------------------------------------------------------------------------------


@function(temperature=0.1, top_p=0.1, max_tokens=1, stop="d")
def layered(s):
    s += gen("x", temperature=0.4)
    s += gen("y")


def test_sampling_is_merged_gen_over_call_over_decorator():
    mock = MockBackend(["1", "2"])
    layered.run(backend=mock, temperature=0.3, top_p=0.3, sampling=SamplingParams(max_tokens=2, top_p=0.2))
    x, y = (request.sampling for request in mock.requests)
    assert (x.temperature, x.top_p, x.max_tokens, x.stop) == (0.4, 0.3, 2, ("d",))
    assert (y.temperature, y.top_p, y.max_tokens, y.stop) == (0.3, 0.3, 2, ("d",))


def test_sampling_aliases_are_accepted_by_run_and_a_contradiction_is_refused():
    mock = MockBackend(["1", "2"])
    layered.run(backend=mock, max_new_tokens=7)
    assert mock.requests[1].sampling.max_tokens == 7
    with pytest.raises(errors.SamplingError, match="min_tokens=5 is more than max_tokens=1"):
        layered.run(backend=MockBackend(["1", "2"]), min_tokens=5)


def test_a_program_parameter_named_like_a_sampling_parameter_gets_its_value():  # A28
    @function
    def weather(s, temperature):
        s += f"It is {temperature} degrees. " + gen("x")

    mock = MockBackend(["1", "2"])
    weather.run(temperature=31, backend=mock)
    weather.run(temperature=31, sampling={"temperature": 0.5}, backend=mock)
    assert [r.prompt for r in mock.requests] == ["It is 31 degrees. "] * 2
    assert [r.sampling.temperature for r in mock.requests] == [None, 0.5]


def test_module_level_stop_list_is_never_changed():  # A1
    stop = ["\n"]

    @function(stop=stop)
    def p(s):
        s += user("q") + assistant(gen("a", stop=stop))

    mock = MockBackend(["x"] * 3)
    for _ in range(3):
        p.run(backend=mock, stop=stop)
    assert stop == ["\n"]
    assert {r.sampling.stop for r in mock.requests} == {("\n",)}


def test_seed_reaches_the_backend():  # B20
    @function
    def p(s):
        s += gen("a", seed=1) + gen("b")

    mock = MockBackend(["x"] * 2)
    p.run(backend=mock, seed=2)
    assert [r.sampling.seed for r in mock.requests] == [1, 2]


# --- gen's arguments -------------------------------------------------------------------------------------------------

SAMPLING = {
    "max_tokens": 5,
    "min_tokens": 2,
    "n": 2,
    "stop": ["x"],
    "stop_token_ids": [3],
    "stop_regex": ["y+"],
    "keep_stop": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "min_p": 0.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.1,
    "logit_bias": {7: 1.5},
    "seed": 11,
    "ignore_eos": True,
    "logprobs": True,
    "logprob_start_len": 0,
    "top_logprobs": 2,
    "return_text_in_logprobs": True,
    "priority": 3,
    "timeout": 60.0,
    "token_healing": False,
}


def test_every_sampling_argument_of_gen_reaches_the_request(held, until):
    @function
    def p(s):
        s += gen("x", **SAMPLING)

    state = p.run(backend=held, stream=True)
    (request,) = (h.request for h in held.wait(1))
    assert set(SAMPLING) == set(SamplingParams.__dataclass_fields__)
    assert request.sampling == SamplingParams.of(**SAMPLING)
    state.cancel()


@pytest.mark.parametrize(("alias", "name"), [("return_logprob", "logprobs"), ("top_logprobs_num", "top_logprobs")])
def test_sglang_spellings_of_gen(alias, name):
    @function
    def p(s, keywords):
        s += gen("x", **keywords)

    mock = MockBackend(["a"])
    p.run({alias: 1 if "num" in alias else True}, backend=mock)
    assert getattr(mock.requests[0].sampling, name) == (1 if "num" in alias else True)
    with pytest.raises(errors.SamplingError, match="twice"):
        p.run({alias: True, name: True}, backend=mock)


@pytest.mark.parametrize("name", ["any_order", "validate", "on_budget", "thinking"])
def test_arguments_of_a_constraint_need_one(name):
    value = {"validate": "after", "on_budget": "close"}.get(name, True)
    with pytest.raises(errors.ConstraintError, match=name):
        gen("x", **{name: value})
    gen("x", **{name: None})
    gen("x", schema={"type": "object"}, **{name: value})


def test_a_tool_has_arguments_with_names():
    with pytest.raises(errors.ConstraintError, match=r"\*args"):
        gen("x", tools=[print])


@pytest.mark.parametrize(
    ("keywords", "kind", "value"),
    [
        ({"regex": "[a-z]+"}, "regex", "yes"),
        ({"choices": ["yes", "no"]}, "choices", "yes"),
        ({"json_schema": {"type": "integer"}}, "json_schema", "7"),  # A30
        ({"schema": int}, "schema", 7),
        ({"dtype": int}, "dtype", 7),
        ({"grammar": 'root ::= "yes"'}, "grammar", "yes"),
        ({"ebnf": 'root ::= "yes"'}, "grammar", "yes"),
        ({"schema": radicel.Constraint.regex("[a-z]+")}, "regex", "yes"),
    ],
)
def test_constraints_reach_the_request_and_convert_the_value(keywords, kind, value, held):
    @function
    def p(s):
        s += gen("x", **keywords)

    state = p.run(backend=held, stream=True)
    (request,) = held.wait(1)
    assert request.request.constraint.kind == kind
    request.answer(str(value))
    assert (state["x"], type(state["x"])) == (value, type(value))


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"choices": ["a"], "regex": "["}, errors.ConstraintError, "regex"),  # A29
        ({"regex": "["}, errors.ConstraintError, "."),
        ({"choices": []}, errors.ConstraintError, "."),
        ({"json_schema": {"type": "objekt"}}, errors.ConstraintError, "objekt"),
        ({"dtype": list}, errors.ConstraintError, "dtype"),
        ({"grammar": "a", "ebnf": "a"}, errors.InvalidValueError, "ebnf"),
        ({"max_tokens": -1}, errors.SamplingError, "max_tokens=-1"),
        ({"temperature": -0.5}, errors.SamplingError, "temperature=-0.5"),
        ({"choices_method": radicel.joint_likelihood}, errors.InvalidValueError, "needs choices"),
        ({"max_tokenz": 3}, TypeError, "max_tokenz"),
    ],
)
def test_bad_arguments_of_gen_are_refused_at_the_call(keywords, error, words):
    with pytest.raises(error, match=words):
        gen("x", **keywords)


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), ("", errors.InvalidValueError)])
def test_a_name_is_a_string(name, error):
    with pytest.raises(error):
        gen(name)
    with pytest.raises(error):
        select(name, ["a", "b"])


def test_gen_int_and_gen_string_convert():  # A22
    @function
    def p(s):
        s += gen_int("i", stop="\n") + gen_string("t", max_tokens=9)

    mock = MockBackend(["42", '"ab"'])
    state = p.run(backend=mock)
    assert (state["i"], state["t"], state.text()) == (42, "ab", '42"ab"')
    assert mock.requests[1].sampling.max_tokens == 9


def test_dtype_survives_merging_with_the_calls_sampling():  # A22, A23
    @function(temperature=0)
    def p(s):
        s += gen("i", dtype=int, stop="\n")

    mock = MockBackend(["42"])
    assert p.run(backend=mock, top_p=0.5)["i"] == 42
    assert mock.requests[0].constraint.kind == "dtype"


def test_choices_with_a_method_are_a_select():
    @function
    def p(s):
        s += gen("x", choices=["a", "b"], choices_method=radicel.token_length_normalized)

    mock = MockBackend([{"a": -3.0, "b": -1.0}])
    state = p.run(backend=mock)
    assert (mock.requests[0].kind, state["x"]) == ("select", "b")


@pytest.mark.parametrize(
    ("choices", "keywords", "error"),
    [
        ([], {}, errors.ChoicesError),
        (None, {}, errors.ChoicesError),
        (["a", "a"], {}, errors.ChoicesError),
        ("ab", {}, errors.ChoicesError),
        (["a", 1], {}, errors.ChoicesError),
        (["a", "b"], {"temperature": -1}, ValueError),  # A26
        (["a", "b"], {"temperature": float("nan")}, ValueError),
        (["a", "b"], {"choices_method": "joint"}, TypeError),
    ],
)
def test_bad_arguments_of_select_are_refused_at_the_call(choices, keywords, error):
    with pytest.raises(error):
        select("x", choices, **keywords)


def test_select_reports_probabilities_and_stays_in_the_text():
    @function
    def p(s):
        s += "Is it? " + select("c", ["yes", "no"]) + "." + gen("why")

    mock = MockBackend([{"yes": -1.0, "no": -2.0}, "because"])
    state = p.run(backend=mock)
    meta = state.meta("c")
    assert state["c"] == "yes"
    assert meta.probabilities["yes"] == pytest.approx(1 / (1 + 2.718281828**-1))
    assert meta.choice_logprobs == {"yes": -1.0, "no": -2.0}
    assert mock.requests[1].prompt == "Is it? yes."


def test_select_at_a_temperature_draws_with_the_programs_seed():  # A26
    @function
    def p(s):
        s += select("c", ["a", "b"], temperature=1.0)

    def draws(seeds):
        return [p.run(backend=MockBackend([{"a": -0.7, "b": -0.7}]), seed=seed)["c"] for seed in seeds]

    assert draws(range(20)) == draws(range(20))
    assert set(draws(range(20))) == {"a", "b"}


# --- bind ------------------------------------------------------------------------------------------------------------


def test_bind_fixes_arguments_and_keeps_everything_else():  # A2
    @function(num_api_spec_tokens=32, temperature=0.2, name="n")
    def p(s, x, y):
        s += x + y + gen("v")

    bound = p.bind(x="1")
    assert (bound.num_api_spec_tokens, bound.sampling.temperature, bound.name) == (32, 0.2, "n")
    mock = MockBackend(["a", "b", "c"])
    bound.run("2", backend=mock)
    bound.run(y="2", backend=mock)
    bound.bind(y="3").run(backend=mock)
    assert [r.prompt for r in mock.requests] == ["12", "12", "13"]


def test_binding_twice_is_an_error():  # A3
    @function
    def p(s, x):
        s += x + gen("v")

    with pytest.raises(errors.DuplicateArgumentError, match="'x' was bound to 'bound'"):
        p.bind(x="bound").run(x="call", backend=MockBackend([]))
    with pytest.raises(TypeError):
        p.bind(x="bound").bind(x="again")
    with pytest.raises(TypeError, match="'z' is no parameter"):
        p.bind(z=1)
    with pytest.raises(TypeError, match="takes 0 more arguments"):
        p.bind(x="bound").run("call", backend=MockBackend([]))


# --- cache -----------------------------------------------------------------------------------------------------------


def prefix_of(body, *, bind=None):
    mock = MockBackend([])
    program = function(body)
    (program.bind(**bind) if bind else program).cache(mock)
    assert mock.requests == []
    return mock.prefilled


def test_cache_computes_the_text_before_the_first_argument():
    def plain(s, q):
        s += "Constant. " + "More. "
        s += "Q: " + q + gen("a")

    def formatted(s, q):
        s += f"Constant. Q: {q} A:"
        s += gen("a")

    def until_gen(s, q):
        s += "Constant. " + gen("a") + "never"

    def with_default(s, q="x"):
        s += "Constant. " + q

    def decides(s, q):
        s += "Constant. "
        if q == "x":
            s += "never"
        s += "never"

    def swallows(s, q):
        s += "Constant. "
        try:
            len(q)
        except Exception:
            s += "never"

    assert prefix_of(plain) == ["Constant. More. Q: "]
    assert prefix_of(formatted) == ["Constant. Q: "]
    for body in (until_gen, with_default, decides, swallows):
        assert prefix_of(body) == ["Constant. "], body.__name__


def test_cache_works_inside_turn_blocks_and_stops_at_reads_forks_and_helpers():  # A6
    def turns(s, q):
        s += radicel.system("S")
        with s.user():
            s += "Constant. "
            s += q

    def spoken(s, q):
        s += radicel.system("S") + user("Constant. " + q)

    expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nConstant. "
    assert prefix_of(turns) == prefix_of(spoken) == [expected]

    def forks(s, q):
        s += "Constant. "
        with s.fork(2) as b:
            b += gen("x")
        s += "never"

    @function
    def helper(s, q):
        s += "h" + gen("x")

    def calls(s, q):
        s += "Constant. "
        helper("q")
        s += "never"

    def inlines(s, q):
        s += "Constant. "
        s += helper("q")

    def runs(s, q):
        s += "Constant. "
        helper.run("q")

    assert prefix_of(forks) == prefix_of(calls) == prefix_of(runs) == ["Constant. "]
    assert prefix_of(inlines) == ["Constant. h"]


def test_cache_of_a_bound_argument_and_of_nothing():
    def p(s, a, b):
        s += a
        s += b

    assert prefix_of(p, bind={"a": "known "}) == ["known "]
    assert prefix_of(p) == []

    def positional(s, a, /, *rest, **more):
        s += "C" + a

    assert prefix_of(positional) == ["C"]


# --- backends --------------------------------------------------------------------------------------------------------


def test_default_backend_is_used_when_none_is_given():
    with pytest.raises(errors.NoBackendError, match="set_default_backend"):
        ask.run("q")
    mock = MockBackend(["a", "b"])
    set_default_backend(mock)
    try:
        assert get_default_backend() is mock
        assert ask.run("q")["answer"] == "a"
        assert ask("q")["answer"] == "b"  # outside of a program a call is `run`
        radicel.flush_cache()
    finally:
        set_default_backend(None)
    with pytest.raises(errors.NoBackendError):
        radicel.flush_cache()


@pytest.mark.parametrize("bad", ["http://localhost", MockBackend, 3])
def test_what_is_no_backend_is_refused(bad):
    with pytest.raises(TypeError, match="is not a backend"):
        ask.run("q", backend=bad)
    with pytest.raises(TypeError, match="is not a backend"):
        set_default_backend(bad)


# --- programs inside programs ----------------------------------------------------------------------------------------


@function(temperature=0.7, top_p=0.7)
def helper(s, x):
    s += f"[{x}:" + gen("h", top_k=3) + "]"
    return x * 2


def test_inlined_three_ways_records_into_the_same_state():
    @function(temperature=0.1, min_p=0.1)
    def outer(s):
        s += "a"
        s += helper("1")
        first = s["h"]
        returned = helper(s, "2")
        s += "b" + helper("3") + "c"
        s += [helper(x="4"), user(helper("5"))]
        s.assistant(helper("6"))
        return first, returned

    mock = MockBackend(["u", "v", "w", "x", "y", "z"])
    state = outer.run(backend=mock)
    assert state.ret_value == ("u", "22")
    assert state["h"] == "z"
    assert mock.requests[3].prompt == "a[1:u][2:v]b[3:w]c[4:"
    assert state.messages() == [
        {"role": "user", "content": "[5:y]"},
        {"role": "assistant", "content": "[6:z]"},
    ]
    said = mock.requests[0].sampling
    assert (said.top_k, said.temperature, said.top_p, said.min_p) == (3, 0.7, 0.7, 0.1)


def test_inlining_may_carry_sampling_of_its_own():
    @function
    def outer(s):
        s += helper("1", temperature=0.9)
        helper(s, "2", sampling={"temperature": 0.8})
        s += gen("o")

    mock = MockBackend(["u", "v", "w"])
    outer.run(backend=mock, temperature=0.5)
    assert [r.sampling.temperature for r in mock.requests] == [0.9, 0.8, 0.5]


def test_called_without_a_state_it_is_a_program_of_its_own_and_all_run_together(held):
    @function
    def outer(s, seen):
        parts = [helper(topic) for topic in "ab"]
        seen.extend(parts)
        s += "outer " + parts[0]["h"] + parts[1]["h"]
        return [part.ret_value for part in parts]

    seen: list[State] = []
    state = outer.run(seen, backend=held, stream=True)
    first, second = sorted(held.wait(2), key=lambda r: r.text)  # both, before either is answered
    assert (first.text, second.text) == ("[a:", "[b:")
    second.answer("2")
    first.answer("1")
    assert state.ret_value == ["aa", "bb"]
    assert state.text() == "outer 12"
    assert "h" not in state
    assert all(isinstance(part, State) for part in seen)


def test_a_nested_program_that_nobody_reads_is_started_and_waited_for():
    @function
    def outer(s):
        helper("x")

    mock = MockBackend(["done"])
    outer.run(backend=mock)
    assert [r.prompt for r in mock.requests] == ["[x:"]


def test_error_of_a_nested_program():
    boom = RuntimeError("boom")

    @function
    def reads(s):
        s += helper("x")["h"]

    @function
    def deals(s):
        try:
            s += helper("x")["h"]
        except RuntimeError:
            s += "dealt"

    @function
    def ignores(s):
        helper("x")

    for program in (reads, ignores):
        with pytest.raises(RuntimeError) as raised:
            program.run(backend=MockBackend([boom]))
        assert raised.value is boom
    assert deals.run(backend=MockBackend([boom])).text() == "dealt"


def test_a_state_is_not_text_and_an_inlined_call_is_not_a_program():
    @function
    def outer(s, how):
        part = helper("1")
        if how == "started":
            assert part["h"] == "u"
            s += part
        s += part
        return part["h"]

    with pytest.raises(TypeError, match=r"state\['name'\]"):
        outer.run("started", backend=MockBackend(["u"]))
    with pytest.raises(errors.ProgramError, match="inlined"):
        outer.run("inlined", backend=MockBackend(["u"]))


def test_run_inside_a_body_uses_the_same_backend():
    @function
    def outer(s):
        s += helper.run("x")["h"]

    assert outer.run(backend=MockBackend(["in"])).text() == "in"


def test_nested_programs_many_levels_deep_cannot_lock_the_pool():
    @function
    def nest(s, depth):
        if depth:
            parts = [nest(depth - 1) for _ in range(3)]
            s += "".join(part["v"] for part in parts)
        s += gen("v")

    state = nest.run(5, backend=MockBackend(lambda request: "x"))
    assert state.text() == "xxx" + "x"


# --- the module ------------------------------------------------------------------------------------------------------


def test_import_loads_neither_torch_nor_transformers():
    code = (
        "import sys, time; t = time.perf_counter(); import radicel; dt = time.perf_counter() - t\n"
        "heavy = {'torch', 'transformers', 'triton', 'xgrammar', 'llguidance', 'openai'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'rich' not in sys.modules\n"
        "print(dt)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert float(out.stdout) < 5.0


API = """function gen gen_int gen_string select system user assistant role system_begin system_end user_begin user_end
assistant_begin assistant_end separate_reasoning image special set_default_backend get_default_backend flush_cache
SamplingParams MockBackend Reply Constraint token_length_normalized greedy_token_selection
unconditional_likelihood_normalized joint_likelihood LocalRuntime Runtime Engine OpenAIBackend OpenAI RuntimeEndpoint
""".split()


def test_public_names_are_sorted_and_complete():
    assert list(radicel.__all__) == sorted(radicel.__all__)
    assert set(API) <= set(radicel.__all__) <= set(dir(radicel))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = radicel.nonsense


def test_remote_radicel_says_that_it_does_not_exist_yet():
    with pytest.raises(errors.UnsupportedError, match="does not exist yet"):
        radicel.RuntimeEndpoint("http://localhost:30000")


def test_images_are_refused_at_the_call():  # B16
    with pytest.raises(errors.UnsupportedError, match=r"cat\.png"):
        radicel.image("cat.png")


def test_one_program_runs_in_many_threads_at_once():
    mock = MockBackend(lambda request: request.prompt[-3])
    results: dict[int, str] = {}

    def work(i):
        results[i] = ask.run(str(i), hint="h", backend=mock)["answer"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(16))


def test_an_expression_in_an_f_string_is_told_what_to_write():
    for expression in (radicel.gen("x"), "a" + radicel.select("x", ["b", "c"]), radicel.user("d")):
        with pytest.raises(TypeError, match="write 'text ' \\+ gen"):
            f"A {expression}"
