"""The runner: look-ups, masks that arrive late, page-table updates, memory, and every index out of its bounds."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from radicel.errors import InvalidValueError, ModelError
from radicel.runtime import assembly, kv_cache
from radicel.runtime.batch import PenaltyRow, RowUpdate, StepBatch
from radicel.runtime.config import RuntimeConfig
from radicel.runtime.kv_cache import KVCache, bytes_per_slot, kv_slots_that_fit
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models import load_model, model_config

CPU = torch.device("cpu")
IDS = torch.randint(0, 268, (80,), generator=torch.Generator().manual_seed(3)).tolist()
VOCAB, TOKENIZER = 288, 268


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Any:
    return load_model(tiny_llama, device="cpu")


@pytest.fixture
def runner(model: Any) -> ModelRunner:
    return ModelRunner(model, kv_slots=500, num_rows=6, context_length=200, sample_vocab=TOKENIZER)


def logprobs(driver: ModuleType, model: Any) -> np.ndarray:
    """Log probabilities [80, vocab] of IDS, by a runner of its own, in float64."""
    other = ModelRunner(model, kv_slots=500, num_rows=1, context_length=200)
    return driver.Driver(other).logits([(0, IDS)]).double().log_softmax(-1).numpy()


def test_sizes(runner: ModelRunner) -> None:
    assert (runner.vocab_size, runner.num_slots, runner.num_rows, runner.context_length) == (VOCAB, 500, 6, 200)


def test_sampled_logprobs(runner: ModelRunner, driver: ModuleType, model: Any) -> None:
    output = driver.Driver(runner).feed([(0, IDS)])
    rows = np.array([79, 3, 40, 11])
    batch = driver.sampling(
        4,
        rows=rows,
        want_logprobs=np.array([True, False, True, True]),
        top_logprobs=np.array([0, 0, 3, 5], np.int32),
        logit_bias={0: {7: 1000.0}},
    )
    result = runner.sample(output, batch).read()
    truth = logprobs(driver, model)[rows]
    assert result.token_ids == [7, *truth[1:, :TOKENIZER].argmax(-1).tolist()]
    assert math.isnan(result.logprobs[1])
    for i in (0, 2, 3):
        assert result.logprobs[i] == pytest.approx(truth[i, result.token_ids[i]], abs=1e-4)
    assert set(result.top_logprobs) == {2, 3}
    for i, count in ((2, 3), (3, 5)):
        best = np.argsort(-truth[i, :TOKENIZER], kind="stable")[:count]
        assert list(result.top_logprobs[i]) == best.tolist()
        assert list(result.top_logprobs[i].values()) == pytest.approx(truth[i, best], abs=1e-4)
    assert (result.query_logprobs, dict(result.query_top), result.end_logprobs) == ([], {}, [])


@pytest.mark.parametrize("logit_bytes", [256 << 20, 4 * VOCAB * 7, 1])
def test_queries_and_ends_in_any_order_and_chunk(
    runner: ModelRunner, driver: ModuleType, model: Any, logit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_logit_chunk", max(1, logit_bytes // (4 * VOCAB)))
    output = driver.Driver(runner).feed([(0, IDS)])
    assert (output.logits is None) == (runner._logit_chunk < 80)
    generator = np.random.default_rng(0)
    query_rows, query_ids = generator.integers(0, 80, 200), generator.integers(0, VOCAB, 200)
    ends = [frozenset({1, 2, 287}), frozenset({5}), frozenset(), frozenset(range(VOCAB))]
    batch = driver.sampling(
        2,
        rows=np.array([79, 0]),
        query_rows=query_rows,
        query_ids=query_ids,
        query_top=np.where(np.arange(200) % 9 == 0, 4, 0).astype(np.int32),
        end_rows=np.array([60, 2, 2, 79]),
        end_ids=ends,
    )
    result = runner.sample(output, batch).read()
    truth = logprobs(driver, model)
    assert result.token_ids == truth[[79, 0], :TOKENIZER].argmax(-1).tolist()
    assert result.query_logprobs == pytest.approx(truth[query_rows, query_ids], abs=1e-4)
    assert sorted(result.query_top) == list(range(0, 200, 9))
    for query, found in result.query_top.items():
        assert list(found) == np.argsort(-truth[query_rows[query], :TOKENIZER], kind="stable")[:4].tolist()
    wanted = [float(np.logaddexp.reduce(truth[row, sorted(ids)])) for row, ids in zip((60, 2, 2, 79), ends) if ids]
    assert result.end_logprobs[2] == -math.inf
    assert [result.end_logprobs[i] for i in (0, 1, 3)] == pytest.approx(wanted, abs=1e-4)


def test_logits_of_many_rows_are_never_held_at_once(
    runner: ModelRunner, driver: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_logit_chunk", 8)
    sizes: list[int] = []
    head = runner._model.logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(runner._model, "logits", counted)
    output = driver.Driver(runner).feed([(0, IDS)])
    rows = np.arange(80)
    runner.sample(output, driver.sampling(1, rows=rows[-1:], query_rows=rows, query_ids=rows, query_top=rows * 0))
    assert max(sizes) == 8
    assert sum(sizes) == 81


def test_a_step_without_logits(runner: ModelRunner, driver: ModuleType) -> None:
    drive = driver.Driver(runner)
    drive.slots[0] = list(range(1, 11))
    update = RowUpdate(0, 0, np.arange(1, 11, dtype=np.int32))
    output = runner.forward(_step(IDS[:10], list(range(1, 11)), logit_rows=[], updates=(update,)))
    result = runner.sample(output, driver.sampling(0)).read()
    assert (result.token_ids, result.logprobs, result.query_logprobs) == ([], [], [])


def test_masks_are_read_when_sampling(runner: ModelRunner, driver: ModuleType) -> None:
    masks = np.zeros((1, 9), np.int32)
    output = driver.Driver(runner).feed([(0, IDS[:9]), (1, IDS[9:12])], logits="last")
    masks[0, 3] = 1 << 4
    masks.setflags(write=False)
    batch = driver.sampling(2, masks=masks, mask_rows=np.array([1]))
    free = runner.sample(output, driver.sampling(2)).read().token_ids
    assert runner.sample(output, batch).read().token_ids == [free[0], 100]


def test_penalties_through_the_runner(runner: ModelRunner, driver: ModuleType) -> None:
    output = driver.Driver(runner).feed([(0, IDS[:9]), (1, IDS[:9])], logits="last")
    first = runner.sample(output, driver.sampling(2)).read().token_ids
    state = runner.penalty_state(IDS[:9], [])
    state.add(first[1])
    rows = [PenaltyRow(1, state, frequency=0.0, presence=1000.0, repetition=1.0)]
    second = runner.sample(output, driver.sampling(2, penalties=rows)).read().token_ids
    assert second[0] == first[0]
    assert second[1] != first[1]


def test_the_same_text_in_other_rows_and_slots(runner: ModelRunner, driver: ModuleType) -> None:
    drive = driver.Driver(runner)
    together = drive.logits([(row, IDS[:30]) for row in range(6)])
    assert torch.equal(together[:30], together[150:])


def test_rows_are_reused(runner: ModelRunner, driver: ModuleType) -> None:
    drive = driver.Driver(runner)
    drive.feed([(0, IDS[40:80])])
    drive.slots[0] = []
    found = drive.logits([(0, IDS[:30])])
    fresh = driver.Driver(ModelRunner(runner._model, kv_slots=99, num_rows=1, context_length=64))
    assert (found - fresh.logits([(0, IDS[:30])])).abs().max() < 1e-5


# --- bounds -----------------------------------------------------------------------------------------------------------


def _step(ids: list[int], slots: list[int], *, logit_rows: list[int], updates: tuple[RowUpdate, ...] = ()) -> StepBatch:
    return StepBatch(
        token_ids=np.asarray(ids, np.int64),
        positions=np.arange(len(ids)),
        slots=np.asarray(slots, np.int64),
        rows=np.array([0], np.int32),
        q_lens=np.array([len(ids)], np.int32),
        kv_lens=np.array([len(ids)], np.int32),
        logit_rows=np.asarray(logit_rows, np.int64),
        updates=updates,
    )


def _row(*values: int) -> np.ndarray:
    return np.asarray(values, np.int32)


BAD_STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "a row beyond the table": ({"rows": _row(6)}, "rows from 6 to 6 must lie in 0 to 5"),
    "a negative row": ({"rows": _row(-1)}, "rows from -1"),
    "a slot beyond the pool": ({"slots": np.array([1, 2, 500])}, "slots from 1 to 500 must lie in 0 to 499"),
    "a negative slot": ({"slots": np.array([1, -2, 3])}, "slots from -2"),
    "a token beyond the vocabulary": ({"token_ids": np.array([1, 2, 288])}, "token_ids from 1 to 288"),
    "a position beyond the context": ({"positions": np.array([1, 2, 200])}, "positions from 1 to 200"),
    "kv_lens beyond the context": ({"kv_lens": _row(201)}, "kv_lens from 201 to 201 must lie in 1 to 200"),
    "fewer positions than queries": ({"kv_lens": _row(2)}, "kv_lens - q_lens from -1"),
    "no query": ({"q_lens": _row(0)}, "q_lens sum to 0, but the step has 3 tokens"),
    "an empty sequence": (
        {"q_lens": _row(3, 0), "kv_lens": _row(3, 1), "rows": _row(0, 1)},
        "q_lens from 0 to 3 must lie in 1 to 3",
    ),
    "no sequence": ({"q_lens": _row(), "kv_lens": _row(), "rows": _row()}, "at least one"),
    "a logit row beyond the step": ({"logit_rows": np.array([3])}, "logit_rows from 3 to 3"),
    "logit rows twice": ({"logit_rows": np.array([1, 1])}, "logit_rows must increase"),
    "an update of a row beyond": ({"updates": (RowUpdate(6, 0, _row(1)),)}, "update of row 6, positions 0 to 1"),
    "an update beyond the context": ({"updates": (RowUpdate(0, 199, _row(1, 2)),)}, "positions 199 to 201"),
    "an update before the start": ({"updates": (RowUpdate(1, -1, _row(1)),)}, "positions -1 to 0"),
    "an update to no slot": ({"updates": (RowUpdate(0, 0, _row(1, 500)),)}, "names slots 1 to 500; there are 500"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_step_out_of_bounds_is_refused_and_changes_nothing(
    runner: ModelRunner, driver: ModuleType, name: str
) -> None:
    changes, message = BAD_STEPS[name]
    table = runner._kv.page_table.clone()
    good = _step(IDS[:3], [1, 2, 3], logit_rows=[2], updates=(RowUpdate(0, 0, _row(1, 2, 3)),))
    with pytest.raises(InvalidValueError, match=message):
        runner.forward(dataclasses.replace(good, **changes))
    assert torch.equal(runner._kv.page_table, table)
    assert runner.sample(runner.forward(good), driver.sampling(1)).read().token_ids


BAD_SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "a row beyond": ({"rows": np.array([2])}, "rows from 2 to 2 must lie in 0 to 1"),
    "a query row beyond": (
        {"query_rows": np.array([2]), "query_ids": np.array([0]), "query_top": _row(0)},
        "query_rows from 2",
    ),
    "a query id beyond": (
        {"query_rows": np.array([1]), "query_ids": np.array([288]), "query_top": _row(0)},
        "query_ids from 288",
    ),
    "an end row beyond": ({"end_rows": np.array([-1]), "end_ids": [frozenset({1})]}, "end_rows from -1"),
    "an end id beyond": ({"end_rows": np.array([0]), "end_ids": [frozenset({1, 300})]}, "end_ids from 1 to 300"),
    "a mask row beyond": (
        {"masks": np.zeros((1, 9), np.int32), "mask_rows": np.array([1])},
        "mask_rows from 1",
    ),
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_a_sample_out_of_bounds_is_refused(runner: ModelRunner, driver: ModuleType, name: str) -> None:
    changes, message = BAD_SAMPLES[name]
    output = driver.Driver(runner).feed([(0, IDS[:3]), (1, IDS[:2])], logits="last")
    with pytest.raises(InvalidValueError, match=message):
        runner.sample(output, driver.sampling(1, **{"rows": np.array([0]), **changes}))


BAD_SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "context": ({"context_length": 4097}, "context_length=4097 must be 1 to 4096"),
    "slots": ({"kv_slots": 1}, "kv_slots=1 must be at least 2"),
    "rows": ({"num_rows": 0}, "num_rows=0 at least 1"),
    "attention": ({"attention": "magic"}, "attention='magic' is not known"),
}


@pytest.mark.parametrize("name", BAD_SIZES)
def test_sizes_that_make_no_runner(model: Any, name: str) -> None:
    changes, message = BAD_SIZES[name]
    with pytest.raises(InvalidValueError, match=message):
        ModelRunner(model, **{"kv_slots": 10, "num_rows": 1, "context_length": 8, **changes})


def test_close_frees_the_tensors(model: Any) -> None:
    import weakref

    runner = ModelRunner(model, kv_slots=10, num_rows=1, context_length=8)
    cache = weakref.ref(runner._kv)
    runner.close()
    runner.close()
    assert cache() is None


# --- memory -----------------------------------------------------------------------------------------------------------


def test_arrays_that_go_up_together_come_out_as_they_were() -> None:
    arrays = [np.arange(5), np.empty(0, np.int64), np.array([[1, 2], [3, 4]], np.int32), np.array([0.5], np.float32)]
    packed = np.zeros(200, np.uint8)
    kv_cache.pack(arrays, packed)
    for array, view in zip(arrays, kv_cache.unpacked(arrays, torch.from_numpy(packed))):
        assert np.array_equal(view.numpy(), array)
        assert view.numpy().dtype == array.dtype
        assert view.storage_offset() * view.element_size() % kv_cache.ALIGNMENT == 0


def test_slots_that_fit_a_cpu(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_config(tiny_llama)
    assert bytes_per_slot(config, torch.float32) == 3 * 2 * 2 * 8 * 4
    assert bytes_per_slot(config, torch.bfloat16) == 3 * 2 * 2 * 8 * 2
    monkeypatch.setattr(kv_cache, "_available_ram", lambda: 1_000_000)
    assert kv_slots_that_fit(config, CPU, torch.float32, 0.9) == 900_000 // 384
    monkeypatch.setattr(kv_cache, "_available_ram", lambda: 1 << 50)
    assert kv_slots_that_fit(config, CPU, torch.float32, 0.9) == kv_cache.CPU_KV_BYTES // 384
    monkeypatch.setattr(kv_cache, "_available_ram", lambda: 500)
    with pytest.raises(ModelError, match="no room for keys and values: 0 MiB are free on cpu"):
        kv_slots_that_fit(config, CPU, torch.float32, 0.9)
    for wrong in (0.0, -1.0, 1.01):
        with pytest.raises(InvalidValueError, match="memory_fraction"):
            kv_slots_that_fit(config, CPU, torch.float32, wrong)


def test_slots_that_fit_a_gpu(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_config(tiny_llama)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 2 << 30))
    device = torch.device("cuda:0")
    few = kv_slots_that_fit(config, device, torch.bfloat16, 0.5, step_tokens=8192, step_rows=256)
    more = kv_slots_that_fit(config, device, torch.bfloat16, 0.5, step_tokens=64, step_rows=1)
    assert 0 < few < more <= (1 << 29) // bytes_per_slot(config, torch.bfloat16)


def test_memory_is_set_aside_for_the_largest_step(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def fits(*_: object, **sizes: int) -> int:
        asked.update(sizes)
        return 100

    monkeypatch.setattr(assembly, "kv_slots_that_fit", fits)
    config = RuntimeConfig(device="cpu", prefill_chunk=640, max_running=3)
    assembly.make_runner(tiny_llama, config, 64).close()
    assert asked == {"step_tokens": 660, "step_rows": 3}, "the end of a prompt may take a 32nd more"


def test_an_unused_pool_takes_no_memory(tiny_llama: Path) -> None:
    resident = Path("/proc/self/statm")
    if not resident.exists():
        pytest.skip("needs /proc")
    config = model_config(tiny_llama)
    before = int(resident.read_text().split()[1])
    cache = KVCache(
        config, num_slots=4_000_000, num_rows=1, context_length=8, device=CPU, dtype=torch.bfloat16
    )  # 768 MB
    assert (int(resident.read_text().split()[1]) - before) * 4096 < 50 << 20
    assert cache.keys[0].shape[0] == 4_000_000


def test_available_ram_is_real() -> None:
    assert 1 << 28 < kv_cache._available_ram() < 1 << 50


def test_calls_of_a_decode_step_do_not_grow_with_its_length(runner: ModelRunner, driver: ModuleType) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    drive = driver.Driver(runner)
    counted: list[int] = []
    for length in (10, 60):
        drive.slots[0] = []
        drive.feed([(0, IDS[:length])])
        with Counter() as counter:
            drive.feed([(0, [5])])
        counted.append(counter.calls)
    assert counted[0] == counted[1]
