"""Our model code against transformers' on tiny random checkpoints, over every way to cut a text into steps."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from radicel.errors import InvalidValueError, ModelError, ModelNotFoundError, UnsupportedModelError
from radicel.runtime.model_runner import ModelRunner
from radicel.runtime.models import RopeConfig, load_model, model_config, resolve_dtype
from radicel.runtime.models.rope import halves_in_the_middle, rope_tables

ARCHS = ["llama", "llama3", "qwen2", "qwen3", "llama_biased", "qwen3_biased", "qwen2_untied"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_biased": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "qwen3_biased": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 6}),
    "qwen2_untied": ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
}
IDS = torch.randint(0, 268, (150,), generator=torch.Generator().manual_seed(3)).tolist()


class Pair:
    """A checkpoint, transformers' model of it and ours."""

    def __init__(self, path: Path, dtype: str = "float32") -> None:
        from transformers import AutoModelForCausalLM

        self.path = path
        self.theirs = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self.ours = load_model(path, device="cpu", dtype=dtype)

    def runner(self, slots: int = 1000) -> ModelRunner:
        return ModelRunner(self.ours, kv_slots=slots, num_rows=12, context_length=400)

    def wanted(self, ids: list[int]) -> torch.Tensor:
        """Logits [len(ids), vocab] by transformers."""
        with torch.no_grad():
            return self.theirs(torch.tensor([ids])).logits[0]


@pytest.fixture(scope="module")
def pair(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def make(name: str, dtype: str = "float32") -> Pair:
        arch, overrides = VARIANTS.get(name, (name, {}))
        return Pair(tiny.make_tiny_model(folder / name / dtype, arch, **overrides), dtype)

    return make


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max().item() < tolerance
    assert found.argmax(-1).tolist() == wanted.argmax(-1).tolist()


@pytest.mark.parametrize("name", ARCHS)
def test_prefill_in_one_step(pair: Callable[..., Pair], driver: ModuleType, name: str) -> None:
    both = pair(name)
    close(driver.Driver(both.runner()).logits([(3, IDS)]), both.wanted(IDS))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_float64(pair: Callable[..., Pair], driver: ModuleType, name: str) -> None:
    # transformers' norms go through float32 whatever the dtype, so this too is no closer than that.
    both = pair(name, "float64")
    found = driver.Driver(both.runner()).logits([(3, IDS)])
    assert found.dtype == torch.float64
    close(found, both.wanted(IDS))


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_any_chunk(pair: Callable[..., Pair], driver: ModuleType, name: str, chunk: int) -> None:
    both = pair(name)
    drive = driver.Driver(both.runner(), seed=chunk)
    found = [drive.logits([(0, IDS[i : i + chunk])]) for i in range(0, len(IDS), chunk)]
    close(torch.cat(found), both.wanted(IDS))


@pytest.mark.parametrize("name", ARCHS)
def test_forks_share_slots(pair: Callable[..., Pair], driver: ModuleType, name: str) -> None:
    both = pair(name)
    drive = driver.Driver(both.runner())
    drive.feed([(0, IDS[:60])])
    free = len(drive.free)
    tails = [[n, 2 * n + 1, 5] for n in range(8)]
    for row, _ in enumerate(tails, 1):
        drive.fork(row, 0, 60 - row)
    for step in range(3):
        found = drive.logits([(row, [tail[step]]) for row, tail in enumerate(tails, 1)])
        for row, tail in enumerate(tails, 1):
            close(found[row - 1][None], both.wanted(IDS[: 60 - row] + tail[: step + 1])[-1:])
    assert free - len(drive.free) == 8 * 3


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_sibling_reads_what_its_leader_stores_in_the_same_step(
    pair: Callable[..., Pair], driver: ModuleType, name: str
) -> None:
    both = pair(name)
    drive = driver.Driver(both.runner())
    # Row 1 starts with slots that row 0 fills only now: the leader's prefix and the sibling's tail are one step.
    drive.slots[0] = []
    own = [drive.free.pop() for _ in range(20)]
    drive.free += own[::-1]
    drive.slots[1] = list(own)
    drive._updates.append(_update(1, own))
    found = drive.logits([(0, IDS[:20]), (1, IDS[40:45])])
    assert drive.slots[0] == own
    close(found[:20], both.wanted(IDS[:20]))
    close(found[20:], both.wanted(IDS[:20] + IDS[40:45])[-5:])


def _update(row: int, slots: list[int]) -> Any:
    import numpy as np
    from radicel.runtime.batch import RowUpdate

    return RowUpdate(row, 0, np.asarray(slots, np.int32))


@pytest.mark.parametrize("name", ARCHS)
def test_cached_positions_asked_again_leave_the_cache_as_it_is(
    pair: Callable[..., Pair], driver: ModuleType, name: str
) -> None:
    both = pair(name)
    drive = driver.Driver(both.runner())
    drive.feed([(0, IDS[:50]), (1, IDS[50:90])])
    found = drive.logits([(0, IDS[49:50]), (1, IDS[80:90]), (2, IDS[:5])], again=[0, 1])
    close(found[:1], both.wanted(IDS[:50])[-1:])
    close(found[1:11], both.wanted(IDS[50:90])[-10:])
    close(found[11:], both.wanted(IDS[:5]))
    close(drive.logits([(0, IDS[100:103])]), both.wanted(IDS[:50] + IDS[100:103])[-3:])


@pytest.mark.parametrize("name", ARCHS)
def test_a_mixed_step(pair: Callable[..., Pair], driver: ModuleType, name: str) -> None:
    both = pair(name)
    drive = driver.Driver(both.runner())
    texts = {row: IDS[row * 11 : row * 11 + 40 + row] for row in range(6)}
    drive.feed([(row, text[: 10 * row + 1]) for row, text in texts.items() if row < 4])
    parts = [(row, text[10 * row + 1 :] if row < 4 else text) for row, text in texts.items()]
    parts = [(row, ids[:1] if row % 2 else ids) for row, ids in parts]
    found = drive.logits(parts).split([len(ids) for _, ids in parts])
    for (row, ids), logits in zip(parts, found):
        start = 10 * row + 1 if row < 4 else 0
        close(logits, both.wanted(texts[row][: start + len(ids)])[start:])


@pytest.mark.parametrize("name", ARCHS)
def test_greedy_text_equals_generate(pair: Callable[..., Pair], driver: ModuleType, name: str) -> None:
    both = pair(name)
    with torch.no_grad():
        wanted = both.theirs.generate(
            torch.tensor([IDS[:30]]), do_sample=False, max_new_tokens=40, min_new_tokens=40, eos_token_id=None
        )[0, 30:].tolist()
    drive = driver.Driver(both.runner())
    found: list[int] = []
    feed = IDS[:30]
    for _ in range(40):
        output = drive.feed([(5, feed)], logits="last")
        feed = drive.runner.sample(output, driver.sampling(1)).read().token_ids
        found += feed
    assert found == wanted


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_bfloat16_is_as_near_to_the_truth_as_transformers(
    pair: Callable[..., Pair], driver: ModuleType, name: str
) -> None:
    truth = pair(name).wanted(IDS)
    both = pair(name, "bfloat16")
    found = driver.Driver(both.runner()).logits([(0, IDS)])
    assert found.dtype == torch.bfloat16
    ours = (found.float() - truth).square().mean().sqrt()
    theirs = (both.wanted(IDS).float() - truth).square().mean().sqrt()
    assert ours < 1.5 * theirs


def test_only_the_rows_asked_for(pair: Callable[..., Pair], driver: ModuleType) -> None:
    both = pair("llama")
    drive = driver.Driver(both.runner())
    output = drive.feed([(0, IDS[:20]), (1, IDS[20:25])], logits="last")
    assert output.hidden.shape == (2, both.ours.config.hidden)
    found = output.rows(torch.arange(2).numpy())
    close(found, torch.stack([both.wanted(IDS[:20])[-1], both.wanted(IDS[20:25])[-1]]))


# --- rotary angles ----------------------------------------------------------------------------------------------------

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
    "yarn with all its numbers": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "mscale": 1.3,
        "mscale_all_dim": 0.7,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 50 for i in range(64)],
        "long_factor": [1.0 + i for i in range(64)],
        "original_max_position_embeddings": 4096,
    },
    "longrope with an amplitude": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "attention_factor": 1.5,
        "short_factor": [1.0] * 64,
        "long_factor": [2.0] * 64,
        "original_max_position_embeddings": 4096,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_angles_equal_transformers_at_every_position(tmp_path: Path, kind: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072}
    hf = LlamaConfig(**sizes, architectures=["LlamaForCausalLM"], rope_parameters=dict(ROPES[kind]))
    hf.save_pretrained(tmp_path)
    config = model_config(tmp_path)
    assert config.context_length == 131072
    cos, sin = rope_tables(config.rope, 128, 131072, torch.device("cpu"), torch.float32)
    positions = torch.arange(0, 131072, 17)
    want_cos, want_sin = LlamaRotaryEmbedding(hf)(torch.zeros(1), positions[None])
    assert (cos[positions] - want_cos[0]).abs().max() < 1e-6
    assert (sin[positions, 64:] - want_sin[0, :, 64:]).abs().max() < 1e-6
    assert torch.equal(sin[:, :64], -sin[:, 64:])


def test_long_ropes_choose_their_factors_once_from_the_context_length() -> None:
    rope = RopeConfig("longrope", original_context=100, short_factors=(1.0, 2.0), long_factors=(3.0, 4.0))
    short, _ = rope_tables(rope, 4, 100, torch.device("cpu"), torch.float64)
    long, _ = rope_tables(rope, 4, 101, torch.device("cpu"), torch.float64)
    angles = torch.arange(100)[:, None] * torch.tensor([1.0, 0.01])
    for found, factors in ((short, [1.0, 2.0]), (long[:100], [3.0, 4.0])):
        wanted = (angles / torch.tensor(factors)).cos().double()
        torch.testing.assert_close(found[:, :2], wanted, atol=1e-5, rtol=0)


def test_yarn_lengthens_the_context(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 4096}
    assert model_config(_edit(tiny_model(tmp_path, "qwen2"), rope_parameters=yarn)).context_length == 16384


@pytest.mark.parametrize(("head_dim", "turned"), [(8, 8), (8, 4), (16, 12), (128, 96), (6, 2)])
def test_turned_pairs_lie_half_a_head_apart(head_dim: int, turned: int) -> None:
    order = halves_in_the_middle(head_dim, turned)
    assert sorted(order) == list(range(head_dim))
    pairs = [(order[i], order[i + head_dim // 2]) for i in range(turned // 2)]
    assert pairs == [(i, i + turned // 2) for i in range(turned // 2)]


# --- configs ----------------------------------------------------------------------------------------------------------


def _edit(path: Path, **changes: Any) -> Path:
    file = path / "config.json"
    raw = json.loads(file.read_text())
    for key, value in changes.items():
        if value is None:
            raw.pop(key, None)
        else:
            raw[key] = value
    file.write_text(json.dumps(raw))
    return path


def test_model_config_reads_sizes(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    config = model_config(tiny_model(tmp_path, "qwen3"))
    assert (config.architecture, config.hidden, config.intermediate, config.layers) == ("Qwen3ForCausalLM", 48, 80, 3)
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab_size) == (6, 2, 16, 288)
    assert (config.context_length, config.dtype, config.tied) == (4096, "float32", False)
    assert (config.qk_norm, config.qkv_bias, config.o_bias, config.mlp_bias) == (True, False, False, False)


def test_old_spellings_of_a_config(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    old = {
        "rope_parameters": None,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "dtype": None,
        "torch_dtype": "bfloat16",
        "architectures": None,
        "head_dim": None,
    }
    config = model_config(_edit(tiny_model(tmp_path, "llama"), **old))
    assert config.rope == RopeConfig("llama3", 500000.0, 32.0, 1.0, 4.0, 64)
    assert (config.dtype, config.architecture, config.head_dim) == ("bfloat16", "LlamaForCausalLM", 8)


REFUSED = {
    "architecture": ({"architectures": ["GPT2LMHeadModel"]}, UnsupportedModelError, "GPT2LMHeadModel.*known: Llama"),
    "no architecture": ({"architectures": None, "model_type": "gpt2"}, UnsupportedModelError, "model_type 'gpt2'"),
    "activation": ({"hidden_act": "gelu"}, UnsupportedModelError, "activation 'gelu'"),
    "rope": (
        {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
        UnsupportedModelError,
        "spiral.*known types: default, linear, dynamic",
    ),
    "quantised": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        UnsupportedModelError,
        "quantised weights",
    ),
    "part of a head": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        UnsupportedModelError,
        "a rotary embedding of 4 of 8 is not supported",
    ),
    "long rope": (
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "factor": 2.0}},
        ModelError,
        "does not fit a head of 8 numbers|not a usable model config",
    ),
    "heads": ({"num_key_value_heads": 4}, ModelError, "6 query heads are no multiple of 4"),
    "a size that is no number": ({"hidden_size": "many"}, ModelError, "not a usable model config"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_we_cannot_run_is_refused_by_name(
    tiny_model: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    changes, error, message = REFUSED[name]
    path = _edit(tiny_model(tmp_path, "llama"), **changes)
    with pytest.raises(error, match=message):
        model_config(path)
    with pytest.raises(error, match=message):
        load_model(path, device="cpu")


def test_windows_by_layer(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    path = _edit(
        tiny_model(tmp_path, "qwen2"), use_sliding_window=True, sliding_window=64, max_window_layers=1, layer_types=None
    )
    assert model_config(path).windows == (0, 64, 64)
    kinds = [kind.attend["window"] for kind in load_model(path, device="cpu").kinds]
    assert kinds == [0, 64, 64]
    # A window that no text of this length outgrows is none.
    assert load_model(path, device="cpu", context_length=64).kinds[1].attend["window"] == 0


def test_a_window_of_an_architecture_that_has_none_is_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    path = _edit(tiny_model(tmp_path, "llama"), layer_types=["sliding_attention"] * 3, sliding_window=64)
    with pytest.raises(UnsupportedModelError, match="sliding-window"):
        model_config(path)


def test_an_unknown_kind_of_layer_is_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    path = _edit(tiny_model(tmp_path, "qwen3"), layer_types=["chunked_attention"] * 3)
    with pytest.raises(UnsupportedModelError, match="layers of type 'chunked_attention' are not supported"):
        model_config(path)


def test_no_model_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no config.json"):
        model_config(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(ModelError, match=r"config\.json is no JSON"):
        model_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="holds a JSON list"):
        model_config(tmp_path)


def test_dtypes(tiny_llama: Path) -> None:
    config = model_config(tiny_llama)
    assert resolve_dtype(config, "cpu", "auto") == torch.float32
    assert resolve_dtype(config, "cuda", "auto") == torch.bfloat16
    for half in (torch.float16, torch.bfloat16):  # the checkpoint's own
        named = dataclasses.replace(config, dtype=str(half).removeprefix("torch."))
        assert resolve_dtype(named, "cuda", "auto") == half
    assert resolve_dtype(config, "cpu", torch.bfloat16) == torch.bfloat16
    assert load_model(tiny_llama, device="cpu").dtype == torch.float32
    with pytest.raises(InvalidValueError, match="dtype='int8' is not known; one of: auto, float32"):
        load_model(tiny_llama, device="cpu", dtype="int8")


def test_context_length_bounds(tiny_llama: Path) -> None:
    assert load_model(tiny_llama, device="cpu", context_length=100).tables[0][0].shape == (100, 8)
    for wrong in (0, -1, 4097):
        with pytest.raises(InvalidValueError, match=f"context_length={wrong} must be 1 to 4096"):
            load_model(tiny_llama, device="cpu", context_length=wrong)


def test_all_names_of_a_checkpoint_have_their_place(pair: Callable[..., Pair]) -> None:
    for name in ARCHS:
        both = pair(name)
        theirs = dict(both.theirs.named_parameters())
        places = both.ours.places()
        assert set(places) == set(theirs)
        assert all(torch.equal(place, theirs[key]) for key, place in places.items())
