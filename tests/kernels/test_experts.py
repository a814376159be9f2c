"""The kernels for mixtures of experts against their twins: in the interpreter on a CPU, on a GPU larger shapes too."""

from __future__ import annotations

import pytest
import torch
from radicel.kernels import KERNELS, grouped_experts, reference_experts, token_experts
from radicel.kernels.launch import TokenExperts
from radicel.runtime.cuda_graph import capture

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
TOLERANCES = [(torch.float32, 1e-5), (torch.float16, 4e-3)] + [(torch.bfloat16, 3e-2)] * ON_GPU

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

# The interpreter computes infinities that a GPU computes as well, and warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
]


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def _inputs(tokens: int, experts: int, chosen: int, width: int, inner: int, dtype: torch.dtype) -> Inputs:
    ids, shares = reference_experts.route_experts(_random(tokens, experts, seed=9), chosen, True)
    return (
        _random(tokens, width, dtype=dtype),
        _random(experts, 2 * inner, width, dtype=dtype, seed=1) / width**0.5,
        _random(experts, width, inner, dtype=dtype, seed=2) / inner**0.5,
        ids,
        shares,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("scanned", [0, 512])
@pytest.mark.parametrize(
    ("tokens", "experts", "chosen", "width", "inner"),
    [(1, 4, 2, 48, 24), (7, 8, 2, 33, 40), (40, 3, 3, 32, 20), (5, 6, 1, 64, 64), (0, 4, 2, 16, 8)],
)
def test_grouped_experts(
    dtype: torch.dtype,
    tolerance: float,
    scanned: int,
    tokens: int,
    experts: int,
    chosen: int,
    width: int,
    inner: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouped_experts, "MOST_SCANNED", scanned)
    inputs = _inputs(tokens, experts, chosen, width, inner, dtype)
    found = KERNELS["grouped_experts"].triton()(*inputs)
    wanted = reference_experts.grouped_experts(*inputs)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_with_what_stands_before_and_after(dtype: torch.dtype, tolerance: float, tokens: int) -> None:
    inputs = _inputs(tokens, 12, 3, 48, 20, dtype)
    norm, residual = _random(48, dtype=dtype, seed=3), _random(tokens, 48, dtype=dtype, seed=4)
    wanted = reference_experts.grouped_experts(*inputs, norm, 1e-5, residual.clone())
    found = KERNELS["grouped_experts"].triton()(*inputs, norm, 1e-5, residual)
    assert found is residual
    torch.testing.assert_close(found, wanted, atol=tolerance * 4, rtol=tolerance)
    # As a layer has it: what is normed is what is added to.
    x = inputs[0].clone()
    wanted = reference_experts.grouped_experts(x, *inputs[1:], norm, 1e-5, x.clone())
    found = KERNELS["grouped_experts"].triton()(x, *inputs[1:], norm, 1e-5, x)
    torch.testing.assert_close(found, wanted, atol=tolerance * 4, rtol=tolerance)


@pytest.mark.parametrize(
    "blocks", [TokenExperts(1, 4, 1, 2, 16, 4), TokenExperts(4, 4, 2, 8, 64, 4), TokenExperts(2, 8, 4, 1, 1024, 8)]
)
@pytest.mark.parametrize(("experts", "chosen", "width", "inner"), [(8, 2, 40, 24), (5, 5, 33, 20), (9, 1, 64, 17)])
def test_one_token_in_any_blocks(blocks: TokenExperts, experts: int, chosen: int, width: int, inner: int) -> None:
    inputs = _inputs(1, experts, chosen, width, inner, torch.float32)
    found = token_experts.token_experts(*inputs, blocks=blocks)
    wanted = reference_experts.grouped_experts(*inputs)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(1, 24, 4), (3, 24, 4), (9, 24, 4), (6, 4, 3)])
def test_scanned_and_sorted_are_the_same(tokens: int, experts: int, chosen: int) -> None:
    """Fewer pairs than experts, and more; each in tiles of other sizes."""
    x, gate_up, down, ids, shares = _inputs(tokens, experts, chosen, 40, 24, torch.float32)
    wanted = reference_experts.grouped_experts(x, gate_up, down, ids, shares)
    for scans, block in ((True, 16), (False, 16), (False, 64)):
        found = grouped_experts.experts_launch(x, gate_up, down, ids, shares, None, scans=scans, block=block)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_wide_token_is_computed_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_experts, "MOST_WIDTH", 32)
    inputs = _inputs(1, 6, 2, 48, 24, torch.float32)
    found = KERNELS["grouped_experts"].triton()(*inputs)
    torch.testing.assert_close(found, reference_experts.grouped_experts(*inputs), atol=1e-5, rtol=1e-5)


def test_the_twin_is_the_formula() -> None:
    x, gate_up, down, ids, shares = (tensor.cpu() for tensor in _inputs(6, 5, 2, 12, 7, torch.float32))
    found = reference_experts.grouped_experts(x, gate_up, down, ids, shares)
    for token in range(6):
        wanted = torch.zeros(12)
        for expert, share in zip(ids[token].tolist(), shares[token].tolist()):
            gate, up = (gate_up[expert] @ x[token]).split(7)
            wanted += share * (down[expert] @ (torch.nn.functional.silu(gate) * up))
        torch.testing.assert_close(found[token], wanted, atol=1e-5, rtol=1e-5)


def test_a_token_does_not_depend_on_the_others_order() -> None:
    x, gate_up, down, ids, shares = _inputs(9, 4, 2, 32, 16, torch.float32)
    run = KERNELS["grouped_experts"].triton()
    turned = run(x.flip(0), gate_up, down, ids.flip(0), shares.flip(0)).flip(0)
    assert torch.equal(run(x, gate_up, down, ids, shares), turned)


@pytest.mark.parametrize(
    ("tokens", "experts", "block"), [(50, 7, 16), (3, 9, 16), (64, 2, 64), (33, 1, 16), (2500, 5, 128), (1, 4, 64)]
)
def test_tiles_hold_every_pair_once(tokens: int, experts: int, block: int) -> None:
    chosen = min(2, experts)
    ids, _ = reference_experts.route_experts(_random(tokens, experts), chosen, False)
    order, tiles = grouped_experts.pair_tiles(ids, experts, block)
    assert len(tiles) == tokens * chosen // block + experts, "a graph needs a number that no choice changes"
    found: list[int] = []
    for expert, first, end in tiles.tolist():
        assert end - first <= block
        mine = order[first:end].tolist()
        assert ids.reshape(-1)[mine].tolist() == [expert] * len(mine)
        assert mine == sorted(mine)
        found += mine
    assert sorted(found) == list(range(tokens * chosen))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("tokens", "experts", "count"), [(5, 8, 2), (3, 128, 8), (1, 6, 6), (4, 1, 1), (0, 4, 2)])
def test_route_experts(tokens: int, experts: int, count: int, normed: bool) -> None:
    for dtype in (torch.float32, torch.float16):
        logits = (_random(tokens, experts) * 3).to(dtype)
        ids, shares = KERNELS["route_experts"].triton()(logits, count, normed)
        wanted_ids, wanted_shares = reference_experts.route_experts(logits, count, normed)
        assert ids.dtype == torch.int32
        assert ids.tolist() == wanted_ids.tolist()
        torch.testing.assert_close(shares, wanted_shares, atol=1e-6, rtol=1e-5)


def test_equal_experts_by_lowest_id() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0, -1.0], [1.0] * 5], device=DEVICE)
    for route in (KERNELS["route_experts"].triton(), reference_experts.route_experts):
        ids, shares = route(logits, 2, True)
        assert ids.tolist() == [[1, 2], [0, 1]]
        assert shares.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_missing_numbers_name_experts_all_the_same() -> None:
    logits = torch.full((3, 6), torch.nan, device=DEVICE)
    logits[1, 2] = torch.inf
    logits[2, 4] = 1.0
    ids, _ = KERNELS["route_experts"].triton()(logits, 4, True)
    assert all(sorted(row) == sorted(set(row)) and min(row) >= 0 and max(row) < 6 for row in ids.tolist())
    assert ids[2, 0] == 4


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(1, 128, 8), (13, 128, 8), (700, 128, 8), (300, 8, 2)])
def test_grouped_experts_of_real_shapes(tokens: int, experts: int, chosen: int) -> None:
    inputs = _inputs(tokens, experts, chosen, 2048, 768, torch.bfloat16)
    found = KERNELS["grouped_experts"].triton()(*inputs)
    torch.testing.assert_close(found, reference_experts.grouped_experts(*inputs), atol=3e-2, rtol=3e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 3, 96, 256])
def test_a_graph_serves_any_choice(tokens: int) -> None:
    """16 pairs are scanned, more are sorted: both are captured, and replayed with other experts and tokens."""
    x, gate_up, down, ids, shares = _inputs(tokens, 64, 8, 512, 256, torch.bfloat16)
    residual = torch.zeros_like(x)
    run = KERNELS["grouped_experts"].triton()

    def call() -> torch.Tensor:
        return run(x, gate_up, down, ids, shares, residual=residual.zero_())

    replay, _ = capture(call)
    for seed in range(4):
        spread = 0.0 if seed == 3 else 3.0  # without spread every token chooses the same experts
        logits = _random(tokens, 64, seed=seed) * spread + torch.arange(64, device=DEVICE) / 100
        new_ids, new_shares = reference_experts.route_experts(logits, 8, True)
        ids.copy_(new_ids)
        shares.copy_(new_shares)
        x.copy_(_random(tokens, 512, dtype=torch.bfloat16, seed=seed + 50))
        wanted = reference_experts.grouped_experts(x, gate_up, down, ids, shares)
        torch.testing.assert_close(replay(), wanted, atol=3e-2, rtol=3e-2)
