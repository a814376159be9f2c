"""The converted embedded model against independent readings of the GGUF file it came from."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import torch
from gguf import GGUFReader
from radicel.runtime import gguf_convert, hub
from radicel.runtime.gguf_file import folder_of_file
from radicel.runtime.models import load_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

pytestmark = pytest.mark.model

KNOWN = hub.KNOWN_MODELS[hub.DEFAULT_MODEL]


@pytest.fixture(scope="module")
def gguf_file(request: pytest.FixtureRequest, model_dir: Path) -> Path:
    """The GGUF file itself, kept in pytest's cache folder between runs (`pull` keeps only what it made of it)."""
    folder = Path(request.config.cache.mkdir("embedded-model"))
    kept = folder / Path(KNOWN.member).name
    if not kept.is_file():
        hub.fetch_source(KNOWN, _emptied(folder)).rename(kept)
    return kept


def _emptied(folder: Path) -> Path:
    import shutil

    shutil.rmtree(folder / "download", ignore_errors=True)
    return folder


@pytest.fixture(scope="module")
def gguf_meta(gguf_file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in GGUFReader(gguf_file).fields.items()}


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_dir)


@pytest.mark.slow
def test_weights_equal_the_loader_of_transformers(gguf_file: Path, model_dir: Path) -> None:
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
    theirs = load_gguf_checkpoint(str(gguf_file), return_tensors=True, model_to_load=skeleton)["tensors"]
    ours = load_file(model_dir / "model.safetensors")
    theirs.pop("lm_head.weight", None)  # tied to the embedding
    assert ours.keys() == theirs.keys()
    assert len(ours) == 272
    for name, tensor in ours.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, theirs[name].to(torch.float32)), name


def test_config_says_what_the_gguf_says(gguf_file: Path, model_dir: Path) -> None:
    theirs = load_gguf_checkpoint(str(gguf_file))["config"]
    ours = json.loads((model_dir / "config.json").read_text())
    shared = (
        "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "vocab_size max_position_embeddings rope_theta tie_word_embeddings"
    ).split()
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    assert np.float32(ours["rms_norm_eps"]) == np.float32(theirs["rms_norm_eps"])
    config = AutoConfig.from_pretrained(model_dir)
    assert (config.head_dim, config.bos_token_id, config.eos_token_id, config.pad_token_id) == (64, 1, 2, 2)
    assert config.rope_parameters["rope_theta"] == 100000.0


@pytest.mark.slow
def test_the_file_itself_gives_the_same_model(gguf_file: Path, model_dir: Path, tokenizer: Any, tmp_path: Path) -> None:
    folder = folder_of_file(gguf_file, tmp_path)
    direct, converted = (load_model(path, device="cpu", dtype="float32") for path in (folder, model_dir))
    assert replace(direct.config, dtype="float32") == converted.config
    places = converted.places()
    assert all(torch.equal(tensor, places[name]) for name, tensor in direct.places().items())
    read = AutoTokenizer.from_pretrained(folder)
    for text in ("Hello, world: 12345 ünï", "<|im_start|>user\nHi<|im_end|>\n", "def f(x):\n    return  x", "🙂 ok"):
        assert read.encode(text) == tokenizer.encode(text)
    assert read.chat_template == tokenizer.chat_template


# ---- the tokenizer, read a second time


class GgufTokenizer:
    """Byte-level BPE straight from the GGUF's lists, written without the code under test or its library."""

    WORD = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    DIGIT = regex.compile(r"\p{N}|\P{N}+")

    def __init__(self, meta: dict[str, Any]) -> None:
        self.ids = {token: i for i, token in enumerate(meta["tokenizer.ggml.tokens"])}
        self.ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(meta["tokenizer.ggml.merges"])}
        types = meta["tokenizer.ggml.token_type"]
        self.special = [token for token, kind in zip(meta["tokenizer.ggml.tokens"], types) if kind in (3, 4)]
        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [b for b in range(256) if b not in visible]
        self.letters = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for part in regex.split("(" + "|".join(map(regex.escape, self.special)) + ")", text):
            if part in self.special:
                out.append(self.ids[part])
            else:
                for run in self.DIGIT.findall(part):
                    for word in self.WORD.findall(run):
                        out += self._word(word)
        return out

    def _word(self, word: str) -> list[int]:
        parts = [self.letters[b] for b in word.encode("utf-8")]
        while len(parts) > 1:
            rank, i = min((self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(itertools.pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[part] for part in parts]


WORDS = "the of and Extract a phone number from e-mail customer José Zoë Łukasz Müller don't we'll I'm it's".split()
SNIPPETS = [
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    'for (int i = 0; i < n; ++i) { sum += a[i]; }\n\treturn "sum";',
    '{"name": "Ana Ruíz", "age": 41, "tags": ["a", "b\\n"], "ok": true, "x": null}',
    "SELECT * FROM t WHERE id=42 AND name LIKE '%x%';",
    '<p class="a">&amp; &lt;b&gt;</p>',
]
EMOJI = "😀 👩‍👩‍👧‍👦 🇫🇷 🏳️‍🌈 ✅ ❤️ ☕ 🤷🏽‍♀️ 𝔘𝔫𝔦 ①②③ Ⅷ ½ ٣٤ ०१".split(" ")
SCRIPTS = "客单价 在线 こんにちは 한국어 Ελληνικά Привет שלום مرحبا हिन्दी ไทย e\u0301 ﬁ ß İ ı".split(" ")
SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\t\t",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u200b",
    "\x85",
]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start", "<repo_name>", "<|im_end|"]


def _text(rng: random.Random) -> str:
    def any_character() -> str:
        while 0xD800 <= (point := rng.randrange(0x20, 0x30000)) <= 0xDFFF:
            pass
        return chr(point)

    makers = [
        lambda: rng.choice(WORDS),
        lambda: rng.choice(SNIPPETS),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice(SCRIPTS),
        lambda: rng.choice(SPACES),
        lambda: rng.choice(SPECIALS),
        lambda: str(rng.choice([rng.randrange(10), rng.randrange(10**9), -rng.random(), 1e21, "1,234.50"])),
        lambda: "".join(chr(rng.randrange(0x20, 0x7F)) for _ in range(rng.randrange(1, 12))),
        lambda: "".join(any_character() for _ in range(rng.randrange(1, 5))),
    ]
    pieces = [rng.choice(makers)() for _ in range(rng.randrange(1, 14))]
    return rng.choice(["", " "]).join(pieces)


def test_ids_equal_an_independent_reading_on_1000_texts(tokenizer: Any, gguf_meta: dict[str, Any]) -> None:
    independent = GgufTokenizer(gguf_meta)
    rng = random.Random(20250207)
    texts = ["", *SPACES, *EMOJI, *SCRIPTS, *SNIPPETS, *SPECIALS]
    texts += [_text(rng) for _ in range(1000 - len(texts))]
    assert len(texts) == 1000
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == independent.encode(text), repr(text)
        assert tokenizer.decode(ids) == text, repr(text)


def test_special_tokens_and_their_ids(tokenizer: Any, gguf_meta: dict[str, Any]) -> None:
    specials = [
        t for t, kind in zip(gguf_meta["tokenizer.ggml.tokens"], gguf_meta["tokenizer.ggml.token_type"]) if kind == 3
    ]
    assert len(specials) == 17
    assert [tokenizer.convert_tokens_to_ids(token) for token in specials] == list(range(17))
    assert set(tokenizer.all_special_ids) >= {0, 1, 2}
    assert tokenizer.decode(list(range(17)), skip_special_tokens=True) == ""
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == (
        "<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>"
    )  # fmt: skip
    assert len(tokenizer) == 49152
    assert tokenizer.model_max_length == 8192


def test_chat_template_is_the_models_own(tokenizer: Any, gguf_meta: dict[str, Any]) -> None:
    assert tokenizer.chat_template == gguf_meta["tokenizer.chat_template"]
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_converted_model_answers(tokenizer: Any, model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    questions = (
        "What is the capital of France?",
        "Extract the name and phone number: 'Hi, this is José Álvarez, call me at 555-1234.'",
    )
    answers = []
    for question in questions:
        turns = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        output = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(output))
    assert answers[0] == "The capital of France is Paris.<|im_end|>"
    assert "555-1234" in answers[1]


def test_rotary_halves_are_put_apart() -> None:
    """Head of 6 rows holding (pair, half) = 00 01 10 11 20 21 → 00 10 20 01 11 21, each head by itself."""
    rows = np.arange(12, dtype=np.float32).reshape(12, 1)
    apart = gguf_convert._halves_apart(rows, heads=2)
    assert apart[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
