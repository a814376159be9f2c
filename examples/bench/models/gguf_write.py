"""Writes transformers' models as GGUF files, tensor by tensor, in the layout that those files have.

In: a model, the architecture's name in GGUF, a kind of numbers. Out: a file; the model's own weights become what the
file's numbers stand for. Kinds that the gguf package can read and not write (Q4_K, Q6_K) get random blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

__all__ = ["write_gguf"]

PAIRED = ("llama", "granite", "smollm3")
SHIFTED = ("gemma2", "gemma3")
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
POST_NORMED = ("gemma2", "gemma3", "olmo2")
BLOCKS = {"Q4_K": (144, {0: 4e-4, 2: 3e-3}), "Q6_K": (210, {208: 5e-5})}
"""Kind → bytes of a block of 256 numbers, and its half-precision scales by place."""


def write_gguf(theirs: Any, architecture: str, kind: str, path: Path) -> None:
    """Writes `theirs`, with matrices of `kind` and vectors of float32."""
    writer = gguf.GGUFWriter(path, architecture)
    _metadata(writer, architecture, theirs.config, kind)
    with torch.no_grad():
        for name, part in _parts(theirs, architecture):
            data, number = _encoded(_there(part.float().numpy(), name, architecture, theirs.config), kind)
            values = np.array(gguf.dequantize(data, number), np.float32)
            part.copy_(torch.from_numpy(_back(values, name, architecture, theirs.config)))
            writer.add_tensor(name, data, raw_dtype=number)
    for name, factors in _rope_factors(theirs.config, architecture).items():
        writer.add_tensor(name, np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _parts(theirs: Any, architecture: str) -> Iterator[tuple[str, torch.Tensor]]:
    """(the file's name, the tensor or the part of one); a tied head is left out."""
    for name, parameter in theirs.named_parameters():
        stem, _, ending = name.rpartition(".")
        if stem in TOP:
            yield f"{TOP[stem]}.{ending}", parameter.data
            continue
        _, _, number, rest = stem.split(".", 3)
        if rest == "mlp.experts":
            if ending == "gate_up_proj":
                half = parameter.shape[1] // 2
                yield f"blk.{number}.ffn_gate_exps.weight", parameter.data[:, :half]
                yield f"blk.{number}.ffn_up_exps.weight", parameter.data[:, half:]
            else:
                yield f"blk.{number}.ffn_down_exps.weight", parameter.data
            continue
        behind = rest == "post_attention_layernorm" and architecture in POST_NORMED
        yield f"blk.{number}.{'post_attention_norm' if behind else LAYER[rest]}.{ending}", parameter.data


def _there(values: np.ndarray[Any, Any], name: str, architecture: str, config: Any) -> np.ndarray[Any, Any]:
    """A checkpoint's numbers as the file has them."""
    if architecture in SHIFTED and name.endswith("norm.weight"):
        return values + 1
    if (heads := _turned_heads(name, architecture, config)) is None:
        return values
    shape = values.shape
    return np.ascontiguousarray(values.reshape(heads, 2, -1, *shape[1:]).swapaxes(1, 2)).reshape(shape)


def _back(values: np.ndarray[Any, Any], name: str, architecture: str, config: Any) -> np.ndarray[Any, Any]:
    """The file's numbers as the checkpoint has them."""
    if architecture in SHIFTED and name.endswith("norm.weight"):
        return values - 1
    if (heads := _turned_heads(name, architecture, config)) is None:
        return values
    shape = values.shape
    return np.ascontiguousarray(values.reshape(heads, -1, 2, *shape[1:]).swapaxes(1, 2)).reshape(shape)


def _turned_heads(name: str, architecture: str, config: Any) -> int | None:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    return heads.get(name.split(".")[-2]) if architecture in PAIRED else None


def _encoded(values: np.ndarray[Any, Any], kind: str) -> tuple[np.ndarray[Any, Any], Any]:
    number = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
    if kind not in BLOCKS or values.ndim == 1:
        return gguf.quantize(np.ascontiguousarray(values), number), number
    size, scales = BLOCKS[kind]
    random = np.random.default_rng(values.size)
    blocks = random.integers(0, 256, (values.size // 256, size), dtype=np.uint8)
    for place, scale in scales.items():
        blocks[:, place : place + 2] = np.asarray([scale], np.float16).view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1), number


def _rope_factors(config: Any, architecture: str) -> dict[str, list[float]]:
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
        dim = 2 * len(frequencies)
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        return {"rope_freqs.weight": (plain / frequencies).tolist()}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{kind}.weight": rope[f"{kind}_factor"] for kind in ("long", "short")}
    return {}


def _metadata(writer: Any, name: str, config: Any, kind: str) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    numbers: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "expert_count": getattr(config, "num_local_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope["rope_theta"]),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "embedding_scale": getattr(config, "embedding_multiplier", None),
        "residual_scale": getattr(config, "residual_multiplier", None),
        "attention.scale": getattr(config, "attention_multiplier", None),
        "logit_scale": getattr(config, "logits_scaling", None),
    }
    if rope["rope_type"] == "longrope":
        numbers["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{name}.rope.scaling.type", rope["rope_type"])
        numbers["rope.scaling.factor"] = float(rope["factor"])
    for key, value in numbers.items():
        if value is not None:
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{name}.{key}", value)
    writer.add_file_type({"F32": 0, "F16": 1}.get(kind, 7))
    tokens = _bytes()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    controls = config.vocab_size - len(tokens) - 1
    writer.add_token_list([*tokens, "th", *(f"<|{i}|>" for i in range(controls))])
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) + 1) + [gguf.TokenType.CONTROL] * controls)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(config.vocab_size - 1)


def _bytes() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())
