"""Cases of select, tokens, grammars, cache, scheduler, determinism and resources, each on a runtime (`cases.md`)."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import re
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from radicel import (
    MockBackend,
    Reply,
    SamplingParams,
    errors,
    function,
    gen,
    joint_likelihood,
    select,
    token_length_normalized,
)
from radicel.runtime import LocalRuntime


@function
def pick(s: Any, before: str, choices: list[str], rule: Any = joint_likelihood, heat: float = 0, draw: int = 0) -> None:
    s += before + select("x", choices, temperature=heat, choices_method=rule, seed=draw)


def logprobs_after(rt: LocalRuntime, ids: list[int], start: int) -> list[float]:
    """The log probability of each id from `start` on, by a prompt that ends there."""
    found = rt.generate(ids, max_tokens=0, logprob_start_len=start).meta.prompt_logprobs
    assert len(found) == len(ids) - start
    return list(found)


# --- SEL ------------------------------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(
    ("turn", "good", "garbage"),
    [
        ("Say hello to me.", ["Hello", "Goodbye"], "^*B^&A"),
        ("Is the sky blue? Answer Yes or No.", ["Yes", "No"], "#!x~Q"),
        ("What is the capital of France?", ["Paris", "London"], ";;%^zz"),
    ],
)
def test_b02_a_nonsense_option_never_wins(
    embedded: LocalRuntime, turn: str, good: list[str], garbage: str, space: str
) -> None:
    prompt = f"[INST] {turn} [/INST]{space}"
    chat = [{"role": "user", "content": turn}]
    for before in (prompt, embedded.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)):
        for order in ([*good, garbage], [garbage, *good]):
            state = pick.run(before + space if before is not prompt else before, list(order), backend=embedded)
            assert state["x"] in good
            assert state.meta("x").probabilities[garbage] < 0.05


def test_b03_exactly_the_tokens_of_the_choice_are_summed(rt: LocalRuntime) -> None:
    """Also where the prompt's last token merges with a choice's first: then that place is scored for all of them."""
    for before, choices in [
        ("abc", ["de", "f", "defg"]),
        ("in t", ["he", "x", "hen"]),
        ("on ", ["the", "a", "z"]),
        ("x\n", ["\n", "y", "\n\n"]),
        ("é", ["é", "😀", "e"]),
    ]:
        alone = rt.tokenizer(before).input_ids
        wholes = [rt.tokenizer(before + choice).input_ids for choice in choices]
        first = min(_in_common(whole, alone) for whole in wholes)
        meta = pick.run(before, choices, backend=rt).meta("x")
        for choice, whole, score in zip(choices, wholes, rt.score(before, choices)):
            want = logprobs_after(rt, whole, first)
            assert list(score.token_ids) == whole[first:]
            assert list(score.token_logprobs) == pytest.approx(want, abs=1e-4)
            assert score.logprob == pytest.approx(sum(want), abs=1e-4)
            if not any(o != choice and (o.startswith(choice) or choice.startswith(o)) for o in choices):
                assert meta.choice_logprobs[choice] == pytest.approx(sum(want), abs=1e-4)


@pytest.mark.model
@pytest.mark.parametrize("before", ["The capital of France is", "The capital of Fra", "Two plus two equals ", "I lik"])
def test_b05_select_agrees_with_greedy_text(embedded: LocalRuntime, before: str) -> None:
    """The options are what greedy decoding writes, and worse ones; the prompt may end inside a natural token."""
    ids = embedded.tokenizer(before).input_ids
    greedy = embedded.generate(ids, max_tokens=3, temperature=0, ignore_eos=True).text
    worse = [" zebra quilt", "xxq zz"]
    assert pick.run(before, [worse[0], greedy, worse[1]], backend=embedded)["x"] == greedy


@pytest.mark.parametrize(
    "choices",
    [["John", "John Doe"], ["No I need support", "No I am not ok"], ["a", "ab", "abc", "b"], ["", "x"], ["é", "éé"]],
    ids=str,
)
def test_b07_options_that_share_a_prefix_are_each_reached(rt: LocalRuntime, choices: list[str]) -> None:
    first = pick.run("Name: ", choices, backend=rt)
    again = pick.run("Name: ", list(reversed(choices)), backend=rt)
    assert first["x"] in choices
    assert again["x"] == first["x"]
    assert again.meta("x").probabilities == pytest.approx(first.meta("x").probabilities, rel=1e-4)
    drawn = {pick.run("Name: ", choices, heat=1e4, draw=i, backend=rt)["x"] for i in range(60)}
    assert drawn == set(choices)


@pytest.mark.parametrize("before", ["", "use: ", "use:", "a long prompt, with é and 😀, that ends with use: ", "\n\n"])
def test_b08_the_value_is_an_option_byte_for_byte(rt: LocalRuntime, before: str) -> None:
    choices = ["WEB_SEARCH", "OTHER", " spaced ", "é😀", "\n"]
    if not before:
        with pytest.raises(errors.InvalidValueError, match="empty"):  # A25: no BOS in this tokenizer
            pick.run(before, choices, backend=rt)
        return
    state = pick.run(before, choices, backend=rt)
    assert state["x"] in choices
    assert state.text() == before + state["x"]


@pytest.mark.model
def test_a25_select_on_an_empty_prompt_starts_from_bos(embedded: LocalRuntime) -> None:
    state = pick.run("", ["The", "^^zz"], backend=embedded)
    assert state["x"] == "The"
    assert sum(state.meta("x").probabilities.values()) == pytest.approx(1)


def test_a24_a_choice_of_one_token_is_no_division_by_zero(rt: LocalRuntime) -> None:
    state = pick.run("Hi ", ["a", "bc"], rule=token_length_normalized, backend=rt)
    scores = {s.text: s for s in rt.score("Hi ", ["a", "bc"])}
    for choice, found in state.meta("x").choice_logprobs.items():
        assert found == pytest.approx(scores[choice].logprob / len(scores[choice].token_ids), abs=1e-4)


# --- TOK ------------------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_b33_bos_exactly_once_also_after_a_gen(embedded: LocalRuntime) -> None:
    tokenizer = embedded.tokenizer
    marks = {tokenizer.bos_token_id} - {None}
    chat = [{"role": "user", "content": "hi"}]
    for messages in (chat, [*chat, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]):
        want = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert embedded.generate(messages, max_tokens=1).meta.prompt_tokens == len(want)
    assert marks


@pytest.mark.model
@pytest.mark.parametrize("before", ["Answer:", "Answer: ", "Answer:  ", "Answer:\n", "Answer: y", "Ans"])
def test_b34_the_end_of_a_prompt_loses_and_doubles_nothing(embedded: LocalRuntime, before: str) -> None:
    @function
    def program(s: Any) -> None:
        s += "Is ice cold? " + before + gen("a", regex="(yes|no)", max_tokens=8, temperature=0)

    state = program.run(backend=embedded)
    assert state["a"] in ("yes", "no")
    assert state.text() == "Is ice cold? " + before + state["a"]
    for answer in ("yes", "no"):  # either can be reached
        ids = embedded.tokenizer(answer).input_ids + embedded.tokenizer(" " + answer).input_ids
        ids += embedded.tokenizer(answer[0]).input_ids
        got = program.run(backend=embedded, sampling=SamplingParams(logit_bias=dict.fromkeys(ids, 50.0)))
        assert got.text() == "Is ice cold? " + before + got["a"]
        assert got["a"] == answer


def test_b36_a_next_gen_finds_every_token_of_the_last_in_the_cache(rt: LocalRuntime) -> None:
    """Sampled at random, so that most texts are spelled otherwise than the tokenizer would spell them."""

    @function
    def talk(s: Any, seed: int) -> None:
        s += "Hi" + gen("a", max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True)
        s += gen("b", max_tokens=12, temperature=1.0, seed=seed + 1, ignore_eos=True)
        s += "." + gen("c", max_tokens=1, ignore_eos=True)

    other, kept = 0, 0
    for seed in range(0, 24, 2):
        rt.flush_cache()
        state = talk.run(seed, backend=rt)
        a, b, c = (state.meta(name) for name in "abc")
        if a.reencoded or b.reencoded or c.reencoded:
            other += 1
            continue
        kept += 1
        assert b.cached_tokens == a.prompt_tokens + len(a.token_ids) - 1
        assert b.prompt_tokens == a.prompt_tokens + len(a.token_ids)
        assert c.cached_tokens == b.prompt_tokens + len(b.token_ids) - 1
    assert kept >= 3


# --- GRT ------------------------------------------------------------------------------------------------------------

BAD_CONSTRAINTS: list[dict[str, Any]] = [
    {"schema": "{"},
    {"schema": {"type": "objekt"}},
    {"schema": {"items": "x"}},
    {"schema": {"enum": []}},
    {"schema": {"type": "integer", "minimum": 5, "maximum": 3}},
    {"schema": {"type": "string", "pattern": "("}},
    {"schema": {"$ref": "#/nowhere"}},
    {"schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    {"regex": "("},
    {"regex": "(?!x)[a-z]\\b\\1"},
    {"grammar": 'root ::= "a" missing'},
    {"grammar": "root ::= root"},
    {"grammar": "root ::= ("},
]


@pytest.mark.parametrize("bad", BAD_CONSTRAINTS, ids=str)
def test_b65_a_bad_constraint_fails_alone(rt: LocalRuntime, bad: dict[str, Any]) -> None:
    @function
    def program(s: Any, constraint: dict[str, Any]) -> None:
        s += "x" + gen("a", max_tokens=30, **constraint)

    items = [{"constraint": c} for c in ({"regex": "ab"}, bad, {"choices": ["yes"]}, bad, {})]
    states = program.run_batch(items, backend=rt)
    kinds = [type(s.error()) for s in states]
    assert kinds == [type(None), errors.ConstraintError, type(None), errors.ConstraintError, type(None)]
    assert str(states[1].error())
    assert (states[0]["a"], states[2]["a"]) == ("ab", "yes")


@pytest.mark.parametrize("opening", ["(", "[", "é"])
def test_b66_a_deep_recursion_ends_with_length(rt: LocalRuntime, opening: str) -> None:
    """The model prefers to open one more level for as long as it may."""
    ids = rt.tokenizer(opening).input_ids
    grammar = f'root ::= "{opening}" root "!" | "x"'
    got = rt.submit_input(
        rt.tokenizer("go").input_ids,
        _params(max_tokens=300, temperature=0, logit_bias=dict.fromkeys(ids, 100.0)),
        _constraint(grammar=grammar),
    ).result(60)[0]
    assert got.meta.finish_reason == "length"
    assert set(got.text) == {opening}
    assert rt.generate("still", max_tokens=2, ignore_eos=True).meta.completion_tokens == 2


def test_b68_a_complete_grammar_ends_the_text_whatever_the_model_prefers(rt: LocalRuntime) -> None:
    ends = [rt.tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")]
    never = dict.fromkeys(ends, -100.0)
    for constraint, text in (
        ({"regex": "ab"}, "ab"),
        ({"choices": ["yes"]}, "yes"),
        ({"grammar": 'root ::= "k"'}, "k"),
    ):
        got = rt.generate("x", max_tokens=30, logit_bias=never, **constraint)
        assert (got.text, got.meta.finish_reason) == (text, "stop")
    for end, other in (ends, reversed(ends)):
        got = rt.generate("x", max_tokens=30, regex="a+", logit_bias={end: 100.0, other: -100.0}, temperature=0)
        assert (got.text, got.meta.finish_reason) == ("a", "stop")


def test_b70_samples_of_one_constraint_are_independent(rt: LocalRuntime) -> None:
    for constraint, valid in (
        ({"regex": "[a-z]{3}"}, lambda t: re.fullmatch("[a-z]{3}", t)),
        ({"schema": {"type": "integer", "minimum": 100, "maximum": 999}}, lambda t: 100 <= int(t) <= 999),
        ({"grammar": "root ::= [a-f] [0-9] | [0-9] root"}, lambda t: re.fullmatch("[0-9]*[a-f][0-9]", t)),
    ):
        got = rt.generate("x", n=8, max_tokens=200, temperature=1.5, seed=3, **constraint)
        assert all(valid(g.text) for g in got)
        assert len({g.text for g in got}) > 3


def test_b72_b73_thousands_of_constraints_stay_within_bounds(rt: LocalRuntime) -> None:
    def one(i: int) -> None:
        assert rt.generate("x", choices=[f"v{i}"], max_tokens=20).text == f"v{i}"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(200)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        list(pool.map(one, range(200, 900)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB
    assert rt._grammars.cached <= 1_024


# --- SCH, DET, LP ---------------------------------------------------------------------------------------------------


def test_b81_a_prompt_that_can_never_fit_blocks_nobody(tiny_path: Path, clean: Callable[[LocalRuntime], None]) -> None:
    with LocalRuntime(tiny_path, device="cpu", kv_tokens=100, check_invariants=True) as rt:
        with ThreadPoolExecutor(8) as pool:
            sizes = [10, 300, 20, 1_000, 30, 101, 40, 90]
            runs = [pool.submit(rt.generate, "x" * n, max_tokens=3, ignore_eos=True) for n in sizes]
            for n, run in zip(sizes, runs):
                if n >= 100:
                    with pytest.raises(errors.ContextLengthError, match=str(n)):
                        run.result(20)
                else:
                    assert run.result(20).meta.completion_tokens == 3
        clean(rt)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_b83_cold_warm_alone_in_a_batch_and_chunked_are_the_same(tiny_path: Path, temperature: float) -> None:
    prompts = [f"{'word ' * (3 + 7 * i)}number {i}" for i in range(8)]
    options = {"max_tokens": 16, "temperature": temperature, "seed": 11, "ignore_eos": True}

    def ids(rt: LocalRuntime, prompt: Any) -> Any:
        got = rt.generate(prompt, **options)
        return [g.token_ids for g in got] if isinstance(got, list) else got.token_ids

    found: dict[str, list[Any]] = {}
    with LocalRuntime(tiny_path, device="cpu", kv_tokens=6_000) as rt:
        found["cold"] = [ids(rt, p) for p in prompts]
        found["warm"] = [ids(rt, p) for p in prompts]
        found["warm batch"] = ids(rt, prompts)
        rt.flush_cache()
        found["cold batch"] = ids(rt, prompts)
    for name, more in (
        ("chunks of 7", {"prefill_chunk": 7}),
        ("no cache", {"prefix_cache": False}),
        ("preempted", {"kv_tokens": 400}),
    ):
        with LocalRuntime(tiny_path, device="cpu", **{"kv_tokens": 6_000, **more}) as rt:
            found[name] = ids(rt, prompts)
    assert all(value == found["cold"] for value in found.values())


def test_logprobs_are_those_of_the_tokens_chosen(rt: LocalRuntime) -> None:
    looked_at = 0
    for text in ("Hello", "in the", "on a 1", "é", "\n\n"):
        got = rt.generate(text, max_tokens=8, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=4).meta
        assert len(got.logprobs) == len(got.top_logprobs) == got.completion_tokens == 8
        if got.reencoded:  # the budget ended inside a character
            continue
        looked_at += 1
        prompt = rt.tokenizer(text).input_ids
        want = logprobs_after(rt, [*prompt, *got.token_ids], len(prompt))
        assert list(got.logprobs) == pytest.approx(want, abs=1e-4)
        for token, logprob, top in zip(got.token_ids, got.logprobs, got.top_logprobs):
            assert max(top, key=top.__getitem__) == token
            assert top[token] == pytest.approx(logprob)
            assert len(top) == 4
            assert sum(math.exp(v) for v in top.values()) <= 1 + 1e-6
    assert looked_at > 1


def test_b11_a_batch_varies_as_single_runs_do(rt: LocalRuntime) -> None:
    @function
    def program(s: Any, seed: Any) -> None:
        s += "Hi" + gen("a", max_tokens=2, temperature=1.0, seed=seed, ignore_eos=True)

    batch = [s["a"] for s in program.run_batch([{"seed": i} for i in range(60)], backend=rt)]
    single = [program.run(i, backend=rt)["a"] for i in range(60)]
    assert batch == single
    assert len(set(batch)) > 20
    free = {s["a"] for s in program.run_batch([{"seed": None}] * 60, backend=rt)}
    alone = {program.run(None, backend=rt)["a"] for _ in range(60)}
    assert abs(len(free) - len(alone)) < 25
    assert len(free) > 20


def test_b15_gathered_programs_share_steps_and_cancelling_ends_them(rt: LocalRuntime) -> None:
    @function
    def program(s: Any, i: int, most: int) -> None:
        s += f"{i}" + gen("a", max_tokens=most, ignore_eos=True)

    async def gathered(most: int) -> Any:
        return await asyncio.gather(*(program.arun(i, most, backend=rt) for i in range(100)))

    before = rt.stats().steps
    assert len(asyncio.run(gathered(20))) == 100
    assert rt.stats().steps - before < 20 * 20  # one after the other would be 2,000

    async def cancelled() -> None:
        task = asyncio.ensure_future(gathered(1_900))
        while rt.stats().running < 20:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


# --- RES ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["iterator", "fork", "body", "cancel", "state", "async"])
def test_b32_what_nobody_waits_for_ends_within_a_few_steps(rt: LocalRuntime, leave: str) -> None:
    @function
    def program(s: Any) -> None:
        if leave == "fork":
            branches = s.fork(2)
            branches += "x" + gen("a", max_tokens=1_900, ignore_eos=True)
            del branches
            return
        s += "x" + gen("a", max_tokens=1_900, ignore_eos=True)
        if leave == "body":
            while rt.stats().running == 0:
                time.sleep(0.001)
            raise ZeroDivisionError

    state = program.run(backend=rt, stream=True)
    if leave == "iterator":
        pieces = state.text_iter("a")
        for _ in range(5):
            next(pieces)
        pieces.close()
    elif leave == "async":

        async def read() -> None:
            async for _ in state.text_async_iter("a"):
                return

        asyncio.run(read())
    elif leave == "cancel":
        state.cancel()
    elif leave == "body":
        with pytest.raises((ZeroDivisionError, errors.CancelledError)):
            state.sync()
        assert isinstance(state.error(), ZeroDivisionError)
    before, until = rt.stats().generated_tokens, time.monotonic() + 10
    if leave == "state":
        state.cancel()
        del state
    while rt.stats().running or rt.stats().waiting:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert rt.stats().generated_tokens - before < 1_000
    assert rt.stats().kv_used == 0


# --- JS in the runtime ----------------------------------------------------------------------------------------------


def test_b62_no_endless_white_space(rt: LocalRuntime) -> None:
    newline = rt.tokenizer("\n").input_ids + rt.tokenizer(" ").input_ids + rt.tokenizer("\n\n").input_ids
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    for whitespace, most in ((None, 1), ("flexible", 200)):
        got = rt.generate(
            "x", schema=schema, whitespace=whitespace, max_tokens=400, logit_bias=dict.fromkeys(newline, 100.0)
        )
        assert isinstance(json.loads(got.text)["a"], int)
        assert sum(c.isspace() for c in got.text) <= most


def test_b63_a_cut_value_is_never_silent(rt: LocalRuntime) -> None:
    how = {"ignore_eos": True, "on_budget": "truncate"}

    @function
    def program(s: Any) -> None:
        s += "x" + gen("a", max_tokens=12, schema={"type": "string", "minLength": 1}, seed=1, **how)

    quote = rt.tokenizer('"').input_ids
    state = program.run(backend=rt, sampling={"logit_bias": dict.fromkeys(quote, -100.0)}, stream=True)
    with pytest.raises(errors.IncompleteOutputError) as caught:
        state["a"]
    assert caught.value.name == "a"
    assert caught.value.text.startswith('"')


def test_b31_pieces_that_are_disjoint_are_added_up() -> None:
    @function
    def program(s: Any) -> None:
        s += gen("a")

    words = "Hello world, é😀"
    rng = random.Random(1)
    for _ in range(50):
        cuts = sorted(rng.sample(range(1, len(words)), 4))
        pieces = [words[i:j] for i, j in itertools.pairwise([0, *cuts, len(words)])]
        state = program.run(backend=MockBackend([Reply(words, pieces=pieces)]), stream=True)
        assert "".join(state.text_iter("a")) == words == state["a"]


def _in_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _params(**keywords: Any) -> Any:
    from radicel import SamplingParams

    return SamplingParams.of(**keywords)


def _constraint(**keywords: Any) -> Any:
    from radicel import Constraint

    return Constraint.from_gen(**keywords)


@pytest.mark.parametrize("how", ["generate", "run"])
def test_a_callback_that_waits_is_told_instead_of_hanging(rt: LocalRuntime, how: str) -> None:
    said: list[BaseException] = []
    called = threading.Event()

    @function
    def hello(s: Any) -> None:
        s += "Hi" + gen("a", max_tokens=2)

    def waits(_: Any) -> None:
        try:
            if how == "generate":
                rt.generate("Hi", max_tokens=2)
            else:
                hello.run(backend=rt)
        except BaseException as error:
            said.append(error)
        called.set()

    first = rt.submit_input([1, 2, 3], SamplingParams.of(max_tokens=60, ignore_eos=True))
    first.future.add_done_callback(waits)
    assert called.wait(20)
    assert [type(error) for error in said] == [errors.BackendError]
    assert "callback" in str(said[0])
    assert rt.generate("All is well", max_tokens=2, ignore_eos=True).meta.completion_tokens == 2
