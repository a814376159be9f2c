"""`.gguf` files read directly: every kind of weights and architecture, configs, tokenizers, every kind of damage."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGUFWriter, TokenType
from radicel import LocalRuntime
from radicel.errors import ModelNotFoundError, UnsupportedModelError, WeightsError
from radicel.runtime import hub
from radicel.runtime.gguf_config import config_of
from radicel.runtime.gguf_file import folder_of_file
from radicel.runtime.gguf_tokenizer import SPLITS, tokenizer_of
from radicel.runtime.models import load_model, model_config

SCRIPTS = Path(__file__).parents[2] / "examples" / "bench" / "models"

Write = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """The scripts that make checkpoints and files, and compare; they import each other by name."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import agreement
        import formats
        import gguf_write
        import tiny_families

        yield (tiny_families.make_checkpoint, gguf_write.write_gguf, agreement.measure, formats)
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture
def write(scripts: Any, tmp_path: Path) -> Write:
    """(family, kind, overrides) → a file, and transformers' model with the numbers that the file stands for."""

    def make(family: str = "llama-3", kind: str = "F16", **overrides: Any) -> tuple[Path, Any]:
        theirs = scripts[0](family, tmp_path / "hf", **overrides)
        scripts[1](theirs, scripts[3].GGUF_FAMILIES.get(family, "llama"), kind, tmp_path / "model.gguf")
        return tmp_path / "model.gguf", theirs

    return make


def load(path: Path) -> Any:
    return load_model(folder_of_file(path, path.parent / "home"), device="cpu", dtype="float32")


FAMILIES = (
    "llama-2 llama-3.1 mixtral qwen2.5-small qwen3-small qwen3-moe gemma-2 gemma-3 phi-3 phi-4-mini smollm3 olmo-2"
)


@pytest.mark.parametrize("family", [*FAMILIES.split(), "granite-3"])
def test_every_architecture(scripts: Any, write: Write, family: str) -> None:
    path, theirs = write(family)
    model = load(path)
    found = scripts[2](model, theirs, model.context_length)
    assert found.worst < 1e-3, found
    assert found.greedy == 24


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_every_kind_of_numbers(scripts: Any, write: Write, kind: str) -> None:
    path, theirs = write("llama-3", kind, **scripts[3].BLOCKY)
    model = load(path)
    assert scripts[2](model, theirs, model.context_length).worst < 1e-3


@pytest.mark.parametrize("family", ["llama-2", "qwen2.5-small", "qwen3-small", "gemma-2"])
def test_transformers_reads_the_same_from_the_file(write: Write, family: str) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path, theirs = write(family)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(theirs.config)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton)["tensors"]
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(read[name].float(), parameter, atol=1e-6, rtol=1e-6)


def test_a_runtime_takes_the_path_of_a_file(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADICEL_HOME", str(tmp_path / "home"))
    path, _ = write()
    with LocalRuntime(path, kv_tokens=600) as runtime:
        ids = runtime.tokenizer.encode("the thing")
        assert runtime.tokenizer.decode(ids) == "the thing"
        assert runtime.tokenizer.convert_ids_to_tokens(ids)[0] == "th"
    # The folder is made once, and says where the numbers are.
    folder = hub.resolve(str(path))
    assert folder == hub.resolve(path)
    assert folder.parent == tmp_path / "home" / "gguf"
    assert json.loads((folder / "gguf.json").read_text())["file"] == str(path)
    assert not list(folder.glob("*.safetensors"))
    assert [made.name for made in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("family", ["llama-3.1", "gemma-3", "phi-4-mini", "qwen3-moe"])
def test_a_batch_over_one_prefix_in_the_engine(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setenv("RADICEL_HOME", str(tmp_path / "home"))
    path, theirs = write(family, "F32")
    prefix = "Once upon the time, in the far land of the bytes, there was a window that no text outgrew. "
    tails = ["Then", "And so the", "The end", "x", "But the thing is"]
    with LocalRuntime(path, kv_tokens=900, prefill_chunk=32) as runtime:
        prompts = [runtime.tokenizer.encode(prefix + tail) for tail in tails]
        found = runtime.generate(prompts, temperature=0, max_tokens=12, ignore_eos=True)
        for prompt, generation in zip(prompts, found):
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                wanted = theirs.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=12,
                    min_new_tokens=12,
                    eos_token_id=None,
                    pad_token_id=0,
                )
            spelt = list(generation.token_ids)  # what ends in half a character is not in the text
            assert spelt == wanted[0, ids.shape[1] :].tolist()[: len(spelt)]
            assert len(spelt) >= 9
        assert runtime.stats().cached_tokens > 4 * 60


def test_another_file_at_the_same_place_is_another_model(write: Write) -> None:
    path, _ = write("llama-3", "F16")
    first = folder_of_file(path, path.parent / "home")
    write("llama-3", "F32")
    second = folder_of_file(path, path.parent / "home")
    assert first != second
    assert (model_config(first).dtype, model_config(second).dtype) == ("float16", "bfloat16")
    with pytest.raises(WeightsError, match=r"model\.gguf is gone or was changed"):
        load_model(first, device="cpu")


def test_no_such_file() -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no file 'some/model\.gguf'"):
        hub.resolve("some/model.gguf")


# --- damage -----------------------------------------------------------------------------------------------------------


def _rewrite(path: Path, change: Callable[[dict[str, Any]], object], **ids: int) -> None:
    """The same file with other tensors, which `change` edits by name, and more metadata."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: (tensor.data.copy(), tensor.tensor_type) for tensor in reader.tensors}
    change(tensors)
    writer = GGUFWriter(path.with_suffix(".new"), "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for name, number in ids.items():
        writer.add_uint32(name, number)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").replace(path)


UP = "blk.1.ffn_up.weight"
DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (lambda t: t.pop(UP), rf"model\.gguf lacks {UP}, which LlamaForCausalLM needs"),
    "extra": (
        lambda t: t.update({"blk.3.ffn_up.weight": t[UP]}),
        r"model\.gguf holds blk\.3\.ffn_up\.weight, for which LlamaForCausalLM has no place",
    ),
    "misshapen": (
        lambda t: t.update({UP: (t[UP][0][:-1], t[UP][1])}),
        rf"model\.gguf: {UP} has shape \[79, 64\], but the config makes it \[80, 64\]",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_wrong_tensors_are_named(write: Write, kind: str) -> None:
    path, _ = write()
    change, message = DAMAGE[kind]
    _rewrite(path, change)
    with pytest.raises(WeightsError, match=message):
        load(path)


@pytest.mark.parametrize("size", [0, 3, 40, 5000, -5000, -1])
def test_a_file_that_is_cut_short_is_named(write: Write, size: int) -> None:
    path, _ = write()
    whole = path.stat().st_size
    os.truncate(path, size if size >= 0 else whole + size)
    with pytest.raises(WeightsError, match=r"model\.gguf is damaged or cut short"):
        load(path)


def test_the_tensor_at_which_a_file_ends_is_named(write: Write) -> None:
    path, _ = write()
    last = max(gguf.GGUFReader(path).tensors, key=lambda tensor: int(tensor.data_offset))
    os.truncate(path, int(last.data_offset) + 1)
    with pytest.raises(WeightsError, match=rf"tensor '{last.name}' ends at byte \d+ of \d+"):
        load(path)


def test_an_unknown_kind_of_numbers_is_named(write: Write) -> None:
    path, _ = write()
    shape = (80, 64)
    data = torch.zeros(shape, dtype=torch.int8).numpy()
    _rewrite(path, lambda t: t.update({UP: (data, gguf.GGMLQuantizationType.I8)}))
    with pytest.raises(WeightsError, match=rf"{UP} is stored as I8; supported are F32, F16, BF16, Q8_0"):
        load(path)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match="architecture 'rwkv6' is not supported in GGUF files; known: llama"
    ):
        config_of(tmp_path / "x.gguf", {"general.architecture": "rwkv6"}, tied=False, ropes={})


def test_a_size_that_is_not_said(tmp_path: Path) -> None:
    meta = {"general.architecture": "llama", "llama.attention.head_count": 4, "tokenizer.ggml.tokens": ["a"]}
    with pytest.raises(WeightsError, match=r"does not say llama\.embedding_length"):
        config_of(tmp_path / "x.gguf", meta, tied=False, ropes={})


# --- tokenizers -------------------------------------------------------------------------------------------------------


def _spm(**more: Any) -> dict[str, Any]:
    """Pieces with scores, as SentencePiece has them: control, bytes, single letters, merges by rank."""
    merged = ["▁t", "he", "▁the", "in", "▁a", "er", "▁▁"]
    letters = [chr(c) for c in range(97, 123)] + ["▁", "ü"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *letters]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    kinds += [TokenType.NORMAL] * (len(merged) + len(letters))
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(merged))] + [-1e9] * len(letters)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


TEXTS = {
    "the inner": ["<s>", "▁the", "▁", "in", "n", "er"],
    "then": ["<s>", "▁the", "n"],
    "a  b": ["<s>", "▁a", "▁▁", "b"],
    "Zü€": ["<s>", "▁", "<0x5A>", "ü", "<0xE2>", "<0x82>", "<0xAC>"],
}


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(text: str) -> None:
    tokenizer = tokenizer_of(Path("x.gguf"), _spm())
    encoding = tokenizer.encode(text)
    assert encoding.tokens == TEXTS[text]
    assert tokenizer.decode(encoding.ids) == text


def test_without_a_space_before_and_without_a_start() -> None:
    meta = _spm(**{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    tokenizer = tokenizer_of(Path("x.gguf"), meta)
    assert tokenizer.encode("then the").tokens == ["t", "he", "n", "▁the"]
    assert tokenizer.decode(tokenizer.encode("then the").ids) == "then the"


def _bpe(pre: str, **more: Any) -> dict[str, Any]:
    from tokenizers import pre_tokenizers

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "12", "123", "1234", "Ġa", "<|end|>"],
        "tokenizer.ggml.merges": ["1 2", "12 3", "123 4", "Ġ a"],
        "tokenizer.ggml.token_type": [int(TokenType.NORMAL)] * 260 + [int(TokenType.CONTROL)],
        "tokenizer.ggml.bos_token_id": 260,
        **more,
    }


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        ("gpt-2", ["1234", "Ġa", "<|end|>"]),
        ("llama-bpe", ["123", "4", "Ġa", "<|end|>"]),
        ("qwen2", ["1", "2", "3", "4", "Ġa", "<|end|>"]),
        ("smollm", ["1", "2", "3", "4", "Ġa", "<|end|>"]),
        ("refact", ["1", "2", "3", "4", "Ġa", "<|end|>"]),
        ("olmo", ["1234", "Ġa", "<|end|>"]),
        ("dbrx", ["123", "4", "Ġa", "<|end|>"]),
        ("gpt-4o", ["123", "4", "Ġa", "<|end|>"]),
        ("tekken", ["1", "2", "3", "4", "Ġa", "<|end|>"]),
    ],
)
def test_splits_by_name(pre: str, tokens: list[str]) -> None:
    for starts in (True, False, None):  # Llama 3's begin with a start where the file does not say
        meta = _bpe(pre) if starts is None else _bpe(pre, **{"tokenizer.ggml.add_bos_token": starts})
        start = ["<|end|>"] if starts or (starts is None and pre == "llama-bpe") else []
        assert tokenizer_of(Path("x.gguf"), meta).encode("1234 a<|end|>").tokens == [*start, *tokens]


SPLIT_TEXT = "It's HTTPServer's/x 1234  ok"
PIECES = {
    "gpt-2": ["It", "'s", "ĠHTTPServer", "'s", "/", "x", "Ġ1234", "Ġ", "Ġok"],
    "smollm": ["It", "'s", "ĠHTTPServer", "'s", "/", "x", "Ġ", "1", "2", "3", "4", "Ġ", "Ġok"],
    "llama-bpe": ["It", "'s", "ĠHTTPServer", "'s", "/x", "Ġ", "123", "4", "Ġ", "Ġok"],
    "qwen2": ["It", "'s", "ĠHTTPServer", "'s", "/x", "Ġ", "1", "2", "3", "4", "Ġ", "Ġok"],
    "gpt-4o": ["It's", "ĠHTTPServer's", "/x", "Ġ", "123", "4", "Ġ", "Ġok"],
    "tekken": ["It", "'s", "ĠHTTPServer", "'s", "/x", "Ġ", "1", "2", "3", "4", "Ġ", "Ġok"],
}


@pytest.mark.parametrize("pre", PIECES)
def test_pieces_of_a_text(pre: str) -> None:
    assert [piece for piece, _ in SPLITS[pre]().pre_tokenize_str(SPLIT_TEXT)] == PIECES[pre]


def test_every_end_of_a_turn_ends_a_text(write: Write) -> None:
    path, _ = write()
    _rewrite(path, lambda tensors: None, **{"tokenizer.ggml.eot_token_id": 280})
    folder = folder_of_file(path, path.parent / "home")
    said = json.loads((folder / "generation_config.json").read_text())
    assert said == {"bos_token_id": None, "eos_token_id": [287, 280], "pad_token_id": None}


@pytest.mark.parametrize("changes", [{"tokenizer.ggml.model": "rwkv"}, {"tokenizer.ggml.pre": "bloom"}])
def test_an_unknown_tokenizer_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"x\.gguf: tokenizer .* is not supported; known: 'llama'"):
        tokenizer_of(Path("x.gguf"), _bpe("gpt-2", **changes))


def test_no_tokenizer() -> None:
    with pytest.raises(WeightsError, match=r"x\.gguf holds no tokenizer"):
        tokenizer_of(Path("x.gguf"), {"general.architecture": "llama"})
