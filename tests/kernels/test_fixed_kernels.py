"""Kernels whose rows do not depend on their neighbours: against their twins, and the same bits in every batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from radicel.kernels import KERNELS, reference, reference_fixed
from radicel.runtime.attention import make_attention
from radicel.runtime.batch import StepBatch
from torch.nn import functional

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
DTYPES = [torch.float32] + [torch.bfloat16, torch.float16] * ON_GPU
TWIN_DTYPES = [torch.float64, torch.float32, torch.bfloat16]

# The interpreter computes infinities that a GPU computes as well, and warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
]


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "outs", "width"), [(1, 70, 40), (67, 96, 33), (3, 16, 128), (0, 8, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_linear(dtype: torch.dtype, rows: int, outs: int, width: int, biased: bool) -> None:
    x, weight = _random(rows, width, dtype=dtype), _random(outs, width, dtype=dtype, seed=1)
    bias = _random(outs, dtype=dtype, seed=2) if biased else None
    wanted = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for linear in (KERNELS["fixed_linear"].triton(), reference_fixed.fixed_linear):
        found = linear(x, weight, bias)
        assert found.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found.double(), wanted, atol=tolerance * 10, rtol=tolerance)
    many = x.view(rows, 1, width)
    assert torch.equal(
        reference_fixed.fixed_linear(many, weight, bias)[:, 0], reference_fixed.fixed_linear(x, weight, bias)
    )


def _same_in_every_batch(linear: Any, dtype: torch.dtype, outs: int, width: int, moved: bool = True) -> None:
    """A row gives the same bits beside any others; unless `moved`, it keeps its place in a tile of 64 rows."""
    x, weight = _random(75, width, dtype=dtype), _random(outs, width, dtype=dtype, seed=1)
    whole = linear(x, weight, None)
    order = torch.randperm(75, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    places = torch.arange(75, device=DEVICE)
    shuffled = [order[:1], order[:2], order[3:10], order[:64], order, places[9:]]
    for rows in [places[:1], places[:7], places[:64], places[64:], places[64:65], *(shuffled if moved else [])]:
        assert torch.equal(linear(x[rows], weight, None), whole[rows]), len(rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_the_kernel_are_the_same_in_every_batch(dtype: torch.dtype) -> None:
    # The interpreter multiplies tiles by a library that minds a row's place in them; a tensor core does not.
    _same_in_every_batch(KERNELS["fixed_linear"].triton(), dtype, 80, 96, moved=ON_GPU)


@pytest.mark.parametrize(("kilobytes", "stages"), [(227, 5), (163, 5), (99, 3), (48, 1), (16, 1)])
def test_stages_fit_into_the_memory_of_a_program(kilobytes: int, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from radicel.kernels import fixed_linear

    memory = SimpleNamespace(shared_memory_per_block=48 << 10, shared_memory_per_block_optin=kilobytes << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    tile = fixed_linear.Tile(64, 64, 128, 4, 5)
    most = fixed_linear._most_stages.__wrapped__(tile, 2, torch.device("cuda"))
    assert min(tile.stages, most) == stages
    assert fixed_linear._most_stages.__wrapped__(tile, 2, torch.device("cpu")) == tile.stages


@pytest.mark.parametrize("dtype", TWIN_DTYPES)
@pytest.mark.parametrize(("outs", "width"), [(80, 96), (300, 577), (1000, 64)])
def test_rows_of_the_twin_are_the_same_in_every_batch(dtype: torch.dtype, outs: int, width: int) -> None:
    _same_in_every_batch(reference_fixed.fixed_linear, dtype, outs, width)


def test_a_library_that_minds_the_place_gets_one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = functional.linear
    sizes: list[int] = []

    def picky(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        sizes.append(len(x))
        place = torch.arange(len(x), dtype=x.dtype)[:, None]
        return plain(x, weight, bias) + place * 1e-6

    monkeypatch.setattr(functional, "linear", picky)
    monkeypatch.setattr(reference_fixed, "_TRIED", {})
    reference_fixed.fixed_linear(torch.ones(5, 4), torch.ones(3, 4))
    assert sizes[-5:] == [1] * 5


def _batch(q_lens: list[int], kv_lens: list[int], heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> list[Any]:
    """Arguments of `fixed_attention` up to kv_lens; slot 0 and what lies beyond a row's end hold NaN."""
    context = max(kv_lens) + 5
    slots = len(q_lens) * context + 1
    table = torch.randperm(slots - 1, generator=torch.Generator().manual_seed(1)).view(-1, context).int() + 1
    caches = [_random(slots, kv_heads, dim, dtype=dtype, seed=s) for s in (1, 2)]
    for cache in caches:
        cache[0] = torch.nan
        for row, length in enumerate(kv_lens):
            cache[table[row, length:].long()] = torch.nan
    starts = torch.tensor([0, *np.cumsum(q_lens)], dtype=torch.int32, device=DEVICE)
    rows = torch.arange(len(q_lens), dtype=torch.int32, device=DEVICE)
    q = _random(sum(q_lens), heads, dim, dtype=dtype)
    return [q, *caches, table.to(DEVICE), rows, starts, torch.tensor(kv_lens, dtype=torch.int32, device=DEVICE)]


KINDS: list[dict[str, Any]] = [{}, {"window": 20}, {"softcap": 5.0}, {"window": 3, "softcap": 2.0}]
SHAPES = [(4, 2, 16), (3, 1, 40)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_attention_is_attention(
    dtype: torch.dtype, options: dict[str, Any], heads: int, kv_heads: int, dim: int
) -> None:
    batch = _batch([1, 9, 40, 3], [70, 9, 45, 133], heads, kv_heads, dim, dtype)
    wanted = reference.ragged_attention(*(t.double() if t.is_floating_point() else t for t in batch), 0.3, **options)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for attention in (KERNELS["fixed_attention"].triton(), reference_fixed.fixed_attention):
        found = attention(*batch, 0.3, **options)
        torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


def _same_in_every_chunk(attention: Any, dtype: torch.dtype, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    """A row of 150 positions whole, in chunks, token by token, and beside others."""
    length = 150
    q, k, v, table, rows, starts, lens = _batch([length, 4], [length, 60], *shape, dtype)
    whole = attention(q, k, v, table, rows, starts, lens, 0.3, **options)
    for first, end in ((0, 1), (0, 77), (77, 78), (77, 150), (149, 150), (13, 140), (128, 129)):
        int32 = {"dtype": torch.int32, "device": DEVICE}
        alone = attention(
            q[first:end].clone(), k, v, table, rows[:1], torch.tensor([0, end - first], **int32),
            torch.tensor([end], **int32), 0.3, **options,
        )  # fmt: skip
        assert torch.equal(alone, whole[first:end]), (first, end)
        both = attention(
            torch.cat((q[length:], q[first:end])), k, v, table, rows.flip(0),
            torch.tensor([0, 4, 4 + end - first], **int32), torch.tensor([60, end], **int32), 0.3, **options,
        )  # fmt: skip
        assert torch.equal(both, torch.cat((whole[length:], whole[first:end])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", KINDS)
def test_queries_of_the_kernel_are_the_same_in_every_chunk(dtype: torch.dtype, options: dict[str, Any]) -> None:
    _same_in_every_chunk(KERNELS["fixed_attention"].triton(), dtype, options, (4, 2, 16))


@pytest.mark.parametrize("dtype", TWIN_DTYPES)
@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_queries_of_the_twin_are_the_same_in_every_chunk(
    dtype: torch.dtype, options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    _same_in_every_chunk(reference_fixed.fixed_attention, dtype, options, shape)


def _attention(monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int, dim: int) -> Any:
    """`DeterministicAttention` as on a GPU."""
    from radicel.kernels.fixed_attention import tile_positions

    made = make_attention("deterministic", num_heads=heads, kv_heads=kv_heads, head_dim=dim, device=DEVICE)
    monkeypatch.setattr(made, "_attend", KERNELS["fixed_attention"].triton())
    monkeypatch.setattr(made, "_per_tile", tile_positions(heads // kv_heads, dim, torch.float32))
    return made


def _step(rows: Any, q_lens: list[int], kv_lens: list[int]) -> StepBatch:
    positions = np.concatenate([np.arange(n - m, n) for m, n in zip(q_lens, kv_lens)])
    return StepBatch(
        token_ids=positions, positions=positions, slots=positions, rows=np.asarray(rows, np.int32),
        q_lens=np.asarray(q_lens, np.int32), kv_lens=np.asarray(kv_lens, np.int32),
        logit_rows=np.arange(len(positions)),
    )  # fmt: skip


@pytest.mark.parametrize("options", KINDS)
def test_the_plan_of_a_step_is_that_of_the_kernel(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `DeterministicAttention` prepares, the kernel reads."""
    q_lens, kv_lens, shape = [1, 9, 40, 3], [70, 9, 45, 133], (4, 2, 16)
    q, k, v, table, rows, _, lens = _batch(q_lens, kv_lens, *shape, torch.float32)
    made = _attention(monkeypatch, *shape)
    found = made.attend(k, v, q, made.prepare(_step(rows.cpu(), q_lens, kv_lens), table), scale=0.3, **options)
    starts = torch.tensor([0, *np.cumsum(q_lens)], dtype=torch.int32, device=DEVICE)
    wanted = reference.ragged_attention(q, k, v, table, rows, starts, lens, 0.3, **options)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


# Rows, new tokens and lengths of steps that follow each other, and tokens and queries of the graph of each: many tiles,
# then few; rows that come and go; chunks that end at, before and after the end of a tile of 16 positions.
STEPS: list[tuple[list[int], list[int], list[int], int, int]] = [
    ([0, 1, 2, 3, 4], [1, 1, 1, 1, 1], [70, 33, 145, 133, 1], 8, 1),
    ([2], [1], [146], 1, 1),
    ([4, 0, 3], [1, 1, 1], [2, 71, 134], 6, 1),
    ([1, 2, 0, 3, 4], [2, 1, 2, 2, 1], [34, 147, 73, 136, 3], 16, 2),
    ([3, 1], [4, 3], [140, 37], 8, 4),
    ([0, 4, 2], [8, 5, 1], [81, 8, 148], 16, 8),
    ([0, 4], [15, 40], [96, 48], 64, 0),
    ([4, 1, 0], [1, 27, 17], [49, 64, 113], 64, 0),
    ([2, 3], [1, 33], [149, 173], 192, 0),
    ([4], [1], [50], 2, 1),
]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("shape", [(4, 2, 16), (3, 1, 40)])
def test_tiles_that_stay_give_the_bits_of_those_of_the_step(
    options: dict[str, Any], shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a graph reads them: one buffer for all steps, more tokens and tiles than a step has, and NaN in the others."""
    made, eager = _attention(monkeypatch, *shape), _attention(monkeypatch, *shape)
    _, k, v, table, *_ = _batch([1] * 5, [180] * 5, *shape, torch.float32)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **named: empty(*args, **named).fill_(torch.nan))
    metas = {(size, queries): made.fixed_meta(table, size, queries) for *_, size, queries in STEPS}
    for rows, q_lens, kv_lens, size, queries in STEPS:
        step = _step(rows, q_lens, kv_lens)
        q = torch.full((size, shape[0], shape[2]), torch.nan, device=DEVICE)
        q[: step.num_tokens] = _random(step.num_tokens, shape[0], shape[2])
        wanted = eager.attend(k, v, q[: step.num_tokens], eager.prepare(step, table), scale=0.3, **options)
        assert made.takes_fixed(step, queries)
        assert made.prepare_fixed(step, table, queries) in made.forms(size, queries)
        found = made.attend(k, v, q, metas[size, queries], scale=0.3, **options)
        assert torch.isfinite(wanted).all()
        assert torch.equal(found[: step.num_tokens], wanted), (rows, q_lens)
        assert torch.isnan(found[step.num_tokens :]).all(), "a tile of nobody has written"


def test_no_step_has_more_tiles_than_the_graph_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of all kinds that a graph may get; the tiles beyond a step's own are of a sequence that has nothing."""
    made = _attention(monkeypatch, 4, 2, 16)
    table = torch.zeros((40, 4000), dtype=torch.int32)
    rng = np.random.default_rng(0)
    for per_tile in (1, 3, 4, 32):
        made._per_tile, made._held = per_tile, None
        for trial in range(300):
            queries = int(rng.choice([1, 2, 4, 8, 0]))
            count = int(rng.integers(1, 33 if queries == 0 else 41))
            highest = queries or max(1, 512 // count)
            q_lens = rng.integers(1, highest + 1, count) if trial % 2 else np.full(count, highest)
            kv_lens = (q_lens + rng.integers(0, 3000, count)).tolist()
            step = _step(rng.permutation(40)[:count], q_lens.tolist(), kv_lens)
            made.prepare_fixed(step, table, queries)
            held = made.fixed_meta(table, step.num_tokens, queries)
            own, rest = made._tiles(step), held.tiles.cpu().numpy()
            assert (rest[: len(own)] == own).all()
            assert len(own) <= len(rest) <= step.num_tokens
            nobody = set(rest[len(own) :, 0].tolist())
            assert nobody <= {40}
            assert all(held.lens[seq] == 0 and held.starts[seq] == held.starts[seq + 1] for seq in nobody)


GPU_DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize(("outs", "width"), [(6144, 4096), (4096, 14336), (1000, 576)])
def test_linear_on_a_gpu(dtype: torch.dtype, outs: int, width: int) -> None:
    linear = KERNELS["fixed_linear"].triton()
    _same_in_every_batch(linear, dtype, outs, width)
    x, weight = _random(200, width, dtype=dtype), _random(outs, width, dtype=dtype, seed=1)
    wanted = functional.linear(x.double(), weight.double())
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(linear(x, weight).double(), wanted, atol=tolerance * width**0.5, rtol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("shape", [(32, 8, 128), (9, 3, 64), (8, 1, 256), (14, 2, 80)])
def test_attention_on_a_gpu(dtype: torch.dtype, options: dict[str, Any], shape: tuple[int, int, int]) -> None:
    attention = KERNELS["fixed_attention"].triton()
    _same_in_every_chunk(attention, dtype, options, shape)
    batch = _batch([1, 90, 400, 3], [700, 90, 450, 1333], *shape, dtype)
    wanted = reference.ragged_attention(*(t.double() if t.is_floating_point() else t for t in batch), 0.1, **options)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(attention(*batch, 0.1, **options).double(), wanted, atol=tolerance, rtol=tolerance)
