"""Weights on their way to a GPU through two small buffers: none is overwritten before it was copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from radicel.runtime.models import load_model, tensor_reader
from safetensors.torch import save_file

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 130 MB in two dtypes."""
    import transformers

    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=3, num_attention_heads=16, vocab_size=3000,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in transformers.AutoModelForCausalLM.from_config(config).named_parameters()}
    made = {name: torch.randn(shape) for name, shape in shapes.items()}
    save_file({name: t.bfloat16() if "up" in name else t for name, t in made.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("piece", [10_000, 1 << 20, 1 << 24])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_holds_what_the_file_holds(folder: Path, piece: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_reader, "PIECE", piece)
    found = load_model(folder, device="cuda", dtype=dtype, context_length=64).places()
    wanted = load_model(folder, device="cpu", dtype=dtype, context_length=64).places()
    assert set(found) == set(wanted)
    assert all(torch.equal(tensor.cpu(), wanted[name]) for name, tensor in found.items())
