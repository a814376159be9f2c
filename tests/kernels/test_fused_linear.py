"""The fused linear layer against its twin: every combination of what stands around it, odd shapes, both kernels."""

from __future__ import annotations

import pytest
import torch
from radicel.kernels import KERNELS, reference
from radicel.kernels.launch import LinearBlocks

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
TOLERANCES = [(torch.float32, 1e-5), (torch.float16, 3e-3)] + [(torch.bfloat16, 2e-2)] * ON_GPU
VECTOR = LinearBlocks(4, 64, 4, 0, 1)
TILES = LinearBlocks(16, 32, 2, 3, 1)

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def _random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def _error(
    rows: int, count: int, width: int, dtype: torch.dtype, parts: str, blocks: LinearBlocks | None
) -> tuple[float, torch.Tensor]:
    """The largest difference from the twin in float64, and the result."""
    gated = "gated" in parts
    weight = _random(count * (2 if gated else 1), width, dtype=dtype, seed=1) / width**0.5
    x = _random(rows, width, dtype=dtype, seed=2) * (30.0 if "norm" in parts else 1.0)
    bias = _random(len(weight), dtype=dtype, seed=3) if "bias" in parts else None
    norm = _random(width, dtype=dtype, seed=4) if "norm" in parts else None
    residual = _random(rows, count, dtype=dtype, seed=5) if "residual" in parts else None
    wide = [None if part is None else part.double() for part in (x, weight, bias, norm, residual)]
    wanted = reference.fused_linear(*wide[:4], 1e-5, gated, wide[4])  # type: ignore[arg-type]
    if blocks is None:
        found = KERNELS["fused_linear"].triton()(x, weight, bias, norm, 1e-5, gated, residual)
    else:
        from radicel.kernels.fused_linear import fused_linear_launch

        found = fused_linear_launch(x, weight, bias, norm, 1e-5, gated, residual, blocks)
    assert found.dtype == dtype
    assert found.shape == (rows, count)
    assert residual is None or found is residual
    return float((found.double() - wanted).abs().max() / (1 + wanted.abs().max())), found


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("parts", ["", "bias", "norm", "norm gated", "residual", "norm gated bias residual"])
@pytest.mark.parametrize(("count", "width"), [(10, 128), (7, 80), (1, 16), (33, 200)])
def test_one_row(dtype: torch.dtype, tolerance: float, parts: str, count: int, width: int) -> None:
    error, _ = _error(1, count, width, dtype, parts, VECTOR)
    assert error < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("parts", ["", "norm gated bias residual"])
@pytest.mark.parametrize(("rows", "count", "width"), [(1, 16, 32), (3, 40, 80), (16, 17, 96)])
def test_several_rows(dtype: torch.dtype, tolerance: float, parts: str, rows: int, count: int, width: int) -> None:
    error, _ = _error(rows, count, width, dtype, parts, TILES)
    assert error < tolerance


@pytest.mark.parametrize("rows", [0, 1, 5, 17])
def test_by_the_table(rows: int) -> None:
    """Whatever the table chooses, the library included, is the twin's result."""
    x, weight = _random(rows, 48, dtype=torch.float32, seed=1), _random(12, 48, dtype=torch.float32, seed=2)
    norm, residual = _random(48, dtype=torch.float32, seed=3), _random(rows, 6, dtype=torch.float32, seed=4)
    mine, theirs = residual.clone(), residual.clone()
    found = KERNELS["fused_linear"].triton()(x, weight, None, norm, 1e-5, True, mine)
    torch.testing.assert_close(found, reference.fused_linear(x, weight, None, norm, 1e-5, True, theirs))
    assert found is mine


def test_the_same_numbers_every_time() -> None:
    for blocks, rows in ((VECTOR, 1), (TILES, 4)):
        results = [_error(rows, 20, 130, torch.float32, "norm gated", blocks)[1] for _ in range(2)]
        assert torch.equal(results[0], results[1])


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "width"), [(6144, 4096), (4096, 14336), (896, 896), (1001, 3000), (49152, 576)])
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_model_shapes(count: int, width: int, rows: int) -> None:
    for dtype, tolerance in TOLERANCES:
        for parts in ("norm bias", "norm gated", "residual"):
            error, _ = _error(rows, count, width, dtype, parts, None)
            assert error < tolerance, (dtype, parts)
