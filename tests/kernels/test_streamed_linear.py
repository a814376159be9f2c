"""The linear layer of a few dozen rows against its twin, in parts and whole, and inside of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from radicel.kernels import KERNELS, reference
from radicel.kernels.launch import MOST_ROWS, MOST_STREAMED, StreamedBlocks, streamed_blocks
from radicel.kernels.streamed_linear import streamed_linear_launch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
TOLERANCES = [(torch.float32, 1e-5), (torch.float16, 3e-3)] + [(torch.bfloat16, 2e-2)] * ON_GPU

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def _random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def _wide(*tensors: torch.Tensor | None) -> list[Any]:
    return [None if tensor is None else tensor.double() for tensor in tensors]


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "count", "width"), [(17, 72, 200), (33, 64, 256), (64, 130, 64)])
@pytest.mark.parametrize("ahead", [0, 2])
def test_whole(
    dtype: torch.dtype, tolerance: float, gated: bool, biased: bool, rows: int, count: int, width: int, ahead: int
) -> None:
    weight = _random(count * (2 if gated else 1), width, dtype=dtype, seed=1) / width**0.5
    bias = _random(len(weight), dtype=dtype, seed=3) if biased else None
    x = _random(rows, width, dtype=dtype, seed=2)
    found = streamed_linear_launch(x, weight, bias, gated, StreamedBlocks(64, 64, 4, 3, ahead=ahead))
    assert (found.dtype, found.shape) == (dtype, (rows, count))
    wanted = reference.streamed_linear(*_wide(x, weight, bias), gated)
    torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("width", "parts"), [(256, 2), (200, 3), (512, 4)])
def test_parts_are_added_up_with_the_residual(
    dtype: torch.dtype, tolerance: float, biased: bool, width: int, parts: int
) -> None:
    weight = _random(72, width, dtype=dtype, seed=1) / width**0.5
    bias = _random(72, dtype=dtype, seed=3) if biased else None
    x, residual, norm = (_random(*shape, dtype=dtype, seed=4) for shape in ((19, width), (19, 72), (72,)))
    found = streamed_linear_launch(x, weight, bias, False, StreamedBlocks(64, 64, 4, 3, parts))
    assert (found.dtype, found.shape) == (torch.float32, (parts, 19, 72))
    mine, (theirs, wide_norm) = residual.clone(), _wide(residual, norm)
    normed = KERNELS["add_rms_norm"].triton()(found, mine, norm, 1e-5)
    wanted = reference.add_rms_norm(reference.streamed_linear(*_wide(x, weight, bias)), theirs, wide_norm, 1e-5)
    torch.testing.assert_close(mine.double(), theirs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(normed.double(), wanted, atol=tolerance, rtol=tolerance)
    assert (normed.dtype, mine.dtype) == (dtype, dtype)


def test_the_twin_adds_up_parts() -> None:
    parts, residual, norm = torch.randn(3, 5, 8), torch.randn(5, 8), torch.randn(8)
    mine, theirs = residual.clone(), residual.clone()
    found = reference.add_rms_norm(parts, mine, norm, 1e-5)
    torch.testing.assert_close(found, reference.add_rms_norm(parts.sum(0), theirs, norm, 1e-5))
    torch.testing.assert_close(mine, theirs)


def test_where_the_library_stays() -> None:
    def blocks(rows: int, count: int, width: int, **options: Any) -> StreamedBlocks | None:
        x, weight = (torch.empty(n, width, dtype=torch.float16, device=DEVICE) for n in (rows, count))
        return streamed_blocks(x, weight, **{"gated": False, "in_parts": True, **options})

    assert blocks(MOST_ROWS + 1, 4096, 4096) is not None
    assert blocks(MOST_STREAMED, 28672, 4096, gated=True, in_parts=False) is not None
    for rows in (1, MOST_ROWS, MOST_STREAMED + 1):
        assert blocks(rows, 4096, 4096) is None
    assert blocks(32, 4096, 4096, in_parts=False) is None, "nothing is won"
    assert blocks(32, 896, 896) is None, "too few tiles"
    assert blocks(32, 1024, 512, gated=True) is None, "too few tiles"
    assert blocks(32, 4096, 4100) is None, "rows that do not begin at 16 bytes"
    for count, width in ((4096, 4096), (4096, 14336), (2048, 8192), (8192, 28672)):
        found = blocks(64, count, width)
        assert found is not None
        assert 2 <= found.parts <= 4
        assert width >= found.parts * found.k * found.stages


@pytest.mark.parametrize("rows", [5, 20, 64, 65])
@pytest.mark.parametrize(("gated", "in_parts"), [(True, False), (False, True), (False, False)])
def test_by_the_table(rows: int, gated: bool, in_parts: bool) -> None:
    """Whatever the table chooses, the library included, is the twin's result."""
    width, count = (256, 12288) if gated else (4096, 3200)
    x, weight = (_random(n, width, dtype=torch.float16, seed=1) / width**0.5 for n in (rows, count))
    found = KERNELS["streamed_linear"].triton()(x, weight, None, gated, in_parts)
    assert (found.dim() == 3) == (in_parts and MOST_ROWS < rows <= MOST_STREAMED)
    found = found.sum(0) if found.dim() == 3 else found
    torch.testing.assert_close(
        found.double(), reference.streamed_linear(*_wide(x, weight), None, gated), atol=3e-3, rtol=3e-3
    )
