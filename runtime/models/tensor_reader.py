"""Tensors out of safetensors files, read in pieces: what the host holds at a time does not grow with the files.

In: a file, and places on any device. Out: nothing; places are filled, converted to their dtype. For a GPU a piece is
read into pinned memory while the one before is copied. Mapping the files instead would count each page that was touched
to the process until its file is closed, and end the process if a file shrinks meanwhile.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...errors import WeightsError

__all__ = ["FLOATS", "PIECE", "Stored", "TensorReader", "stored_tensors"]

Tensor = torch.Tensor

FLOATS: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""The kinds of numbers that are read, as files name them."""
PIECE = 16 << 20
"""Bytes that are read at a time for a GPU; a single row of a tensor may have more."""
BUFFERS = 2
SMALL = 32_767
"""Numbers that are converted at a time on a CPU. PyTorch takes several threads for more, and the others wait for a core
while the file is read: beside other work that took ten times as long as one thread does, which memory bounds anyway."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        kind: of its numbers, as the file names it.
        shape: sizes.
        at: its first byte in the file.
        size: bytes.
    """

    kind: str
    shape: tuple[int, ...]
    at: int
    size: int


def stored_tensors(file: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file, as they follow each other.

    Raises:
        WeightsError: a damaged header, or a file that does not hold what its header says.
    """
    try:
        with safe_open(file, framework="pt", device="cpu"):  # checks every size and place against the file's length
            pass
        with open(file, "rb") as raw:
            header = int.from_bytes(raw.read(8), "little")
            described = json.loads(raw.read(header))
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{file} is damaged or cut short: {error}; fetch the model again") from error
    described.pop("__metadata__", None)
    found = {name: _stored(entry, 8 + header) for name, entry in described.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].at))


def _stored(entry: dict[str, Any], begin: int) -> Stored:
    first, end = entry["data_offsets"]
    return Stored(entry["dtype"], tuple(entry["shape"]), begin + first, end - first)


class TensorReader:
    """Fills places on a device. Used by one thread; `wait` before the places are read by another stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._buffers: list[Tensor] = []
        self._copied: list[torch.cuda.Event | None] = [None] * BUFFERS
        self._next = 0

    def fill(self, place: Tensor, file: FileIO, stored: Stored) -> None:
        """Copies a tensor of the place's shape to it.

        Raises:
            OSError: the file cannot be read, or has ended.
        """
        if not place.numel():
            return
        dtype = FLOATS[stored.kind]
        file.seek(stored.at)
        if place.device.type == "cpu" and place.dtype == dtype and place.is_contiguous():
            _read(file, place.view(-1))
            return
        width = math.prod(stored.shape[1:])
        row = width * dtype.itemsize
        step = max(1, PIECE // row if self._on_gpu else SMALL // width)
        for first in range(0, len(place), step):
            rows = place[first : first + step]
            number, buffer = self._free_buffer(len(rows) * row)
            piece = buffer[: len(rows) * row].view(dtype)
            _read(file, piece)
            self._copy(rows, piece.view(rows.shape), number)

    def wait(self) -> None:
        """Waits until all places are filled."""
        for event in self._copied:
            if event is not None:
                event.synchronize()

    def _free_buffer(self, size: int) -> tuple[int, Tensor]:
        """A buffer of at least `size` bytes that no copy reads any more, and its number."""
        number = self._next
        self._next = (number + 1) % BUFFERS
        event = self._copied[number]
        if event is not None:
            event.synchronize()
        while len(self._buffers) <= number:
            self._buffers.append(torch.empty(0, dtype=torch.uint8))
        if len(self._buffers[number]) < size:
            room = max(size, PIECE) if self._on_gpu else size
            self._buffers[number] = torch.empty(room, dtype=torch.uint8, pin_memory=self._on_gpu)
        return number, self._buffers[number]

    def _copy(self, rows: Tensor, piece: Tensor, number: int) -> None:
        if not self._on_gpu:
            rows.copy_(piece)
            return
        if piece.dtype != rows.dtype:  # converted there: a conversion here would wait for itself
            piece = piece.to(self._device, non_blocking=True)
        rows.copy_(piece, non_blocking=True)
        event = self._copied[number] or torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._copied[number] = event


def _read(file: FileIO, into: Tensor) -> None:
    """Fills a contiguous tensor on the CPU."""
    numbers: Any = into.view(torch.uint8).numpy()
    room = memoryview(numbers)
    while len(room):
        count = file.readinto(room)
        if not count:
            raise OSError(f"it ends {len(room)} bytes too early")
        room = room[count:]
