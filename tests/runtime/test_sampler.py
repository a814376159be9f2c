"""The sampler against plain references: order of the edits, filters, ties, draws and their independence."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from radicel.errors import InvalidValueError
from radicel.runtime.batch import PenaltyRow
from radicel.runtime.penalties import TokenCounts
from radicel.runtime.sampler import choose, top_entries, uniforms

CPU = torch.device("cpu")
INF = float("inf")
batch: Any = runpy.run_path(str(Path(__file__).with_name("driver.py")))["sampling"]


def mask_of(*ids: int, words: int = 1) -> np.ndarray:
    row = np.zeros(words, np.uint32)
    for i in ids:
        row[i // 32] |= np.uint32(1 << (i % 32))
    return row.view(np.int32)


def counts(prompt: list[int], output: list[int], vocab: int = 8) -> TokenCounts:
    return TokenCounts(prompt, output, vocab=vocab, device=CPU)


def support(logits: list[float], draws: int = 4000, **fields: Any) -> set[int]:
    """Every id that some of many draws gives."""
    rows = torch.tensor([logits]).repeat(draws, 1)
    return set(choose(rows, batch(draws, draw_index=np.arange(draws), **fields), len(logits)).tolist())


# --- greedy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_greedy_takes_the_lowest_id_among_equals(dtype: torch.dtype) -> None:
    logits = torch.zeros((3, 5000), dtype=dtype)
    logits[1, [4999, 1234, 3000]] = 2.0
    logits[2, 17:] = -1.0
    assert choose(logits, batch(3), 5000).tolist() == [0, 1234, 0]


def test_ids_beyond_the_tokenizer_are_never_chosen() -> None:
    logits = torch.tensor([[0.0, 1.0, 9.0, 9.0]])
    assert choose(logits, batch(1), 2).tolist() == [1]
    hot = choose(logits.repeat(500, 1), batch(500, temperature=1.0, draw_index=np.arange(500)), 2)
    assert set(hot.tolist()) == {0, 1}


def test_logits_are_not_changed() -> None:
    logits = torch.randn(4, 40)
    kept = logits.clone()
    masks = np.stack([mask_of(1, 2, words=2)])
    edits = {"masks": masks, "mask_rows": np.array([1]), "logit_bias": {0: {3: 5.0}}}
    choose(logits, batch(4, temperature=[0, 1, 1, 0], top_k=3, **edits), 40)
    assert torch.equal(logits, kept)


# --- edits ------------------------------------------------------------------------------------------------------------

PENALTIES = {
    # (repetition, frequency, presence), prompt, output → edited logits of [2, -2, 1, 0, ...]
    "none": ((1.0, 0.0, 0.0), [0], [1, 1], [2.0, -2.0, 1.0]),
    "repetition divides positive, multiplies negative": ((2.0, 0.0, 0.0), [0], [1], [1.0, -4.0, 1.0]),
    "frequency counts the output only": ((1.0, 0.5, 0.0), [0, 0], [1, 1, 2], [2.0, -3.0, 0.5]),
    "presence counts once": ((1.0, 0.0, 0.5), [0, 0], [1, 1, 2], [2.0, -2.5, 0.5]),
    "repetition first": ((2.0, 0.25, 0.5), [], [0, 0], [2.0 / 2 - 0.5 - 0.5, -2.0, 1.0]),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties(name: str) -> None:
    from radicel.runtime.penalties import apply_penalties

    (repetition, frequency, presence), prompt, output, wanted = PENALTIES[name]
    scores = torch.tensor([[7.0] * 8, [2.0, -2.0, 1.0, 0, 0, 0, 0, 0]])
    apply_penalties(scores, [PenaltyRow(1, counts(prompt, output), frequency, presence, repetition)])
    torch.testing.assert_close(scores[1, :3], torch.tensor(wanted))
    assert (scores[0] == 7).all()


def test_counts_grow_by_add_and_equal_a_fresh_count() -> None:
    grown = counts([1], [])
    for token in (2, 2, 5):
        grown.add(token)
    fresh = counts([1], [2, 2, 5])
    assert torch.equal(grown.output, fresh.output)
    assert torch.equal(grown.seen, fresh.seen)
    assert grown.seen.nonzero().flatten().tolist() == [1, 2, 5]


def test_a_repeated_token_loses_to_its_runner_up() -> None:
    logits = torch.tensor([[3.0, 2.9, 0, 0, 0, 0, 0, 0]] * 2)
    rows = [PenaltyRow(1, counts([], [0]), 0.0, 0.5, 1.0)]
    assert choose(logits, batch(2, penalties=rows), 8).tolist() == [0, 1]


def test_logit_bias_adds_on_its_row_only() -> None:
    logits = torch.tensor([[1.0, 0.0, 0.0]] * 3)
    bias = {1: {2: 1.5}, 2: {0: -INF, 1: -100.0}}
    assert choose(logits, batch(3, logit_bias=bias), 3).tolist() == [0, 2, 2]
    with pytest.raises(InvalidValueError, match="logit_bias of token 3: ids go from 0 to 2"):
        choose(logits, batch(3, logit_bias={0: {3: 1.0}}), 3)


def test_masks_reach_their_rows_and_no_other() -> None:
    logits = torch.arange(70.0).repeat(3, 1)
    masks = np.stack([mask_of(0, 31, words=3), mask_of(32, 64, words=3)])
    assert choose(logits, batch(3, masks=masks, mask_rows=np.array([2, 0])), 70).tolist() == [64, 69, 31]


def test_a_mask_narrower_than_the_row_forbids_the_rest() -> None:
    logits = torch.arange(70.0).repeat(1, 1)
    assert choose(logits, batch(1, masks=mask_of(3, 30)[None], mask_rows=np.array([0])), 70).tolist() == [30]


HOPELESS = {
    "all allowed are -inf": ([5.0, -INF, -INF, 5.0], [1, 2], 1),
    "all allowed are NaN": ([5.0, np.nan, np.nan, 5.0], [2], 2),
    "nothing is allowed": ([5.0, 1.0, 1.0, 5.0], [], 0),
    "one allowed is finite": ([5.0, -INF, -3e38, 5.0], [1, 2], 2),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", HOPELESS)
def test_a_hopeless_row_gives_its_lowest_allowed_id(name: str, temperature: float) -> None:
    logits, allowed, wanted = HOPELESS[name]
    one = batch(1, temperature=temperature, masks=mask_of(*allowed)[None], mask_rows=np.array([0]))
    assert choose(torch.tensor([logits]), one, 4).tolist() == [wanted]


def test_bias_comes_before_the_mask() -> None:
    one = batch(1, masks=mask_of(1)[None], mask_rows=np.array([0]), logit_bias={0: {1: -100.0, 0: 100.0}})
    assert choose(torch.zeros(1, 3), one, 3).tolist() == [1]


# --- filters ----------------------------------------------------------------------------------------------------------

LOG = [float(np.log(p)) for p in (0.1, 0.4, 0.05, 0.3, 0.15)]  # by probability: 1, 3, 4, 0, 2
FILTERS = {
    "none": ({}, {0, 1, 2, 3, 4}),
    "top-k": ({"top_k": 2}, {1, 3}),
    "top-k 1": ({"top_k": 1}, {1}),
    "top-k beyond the vocabulary": ({"top_k": 99}, {0, 1, 2, 3, 4}),
    "top-p keeps the token that crosses": ({"top_p": 0.45}, {1, 3}),
    "top-p below the first": ({"top_p": 0.01}, {1}),
    "top-p that keeps nothing": ({"top_p": 0.0}, {1}),
    "top-p near all": ({"top_p": 0.96}, {0, 1, 2, 3, 4}),
    "top-p over what top-k left": ({"top_k": 2, "top_p": 0.57}, {1}),
    "top-p just beyond it": ({"top_k": 2, "top_p": 0.58}, {1, 3}),
    "min-p": ({"min_p": 0.3}, {1, 3, 4}),
    "min-p 1": ({"min_p": 1.0}, {1}),
    "min-p after top-p": ({"top_p": 0.8, "min_p": 0.5}, {1, 3}),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters(name: str) -> None:
    fields, wanted = FILTERS[name]
    assert support(LOG, temperature=1.0, **fields) == wanted


def test_filters_see_the_scaled_distribution() -> None:
    assert support(LOG, temperature=0.25, min_p=0.3) == {1, 3}  # (0.3 / 0.4) ** 4 = 0.316; at 1.0 4 passes as well


def test_equals_at_the_border_are_kept_by_lowest_id() -> None:
    logits = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    assert support(logits, temperature=1.0, top_k=2) == {1, 3}
    assert support(logits, temperature=1.0, top_k=4) == {0, 1, 3, 5}
    assert support([0.0] * 8, temperature=1.0, top_p=0.5) == {0, 1, 2, 3}


def test_wide_and_narrow_filters_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from radicel.runtime import sampler

    logits = torch.randn((300, 500), generator=torch.Generator().manual_seed(1)).mul(3).round(decimals=1)
    one = batch(300, temperature=0.7, top_k=40, top_p=0.9, min_p=0.02, draw_index=np.arange(300))
    narrow = choose(logits, one, 500)
    monkeypatch.setattr(sampler, "NARROW_TOP_K", 0)
    assert torch.equal(choose(logits, one, 500), narrow)


def _kept_by_hand(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    scaled = (logits - logits.max()) / temperature
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if top_k:
        order = order[:top_k]
    mass = np.exp(scaled[order]) / np.exp(scaled[order]).sum()
    keep = [i for n, i in enumerate(order) if mass[:n].sum() < top_p] if top_p < 1 else order
    return {i for i in keep if np.exp(scaled[i]) >= min_p}


@pytest.mark.parametrize("seed", range(20))
def test_random_filters_against_a_plain_reference(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=24).round(1).astype(np.float64) * 2
    fields = {
        "temperature": float(generator.choice([0.5, 1.0, 1.7])),
        "top_k": int(generator.choice([0, 3, 10])),
        "top_p": float(np.float32(generator.choice([1.0, 0.9, 0.5]))),
        "min_p": float(np.float32(generator.choice([0.0, 0.03, 0.2]))),
    }
    draws = 20_000
    rows = torch.from_numpy(logits)[None].expand(draws, -1)
    found = choose(rows, batch(draws, draw_index=np.arange(draws), **fields), 24).numpy()
    kept = _kept_by_hand(logits, **fields)
    assert set(found.tolist()) <= kept
    likely = {i for i in kept if np.exp((logits[i] - logits.max()) / fields["temperature"]) > 0.02}
    assert likely <= set(found.tolist())


# --- draws ------------------------------------------------------------------------------------------------------------


def _chi_square(found: np.ndarray, probabilities: np.ndarray) -> float:
    wanted = probabilities * len(found)
    return float(((np.bincount(found, minlength=len(wanted)) - wanted) ** 2 / wanted).sum())


@pytest.mark.parametrize("varied", ["draw_index", "seed", "sample_index"])
def test_draws_follow_the_distribution(varied: str) -> None:
    draws, probabilities = 20_000, np.array([0.02, 0.3, 0.08, 0.25, 0.2, 0.1, 0.05])
    logits = torch.from_numpy(np.log(probabilities)).float().expand(draws, -1)
    found = choose(logits, batch(draws, temperature=1.0, **{varied: np.arange(draws)}), 7).numpy()
    assert _chi_square(found, probabilities) < 22.46  # 99.9 % quantile at 6 degrees of freedom
    hot = choose(logits, batch(draws, temperature=2.0, **{varied: np.arange(draws)}), 7).numpy()
    flat = np.sqrt(probabilities) / np.sqrt(probabilities).sum()
    assert _chi_square(hot, flat) < 22.46


def test_uniforms_are_uniform_and_differ_in_every_part() -> None:
    n = 100_000
    for parts in ((np.arange(n), 0, 0), (7, np.arange(n), 0), (7, 0, np.arange(n)), (np.arange(n) - n // 2, 3, 5)):
        number = uniforms(*(np.broadcast_to(np.asarray(part, np.int64), n) for part in parts))
        assert number.min() >= 0
        assert number.max() < 1
        assert len(np.unique(number)) == n
        counted = np.histogram(number, bins=100, range=(0, 1))[0]
        assert ((counted - n / 100) ** 2 / (n / 100)).sum() < 160  # 99.99 % quantile at 99 degrees of freedom
        assert abs(np.corrcoef(number[:-1], number[1:])[0, 1]) < 0.015


def test_uniforms_do_not_mix_their_parts_up() -> None:
    triples = np.array([(a, b, c) for a in range(-3, 9) for b in range(12) for c in range(12)], np.int64)
    assert len(np.unique(uniforms(*triples.T))) == len(triples)


def test_a_draw_does_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    size, vocab = 24, 300
    logits = torch.randn((size, vocab), generator=generator) * 2
    fields: dict[str, np.ndarray] = {
        "temperature": np.array([0.0, 0.6, 1.0, 1.3] * 6),
        "top_k": np.array([0, 0, 5, 40, 0, 2000] * 4),
        "top_p": np.array([1.0, 0.9, 0.5] * 8),
        "min_p": np.array([0.0, 0.1] * 12),
        "seed": np.arange(size) * 7 - 20,
        "sample_index": np.arange(size) % 3,
        "draw_index": np.arange(size)[::-1] * 11,
    }
    together = choose(logits, batch(size, **fields), vocab)
    for order in (list(range(size))[::-1], [5], [7, 3, 20], list(range(0, size, 2))):
        some = batch(len(order), **{name: values[order] for name, values in fields.items()})
        assert choose(logits[order], some, vocab).tolist() == together[order].tolist()
    again = batch(size, **{**fields, "draw_index": fields["draw_index"] + 1})
    assert choose(logits, again, vocab).tolist() != together.tolist()


def test_samples_of_one_seed_differ() -> None:
    logits = torch.zeros((50, 1000))
    found = choose(logits, batch(50, temperature=1.0, seed=42, sample_index=np.arange(50)), 1000)
    assert len(set(found.tolist())) > 40


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e-3, 1e6])
def test_extreme_temperatures(temperature: float) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -INF, -1e30]]).repeat(400, 1)
    found = set(choose(logits, batch(400, temperature=temperature, draw_index=np.arange(400)), 5).tolist())
    assert found == ({0, 1, 2} if temperature > 1 else {1, 2})


def test_a_draw_never_falls_on_a_forbidden_id() -> None:
    logits = torch.full((2000, 64), 50.0)
    logits[:, 40] = -20.0
    masks = np.tile(mask_of(40, 41, words=2), (2000, 1))
    one = batch(2000, temperature=1.0, draw_index=np.arange(2000), masks=masks, mask_rows=np.arange(2000))
    assert set(choose(logits, one, 64).tolist()) == {41}


def test_top_entries_take_the_lowest_ids_among_equals() -> None:
    values, ids = top_entries(torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 0.5]]), 3)
    assert values.tolist() == [[2.0, 1.0, 1.0]]
    assert sorted(ids[0].tolist()) == [1, 2, 3]
