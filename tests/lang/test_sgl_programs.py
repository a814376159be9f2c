"""Small programs in the style of SGLang's front end, every spelling of it: only their import line names us."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import radicel as sgl


@pytest.fixture
def mock() -> Iterator[Callable[[Any], sgl.MockBackend]]:
    """Makes a mock of replies and sets it as the default backend, as `sgl.set_default_backend` programs expect."""

    def use(replies: Any) -> sgl.MockBackend:
        made = sgl.MockBackend(replies)
        sgl.set_default_backend(made)
        return made

    yield use
    sgl.set_default_backend(None)


def turns(state: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in state.messages()]


# --- roles: four spellings of one conversation -----------------------------------------------------------------------


@sgl.function
def by_call(s, drink):
    s += sgl.system("You are a waiter.")
    s += sgl.user("One " + drink + ", please.")
    s += sgl.assistant("Certainly: " + sgl.gen("reply", max_tokens=16, stop="\n"))


@sgl.function
def by_block(s, drink):
    with s.system():
        s += "You are a waiter."
    with s.user():
        s += "One " + drink
        s += ", please."
    with s.assistant():
        s += "Certainly: "
        s += sgl.gen("reply", max_tokens=16, stop="\n")


@sgl.function
def by_begin_and_end(s, drink):
    s += sgl.system_begin() + "You are a waiter." + sgl.system_end()
    s += sgl.user_begin()
    s += f"One {drink}, please."
    s += sgl.user_end()
    s += sgl.assistant_begin() + "Certainly: " + sgl.gen("reply", max_tokens=16, stop="\n") + sgl.assistant_end()


@sgl.function
def by_method(s, drink):
    s.system("You are a waiter.")
    s.user(f"One {drink}, please.")
    s.assistant(["Certainly: ", sgl.gen("reply", max_tokens=16, stop="\n")])


@pytest.mark.parametrize("program", [by_call, by_block, by_begin_and_end, by_method])
def test_every_spelling_of_roles_is_the_same_request(program, mock):
    backend = mock({"reply": "a tea.\nAnything else?"})
    state = program.run(drink="tea")
    assert turns(state) == [
        ("system", "You are a waiter."),
        ("user", "One tea, please."),
        ("assistant", "Certainly: a tea."),
    ]
    (request,) = backend.requests
    assert request.prompt == (
        "<|im_start|>system\nYou are a waiter.<|im_end|>\n<|im_start|>user\nOne tea, please.<|im_end|>\n"
        "<|im_start|>assistant\nCertainly: "
    )
    assert (request.sampling.max_tokens, request.sampling.stop) == (16, ("\n",))
    assert state["reply"] == state.get_var("reply") == "a tea."
    assert state.get_meta_info("reply")["finish_reason"] == "stop"


# --- text without roles, control flow on values ----------------------------------------------------------------------


@sgl.function
def route(s, request):
    s += "Request: " + request + "\n"
    s += "Kind: " + sgl.gen("kind", choices=["booking", "complaint"]) + "\n"
    if s["kind"] == "booking":
        s += "Date: " + sgl.gen("date", regex=r"\d{4}-\d{2}-\d{2}") + "\n"
    else:
        s += "Urgent: " + sgl.select("urgent", choices=["yes", "no"]) + "\n"
        while s["urgent"] == "yes":
            s += "Calm down: " + sgl.select("urgent", choices=["yes", "no"]) + "\n"


def test_values_steer_the_program(mock):
    backend = mock({"kind": "booking", "date": "2031-05-17"})
    state = route.run(request="a room")
    assert state.text() == "Request: a room\nKind: booking\nDate: 2031-05-17\n"
    assert backend.requests[0].constraint.options == ("booking", "complaint")
    assert "urgent" not in state


def test_a_loop_on_values(mock):
    backend = mock({"kind": "complaint", "urgent": ["yes", "yes", "no"]})
    state = route.run("cold soup")
    assert state.text().endswith("Urgent: yes\nCalm down: yes\nCalm down: no\n")
    assert [request.kind for request in backend.requests] == ["gen", "select", "select", "select"]


@pytest.mark.parametrize("wrong", ["2031-5-17", "soon"])
def test_a_regex_holds_on_the_mock_too(wrong, mock):
    mock({"kind": "booking", "date": wrong})
    with pytest.raises(sgl.errors.ConstraintError, match=re.escape(wrong)):
        route.run(request="a room")


METHODS = [
    sgl.token_length_normalized,
    sgl.greedy_token_selection,
    sgl.unconditional_likelihood_normalized,
    sgl.joint_likelihood,
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_both_spellings_of_choices_with_every_method(method, mock):
    @sgl.function
    def pick(s):
        s += "A: " + sgl.gen("a", choices=["red", "blue"], choices_method=method)
        s += " B: " + sgl.select("b", choices=["red", "blue"], choices_method=method, temperature=0.0)

    mock({"a": {"red": -3.0, "blue": -0.5}, "b": {"red": -0.5, "blue": -3.0}})
    state = pick.run()
    assert (state["a"], state["b"]) == ("blue", "red")
    assert sum(state.get_meta_info("b").probabilities.values()) == pytest.approx(1)


def test_typed_values(mock):
    @sgl.function
    def form(s):
        s += "Age: " + sgl.gen_int("age") + " Name: " + sgl.gen_string("name")
        s += " Height: " + sgl.gen("height", dtype=float) + " Member: " + sgl.gen("member", dtype=bool)
        s += " Data: " + sgl.gen("data", json_schema='{"type": "object", "required": ["x"]}')

    mock({"age": "41", "name": '"Ann \\"A\\""', "height": "1.75", "member": "True", "data": '{"x": 1}'})
    state = form.run()
    assert (state["age"], state["name"], state["height"], state["data"]) == (41, 'Ann "A"', 1.75, '{"x": 1}')
    assert state["member"] is True


# --- forks -----------------------------------------------------------------------------------------------------------


@sgl.function
def packing(s, places):
    s += sgl.user("I am packing.")
    forks = s.fork(len(places))
    forks += lambda i: sgl.user(f"What for {places[i]}?")
    forks += sgl.assistant(sgl.gen("item", max_tokens=8, temperature=0.5))
    for i, f in enumerate(forks):
        f += sgl.user(f"Only one thing ({i})?")
        f += sgl.assistant(sgl.select("sure", choices=["yes", "no"]))
    forks[0] += sgl.user("Thank you.")
    forks.join()
    s += sgl.user("So: " + ", ".join(s["item"]))
    s += sgl.assistant(sgl.gen("list"))
    return forks["item"]


def test_forks_take_lambdas_expressions_and_items_and_join(mock):
    def reply(request):
        last = request.messages[-1]["content"]
        return {"item": lambda: last.split()[-1].rstrip("?"), "list": lambda: last.upper(), "sure": lambda: "yes"}[
            request.name
        ]()

    mock(reply)
    state = packing.run(places=["Rome", "Oslo"])
    assert state["item"] == ["Rome", "Oslo"]
    assert state["sure"] == ["yes", "yes"]
    assert state["list"] == "SO: ROME, OSLO"
    assert turns(state) == [("user", "I am packing."), ("user", "So: Rome, Oslo"), ("assistant", "SO: ROME, OSLO")]
    assert [meta["completion_tokens"] for meta in state.get_meta_info("item")] == [1, 1]
    assert state.ret_value == ["Rome", "Oslo"]


@sgl.function
def chapters(s, titles):
    s += "Contents\n"
    with s.fork(len(titles)) as forks:
        for title, f in zip(titles, forks):
            f += f"{title}: "
            f += sgl.gen("chapter", stop="\n")
            f += "\n"
        forks.join(mode="concate_and_append")
    s += "End: " + sgl.gen("end")


def test_branches_append_their_text_in_order(mock):
    backend = mock({"chapter": ["first", "second", "third"], "end": "fin"})
    state = chapters.run(titles=["A", "B", "C"])
    assert state.text() == "Contents\nA: first\nB: second\nC: third\nEnd: fin"
    assert backend.requests[-1].prompt == "Contents\nA: first\nB: second\nC: third\nEnd: "
    assert [request.prompt for request in backend.requests[:3]] == [f"Contents\n{title}: " for title in "ABC"]


def test_forks_of_forks_copies_and_scopes(mock):
    @sgl.function
    def tree(s):
        s += "root "
        leaves = [leaf for f in s.fork(2) for leaf in f.fork(2)]
        for i, leaf in enumerate(leaves):
            leaf += f"{i}:" + sgl.gen("leaf")
        with s.copy() as tmp:
            tmp += "secret " + sgl.gen("guess")
        with s.var_scope("note"):
            s += "noted " + sgl.gen("why")
        s.set_var("length", len(s["note"]))
        s["double"] = s["length"] * 2
        return [leaf["leaf"] for leaf in leaves]

    backend = mock({"leaf": ["a", "b", "c", "d"], "guess": "g", "why": "w"})
    state = tree.run()
    assert state.text() == "root noted w"
    assert (state["guess"], state["note"], state["length"], state["double"]) == ("g", "noted w", 7, 14)
    assert state.ret_value == ["a", "b", "c", "d"]
    assert [request.prompt for request in backend.requests if request.name == "leaf"] == [
        f"root {i}:" for i in range(4)
    ]


# --- programs inside programs ----------------------------------------------------------------------------------------


@sgl.function
def define(s, word):
    s += sgl.user("What is a " + word + "?")
    s += sgl.assistant(sgl.gen("definition", max_tokens=12, stop="."))
    return len(word)


@sgl.function
def compare(s, left, right):
    both = [define(word=left), define(word=right)]
    s += sgl.user(f"A: {both[0]['definition']}. B: {both[1]['definition']}. Which is bigger?")
    s += sgl.assistant(sgl.gen("bigger"))
    s += define(right)
    return [state.ret_value for state in both]


def test_programs_called_and_inlined(mock):
    backend = mock(lambda request: "B" if request.name == "bigger" else f"thing like {request.messages[-1]['content']}")
    state = compare.run("cat", "horse")
    assert turns(state)[0] == ("user", "A: thing like What is a cat?. B: thing like What is a horse?. Which is bigger?")
    assert turns(state)[-2:] == [("user", "What is a horse?"), ("assistant", "thing like What is a horse?")]
    assert state["definition"] == "thing like What is a horse?"
    assert state.ret_value == [3, 5]
    assert len(backend.requests) == 4


@sgl.function(num_api_spec_tokens=32)
def profile(s, name):
    s += name + " lives in" + sgl.gen("city", stop=",") + ", and is" + sgl.gen("age", stop=".") + "."


def test_bound_programs_and_those_with_options(mock):
    mock({"city": " Turin, Italy", "age": " 30. Also"})
    state = profile.bind(name="Ada").run()
    assert state.text() == "Ada lives in Turin, and is 30."


# --- streaming -------------------------------------------------------------------------------------------------------


@sgl.function
def story(s, hero):
    s += sgl.user(f"A story of {hero}.")
    s += sgl.assistant(sgl.gen("story", max_tokens=64))
    s += sgl.user("And its moral?")
    s += sgl.assistant(sgl.gen("moral", max_tokens=64))


PIECES = ["Once ", "upon ", "a ", "time."]


def test_text_iter_over_everything_and_over_one_variable(mock):
    mock({"story": sgl.Reply(pieces=PIECES, piece_delay=0.1), "moral": "Wait."})
    state = story.run(hero="a hen", stream=True)
    whole = list(state.text_iter())
    assert "".join(whole) == state.text()
    # The first and the last may come together with the text beside them.
    assert [piece for piece in whole if piece in PIECES[1:-1]] == PIECES[1:-1]
    assert list(story.run(hero="a hen", stream=True).text_iter("story")) == PIECES
    assert list(story.run(hero="a hen", stream=True).text_iter(var_name="moral")) == ["Wait."]


def test_text_async_iter_gives_pieces_and_meta(mock):
    mock({"story": sgl.Reply(pieces=PIECES, piece_delay=0.01), "moral": "Wait."})

    async def main():
        state = story.run(hero="a hen", stream=True)
        pairs = [pair async for pair in state.text_async_iter("story", return_meta_data=True)]
        texts = [text async for text in state.text_async_iter(var_name="moral")]
        return pairs, texts

    pairs, texts = asyncio.run(main())
    assert [text for text, _ in pairs if text] == PIECES
    assert pairs[-1][1]["completion_tokens"] == 4
    assert texts == ["Wait."]


def test_a_failure_reaches_the_iterator(mock):
    mock({"story": sgl.Reply(pieces=PIECES, piece_delay=0.01), "moral": RuntimeError("out of morals")})
    state = story.run(hero="a hen", stream=True)
    with pytest.raises(RuntimeError, match="out of morals"):
        "".join(state.text_iter())


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", ["auto", 1, 3])
@pytest.mark.parametrize("progress_bar", [False, True])
def test_run_batch(num_threads, progress_bar, mock):
    mock(lambda request: request.messages[-1]["content"].split()[-1])
    heroes = [f"hero{i}" for i in range(6)]
    states = story.run_batch(
        [{"hero": hero} for hero in heroes], num_threads=num_threads, progress_bar=progress_bar, temperature=0
    )
    assert [state["story"] for state in states] == [f"{hero}." for hero in heroes]
    assert {state["moral"] for state in states} == {"moral?"}


def test_run_batch_in_generator_style_with_sampling_and_a_backend_of_its_own():
    backend = sgl.MockBackend({"story": "s", "moral": "m"})
    batch = [("a hen",), ("a fox",)]
    states = story.run_batch(batch, backend=backend, max_new_tokens=9, temperature=0.1, top_p=0.9, generator_style=True)
    assert [state["moral"] for state in states] == ["m", "m"]
    assert {(r.sampling.max_tokens, r.sampling.temperature, r.sampling.top_p) for r in backend.requests} == {
        (64, 0.1, 0.9)
    }


def test_one_item_of_a_batch_fails_alone(mock):
    mock(lambda request: (_ for _ in ()).throw(ValueError("no foxes")) if "fox" in request.prompt else "fine")
    good, bad = story.run_batch([{"hero": "a hen"}, {"hero": "a fox"}])
    assert good["story"] == "fine"
    assert isinstance(bad.error(), ValueError)
    with pytest.raises(ValueError, match="no foxes"):
        bad["story"]


def test_the_default_backend_can_be_asked_for_and_flushed(mock):
    backend = mock({})
    assert sgl.get_default_backend() is backend
    sgl.flush_cache()


def test_several_samples(mock):
    @sgl.function
    def names(s):
        s += "A name: " + sgl.gen("name", n=3, max_tokens=4)

    mock({"name": sgl.Reply(texts=["Ada", "Bo", "Cy"])})
    state = names.run()
    assert state["name"] == ["Ada", "Bo", "Cy"]
    assert state.text() == "A name: Ada"
    assert len(state.get_meta_info("name")) == 3


def test_logprobs_under_that_front_ends_names(mock):
    @sgl.function
    def scored(s):
        s += "1 + 1 =" + sgl.gen("sum", return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True)

    mock({"sum": sgl.Reply(pieces=[" 2", "."], logprobs=[-0.25, -1.0])})
    meta = scored.run().get_meta_info("sum")
    assert tuple(meta["logprobs"]) == (-0.25, -1.0)
    assert tuple(meta["token_texts"]) == (" 2", ".")
