"""The keys and values of every live token, and the page table that says where they are.

In: a model's shape, how many slots and rows; each step's page-table updates. Out: tensors on the device. Which slot
is free or owned is decided elsewhere (plain integers on the CPU); here a slot is only an index, its bounds checked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidValueError, ModelError
from .batch import TRASH_SLOT, RowUpdate, StepBatch
from .models.config import ModelConfig

__all__ = [
    "CPU_KV_BYTES",
    "KVCache",
    "bytes_per_slot",
    "kv_slots_that_fit",
    "pack",
    "send",
    "unpacked",
    "upload",
    "upload_together",
]

ALIGNMENT = 16
"""Bytes; kernels load that many at once."""
LONG_UPDATE = 4096
"""Page-table entries from which on their places are worked out on the device."""
LEAST_COPIED = 1 << 14
"""Entries that several rows get alike from which on they are copied on the device: a launch takes as long as sending
fewer."""
CPU_KV_BYTES = 4 << 30
"""Most bytes of keys and values on a CPU."""

_NO_SLOTS, _NO_PLACES = np.empty(0, np.int32), np.empty(0, np.int64)

_Copies: TypeAlias = dict[tuple[int, int, int], list[int]]
"""(row, start, number of entries) → the rows that get them, too."""


def upload(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """An array on the device, without waiting for it; on the CPU the same memory where it may be written."""
    host = torch.from_numpy(np.require(array, requirements=("C", "W")))
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def send(array: NDArray[np.generic], into: torch.Tensor) -> None:
    """Writes an array over a tensor of its shape and dtype, after what was launched before and without waiting for it.

    The array may change afterwards.
    """
    host = torch.from_numpy(np.require(array, requirements=("C", "W")))
    into.copy_(host if into.device.type == "cpu" else host.pin_memory(), non_blocking=True)


def upload_together(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """`upload` of several arrays by one copy."""
    if device.type == "cpu":
        return [upload(array, device) for array in arrays]
    size = sum(map(_room, arrays))
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pack(arrays, host.numpy())
    return unpacked(arrays, host.to(device, non_blocking=True))


def pack(arrays: Sequence[NDArray[Any]], into: NDArray[np.uint8]) -> None:
    """Writes the bytes of arrays one after another, each aligned (changes `into`)."""
    at = 0
    for array in arrays:
        into[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at += _room(array)


def unpacked(arrays: Sequence[NDArray[Any]], packed: torch.Tensor) -> list[torch.Tensor]:
    """What `pack` made of these arrays, as views of their dtypes and shapes."""
    views, at = [], 0
    for array in arrays:
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        views.append(packed[at : at + array.nbytes].view(dtype).view(array.shape))
        at += _room(array)
    return views


def _room(array: NDArray[Any]) -> int:
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


class KVCache:
    """One key and one value tensor per layer, [num_slots, kv_heads, head_dim], and the page table.

    Attributes:
        keys, values: a tensor per layer, zero at first: what was never written must not be NaN.
        page_table: int32 [num_rows, context_length], the slot of each position of each live sequence.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        num_rows: int,
        context_length: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (num_slots, config.kv_heads, config.head_dim)
        self.num_slots = num_slots
        self.num_rows = num_rows
        self.context_length = context_length
        self.device = device
        self.keys = [_zeros(shape, dtype, device) for _ in range(config.layers)]
        self.values = [_zeros(shape, dtype, device) for _ in range(config.layers)]
        self.page_table = _zeros((num_rows, context_length), torch.int32, device)

    def update(self, updates: Sequence[RowUpdate], step: StepBatch | None = None) -> None:
        """Writes page-table entries (changes the table).

        Args:
            updates: entries, by row.
            step: a step whose own tokens get theirs, too; its indices lie within their bounds.

        Raises:
            InvalidValueError: a row, position or slot outside its bounds; nothing is written then.
        """
        where, what = self._own_entries(step)
        if not updates:
            if len(where):
                self.page_table.view(-1).index_copy_(0, *upload_together((where, what), self.device))
            return
        copies, sent = _copied(updates)
        rows = np.array([entry.row for entry in sent], np.int64)
        starts = np.array([entry.start for entry in sent], np.int64)
        counts = np.array([len(entry.slots) for entry in sent], np.int64)
        slots = np.concatenate([_NO_SLOTS, *(entry.slots for entry in sent)]).astype(np.int32, copy=False)
        self._check(updates, rows, starts, counts, slots, copies)
        # Of each entry, its place in the table less the number of its first slot among all.
        first = rows * self.context_length + starts - np.cumsum(counts) + counts
        self._write(slots, first, counts, where, what, copies)

    def _own_entries(self, step: StepBatch | None) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Places in the table, and the slots, of a step's tokens, without those that go to no slot of their own."""
        if step is None:
            return _NO_PLACES, _NO_SLOTS
        where = np.repeat(step.rows.astype(np.int64) * self.context_length, step.q_lens) + step.positions
        what = step.slots.astype(np.int32)
        owned = what != TRASH_SLOT
        return (where, what) if owned.all() else (where[owned], what[owned])

    def _write(
        self,
        slots: NDArray[np.int32],
        first: NDArray[np.int64],
        counts: NDArray[np.int64],
        where: NDArray[np.int64],
        what: NDArray[np.int32],
        copies: _Copies,
    ) -> None:
        """Sends entries by one copy, then copies rows on the device."""
        table = self.page_table.view(-1)
        targets = [np.array(target, np.int64) for target in copies.values()]
        if len(slots) < LONG_UPDATE:
            where = np.concatenate((np.repeat(first, counts) + np.arange(len(slots)), where))
            places, values, *rows = upload_together((where, np.concatenate((slots, what)), *targets), self.device)
        else:  # a third of the bytes to pack and send
            many, begins, sizes, places, values, *rows = upload_together(
                (slots, first, counts, where, what, *targets), self.device
            )
            begins = torch.repeat_interleave(begins, sizes, output_size=len(slots))
            table.index_copy_(0, begins + torch.arange(len(slots), device=self.device), many)
        table.index_copy_(0, places, values)
        for (like, start, count), those in zip(copies, rows):
            columns = self.page_table[:, start : start + count]
            columns.index_copy_(0, those, columns[like].clone().expand(len(those), count))  # no overlap is allowed

    def _check(
        self,
        updates: Sequence[RowUpdate],
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        slots: NDArray[np.int32],
        copies: _Copies,
    ) -> None:
        """All at once; where something is wrong, one by one to say what."""
        inside = (rows >= 0) & (rows < self.num_rows) & (starts >= 0) & (starts + counts <= self.context_length)
        fits = inside.all() and not (len(slots) and (slots.min() < 0 or slots.max() >= self.num_slots))
        for (like, start, count), targets in copies.items():
            ends = start >= 0 and start + count <= self.context_length
            fits = fits and ends and min(like, *targets) >= 0 and max(like, *targets) < self.num_rows
        if not fits:
            for entry in updates:
                self._check_one(entry)

    def _check_one(self, entry: RowUpdate) -> None:
        end = entry.start + len(entry.slots)
        if not (0 <= entry.row < self.num_rows and entry.start >= 0 and end <= self.context_length):
            raise InvalidValueError(
                f"page-table update of row {entry.row}, positions {entry.start} to {end}, is outside the table of "
                f"{self.num_rows} rows and {self.context_length} positions"
            )
        if entry.like >= self.num_rows:
            raise InvalidValueError(
                f"page-table update of row {entry.row} is to be like row {entry.like}; there are {self.num_rows}"
            )
        if len(entry.slots) and not (entry.slots.min() >= 0 and entry.slots.max() < self.num_slots):
            raise InvalidValueError(
                f"page-table update of row {entry.row} names slots {entry.slots.min()} to {entry.slots.max()}; "
                f"there are {self.num_slots}"
            )


def _copied(updates: Sequence[RowUpdate]) -> tuple[_Copies, Sequence[RowUpdate]]:
    """What is copied, and the updates that are sent."""
    groups: _Copies = {}
    for row, start, slots, like in updates:
        if like >= 0:
            groups.setdefault((like, start, len(slots)), []).append(row)
    copies = {key: rows for key, rows in groups.items() if key[2] * len(rows) >= LEAST_COPIED}
    if not copies:
        return copies, updates
    return copies, [update for update in updates if (update.like, update.start, len(update.slots)) not in copies]


def bytes_per_slot(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in all layers."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


def kv_slots_that_fit(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    memory_fraction: float,
    *,
    step_tokens: int = 8192,
    step_rows: int = 256,
) -> int:
    """How many KV slots the memory takes, `TRASH_SLOT` included. Call it once the weights are on the device.

    On a GPU: `memory_fraction` of the free memory, less what one step needs. On a CPU: the same of the available RAM,
    at most `CPU_KV_BYTES`.

    Args:
        config: the model's shape.
        device: where the cache will be.
        dtype: of keys and values.
        memory_fraction: share of the free memory to take, in (0, 1].
        step_tokens: most tokens of a step.
        step_rows: most rows that are sampled in one step.

    Raises:
        InvalidValueError: a fraction out of its range.
        ModelError: there is no room for any token.
    """
    if not 0 < memory_fraction <= 1:
        raise InvalidValueError(f"memory_fraction={memory_fraction} must be greater than 0 and at most 1")
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        room = free * memory_fraction - _step_bytes(config, dtype, step_tokens, step_rows)
    else:
        free = _available_ram()
        room = min(free * memory_fraction, CPU_KV_BYTES)
    slots = min(int(room // bytes_per_slot(config, dtype)), 2**31 - 1)
    if slots < 2:
        raise ModelError(
            f"no room for keys and values: {free / 2**20:.0f} MiB are free on {device} and one token takes "
            f"{bytes_per_slot(config, dtype)} bytes; raise memory_fraction={memory_fraction} or take a smaller model"
        )
    return slots


def _step_bytes(config: ModelConfig, dtype: torch.dtype, tokens: int, rows: int) -> int:
    """Upper estimate of a step's temporary tensors: the widest layer's activations, and the sampler's float copies."""
    width = 3 * config.intermediate + 8 * config.hidden + 4 * config.heads * config.head_dim
    return tokens * width * dtype.itemsize + rows * config.vocab_size * 32


def _available_ram() -> int:
    """Bytes that can be taken without swapping: what the system says, within a control group's limit."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    found = [pages * page]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
    except OSError:
        pass
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(name, encoding="ascii") as file:
                found += [int(text) for text in [file.read().strip()] if text.isdigit()]
        except OSError:
            continue
    return min(found)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # The system hands out zero pages as they are touched: a pool of gigabytes costs nothing until it is used.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
