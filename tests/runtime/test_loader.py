"""Loading weights: sharded files, other dtypes, and every kind of damage named by file and tensor."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from radicel.errors import InvalidValueError, WeightsError
from radicel.runtime.models import load_bar, load_model, loader, tensor_reader
from rich.console import Console
from safetensors.torch import load_file, save_file

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tiny_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint of its own, to be damaged."""
    return tiny_model(tmp_path, "llama")


def _shard(folder: Path) -> dict[str, str]:
    """Cuts `model.safetensors` in two with an index; returns the index's map."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, some in parts.items() for name in some}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def _rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_shards_load_as_the_single_file(folder: Path) -> None:
    single = load_model(folder, device="cpu").places()
    _shard(folder)
    sharded = load_model(folder, device="cpu").places()
    assert set(sharded) == set(single)
    assert all(torch.equal(tensor, single[name]) for name, tensor in sharded.items())


@pytest.mark.parametrize("stored", [torch.float64, torch.float16, torch.bfloat16])
def test_stored_dtypes_are_converted(folder: Path, stored: torch.dtype) -> None:
    before = load_model(folder, device="cpu").places()[NAME].clone()
    _rewrite(folder, lambda tensors: tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()}))
    after = load_model(folder, device="cpu").places()[NAME]
    assert after.dtype == torch.float32
    assert torch.equal(after, before.to(stored).float())


@pytest.mark.parametrize("numbers", [2, 250, 1 << 22])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pieces_of_any_size_give_the_same(
    folder: Path, numbers: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of less than a row, of some rows, of all; read in place and converted."""
    monkeypatch.setattr(tensor_reader, "SMALL", numbers)
    wanted = load_file(folder / "model.safetensors")
    places = load_model(folder, device="cpu", dtype=dtype).places()
    assert set(places) == set(wanted)
    assert all(torch.equal(place, wanted[name].to(place.dtype)) for name, place in places.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_that_shrinks_while_it_is_read(folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "model.safetensors"
    listed = loader.stored_tensors

    def cut(path: Path) -> dict[str, tensor_reader.Stored]:
        found = listed(path)
        path.write_bytes(path.read_bytes()[:-100])
        return found

    monkeypatch.setattr(loader, "stored_tensors", cut)
    with pytest.raises(WeightsError, match=rf"{file.name}: .* cannot be read: it ends 100 bytes too early"):
        load_model(folder, device="cpu", dtype=dtype)


def test_what_carries_nothing_is_passed_over(folder: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "lm_head.weight": torch.ones(288, 48)}
    before = load_model(folder, device="cpu").embed.clone()
    _rewrite(folder, lambda tensors: tensors.update(extra))
    model = load_model(folder, device="cpu")
    assert model.lm_head is None  # tied: the head is the embedding
    assert torch.equal(model.embed, before)


DAMAGE: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (lambda t: t.pop(NAME), rf"lacks {NAME}, which LlamaForCausalLM needs"),
    "many missing": (lambda t: [t.pop(n) for n in sorted(t)[:9]], r"lacks .* and 4 more"),
    "extra": (
        lambda t: t.update({"model.layers.3.mlp.up_proj.weight": torch.ones(80, 48)}),
        r"model\.safetensors holds model\.layers\.3\.mlp\.up_proj\.weight, for which the config has no place",
    ),
    "a bias that the config lacks": (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}),
        r"holds model\.layers\.0\.self_attn\.q_proj\.bias",
    ),
    "misshapen": (
        lambda t: t.update({NAME: torch.ones(80, 47)}),
        rf"model\.safetensors: {NAME} has shape \[80, 47\], but the config makes it \[80, 48\]",
    ),
    "transposed": (lambda t: t.update({NAME: t[NAME].T.contiguous()}), r"has shape \[48, 80\]"),
    "integers": (
        lambda t: t.update({NAME: torch.ones((80, 48), dtype=torch.int8)}),
        rf"{NAME} is stored as I8; only F64, F32, F16, BF16",
    ),
    "empty": (lambda t: t.clear(), r"lacks model\.embed_tokens\.weight"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_wrong_tensors_are_named(folder: Path, kind: str) -> None:
    change, message = DAMAGE[kind]
    _rewrite(folder, change)
    with pytest.raises(WeightsError, match=message):
        load_model(folder, device="cpu")


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "truncated in the data": lambda data: data[: len(data) // 2],
    "truncated by one byte": lambda data: data[:-1],
    "truncated in the header": lambda data: data[:100],
    "empty": lambda data: b"",
    "garbage": lambda data: b"\x9d" * 5000,
    "a broken header": lambda data: data[:8] + b"x" + data[9:],
    "a page of an error in its place": lambda data: b"<html>404</html>",
}


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("sharded", [False, True])
def test_damaged_files_are_named(folder: Path, kind: str, sharded: bool) -> None:
    if sharded:
        _shard(folder)
    file = sorted(folder.glob("*.safetensors"))[-1]
    file.write_bytes(BYTES[kind](file.read_bytes()))
    with pytest.raises(WeightsError, match=rf"{file.name} is damaged or cut short"):
        load_model(folder, device="cpu")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"holds no \*\.safetensors file"):
        load_model(folder, device="cpu")


def test_a_shard_that_is_not_there(folder: Path) -> None:
    _shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match="names model-00002-of-00002.safetensors, which .* does not hold"):
        load_model(folder, device="cpu")


def test_an_index_that_promises_too_much(folder: Path) -> None:
    weight_map = _shard(folder)
    first, second = sorted(set(weight_map.values()))
    moved = next(name for name, file in weight_map.items() if file == first)
    weight_map[moved] = second
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match=rf"{second} lacks {moved}, which model.safetensors.index.json promises"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": []}}'])
def test_a_damaged_index(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match=r"model\.safetensors\.index\.json is damaged"):
        load_model(folder, device="cpu")


def test_a_tensor_in_two_files(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({NAME: tensors[NAME]}, folder / "more.safetensors")
    with pytest.raises(WeightsError, match=rf"{NAME} is in model\.safetensors and again in .*more\.safetensors"):
        load_model(folder, device="cpu")


def test_dummy_weights_need_no_file_and_repeat(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    one = load_model(folder, device="cpu", load_format="dummy")
    two = load_model(folder, device="cpu", load_format="dummy")
    assert all(torch.equal(a, two.places()[name]) for name, a in one.places().items())
    assert (one.norm == 1).all()
    assert 0.015 < one.embed.std().item() < 0.025
    with pytest.raises(InvalidValueError, match="load_format='gguf' is not known"):
        load_model(folder, device="cpu", load_format="gguf")


def test_a_bar_counts_every_byte(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _shard(folder)
    seen: list[int] = []

    @contextmanager
    def bar(title: str, size: int) -> Iterator[Callable[[int], None]]:
        assert title == folder.name
        yield seen.append
        assert sum(seen) <= size <= sum(seen) + 20_000  # the headers of two files

    monkeypatch.setattr(loader, "load_bar", bar)
    assert len(load_model(folder, device="cpu").places()) == len(seen)


@pytest.mark.parametrize(
    ("terminal", "size", "shown"), [(True, 2_000_000_000, True), (True, 1000, False), (False, 2_000_000_000, False)]
)
def test_the_bar_is_for_large_models_on_terminals(terminal: bool, size: int, shown: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with load_bar.load_bar("Qwen3-8B", size, console) as read:
        read(size // 2)
    assert ("Loading Qwen3-8B" in out.getvalue()) is shown
    assert ("1.0/2.0 GB" in out.getvalue()) is shown
