"""Token healing on the embedded model: prompts that end inside a natural token are finished as if they did not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from radicel import function, gen, select
from radicel.prompt import Generated, Text

pytestmark = pytest.mark.model


def token(runtime: Any, token_id: int) -> str:
    text: str = runtime.tokenizer.decode([token_id])
    return text


@pytest.mark.parametrize(
    ("prompt", "end", "first"),
    [
        ("The capital of France is ", "Paris", " Paris"),
        ("The capital of Fra", "nce", " France"),
        ("Once upon a ti", "me", " time"),
        ('The link is <a href="http:', "//", "://"),
        ("def f(x):\n    retu", "rn", " return"),
        ("To be or not to b", "e", " be"),
        ("I said Hel", "lo", " Hello"),
    ],
)
def test_the_natural_token_is_written(runtime: Any, prompt: str, end: str, first: str) -> None:
    made = runtime.generate(prompt, temperature=0, max_tokens=4)
    assert made.text.startswith(end)
    assert token(runtime, made.token_ids[0]) == first
    assert made.meta.reencoded == ("healing",)
    plain = runtime.generate(prompt, temperature=0, max_tokens=4, token_healing=False)
    assert token(runtime, plain.token_ids[0]) != first


@pytest.mark.parametrize("prompt", ["The capital of France is", "Dear Sir,\n\n", "Numbers: 1, 2, 3,", "Q: 2+2?\nA:"])
def test_where_the_prompt_ends_naturally_nothing_changes(runtime: Any, prompt: str) -> None:
    made = runtime.generate(prompt, temperature=0, max_tokens=8)
    plain = runtime.generate(prompt, temperature=0, max_tokens=8, token_healing=False)
    assert (made.text, made.token_ids) == (plain.text, plain.token_ids)
    assert made.meta.reencoded == ()
    assert made.meta.prompt_tokens == plain.meta.prompt_tokens


@pytest.mark.parametrize("constraint", [{"regex": "(yes|no)"}, {"choices": ["yes", "no"]}], ids=["regex", "choices"])
def test_a_space_before_a_constrained_value(runtime: Any, constraint: dict[str, Any]) -> None:
    """Natural tokens, and no space doubled or lost."""

    @function
    def p(s: Any) -> None:
        s += "Is water wet? Answer: " + gen("a", temperature=0, **constraint)

    state = p.run(backend=runtime)
    assert state["a"] in ("yes", "no")
    assert state.text() == "Is water wet? Answer: " + state["a"]
    assert token(runtime, state.meta("a").token_ids[0]) == " " + state["a"]


def test_both_spellings_of_a_border_choose_alike(runtime: Any) -> None:
    made = [
        runtime.generate(
            f"Question: {question}\nAnswer:{space}", regex=f"{'' if space else ' '}(yes|no)", temperature=0
        )
        for question in ("Is the sky blue?", "Can pigs fly?", "Is 2 even?")
        for space in (" ", "")
    ]
    texts = [one.text.strip() for one in made]
    assert texts[::2] == texts[1::2]


def test_a_choice_agrees_with_free_text(runtime: Any) -> None:
    """Prompts cut at random, often inside a token: the greedy text is chosen where it is one of the choices."""

    @function
    def free(s: Any, prompt: str) -> None:
        s += prompt + gen("a", max_tokens=2, temperature=0)

    @function
    def choose(s: Any, prompt: str, choices: list[str]) -> None:
        s += prompt + select("a", choices)

    whole = (
        "The capital of France is Paris. The sun rises in the east and sets in the west. Once upon a time there was a "
        "little girl who lived in a village near the forest. To be or not to be, that is the question."
    )
    rng = random.Random(7)
    agreed = healed = 0
    for at in rng.sample(range(20, len(whole)), 14):
        state = free.run(whole[:at], backend=runtime)
        value, meta = state["a"], state.meta("a")
        if not value or meta.finish_reason == "stop":
            continue
        others = [word for word in ("zq", "#!", "XXI") if word[0] != value[0]]
        assert choose.run(whole[:at], [*others, value], backend=runtime)["a"] == value
        agreed += 1
        healed += "healing" in meta.reencoded
    assert agreed >= 10
    assert healed >= 3


def test_what_was_fed_is_found_again(fresh: Any) -> None:
    @function
    def p(s: Any) -> None:
        s += "Once upon a ti" + gen("a", max_tokens=6, temperature=0)
        s += " The end of the sto" + gen("b", max_tokens=4, temperature=0)

    state = p.run(backend=fresh)
    a, b = state.meta("a"), state.meta("b")
    assert state.text() == "Once upon a ti" + state["a"] + " The end of the sto" + state["b"]
    assert state["a"].startswith("me")
    assert state["b"].startswith("ry")
    assert b.cached_tokens == a.prompt_tokens + a.completion_tokens - 1
    assert fresh.render((Text("Once upon a ti"), Generated(state["a"], a.token_ids))) == "Once upon a ti" + state["a"]


def test_a_stream_begins_after_the_prompt(runtime: Any) -> None:
    pieces = list(runtime.generate("Once upon a ti", temperature=0, max_tokens=5, stream=True))
    assert pieces[0].startswith("me")
    assert "".join(pieces) == runtime.generate("Once upon a ti", temperature=0, max_tokens=5).text
