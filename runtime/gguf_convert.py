"""A GGUF file of a Llama-shaped model becomes a folder in the Hugging Face layout.

In: a `.gguf` file whose architecture is `llama`.
Out: `model.safetensors` (float32, each value exactly what the quantised one stands for), `config.json`,
`generation_config.json`, `tokenizer.json` and `tokenizer_config.json` with the chat template.

GGUF interleaves the two halves of each rotary pair in the query and key weights; the Hugging Face layout keeps the
halves apart, so these rows are put back in order. No torch here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ..errors import UnsupportedModelError, WeightsError
from .gguf_config import short
from .gguf_file import open_gguf
from .gguf_tokenizer import tokenizer_config_of, tokenizer_of

__all__ = ["convert"]

Array = NDArray[np.float32]

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def convert(gguf_file: Path, folder: Path, on_tensor: Callable[[int, int], None] | None = None) -> None:
    """Writes the model of `gguf_file` into `folder`, which exists.

    Args:
        gguf_file: the model.
        folder: where the five files go.
        on_tensor: called with (tensors done, tensors in all) as the weights are converted.

    Raises:
        UnsupportedModelError: another architecture, or a tokenizer that we do not have.
        WeightsError: the file is not a whole GGUF file, or a tensor has a name that the architecture does not know.
    """
    reader, meta = open_gguf(gguf_file)
    if meta.get("general.architecture") != "llama":
        raise UnsupportedModelError(
            f"{gguf_file}: architecture {meta.get('general.architecture')!r}; this converter knows 'llama'"
        )
    config = _config(meta, tied=all(t.name != "output.weight" for t in reader.tensors))
    tokenizer = tokenizer_of(gguf_file, meta)
    save_file(_weights(gguf_file, reader, config, on_tensor), folder / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", tokenizer_config_of(meta))
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {key: config[key] for key in _TOKEN_ID_KEYS if key in config})


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ---- config

_TOKEN_ID_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")


def _config(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = meta["llama.attention.head_count"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.rope.dimension_count", meta["llama.embedding_length"] // heads),
        "max_position_embeddings": meta["llama.context_length"],
        "rope_theta": short(meta.get("llama.rope.freq_base", 10000.0)),
        "rms_norm_eps": short(meta["llama.attention.layer_norm_rms_epsilon"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "dtype": "float32",
    }
    for key, source in zip(_TOKEN_ID_KEYS, ("bos_token_id", "eos_token_id", "padding_token_id")):
        if (token_id := meta.get(f"tokenizer.ggml.{source}")) is not None:
            config[key] = token_id
    return config


# ---- weights


def _weights(
    path: Path, reader: Any, config: dict[str, Any], on_tensor: Callable[[int, int], None] | None
) -> dict[str, Array]:
    out: dict[str, Array] = {}
    total = len(reader.tensors)
    for done, tensor in enumerate(reader.tensors, start=1):
        name = _hf_name(path, tensor.name)
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if name.endswith("q_proj.weight"):
            values = _halves_apart(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = _halves_apart(values, config["num_key_value_heads"])
        out[name] = np.ascontiguousarray(values)
        if on_tensor is not None:
            on_tensor(done, total)
    return out


def _hf_name(path: Path, name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise WeightsError(f"{path}: tensor {name!r} has no place in a Llama model")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def _halves_apart(weight: Array, heads: int) -> Array:
    """Rows of each head from (pair 0 first, pair 0 second, pair 1 first, …) to (all firsts, all seconds)."""
    rows, columns = weight.shape
    apart: Array = weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return apart
