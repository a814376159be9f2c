"""Tiny models with random weights, made by transformers on the spot: a folder that `LocalRuntime(path)` loads.

The tokenizer is byte-level (every byte a token, a few merges, ChatML marks), so any text has ids. The weights are
wide enough that logits differ clearly and greedy texts are not one token for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

ARCHITECTURES = ("llama", "llama3", "qwen2", "qwen3")

MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the"), ("Ġ", "t"), ("Ġ", "a"), ("e", "r"), ("o", "n"), ("Ċ", "Ċ")]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES: dict[str, Any] = {
    "vocab_size": 288,  # more than the tokenizer has, as in many checkpoints
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.25,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_tokenizer() -> Any:
    """A transformers tokenizer of 268 ids: 256 bytes, nine merges, three ChatML marks."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in MERGES)])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_config(arch: str, **overrides: Any) -> Any:
    """A transformers config: "llama" is tied (as SmolLM2), "llama3" has its rope, "qwen3" a head size of its own."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    if arch == "llama":
        return LlamaConfig(**{**SIZES, "tie_word_embeddings": True, **overrides})
    if arch == "llama3":
        return LlamaConfig(**{**SIZES, "rope_parameters": dict(LLAMA3_ROPE), **overrides})
    if arch == "qwen2":
        return Qwen2Config(**{**SIZES, "tie_word_embeddings": True, **overrides})
    if arch == "qwen3":
        return Qwen3Config(**{**SIZES, "head_dim": 16, **overrides})
    raise ValueError(f"arch={arch!r} is not one of {', '.join(ARCHITECTURES)}")


def tiny_hf_model(config: Any, seed: int = 0) -> Any:
    """The transformers model of a config, float32, with random weights (biases and norms too)."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


def make_tiny_model(folder: Path, arch: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Writes a tiny checkpoint with its tokenizer and returns its folder, `folder / arch`."""
    from transformers import GenerationConfig

    path = Path(folder) / arch
    tokenizer = tiny_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    pad = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    config = tiny_config(arch, eos_token_id=end, pad_token_id=pad, bos_token_id=None, **overrides)
    tiny_hf_model(config, seed).save_pretrained(path)
    tokenizer.save_pretrained(path)
    GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad).save_pretrained(path)
    return path
