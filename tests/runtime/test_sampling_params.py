"""Every sampling parameter: its distribution, where its default comes from, what it does in a runtime."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from radicel.errors import ContextLengthError, SamplingError
from radicel.kernels import reference
from radicel.runtime import LocalRuntime
from radicel.runtime.batch import PenaltyRow
from radicel.runtime.defaults import model_defaults, resolve_sampling
from radicel.runtime.penalties import TokenCounts
from radicel.runtime.sampler import choose, uniforms
from radicel.sampling import SamplingParams

batch: Any = runpy.run_path(str(Path(__file__).with_name("driver.py")))["sampling"]
DRAWS = 20_000
LOGITS = np.log([0.16, 0.02, 0.22, 0.08, 0.16, 0.1, 0.2, 0.06])  # 0 and 4 are equals
PROMPT, OUTPUT = [0, 2, 2], [3, 6, 6]
MASK = 0b01101101  # 0, 2, 3, 5, 6
ODD = [99.0, 99.0, 99.0]  # padded ids, which would win

# --- distributions ----------------------------------------------------------------------------------------------------

FIELDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "temperature below 1": {"temperature": 0.5},
    "temperature above 1": {"temperature": 1.8},
    "top-k": {"top_k": 4},
    "top-k with an equal at its border": {"top_k": 3},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.4},
    "repetition penalty": {"repetition": 1.5},
    "frequency penalty": {"frequency": 0.6},
    "presence penalty": {"presence": 0.8},
    "logit bias": {"bias": {1: 2.5, 2: -1.0, 5: -np.inf}},
    "mask": {"mask": MASK},
    "top-k, then top-p": {"top_k": 5, "top_p": 0.75},
    "temperature, then top-p": {"temperature": 2.0, "top_p": 0.7},
    "temperature, then min-p": {"temperature": 0.5, "min_p": 0.4},
    "all": {
        "temperature": 1.3, "top_k": 6, "top_p": 0.9, "min_p": 0.25, "repetition": 1.2, "frequency": 0.2,
        "presence": 0.1, "bias": {1: 3.0, 3: 0.5}, "mask": 0b11101111,
    },
}  # fmt: skip


def by_hand(
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
    bias: dict[int, float] | None = None,
    mask: int = 0xFF,
) -> np.ndarray:
    """The probabilities, one id after the other: penalties, bias, mask, temperature, top-k, top-p, min-p."""
    x = LOGITS.astype(np.float64).tolist()
    for i in range(8):
        if i in PROMPT + OUTPUT:
            x[i] = x[i] / repetition if x[i] > 0 else x[i] * repetition
        x[i] -= frequency * OUTPUT.count(i) + presence * (i in OUTPUT)
        x[i] += (bias or {}).get(i, 0.0)
        x[i] = x[i] / temperature if mask >> i & 1 else -np.inf
    ranked = sorted(range(8), key=lambda i: (-x[i], i))
    ranked = ranked[: top_k or 8]
    weights = {i: float(np.exp(x[i])) for i in ranked}
    kept, reached = [], 0.0
    for i in ranked:
        if reached >= top_p * sum(weights.values()):
            break
        kept.append(i)
        reached += weights[i]
    kept = [i for i in kept if weights[i] >= min_p * weights[ranked[0]]]
    return np.array([weights[i] if i in kept else 0.0 for i in range(8)]) / sum(weights[i] for i in kept)


def chi_square_fits(found: np.ndarray, probabilities: np.ndarray) -> bool:
    """Whether counts are such as 999 of 1,000 true samples give (Wilson and Hilferty's approximation)."""
    counts = np.bincount(found, minlength=8)
    possible = probabilities > 0
    if counts[~possible].any():
        return False
    wanted = probabilities[possible] * len(found)
    free = int(possible.sum()) - 1
    value = ((counts[possible] - wanted) ** 2 / wanted).sum()
    return free == 0 or bool(value < free * (1 - 2 / (9 * free) + 3.09 * np.sqrt(2 / (9 * free))) ** 3)


def draws(fields: dict[str, Any], varied: str) -> np.ndarray:
    """20,000 draws by the sampler."""
    fields = dict(fields)
    state = TokenCounts(PROMPT, OUTPUT, vocab=8, device=torch.device("cpu"))
    numbers = {name: fields.pop(name, default) for name, default in (("frequency", 0.0), ("presence", 0.0))}
    numbers["repetition"] = fields.pop("repetition", 1.0)
    if numbers != {"frequency": 0.0, "presence": 0.0, "repetition": 1.0}:
        fields["penalties"] = [PenaltyRow(row, state, **numbers) for row in range(DRAWS)]
    if (bias := fields.pop("bias", None)) is not None:
        fields["logit_bias"] = dict.fromkeys(range(DRAWS), bias)
    if (mask := fields.pop("mask", None)) is not None:
        fields |= {"masks": np.full((DRAWS, 1), mask, np.int32), "mask_rows": np.arange(DRAWS)}
    logits = torch.tensor([[*LOGITS, *ODD]], dtype=torch.float32).expand(DRAWS, -1)
    one = batch(DRAWS, **{"temperature": 1.0, "seed": 11, varied: np.arange(DRAWS), **fields})
    return choose(logits, one, 8).numpy()


@pytest.mark.parametrize("varied", ["draw_index", "seed", "sample_index"])
@pytest.mark.parametrize("name", FIELDS)
def test_draws_follow_the_plain_reference(name: str, varied: str) -> None:
    assert chi_square_fits(draws(FIELDS[name], varied), by_hand(**FIELDS[name]))


def test_the_test_of_distributions_can_fail() -> None:
    found = draws(FIELDS["temperature below 1"], "seed")
    assert not chi_square_fits(found, by_hand(temperature=0.55))
    assert not chi_square_fits(draws({}, "seed"), by_hand(min_p=0.2))


@pytest.mark.parametrize("name", [name for name, f in FIELDS.items() if not {"repetition", "presence"} & set(f)])
def test_the_twin_of_the_kernel_draws_the_same(name: str) -> None:
    fields = dict(FIELDS[name])
    if "frequency" in fields:
        return
    logits = torch.tensor([[*LOGITS, *ODD]], dtype=torch.float32).repeat(DRAWS, 1)
    for token, value in fields.get("bias", {}).items():
        logits[:, token] += value
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | fields
    columns = [
        torch.full((DRAWS,), full[key], dtype=torch.int32 if key == "top_k" else torch.float32)
        for key in ("temperature", "top_k", "top_p", "min_p")
    ]
    numbers = torch.from_numpy(uniforms(np.arange(DRAWS), np.zeros(DRAWS, np.int64), np.zeros(DRAWS, np.int64)))
    masks = torch.tensor([[fields["mask"]]], dtype=torch.int32) if "mask" in fields else None
    mask_of = torch.zeros(DRAWS, dtype=torch.int32) if "mask" in fields else None
    found = reference.sample_tokens(logits, *columns, numbers, masks, mask_of, 8).numpy()
    assert chi_square_fits(found, by_hand(**fields))
    assert (found == draws({**fields, "sample_index": 0, "draw_index": 0}, "seed")).mean() > 0.9999


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_lowest_of_equals_wins_at_temperature_0(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.integers(-3, 4, (200, 3000))).to(dtype)
    wanted = [row.index(max(row)) for row in logits.tolist()]
    assert choose(logits, batch(200), 3000).tolist() == wanted
    numbers = [torch.zeros(200), torch.zeros(200, dtype=torch.int32), torch.ones(200), torch.zeros(200)]
    twin = reference.sample_tokens(logits, *numbers, torch.zeros(200).double(), None, None, 3000)
    assert twin.tolist() == wanted


def test_a_number_that_is_none_is_never_the_largest() -> None:
    logits = torch.tensor([[1.0, torch.nan, 3.0, 3.0], [torch.nan] * 4, [-torch.inf, torch.nan, -5.0, torch.inf]])
    assert choose(logits, batch(3), 4).tolist() == [2, 0, 3]
    assert choose(logits, batch(3, temperature=[1e-6, 1.0, 1.0]), 4).tolist()[1:] == [0, 3]


# --- defaults ---------------------------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "none": (None, {}),
    "nothing about sampling": ({"eos_token_id": 2, "max_length": 99}, {}),
    "Llama 3.1": ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
    "Qwen2.5": (
        {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
        {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
    ),
    "greedy": ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
    "min-p, and null": ({"min_p": 0.05, "top_p": None}, {"min_p": 0.05}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_defaults_of_the_model(name: str) -> None:
    config, said = CONFIGS[name]
    assert model_defaults(config).said() == said


def resolved(params: SamplingParams, defaults: SamplingParams | None = None, **changes: Any) -> Any:
    sizes: dict[str, Any] = {"prompt_len": 10, "context_length": 50, "vocab_size": 100, "end_ids": frozenset({2})}
    return resolve_sampling(params, defaults=defaults or SamplingParams(), seed=77, **{**sizes, **changes})


def test_the_user_wins_over_the_model_and_the_model_over_the_rest() -> None:
    model = SamplingParams.of(temperature=0.6, top_p=0.9, top_k=20)
    (one,) = resolved(SamplingParams.of(top_p=1.0, top_k=-1), model)
    assert (one.temperature, one.top_p, one.top_k, one.min_p, one.seed) == (0.6, 1.0, 0, 0.0, 77)
    (one,) = resolved(SamplingParams.of(temperature=0))
    assert (one.temperature, one.top_p, one.repetition_penalty, one.max_tokens) == (0.0, 1.0, 1.0, 40)
    (one,) = resolved(SamplingParams.of(max_tokens=5, ignore_eos=True, top_logprobs=1000, seed=4))
    assert (one.max_tokens, one.end_ids, one.top_logprobs, one.seed) == (5, frozenset(), 100, 4)
    assert [s.sample_index for s in resolved(SamplingParams.of(n=3))] == [0, 1, 2]


def test_what_cannot_be_sampled_is_named() -> None:
    for params in (SamplingParams.of(logit_bias={100: 1.0}), SamplingParams.of(stop_token_ids=[100])):
        with pytest.raises(SamplingError, match="names token 100; this model's ids are 0 … 99"):
            resolved(params)
    for length in (50, 51):
        with pytest.raises(ContextLengthError, match=f"the prompt has {length} tokens"):
            resolved(SamplingParams(), prompt_len=length)
    assert resolved(SamplingParams.of(max_tokens=0), prompt_len=50)[0].max_tokens == 0


# --- in a runtime -----------------------------------------------------------------------------------------------------

TEXT = "The harbour lies in the north of the town, and in winter the boats lie there."


@pytest.fixture(scope="module")
def folder(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose generation config speaks about sampling."""
    path = tmp_path_factory.mktemp("sampling") / "model"
    shutil.copytree(tiny_llama, path)
    said = json.loads((path / "generation_config.json").read_text())
    said |= {"do_sample": True, "temperature": 0.9, "top_k": 1}
    (path / "generation_config.json").write_text(json.dumps(said))
    return path


@pytest.fixture(scope="module")
def rt(folder: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(folder, kv_tokens=3000, context_length=400) as runtime:
        yield runtime


def ids_of(rt: LocalRuntime, **sampling: Any) -> list[int]:
    return list(rt.generate(TEXT, **{"max_tokens": 12, "ignore_eos": True, **sampling}).meta.token_ids)


def test_the_generation_config_holds_unless_the_user_says_otherwise(rt: LocalRuntime) -> None:
    greedy = ids_of(rt, temperature=0)
    assert ids_of(rt) == greedy  # top_k=1
    assert ids_of(rt, top_k=-1, seed=3) != greedy


def test_a_seed_gives_the_same_text_whatever_else_runs(rt: LocalRuntime) -> None:
    asked = {"temperature": 1.0, "top_k": -1, "seed": 5}
    alone = ids_of(rt, **asked)
    others = [rt.generate(f"Another {i}", max_tokens=3, temperature=1.0, top_k=-1) for i in range(3)]
    assert len(others) == 3
    assert ids_of(rt, **asked) == alone
    together = rt.generate([TEXT, "Other text", TEXT], max_tokens=12, ignore_eos=True, **asked)
    assert list(together[0].meta.token_ids) == list(together[2].meta.token_ids) == alone
    assert ids_of(rt, **{**asked, "seed": 6}) != alone


def test_samples_share_their_prompt_and_each_is_its_own(rt: LocalRuntime) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "top_k": -1, "seed": 5, "max_tokens": 6, "ignore_eos": True}
    rt.flush_cache()
    before = rt.stats()
    samples = rt.generate(TEXT, n=8, **asked)
    after = rt.stats()
    prompt = samples[0].meta.prompt_tokens
    assert after.prompt_tokens - before.prompt_tokens == 8 * prompt
    # The prompt once; its last token is a query of each, as its logits are wanted.
    assert after.computed_tokens - before.computed_tokens <= prompt + 8
    texts = [tuple(sample.meta.token_ids) for sample in samples]
    assert len(set(texts)) == 8
    assert texts[0] == tuple(rt.generate(TEXT, **asked).meta.token_ids)
    assert texts[:3] == [tuple(sample.meta.token_ids) for sample in rt.generate(TEXT, n=3, **asked)]


def test_ends_and_stops_of_a_text(rt: LocalRuntime) -> None:
    ids = ids_of(rt, temperature=0)
    third = ids.index(ids[2])
    found = rt.generate(TEXT, temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[ids[2]])
    assert found.meta.finish_reason == "stop"
    assert list(found.meta.token_ids) == ids[:third]
    late = rt.generate(TEXT, temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[ids[2]], min_tokens=8)
    assert late.meta.completion_tokens >= 8
    end = rt.tokenizer.eos_token_id
    biased = rt.generate(TEXT, temperature=0, max_tokens=12, logit_bias={end: 1000.0})
    assert (biased.meta.finish_reason, biased.meta.completion_tokens) == ("stop", 0)
    assert ids_of(rt, temperature=0, logit_bias={end: 1000.0}) == [end] * 12


# --- log probabilities ------------------------------------------------------------------------------------------------


def test_logprobs_are_those_before_any_processing(rt: LocalRuntime) -> None:
    """Temperature, filters, penalties, bias and masks choose another token; its logprob is the model's own."""
    asked: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "logprobs": True, "top_logprobs": 288, "seed": 2}
    for changed in (
        {"temperature": 1.5, "top_k": -1},
        {"temperature": 0, "logit_bias": {40: 100.0, 41: -5.0}},
        {"temperature": 1.0, "top_k": 7, "top_p": 0.6, "min_p": 0.1, "repetition_penalty": 1.7},
        {"temperature": 1.0, "top_k": -1, "frequency_penalty": 2.0, "presence_penalty": 2.0},
        {"temperature": 0, "regex": "[x-z]{3,6}"},
    ):
        meta = rt.generate(TEXT, **asked, **changed).meta
        whole = [*rt.tokenizer(TEXT).input_ids, *meta.token_ids]
        start = len(whole) - len(meta.token_ids)
        wanted = rt.generate(whole, max_tokens=0, logprob_start_len=start).meta.prompt_logprobs
        assert meta.logprobs == pytest.approx(wanted, abs=1e-4)
        for token, value, top in zip(meta.token_ids, meta.logprobs, meta.top_logprobs):
            assert sum(np.exp(list(top.values()))) <= 1 + 1e-4  # padded ids are left out, and have their share
            assert top[token] == pytest.approx(value, abs=1e-4)
            assert list(top.values()) == sorted(top.values(), reverse=True)
            assert max(top) < len(rt.tokenizer)


@pytest.mark.parametrize("start", [0, 1, 7, 57])
def test_prompt_logprobs_with_and_without_a_cached_prefix(folder: Path, start: int) -> None:
    asked: dict[str, Any] = {"max_tokens": 2, "temperature": 0, "ignore_eos": True, "logprob_start_len": start}
    for deterministic in (False, True):
        with LocalRuntime(folder, kv_tokens=2000, context_length=400, deterministic=deterministic) as runtime:
            cold = runtime.generate(TEXT, **asked).meta
            warm = runtime.generate(TEXT, **asked).meta
            runtime.flush_cache()
            runtime.generate(TEXT[:40], max_tokens=1)
            half = runtime.generate(TEXT, **asked).meta
        assert len(cold.prompt_logprobs) == cold.prompt_tokens - start
        assert [value is None for value in cold.prompt_logprobs] == [i == 0 for i in range(start, cold.prompt_tokens)]
        assert (cold.cached_tokens, half.cached_tokens > 0) == (0, start > 1)
        if deterministic:
            assert warm.prompt_logprobs == half.prompt_logprobs == cold.prompt_logprobs
        for other in (warm, half):
            assert other.prompt_logprobs[1:] == pytest.approx(cold.prompt_logprobs[1:], abs=1e-4)


def test_logprobs_of_named_tokens(rt: LocalRuntime) -> None:
    """`score` looks up tokens that are given; they need not be likely."""
    top = rt.generate(TEXT, max_tokens=1, temperature=0, top_logprobs=288, ignore_eos=True).meta.top_logprobs[0]
    found = rt.score(TEXT, [" the", "x", "~"])
    for score in found:
        assert score.token_logprobs[0] == pytest.approx(top[score.token_ids[0]], abs=1e-4)


def test_what_the_prompts_of_one_call_have_in_common_is_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[SamplingParams] = []
    over = SamplingParams.over

    def counted(self: SamplingParams, defaults: SamplingParams | None) -> SamplingParams:
        merged.append(self)
        return over(self, defaults)

    monkeypatch.setattr(SamplingParams, "over", counted)
    params, model = SamplingParams.of(max_tokens=5), SamplingParams.of(temperature=0.5)
    sizes: dict[str, Any] = {"context_length": 10, "vocab_size": 64, "end_ids": frozenset(), "seed": 1}
    found = [resolve_sampling(params, defaults=model, prompt_len=n, **sizes)[0] for n in (4, 8)]
    assert [(one.max_tokens, one.temperature) for one in found] == [(5, 0.5), (2, 0.5)]
    assert len(merged) == 1
    other = SamplingParams.of(temperature=0.25)
    assert resolve_sampling(params, defaults=other, prompt_len=4, **sizes)[0].temperature == 0.25
    again = SamplingParams.of(max_tokens=1)
    assert resolve_sampling(again, defaults=other, prompt_len=4, **sizes)[0].max_tokens == 1
