"""The state: appending, roles, reading, texts, messages, meta, scopes, reasoning."""

from __future__ import annotations

import enum
import operator
import threading

import pytest
from radicel import (
    MockBackend,
    Reply,
    State,
    assistant,
    assistant_begin,
    assistant_end,
    errors,
    function,
    gen,
    role,
    select,
    separate_reasoning,
    special,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from radicel.prompt import Generated, Text, TurnBegin, TurnEnd


def run(body, replies=(), **keywords):
    """Runs the body; the state and the mock."""
    mock = MockBackend(replies)
    return function(body).run(backend=mock, **keywords), mock


class Colour(str, enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    "made",
    [
        lambda: "a" + gen("x") + "b" + gen("y"),
        lambda: ["a", gen("x"), "b", gen("y")],
        lambda: ("a", [gen("x"), ["b"]], gen("y")),
        lambda: ["a"] + gen("x") + ["b", gen("y")],
        lambda: "a" + (gen("x") + "b") + gen("y"),
        lambda: gen("x").__radd__("a") + "b" + gen("y"),
    ],
)
def test_sums_and_lists_keep_their_order(made):
    def body(s):
        s += made()

    state, mock = run(body, ["1", "2"])
    assert [r.prompt for r in mock.requests] == ["a", "a1b"]
    assert state.text() == "a1b2"


def test_strings_are_text_also_empty_ones_and_subclasses():
    def body(s):
        s += ""
        s += Colour.RED
        s += "" + gen("x") + ""

    state, _ = run(body, ["1"])
    assert state.text() == "red1"
    assert state.format().count("text") == 1


@pytest.mark.parametrize(
    ("value", "name"),
    [(3, "int"), (None, "NoneType"), (2.5, "float"), (b"x", "bytes"), ({"a"}, "set"), (gen, "function")],
)
def test_other_types_are_refused_at_once_and_leave_nothing_behind(value, name):
    def body(s):
        s += "before"
        for bad in (value, ["x", value], lambda: "x" + gen("g") + value, lambda: user(value)):
            with pytest.raises(TypeError, match=name):
                s += bad() if bad is not value and callable(bad) else bad

    state, mock = run(body)
    assert (state.text(), mock.requests) == ("before", [])


def test_a_lone_surrogate_is_no_text():
    def body(s):
        with pytest.raises(errors.InvalidValueError, match="position 2"):
            s += "ab\ud800"

    run(body)


def test_special_marks_text_whose_special_tokens_are_meant(held):
    @function
    def p(s):
        s += special("<fim>") + "<fim>" + gen("x")

    state = p.run(backend=held, stream=True)
    (request,) = held.wait(1)
    assert request.request.prompt == (Text("<fim>", special=True), Text("<fim>"))
    state.cancel()
    with pytest.raises(TypeError):
        special(3)


# --- roles -----------------------------------------------------------------------------------------------------------


def in_functions(s):
    s += system("S") + user("U")
    s += assistant("A: " + gen("x") + ".")


def in_blocks(s):
    with s.system():
        s += "S"
    with s.user():
        s += "U"
    with s.assistant():
        s += "A: "
        s += gen("x")
        s += "."


def in_marks(s):
    s += system_begin() + "S" + system_end() + user_begin()
    s += "U" + user_end()
    s += [assistant_begin(), "A: ", gen("x"), ".", assistant_end()]


def in_methods(s):
    s.system("S")
    s.user("U")
    s.assistant("A: " + gen("x") + ".")


def in_role(s):
    s += role("system", "S")
    s.role("user", "U")
    with s.role("assistant"):
        s += "A: " + gen("x") + "."


@pytest.mark.parametrize("body", [in_functions, in_blocks, in_marks, in_methods, in_role])
def test_all_spellings_of_roles_make_the_same_turns(body, held):
    state = function(body).run(backend=held, stream=True)
    (request,) = held.wait(1)
    assert request.request.prompt == (
        TurnBegin("system"),
        Text("S"),
        TurnEnd(),
        TurnBegin("user"),
        Text("U"),
        TurnEnd(),
        TurnBegin("assistant"),
        Text("A: "),
    )
    request.answer("42")
    assert state.messages() == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A: 42."},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: user("a" + assistant("b")),
        lambda s: user([user("x")]),
        lambda s: operator.iadd(s, user_begin() + "x" + assistant("y")),
        lambda s: operator.iadd(s, user_begin() + user_begin()),
        lambda s: operator.iadd(s, user_end()),
        lambda s: operator.iadd(s, user_begin() + assistant_end()),
        lambda s: s.role(""),
    ],
)
def test_role_mistakes_are_a_role_error_at_once(wrong):
    def body(s):
        with pytest.raises(errors.RoleError):
            wrong(s)

    run(body)


def test_role_inside_a_block_is_refused_and_the_block_still_ends():
    def body(s):
        with s.user():
            s += "a"
            with pytest.raises(errors.RoleError, match="'assistant' inside a turn of 'user'"), s.assistant():
                pass
        try:
            with s.assistant():
                s += "b"
                raise ValueError("boom")
        except ValueError:
            s += user("c")

    state, _ = run(body)
    assert [m["content"] for m in state.messages()] == ["a", "b", "c"]


def test_messages_are_a_copy_leave_out_raw_text_and_include_the_open_turn():
    def body(s):
        s += "raw" + user("u") + " between "
        with s.assistant():
            s += "so far"
            return s.messages()

    state, _ = run(body)
    assert state.ret_value[-1] == {"role": "assistant", "content": "so far"}
    state.messages()[0]["content"] = "changed"
    assert state.messages()[0] == {"role": "user", "content": "u"}
    assert len(state.messages()) == 2


def test_several_gens_and_prefilled_text_in_one_turn():
    def body(s):
        s += user("q") + assistant("A=" + gen("a") + ", B=" + gen("b"))

    state, mock = run(body, ["1", "2"])
    assert mock.requests[1].prompt.endswith("assistant\nA=1, B=")
    assert state.messages()[1]["content"] == "A=1, B=2"


# --- variables -------------------------------------------------------------------------------------------------------


def test_appending_never_waits_and_reading_does(held):
    @function
    def p(s):
        s += "a" + gen("x") + "b" + gen("y")
        order.append("appended")
        order.append(s["x"])

    order = []
    state = p.run(backend=held, stream=True)
    (first,) = held.wait(1)
    assert held.names() == ["x"]  # y needs x's text
    first.answer("X")
    second = held.wait(2)[1]
    assert second.text == "aXb"
    second.answer("Y")
    assert state["y"] == "Y"
    assert state.ret_value is None  # the body has ended
    assert order == ["appended", "X"]


def test_a_name_that_was_never_made_is_a_key_error_that_lists_the_others():
    def body(s):
        s += gen("x")
        with pytest.raises(errors.UnknownVariableError):
            s["typo"]

    state, _ = run(body, ["1"])
    for read in (state.__getitem__, state.get_var, state.meta, state.get_meta_info, state.text_iter):
        with pytest.raises(KeyError, match=r"'typo'.*made so far: 'x'"):
            read("typo")
    assert ("x" in state, "typo" in state, 3 in state) == (True, False, False)


def test_set_variables():
    def body(s):
        s["x"] = 3
        s.set_var("y", [1])
        with pytest.raises(TypeError, match="int"):
            s[3] = 1
        return s["x"], s.get_var("y")

    state, _ = run(body)
    assert state.ret_value == (3, [1])
    assert state.variables() == ["x", "y"]
    assert state.meta("x").finish_reason is None
    state["x"] = 4
    assert state["x"] == 4


def test_unnamed_gens_have_names_of_their_own():  # A32
    def body(s):
        s += gen() + gen(max_tokens=3) + select(choices=["a", "b"])

    state, mock = run(body, ["1", "2", "b"])
    assert len({r.name for r in mock.requests}) == 3
    assert None not in {r.name for r in mock.requests}
    assert state.text() == "12b"
    assert state.variables() == []


def test_a_name_made_twice_is_the_later_value():
    def body(s):
        s += gen("x") + gen("x")

    state, _ = run(body, ["1", "2"])
    assert (state["x"], state.text()) == ("2", "12")


def test_n_samples_are_lists_and_the_first_continues():  # B10
    def body(s):
        s += "q: " + gen("x", n=3, logprobs=True) + "!" + gen("y")

    state, mock = run(body, [Reply(texts=["a b", "c", "d e f"]), "end"])
    assert state["x"] == ["a b", "c", "d e f"]
    assert [m.completion_tokens for m in state.meta("x")] == [2, 1, 3]
    assert [len(m.logprobs) for m in state.meta("x")] == [2, 1, 3]
    assert mock.requests[1].prompt == "q: a b!"


def test_n_typed_samples_are_a_list_of_values():
    def body(s):
        s += gen("x", n=2, schema=int)

    state, _ = run(body, [Reply(texts=["3", "4"])])
    assert state["x"] == [3, 4]


def test_meta_by_attribute_and_as_a_mapping():
    def body(s):
        s += "12345" + gen("x", max_tokens=2, logprobs=True, stop=".")

    state, _ = run(body, [Reply("one two three", logprobs=[-0.5, -1.5, -2.0])])
    meta = state.meta("x")
    assert (meta.finish_reason, meta["finish_reason"]) == ("length", "length")  # B22: a cut is visible
    assert (meta.prompt_tokens, meta.completion_tokens, meta.logprobs) == (5, 2, (-0.5, -1.5))
    assert state.get_meta_info("x") is meta
    assert dict(meta)["prompt_tokens"] == 5


def test_stop_is_cut_or_kept_and_named():  # B27
    def body(s):
        s += gen("cut", stop=".") + gen("kept", stop=".", keep_stop=True)

    state, _ = run(body, ["My name is Lily. More", "My name is Lily. More"])
    assert (state["cut"], state["kept"]) == ("My name is Lily", "My name is Lily.")
    assert state.meta("kept").matched_stop == "."


def test_ret_value_and_sync():
    def body(s):
        s += "a" + gen("x")
        assert s.ret_value is None
        s.sync()
        return {"n": len(s.text())}

    state, _ = run(body, ["bc"])
    assert state.ret_value == {"n": 3}
    assert state.error() is None
    assert repr(state) == "<State: 2 nodes, variables: x>"


def test_text_of_an_empty_state():
    state, _ = run(lambda s: None)
    assert (state.text(), state.messages(), state.format(), list(state.text_iter())) == ("", [], "", [])


def test_a_finished_state_can_be_continued():
    state, mock = run(lambda s: s.user("hi") or s.assistant(gen("x")), ["1", "2"])
    state += user("more") + assistant(gen("y"))
    assert state["y"] == "2"
    assert len(mock.requests) == 2
    assert state.messages()[-1] == {"role": "assistant", "content": "2"}


def test_states_are_read_from_many_threads():
    state, _ = run(lambda s: s.assistant(gen("x")), ["value"])
    seen = []
    threads = [threading.Thread(target=lambda: seen.append((state["x"], state.text()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1
    assert len(seen) == 8


# --- scopes, copies, reasoning ---------------------------------------------------------------------------------------


def test_var_scope_is_the_text_written_inside():
    def body(s):
        s += "before "
        with s.var_scope("part"):
            s += "a" + gen("x") + "b"
            with s.var_scope("inner"):
                s += user("u")
        s += " after"
        return s["part"], s["inner"]

    state, _ = run(body, ["X"])
    assert state.ret_value == ("aXbu", "u")
    assert list(state.text_iter("part")) == ["aXbu"]


def test_copy_brings_its_new_variables_back_as_they_are():  # A33
    def body(s):
        s += "base "
        with s.copy() as c:
            c += "tried " + gen("v")
            c["w"] = 1
        s += "on " + gen("z")
        with pytest.raises(errors.ProgramError, match="block has ended"):
            c += "more"
        return s["v"], s["w"]

    state, mock = run(body, ["V", "Z"])
    assert state.ret_value == ("V", 1)
    assert [r.prompt for r in mock.requests] == ["base tried ", "base on "]
    assert state.text() == "base on Z"


def test_separate_reasoning_makes_two_variables_and_keeps_the_text():  # B21
    def body(s):
        s += assistant("so: " + separate_reasoning(gen("x") + "!" + gen("y"), model_type="qwen3"))

    state, _ = run(body, ["<think>ab</think>cd", "ef"])
    assert (state["x"], state["x_reasoning_content"]) == ("cd", "ab")
    assert (state["y"], state["y_reasoning_content"]) == ("ef", "")
    assert state.messages()[0]["content"] == "so: <think>ab</think>cd!ef"
    assert state.meta("x").finish_reason == state.meta("x_reasoning_content").finish_reason == "stop"


def test_separate_reasoning_streams_each_side_without_a_piece_of_a_tag():  # B21
    @function
    def p(s):
        s += separate_reasoning(gen("x"))

    text = "<think>ab</think>cd"
    mock = MockBackend([Reply(text, pieces=list(text), piece_delay=0.001)] * 2)
    answer = list(p.run(backend=mock, stream=True).text_iter("x"))
    thought = list(p.run(backend=mock, stream=True).text_iter("x_reasoning_content"))
    assert ("".join(answer), "".join(thought)) == ("cd", "ab")


def test_separate_reasoning_of_samples_helpers_and_constrained_text():
    @function
    def helper(s):
        s += gen("h")

    def body(s):
        s += separate_reasoning(gen("many", n=2) + helper() + gen("typed", schema=int))

    state, _ = run(body, [Reply(texts=["<think>a</think>b", "c"]), "<think>d</think>e", "7"])
    assert (state["many"], state["many_reasoning_content"]) == (["b", "c"], ["a", ""])
    assert (state["h"], state["h_reasoning_content"]) == ("e", "d")
    assert (state["typed"], state["typed_reasoning_content"]) == (7, "")
    with pytest.raises(errors.UnsupportedError, match="qwen3"):
        separate_reasoning(gen("x"), model_type="abacus")


def test_the_state_class_is_public():
    state, _ = run(lambda s: None)
    assert isinstance(state, State)


def test_prompt_of_a_later_gen_has_the_generated_parts(held):
    @function
    def p(s):
        s += "a" + gen("x") + select("c", ["yes", "no"]) + gen("y")

    state = p.run(backend=held, stream=True)
    held.wait(1)[0].answer("X", "length")
    held.wait(2)[1].answer("no")
    last = held.wait(3)[2]
    assert last.request.prompt == (Text("a"), Generated("X", None, "length"), Generated("no"))
    last.answer("end")
    assert state.text() == "aXnoend"
