"""`deterministic=True`: the same bits whatever the batch, the cache and the chunks."""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from radicel import Constraint, function, select
from radicel.errors import InvalidValueError
from radicel.runtime import LocalRuntime, deterministic
from radicel.runtime.batch import SampleBatch
from radicel.runtime.deterministic import ROW_BY_ROW, FixedRows
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models import load_model
from torch.nn import functional

PREFIX = "The harbour lies in the north of the town, and in winter the boats lie there for months. "
PROMPTS = [
    "The",
    PREFIX + "In spring",
    PREFIX + "In the end they",
    PREFIX * 3 + "Then",
    "Colours: red, green, blue. Numbers: one, two, three. Nothing is",
    PREFIX + "In the end nobody went there in the rain",
]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "seed": 3, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.2, "seed": 5, "min_p": 0.02, "frequency_penalty": 0.5, "presence_penalty": 0.1},
    {"temperature": 1.0, "seed": -9, "top_p": 0.8, "repetition_penalty": 1.3, "logit_bias": {40: 2.0}},
    {"temperature": 0, "regex": "[a-z]{6,9}"},
]
POOL: dict[str, Any] = {"kv_tokens": 3000, "context_length": 400}
COMMON: dict[str, Any] = {"ignore_eos": True, "max_tokens": 10, "top_logprobs": 3, "logprobs": True}


def _requests() -> list[tuple[str, dict[str, Any]]]:
    return [(prompt, {**COMMON, **SAMPLINGS[(i + j) % 6]}) for i, prompt in enumerate(PROMPTS) for j in range(2)]


def _answer(generation: Any) -> tuple[Any, ...]:
    meta = generation.meta
    return (tuple(meta.token_ids), tuple(meta.logprobs), [list(top.items()) for top in meta.top_logprobs])


def _alone(folder: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Every request by itself, nothing cached, every prompt computed whole."""
    found = []
    with LocalRuntime(folder, deterministic=True, prefix_cache=False, **POOL, **options) as rt:
        for prompt, sampling in _requests():
            found.append(_answer(rt.generate(prompt, **sampling)))
    return found


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tiny.make_tiny_model(tmp_path_factory.mktemp("deterministic"), request.param)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_batch_cache_and_chunk_gives_the_same_bits(folder: Path, dtype: str) -> None:
    wanted = _alone(folder, dtype=dtype)
    assert len({str(answer) for answer in wanted}) > 8
    rng = random.Random(1)
    for chunk, running, pool in ((8192, 256, 3000), (7, 3, 3000), (33, 8, 450)):
        options = {**POOL, "prefill_chunk": chunk, "max_running": running, "kv_tokens": pool}
        with LocalRuntime(folder, dtype=dtype, deterministic=True, **options) as rt:
            for _ in range(2):
                order = rng.sample(range(len(wanted)), len(wanted))
                for i, answer in zip(order, _together(rt, [_requests()[i] for i in order])):
                    assert answer == wanted[i], (chunk, running, i)


def _together(rt: LocalRuntime, requests: list[tuple[str, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """All requests at once, each with its own sampling."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(requests)) as pool:
        return [_answer(g) for g in pool.map(lambda request: rt.generate(request[0], **request[1]), requests)]


def test_scores_are_the_same_bits_alone_and_together(folder: Path) -> None:
    texts = [" one", " two and three", " ", "x", " the end of it all"]

    @function
    def chosen(s: Any) -> None:
        s += PREFIX + "It is" + select("pick", texts)

    with LocalRuntime(folder, deterministic=True, **POOL) as rt:
        alone = []
        for text in texts:
            rt.flush_cache()
            alone += rt.score(PREFIX + "It is", [text])
        found = rt.score(PREFIX + "It is", texts[::-1])
        assert [score.token_logprobs for score in found] == [score.token_logprobs for score in alone[::-1]]
        rt.flush_cache()
        cold = chosen.run(backend=rt).meta("pick").probabilities
        states = chosen.run_batch([{}] * 5, backend=rt)
        assert [state.meta("pick").probabilities for state in states] == [cold] * 5


@pytest.mark.parametrize("deterministic", [True, False])
def test_masks_near_a_budget_s_end_depend_on_the_text_alone(folder: Path, deterministic: bool) -> None:
    with LocalRuntime(folder, deterministic=deterministic, **POOL) as rt:
        compiled: Any = rt._grammars.compile(Constraint.of({"type": "array", "items": {"type": "integer"}}))
        assert compiled.steering.prepare().exact == deterministic


def test_what_deterministic_cannot_go_with(folder: Path) -> None:
    for options in ({"attention": "torch"}, {"weights": "int4"}):
        with pytest.raises(InvalidValueError, match="deterministic=True has an attention of its own"):
            LocalRuntime(folder, deterministic=True, **options)


def test_rows_of_a_kind_are_sampled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: masked, edited and plain rows apart, each row with what is its own."""
    count, vocab, none = 7, 64, np.empty(0, np.int64)
    masks = np.zeros((3, 2), np.int32)
    masks[:, 0] = [1 << 5, 1 << 9, 1 << 20]
    batch = SampleBatch(
        rows=np.arange(count), temperature=np.asarray([0, 1, 0, 2, 0, 1, 0], np.float32),
        top_p=np.full(count, 0.9, np.float32), min_p=np.zeros(count, np.float32), top_k=np.zeros(count, np.int32),
        seed=np.arange(count), sample_index=np.zeros(count, np.int64), draw_index=np.arange(count), masks=masks,
        mask_rows=np.asarray([6, 1, 3]), penalties=(), logit_bias={2: {11: 100.0}, 3: {9: 1.0}, 5: {12: 100.0}},
        want_logprobs=np.zeros(count, np.bool_), top_logprobs=np.zeros(count, np.int32), query_rows=none,
        query_ids=none, query_top=np.empty(0, np.int32), end_rows=none, end_ids=(),
    )  # fmt: skip
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(0))
    wanted = deterministic.choose(logits, batch, vocab).tolist()
    assert [wanted[row] for row in (6, 1, 3, 2, 5)] == [5, 9, 20, 11, 12]
    assert deterministic.choose_by_row(logits, batch, vocab).tolist() == wanted
    kinds = deterministic._kinds
    assert kinds(batch, torch.device("cuda")).tolist() == [0, 1, 2, 3, 0, 2, 1]
    monkeypatch.setattr(deterministic, "_kinds", lambda batch, device: kinds(batch, torch.device("cuda")))
    assert deterministic.choose_by_row(logits, batch, vocab).tolist() == wanted


# --- every family -----------------------------------------------------------------------------------------------------

SCRIPT = Path(__file__).parents[2] / "examples" / "bench" / "models" / "tiny_families.py"
FAMILIES = [
    "llama-3.1", "mistral", "qwen2.5", "qwen3", "gemma-2", "gemma-3", "phi-4-mini", "smollm3", "olmo-2", "granite-3",
    "mixtral", "qwen3-moe-mixed",
]  # fmt: skip
IDS = torch.randint(0, 288, (90,), generator=torch.Generator().manual_seed(3)).tolist()
EXACT = {
    "__and__", "__bool__", "__eq__", "__get__", "__getitem__", "__iand__", "__invert__", "__len__", "__or__",
    "__setitem__", "add_", "any", "arange", "cat", "chunk", "clamp", "contiguous", "copy_", "cumsum", "dim", "div",
    "div_", "embedding", "empty", "float", "from_numpy", "full", "gather", "gt", "index_add_", "index_copy_",
    "index_select", "int", "le", "lt", "masked_fill", "masked_fill_", "mul", "mul_", "ne", "nonzero", "numpy",
    "promote_types", "reshape", "roll", "sort", "sub", "to", "tolist", "topk", "transpose", "unbind", "unique",
    "unsqueeze", "view", "zeros", "zeros_like",
}  # fmt: skip
"""Functions of tensors that move numbers, count, or compute each number as IEEE 754 says."""
FIXED = {"bmm", "softmax", "tanh"}
"""What attention computes in shapes that do not depend on the step."""


class Recorded(FixedRows):
    """Notes the functions that are neither computed row by row nor linear layers."""

    names: ClassVar[set[str]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in ROW_BY_ROW and func is not functional.linear:
            self.names.add(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    module = runpy.run_path(str(SCRIPT))
    folder = tmp_path_factory.mktemp("families")

    @cache
    def make(name: str) -> Path:
        module["make_checkpoint"](name, folder / name)
        return folder / name

    return make


def _runner(path: Path, dtype: str) -> ModelRunner:
    model = load_model(path, device="cpu", dtype=dtype)
    return ModelRunner(model, kv_slots=600, num_rows=8, context_length=128, deterministic=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_every_family_are_the_same_bits(
    families: Callable[[str], Path], driver: ModuleType, name: str, dtype: str
) -> None:
    runner = _runner(families(name), dtype)
    whole = driver.Driver(runner).logits([(0, IDS)])
    assert torch.isfinite(whole).all()
    drive = driver.Driver(runner, seed=1)
    parts = [
        drive.logits([(1, IDS[:33]), (2, IDS[::-1][:20])])[:33],
        drive.logits([(2, IDS[5:8]), (1, IDS[33:34]), (3, IDS[40:60])])[3:4],
        drive.logits([(1, IDS[34:70])]),
        *(drive.logits([(3, [7]), (1, [token]), (2, [9])])[1:2] for token in IDS[70:74]),
    ]
    drive.fork(4, 1)
    forked = drive.logits([(1, IDS[74:80]), (4, IDS[74:90])])
    assert torch.equal(torch.cat(parts), whole[:74])
    assert torch.equal(forked[:6], whole[74:80])
    assert torch.equal(forked[6:], whole[74:])
    assert torch.equal(drive.logits([(4, IDS[60:90]), (3, [1])], again=[4])[:30], whole[60:])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_calls_nothing_that_is_not_known_to_be_exact(
    families: Callable[[str], Path], driver: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = _runner(families(name), "bfloat16")
    Recorded.names.clear()
    monkeypatch.setattr(runner, "_exactly", lambda: Recorded(torch.device("cpu")))
    output = driver.Driver(runner).feed([(0, IDS[:20]), (1, IDS[20:25])])
    some = {"query_rows": np.arange(9), "query_ids": np.arange(9), "query_top": np.arange(9, dtype=np.int32) % 3}
    ends = {"end_rows": np.array([3, 4]), "end_ids": [frozenset({1, 2, 3}), frozenset({5})]}
    runner.sample(output, driver.sampling(2, top_logprobs=np.array([2, 0], np.int32), **some, **ends))
    assert sorted(Recorded.names - EXACT - FIXED) == []
