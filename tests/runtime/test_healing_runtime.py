"""Token healing in a running engine, on a tiny model with random weights: texts, states, limits, caches, streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from radicel import assistant, function, gen, select, user
from radicel.backend import Generation
from radicel.prompt import Generated, Prompt, Text
from radicel.runtime import LocalRuntime
from radicel.runtime.spellings import Spellings
from radicel.runtime.tokenizer import Tokenizer

FRAGMENTS = ["t", "th", " t", " a", "in", "\n", " ", "the", "e", "o", "é", "x.", "😀", "Ċ"]


@pytest.fixture(scope="module")
def folder(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tiny.make_tiny_model(tmp_path_factory.mktemp("healing"), "llama", seed=2)
    return path


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(folder, device="cpu", kv_tokens=4_000, check_invariants=True, seed=1) as made:
        yield made


@pytest.fixture(scope="module")
def codec(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def prompts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(FRAGMENTS, k=rng.randint(2, 6))) for _ in range(count)]


def ids_of(runtime: LocalRuntime, *prompt: Any) -> list[int]:
    parts: Prompt = tuple(Text(part) if isinstance(part, str) else part for part in prompt)
    return list(runtime.encode(parts).token_ids)


def fed(runtime: LocalRuntime, prompt: str, made: Generation) -> list[int]:
    """The ids of prompt and value that the model saw."""
    before = ids_of(runtime, prompt)
    kept = len(before) - len(made.replaced)
    assert tuple(before[kept:]) == made.replaced
    return before[:kept] + list(made.token_ids)


def data_of(codec: Tokenizer, ids: list[int]) -> bytes:
    """What the ids spell; markup leaves no text."""
    return b"".join(codec.token_bytes(i) for i in ids if not codec.is_special(i))


def written(made: Generation) -> Generated:
    return Generated(made.text, made.token_ids or None, "stop", made.replaced)


# -- what comes out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompt_and_value_are_one_text_to_the_byte(runtime: LocalRuntime, codec: Tokenizer, temperature: float) -> None:
    """Whatever is drawn: the ids spell prompt and value, the first new token begins with the end taken back."""
    changed = 0
    texts = prompts(11, 120)
    for text, made in zip(texts, runtime.generate(texts, temperature=temperature, max_tokens=4, ignore_eos=True)):
        ids = fed(runtime, text, made)
        data = data_of(codec, ids)
        assert data.startswith(text.encode())
        assert data[len(text.encode()) :].decode("utf-8", "replace").startswith(made.text.rstrip("\ufffd"))
        assert made.meta.completion_tokens == 4
        assert made.meta.prompt_tokens + 4 == len(ids) or "stop" in made.meta.reencoded
        assert ("healing" in made.meta.reencoded) == bool(made.replaced)
        if made.replaced:
            taken = b"".join(map(codec.token_bytes, made.replaced))
            first = codec.token_bytes(made.token_ids[0])
            assert first.startswith(taken) or taken.startswith(first)
            assert text.encode().endswith(taken)
            changed += 1
        after = runtime.encode((Text(text), written(made)))
        assert list(after.token_ids) == ids
        assert after.reencoded == ()
    assert changed > 15


def test_without_healing_the_prompt_s_ids_stand(runtime: LocalRuntime) -> None:
    for text in prompts(12, 20):
        made = runtime.generate(text, temperature=0, max_tokens=3, ignore_eos=True, token_healing=False)
        assert (made.replaced, "healing" in made.meta.reencoded) == ((), False)
        given = runtime.generate(ids_of(runtime, text), temperature=0, max_tokens=3, ignore_eos=True)
        assert (given.text, given.token_ids) == (made.text, made.token_ids)


def greedy(model: Any, ids: list[int], text: str, spellings: Spellings, tail: tuple[int, ...], count: int) -> list[int]:
    """What a model without cache or engine writes: of the tokens that may come, the likeliest each time."""
    ids, rest, own = list(ids), text.encode(), list(tail)
    while rest or count > 0:
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1, :268].double()
        if rest:
            allowed = [i for i in range(268) if spellings.token_bytes(i).startswith(rest)] + own[:1]
            token = max(allowed, key=lambda i: (float(logits[i]), -i))
            own = own[1:] if own[:1] == [token] else []
            over = len(spellings.token_bytes(token)) > len(rest)
            rest = rest[len(spellings.token_bytes(token)) :]
            count -= over
        else:
            token = int(np.argmax(logits.numpy()))
            count -= 1
        ids.append(token)
    return ids


def test_greedy_is_what_the_model_finds_likeliest(runtime: LocalRuntime, folder: Path, codec: Tokenizer) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    spellings = Spellings.of(codec, 288)
    changed = 0
    for text in prompts(13, 40):
        made = runtime.generate(text, temperature=0, max_tokens=4, ignore_eos=True)
        ids = ids_of(runtime, text)
        count = next(
            (
                n
                for n in range(len(ids) - 1, 0, -1)
                if spellings.goes_on(b"".join(map(codec.token_bytes, ids[-n:])))
                and codec.token_bytes(ids[-n])[0] & 0xC0 != 0x80
            ),
            0,
        )
        tail = tuple(ids[len(ids) - count :])
        end = b"".join(map(codec.token_bytes, tail)).decode()
        want = greedy(model, ids[: len(ids) - count], end, spellings, tail, 4)
        if "stop" not in made.meta.reencoded:  # else it ends inside a character
            assert fed(runtime, text, made) == want
        changed += bool(made.replaced)
    assert changed > 5


# -- programs --------------------------------------------------------------------------------------------------------


@function
def two(s: Any, text: str, between: str, **how: Any) -> None:
    s += text + gen("a", max_tokens=5, temperature=0, ignore_eos=True, **how)
    s += between + gen("b", max_tokens=3, temperature=0, ignore_eos=True, **how)


def test_the_next_call_finds_every_token_that_was_fed(runtime: LocalRuntime) -> None:
    changed = 0
    for text in prompts(14, 25):
        runtime.flush_cache()
        state = two.run(text, " x", backend=runtime)
        a, b = state.meta("a"), state.meta("b")
        assert state.text() == text + state["a"] + " x" + state["b"]
        if "stop" in a.reencoded:  # it ended inside a character
            continue
        # The last token of a value was sampled and not fed; the prompt's end after it may be taken back.
        assert b.cached_tokens == a.prompt_tokens + a.completion_tokens - 1
        changed += "healing" in a.reencoded
    assert changed > 2


def test_the_cached_prompt_ends_where_the_end_was_taken_back(runtime: LocalRuntime) -> None:
    runtime.flush_cache()
    text = "xyzzy "
    first = runtime.generate(text, temperature=0, max_tokens=2, ignore_eos=True)
    again = runtime.generate(text, temperature=0, max_tokens=2, ignore_eos=True)
    assert first.replaced == tuple(ids_of(runtime, text)[-1:])
    assert again.meta.cached_tokens == len(ids_of(runtime, text)) - 2  # one is computed for its logits
    assert again.text == first.text


def test_role_turns_are_left_alone_unless_asked(runtime: LocalRuntime) -> None:
    @function
    def chat(s: Any, healing: bool | None) -> None:
        s += user("hi")
        s += assistant("it is " + gen("a", max_tokens=3, temperature=0, ignore_eos=True, token_healing=healing))
        s += user("and " + gen("b", max_tokens=3, temperature=0, ignore_eos=True, token_healing=healing))

    plain, off, on = (chat.run(healing, backend=runtime) for healing in (None, False, True))
    assert plain.text() == off.text()
    assert (plain.meta("a").reencoded, plain.meta("b").reencoded) == ((), ())
    assert "healing" in on.meta("a").reencoded
    assert on["a"] != plain["a"]
    assert f"it is {on['a']}<|im_end|>" in on.text()
    assert on.meta("b").cached_tokens >= on.meta("a").prompt_tokens + 2


def test_after_a_value_nothing_is_healed(runtime: LocalRuntime) -> None:
    @function
    def p(s: Any) -> None:
        s += "x "
        s += select("which", ["t", "th"])
        s += gen("a", max_tokens=3, temperature=0, ignore_eos=True, token_healing=True)

    state = p.run(backend=runtime)
    assert "healing" not in state.meta("a").reencoded
    assert state.text() == "x " + state["which"] + state["a"]


def test_branches_and_appended_branches(runtime: LocalRuntime) -> None:
    @function
    def p(s: Any) -> None:
        s += "it was "
        branches = s.fork(3)
        branches += gen("a", max_tokens=3, temperature=1.0, seed=5, ignore_eos=True)
        branches.join("append")
        s += "the end " + gen("b", max_tokens=2, temperature=0, ignore_eos=True)

    state = p.run(backend=runtime)
    assert state.text().startswith("it was ")
    assert state.text().endswith("the end " + state["b"])

    @function
    def alone(s: Any) -> None:
        s += "it was " + gen("a", max_tokens=3, temperature=1.0, seed=5, ignore_eos=True)

    one = alone.run(backend=runtime)
    assert "healing" in one.meta("a").reencoded
    assert state.text() == "it was " + one["a"] * 3 + "the end " + state["b"]


def test_samples_are_healed_each(runtime: LocalRuntime) -> None:
    made = runtime.generate("x ", n=6, temperature=1.5, seed=3, max_tokens=3, ignore_eos=True)
    assert len({sample.token_ids for sample in made}) > 3
    for sample in made:
        assert sample.meta.completion_tokens == 3
        assert list(runtime.encode((Text("x "), written(sample))).token_ids) == fed(runtime, "x ", sample)


# -- grammars --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "(yes|no)"},
        {"choices": ["the", "a cat", "in"]},
        {"dtype": int},
        {"grammar": 'root ::= ("the" | "in")+ "."'},
        {"grammar": 'start: start "a" | "t"'},
        {"schema": {"enum": ["the", "an"]}},
    ],
    ids=lambda c: next(iter(c)),
)
@pytest.mark.parametrize("forced_runs", [True, False])
def test_under_a_grammar(folder: Path, constraint: dict[str, Any], forced_runs: bool) -> None:
    with LocalRuntime(folder, device="cpu", kv_tokens=2_000, check_invariants=True, forced_runs=forced_runs) as runtime:
        values = 0
        for i, text in enumerate([*prompts(15, 12), "Answer: ", "a\n", "th", "x  "]):
            made = runtime.generate([text], temperature=1.0, seed=i, max_tokens=60, **constraint)[0]
            if made.error is not None:
                continue
            values += 1
            assert runtime.render((Text(text), written(made))) == text + made.text
            assert list(runtime.encode((Text(text), written(made))).token_ids) == fed(runtime, text, made)
            assert made.meta.forced_tokens <= made.meta.completion_tokens
        assert values > 6


def test_a_prompt_that_ends_with_a_space_and_a_choice(runtime: LocalRuntime) -> None:
    @function
    def p(s: Any) -> None:
        s += "Answer: " + gen("a", regex="(the cat|tin)", temperature=0)

    state = p.run(backend=runtime)
    assert state["a"] in ("the cat", "tin")
    assert state.text() == "Answer: " + state["a"]
    meta = state.meta("a")
    assert runtime.tokenizer.decode([meta.token_ids[0]]) in (" the", " t")  # a space alone leads to no natural token
    assert meta.reencoded == ("healing",)


# -- limits, stops, numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_tokens_counts_what_the_value_has(runtime: LocalRuntime, limit: int) -> None:
    for text in prompts(16, 30):
        made = runtime.generate(text, temperature=1.0, max_tokens=limit, ignore_eos=True)
        assert made.meta.completion_tokens == limit
        assert made.meta.finish_reason == "length"


def test_nothing_generated_is_nothing_healed(runtime: LocalRuntime) -> None:
    made = runtime.generate("x ", max_tokens=0)
    assert (made.text, made.token_ids, made.meta.prompt_tokens) == ("", (), 2)


def test_the_whole_context_can_be_used(folder: Path) -> None:
    with LocalRuntime(folder, device="cpu", context_length=16, kv_tokens=64, check_invariants=True) as runtime:
        for text in ("x ", "xxxxxxxxxxxxxx ", "xxxx a th"):
            made = runtime.generate(text, temperature=0, ignore_eos=True)
            assert made.meta.prompt_tokens + made.meta.completion_tokens == 16


def test_logprobs_are_those_of_the_value_s_tokens(runtime: LocalRuntime) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, "return_text_in_logprobs": True, "ignore_eos": True}
    healed = 0
    for text in prompts(17, 20):
        made = runtime.generate(text, temperature=0, max_tokens=3, **asked)
        meta = made.meta
        assert len(meta.logprobs) == len(meta.top_logprobs) == len(meta.token_texts) == meta.completion_tokens == 3
        ids = fed(runtime, text, made)
        if "stop" in meta.reencoded:
            continue
        want = runtime.generate(ids, max_tokens=0, logprob_start_len=len(ids) - 3).meta.prompt_logprobs
        assert meta.logprobs == pytest.approx(want, abs=1e-4)
        healed += bool(made.replaced)
    assert healed > 2


def test_prompt_logprobs_are_of_the_prompt_as_it_stands(runtime: LocalRuntime) -> None:
    made = runtime.generate("it is ", temperature=0, max_tokens=1, ignore_eos=True, logprob_start_len=0)
    assert len(made.meta.prompt_logprobs) == len(ids_of(runtime, "it is "))
    assert made.replaced == ()


def test_end_tokens_end_the_text_once_the_prompt_is_spelled(runtime: LocalRuntime) -> None:
    """With every end token likely: the value may be empty, and the prompt is whole all the same."""
    ends = sorted(runtime._end_ids)
    for text in ("x ", "a th", "in", "a\n"):
        made = runtime.generate(text, temperature=0, max_tokens=4, logit_bias=dict.fromkeys(ends, 1e4))
        assert (made.text, made.token_ids, made.meta.finish_reason) in (
            ("", (), "stop"),
            (made.text, made.token_ids, "stop"),
        )
        assert runtime.encode((Text(text), written(made))).token_ids[:1] == runtime.encode((Text(text),)).token_ids[:1]
        least = runtime.generate(text, temperature=0, max_tokens=4, min_tokens=3, logit_bias=dict.fromkeys(ends, 1e4))
        assert least.meta.completion_tokens == 3


def test_stops_and_stop_ids_begin_after_the_prompt(runtime: LocalRuntime, codec: Tokenizer) -> None:
    for text in prompts(18, 25):
        whole = runtime.generate(text, temperature=0, max_tokens=6, ignore_eos=True)
        end = text[-1]
        cut = runtime.generate(text, temperature=0, max_tokens=6, ignore_eos=True, stop=end)
        assert cut.text == whole.text.partition(end)[0]
        last = ids_of(runtime, text)[-1]
        stopped = runtime.generate(text, temperature=0, max_tokens=6, ignore_eos=True, stop_token_ids=[last])
        assert last not in stopped.token_ids
        data = data_of(codec, fed(runtime, text, cut))
        assert data.decode("utf-8", "replace").rstrip("\ufffd") == (text + cut.text).rstrip("\ufffd")


def test_streams_never_show_what_was_taken_back(runtime: LocalRuntime) -> None:
    for text in prompts(19, 20):
        want = runtime.generate(text, temperature=0, max_tokens=5, ignore_eos=True)
        pieces = list(runtime.generate(text, temperature=0, max_tokens=5, ignore_eos=True, stream=True))
        assert "".join(pieces) == want.text
        state = two.run(text, "-", backend=runtime, stream=True)
        assert "".join(state.text_iter("a")) == state["a"] == want.text
        assert "".join(state.text_iter()) == state.text()


def test_penalties_and_bias(runtime: LocalRuntime) -> None:
    texts = prompts(20, 12)
    how = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {5: 3.0}, "temperature": 0}
    for text, made in zip(texts, runtime.generate(texts, max_tokens=5, ignore_eos=True, **how)):
        assert list(runtime.encode((Text(text), written(made))).token_ids) == fed(runtime, text, made)


def test_company_and_preemption_change_nothing(folder: Path) -> None:
    texts = prompts(21, 30)
    how: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    with LocalRuntime(folder, device="cpu", kv_tokens=4_000) as runtime:
        want = [runtime.generate(text, **how) for text in texts]
    with LocalRuntime(folder, device="cpu", kv_tokens=60, prefill_chunk=3, check_invariants=True) as runtime:
        for one, other in zip(want, runtime.generate(texts, **how)):
            assert (one.text, one.token_ids, one.replaced) == (other.text, other.token_ids, other.replaced)


# -- choices ---------------------------------------------------------------------------------------------------------


def test_a_choice_and_a_free_text_agree(runtime: LocalRuntime) -> None:
    """Where the likeliest text is one of the choices, in prompts that end inside a natural token."""

    @function
    def free(s: Any, text: str) -> None:
        s += text + gen("a", max_tokens=1, temperature=0, ignore_eos=True)

    @function
    def choose(s: Any, text: str, choices: list[str]) -> None:
        s += text + select("a", choices)

    agreed = 0
    for text in ["x ", "a\n", "it ", "o t", "xx th", "é ", "in the "]:
        state = free.run(text, backend=runtime)
        value = state["a"]
        if not value.isascii() or not value:
            continue
        if ids_of(runtime, text + value) != ids_of(runtime, text, written_of(state)):
            continue  # the model's spelling is not the tokenizer's, which is what a choice is scored by
        others = [c for c in "qzQ" if c != value[0]]
        assert choose.run(text, [*others, value], backend=runtime)["a"] == value
        agreed += "healing" in state.meta("a").reencoded
    assert agreed >= 2


def written_of(state: Any) -> Generated:
    parts: list[Any] = list(state._prompt())
    value: Generated = parts[-1]
    return value
