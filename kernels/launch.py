"""What launching a Triton kernel needs to know: device facts, padded sizes, and the block sizes measured best.

In: shapes, dtypes, a device. Out: integers for a launch. The block sizes in `RAGGED` and `RADIX` were chosen from the
table that `examples/bench/kernel_times.py` prints.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

__all__ = [
    "MOST_ROWS",
    "MOST_STREAMED",
    "RADIX",
    "RAGGED",
    "TOKEN_EXPERTS",
    "Blocks",
    "LinearBlocks",
    "RadixBlocks",
    "RaggedBlocks",
    "StreamedBlocks",
    "TokenExperts",
    "early_options",
    "has_copy_engine",
    "linear_blocks",
    "multiprocessors",
    "padded",
    "run_blocks",
    "streamed_blocks",
    "supported",
]

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)

_INTERPRETED_PROGRAMS = 3
"""Programs of a persistent launch where there is no GPU (the interpreter): few, yet more than one."""


@dataclass(frozen=True)
class Blocks:
    """One launch.

    Attributes:
        m, n: rows and keys of a tile.
        warps, stages: of a program, and of its loads.
        registers: most of a thread; 0 for any number.
        ahead: whether the slots of a block are loaded one round before its keys.
        run, run_stages: keys of a tile where slots follow one another, a multiple of n, and stages of these loads; 0
            where such slots are not looked for.
    """

    m: int
    n: int
    warps: int
    stages: int
    registers: int = 0
    ahead: bool = False
    run: int = 0
    run_stages: int = 3

    def options(self, device: torch.device) -> dict[str, int]:
        """What else a launch says."""
        return {"maxnreg": self.registers} if self.registers and device.type == "cuda" else {}


@dataclass(frozen=True)
class RaggedBlocks:
    """A launch of `ragged_attention`; all tiles have the same rows.

    Attributes:
        many: for more tiles than the device runs at once.
        few: for fewer.
        long: for many that see thousands of positions.
        runs: for such where most of the slots follow one another; None where `long` does.
    """

    many: Blocks
    few: Blocks
    long: Blocks
    runs: Blocks | None = None


@dataclass(frozen=True)
class RadixBlocks:
    """A launch of `radix_attention`.

    Attributes:
        wide, narrow: tiles of items that several rows share, and of items of one row, in a launch each.
        run, tail: tiles of shared items whose slots follow one another, and of the items of one row in plans where all
            are such; `run` of the first is 0 where nothing is known to be faster.
        few: as `narrow`, where there are at most two items of one row and key head for each multiprocessor, none of
            them beside wide ones.
        both: tiles of steps with at most `fused_rows` rows, where one launch does both.
        wide_programs, narrow_programs, few_programs: how many programs of each a multiprocessor gets.
    """

    wide: Blocks
    narrow: Blocks
    both: Blocks
    wide_programs: int
    narrow_programs: int
    fused_rows: int
    run: Blocks = Blocks(16, 16, 4, 2)
    tail: Blocks = Blocks(16, 16, 4, 2)
    few: Blocks | None = None
    few_programs: int = 2


@dataclass(frozen=True)
class LinearBlocks:
    """A launch of `fused_linear`.

    Attributes:
        n, k: numbers that a program gives (pairs of a gate), and columns that it reads at once.
        warps: of a program.
        stages: of the loads; 0 for the kernels of one row, which keep tiles ahead in registers.
        ahead: tiles brought into the cache before the launch before has ended.
        programs: of a multiprocessor, each of which goes over several groups of rows with x in registers; 0 for
            programs that do one group each.
    """

    n: int
    k: int
    warps: int
    stages: int
    ahead: int = 0
    programs: int = 0


@dataclass(frozen=True)
class StreamedBlocks:
    """A launch of `streamed_linear`.

    Attributes:
        n, k: numbers that a program gives (pairs of a gate), and columns of a tile.
        warps, stages: of a program, and of its loads.
        parts: into which the columns are split.
        ahead: tiles brought into the cache before the launch before has ended.
    """

    n: int
    k: int
    warps: int
    stages: int
    parts: int = 1
    ahead: int = 0


@dataclass(frozen=True)
class TokenExperts:
    """The two launches of `token_experts`.

    Attributes:
        gate_n: pairs of rows of gate and up that a program reads at once.
        gate_warps, gate_programs: of a program, and programs of a multiprocessor.
        down_n, down_k: outputs that a program gives, and columns that it reads at once.
        down_warps: of a program.
    """

    gate_n: int
    gate_warps: int
    gate_programs: int
    down_n: int
    down_k: int
    down_warps: int


MOST_ROWS = 16
"""Rows up to which a linear layer is bound by its weights for certain."""
MOST_STREAMED = 64
"""Rows up to which `streamed_linear` is faster than the library."""
LEAST_TILES = 96
"""Programs of `streamed_linear` that keep a device of 132 multiprocessors busy."""
WIDEST_HELD = 8192
"""Numbers of 2 bytes in a row of W up to which a program holds whole rows."""

RAGGED: dict[tuple[int, int], RaggedBlocks] = {
    (2, 64): RaggedBlocks(Blocks(128, 64, 8, 5), Blocks(128, 64, 8, 5), Blocks(128, 64, 8, 5)),
    (2, 128): RaggedBlocks(
        many=Blocks(128, 64, 8, 2, registers=128),
        few=Blocks(128, 64, 8, 3, ahead=True),
        long=Blocks(128, 128, 8, 3, ahead=True),
        runs=Blocks(128, 32, 8, 2, registers=128, run=64, run_stages=2),
    ),
    (2, 256): RaggedBlocks(Blocks(64, 64, 8, 3), Blocks(64, 64, 8, 3), Blocks(64, 64, 8, 3)),
    (4, 64): RaggedBlocks(Blocks(32, 32, 4, 2), Blocks(32, 32, 4, 2), Blocks(32, 32, 4, 2)),
    (4, 128): RaggedBlocks(Blocks(16, 32, 4, 2), Blocks(16, 32, 4, 2), Blocks(16, 32, 4, 2)),
    (4, 256): RaggedBlocks(Blocks(16, 32, 4, 1), Blocks(16, 32, 4, 1), Blocks(16, 32, 4, 1)),
}
"""(bytes of a number, padded head dim) → blocks of `ragged_attention`."""

RADIX: dict[tuple[int, int], RadixBlocks] = {
    (2, 64): RadixBlocks(Blocks(128, 64, 8, 5), Blocks(16, 64, 2, 3), Blocks(16, 128, 4, 3), 1, 4, 8),
    (2, 128): RadixBlocks(
        Blocks(128, 64, 8, 5),
        Blocks(16, 64, 2, 3),
        Blocks(16, 128, 4, 3),
        1,
        4,
        8,
        run=Blocks(128, 128, 8, 3, run=128),
        tail=Blocks(16, 32, 1, 3, ahead=True),
        few=Blocks(16, 64, 2, 3, ahead=True),
    ),
    (2, 256): RadixBlocks(Blocks(64, 32, 8, 3), Blocks(16, 32, 4, 3), Blocks(16, 32, 8, 3), 1, 2, 8),
    (4, 64): RadixBlocks(Blocks(32, 32, 4, 3), Blocks(16, 32, 4, 3), Blocks(16, 32, 4, 3), 1, 2, 8),
    (4, 128): RadixBlocks(Blocks(32, 32, 4, 2), Blocks(16, 32, 4, 2), Blocks(16, 32, 4, 2), 1, 2, 8),
    (4, 256): RadixBlocks(Blocks(16, 16, 4, 2), Blocks(16, 16, 4, 2), Blocks(16, 16, 4, 2), 1, 1, 8),
}
"""(bytes of a number, padded head dim) → blocks of `radix_attention`."""

TOKEN_EXPERTS: dict[int, TokenExperts] = {
    2: TokenExperts(1, 4, 8, 2, 1024, 4),
    4: TokenExperts(1, 8, 2, 2, 1024, 4),
}
"""Bytes of a number → blocks of `token_experts`."""


def padded(size: int, least: int = 1) -> int:
    """The power of two at or above `size`, at least `least`."""
    return max(least, 1 << max(0, size - 1).bit_length())


def supported(*tensors: torch.Tensor | None) -> bool:
    """Whether the kernels compute in these dtypes; float64 stays with the reference."""
    return all(tensor is None or tensor.dtype in _FLOATS for tensor in tensors)


def run_blocks(blocks: Blocks, head_dim: int, device: torch.device) -> int:
    """Keys of a tile of slots that follow one another; 0 where none are looked for.

    The copy engine (TMA) is there from Hopper on, and takes rows of a power of two.
    """
    return blocks.run if head_dim == padded(head_dim, 16) and has_copy_engine(device) else 0


@functools.lru_cache
def has_copy_engine(device: torch.device) -> bool:
    """Whether blocks of memory can be fetched by a descriptor (TMA, from Hopper on); the interpreter can."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


@functools.lru_cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    if device.type != "cuda":
        return _INTERPRETED_PROGRAMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def linear_blocks(rows: int, weight: torch.Tensor, gated: bool) -> LinearBlocks | None:
    """The launch measured best for a linear layer of few rows; None where the library's was."""
    count, width = weight.shape
    if rows > 1:
        if weight.element_size() > 2:
            return None
        if gated:
            return LinearBlocks(64, 128, 4, 5)
        return LinearBlocks(32, 256, 4, 4) if count > 4096 else LinearBlocks(16, 256, 2, 6, 4)
    halves = 1 if weight.element_size() <= 2 else 2  # as many bytes for wider numbers
    if width > WIDEST_HELD // halves:
        return LinearBlocks(16, 256, 2, 6, 4) if halves == 1 else LinearBlocks(4, 1024, 4, 0, 2)
    if count >= 65536:
        return LinearBlocks(4 // halves, 2048, 8, 0)
    warps = 8 if width > 2048 else 4
    if gated:
        return LinearBlocks(1, 0, warps, 0, 0, 4)
    return (
        LinearBlocks(2 // halves, 0, warps, 0, 0, 4) if count > 4096 else LinearBlocks(4 // halves, 0, warps, 0, 0, 2)
    )


def streamed_blocks(x: torch.Tensor, weight: torch.Tensor, gated: bool, in_parts: bool) -> StreamedBlocks | None:
    """The launch measured best for a linear layer of a few dozen rows; None where the library's was.

    The library is as fast where sums must not come in parts and nothing is gated, and where W has too few tiles to keep
    the device busy.
    """
    rows, width = x.shape
    aligned = all(
        t.stride(1) == 1 and t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0 for t in (x, weight)
    )
    if not (MOST_ROWS < rows <= MOST_STREAMED and aligned and x.dtype == weight.dtype and x.element_size() == 2):
        return None
    count = weight.shape[0] // (2 if gated else 1)
    tiles = -(-count // 64)
    if gated:
        return StreamedBlocks(64, 128, 4, 3, ahead=2) if tiles >= LEAST_TILES and has_copy_engine(x.device) else None
    parts = min(4, max(1, 256 // tiles), max(1, width // 2048)) if in_parts else 1
    if parts == 1 or tiles * parts < LEAST_TILES or not has_copy_engine(x.device):
        return None
    # Three stages leave room for a second program beside the first, where there are more than multiprocessors.
    return StreamedBlocks(64, 128, 4, 3 if tiles * parts > 132 else 4, parts)


@functools.lru_cache
def early_options(device: torch.device) -> dict[str, int]:
    """DEPENDENT (see `programs`), and on Hopper or later the option to begin before the launch before has ended."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return {"DEPENDENT": 0}
    return {"DEPENDENT": 2, "launch_pdl": True}
