"""The tokenizer of a `.gguf` file as a `tokenizer.json`.

In: the file's metadata. Out: a `tokenizers.Tokenizer` and the fields of `tokenizer_config.json`. Two models are known:
"gpt2", a byte-level BPE whose split is one of `SPLITS`, and "llama", a BPE of SentencePiece (Llama 2, Mistral, Gemma,
Phi-3), whose merges follow from the scores of its tokens. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ..errors import UnsupportedModelError, WeightsError

__all__ = ["SPLITS", "tokenizer_config_of", "tokenizer_of"]

Meta = Mapping[str, Any]
SPACE = "▁"

_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_regex(pattern: str) -> Any:
    """Split by a pattern, then bytes."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _digits_alone() -> Any:
    """Each digit alone, then the byte-level split of GPT-2."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_REST_OF_CASED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(numbers: str, contraction: str = "") -> str:
    """Words in which capitals come first, as the pattern of GPT-4o; with its contractions or without."""
    capitalised = f"{_BEFORE}{_UPPER}*{_LOWER}+{contraction}|{_BEFORE}{_UPPER}+{_LOWER}*{contraction}"
    return f"{capitalised}|{numbers}{_REST_OF_CASED}"


SPLITS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "olmo": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _digits_alone,
    "refact": _digits_alone,
    "llama-bpe": lambda: _by_regex(_CONTRACTED + r"\p{N}{1,3}" + _REST),
    "smaug-bpe": lambda: _by_regex(_CONTRACTED + r"\p{N}{1,3}" + _REST),
    "dbrx": lambda: _by_regex(_CONTRACTED + r"\p{N}{1,3}" + _REST),
    "qwen2": lambda: _by_regex(_CONTRACTED + r"\p{N}" + _REST),
    "gpt-4o": lambda: _by_regex(_cased(r"\p{N}{1,3}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?")),
    "tekken": lambda: _by_regex(_cased(r"\p{N}")),
}
"""What `tokenizer.ggml.pre` names → how text is split before merging."""
_WHOLE_WORDS = ("llama-bpe", "tekken")
"""Splits whose pieces are taken as they are where the vocabulary has them."""


def tokenizer_of(path: Path, meta: Meta) -> Any:
    """The tokenizer; `path` is for messages.

    Raises:
        UnsupportedModelError: another model or split.
        WeightsError: the file has no tokenizer.
    """
    if "tokenizer.ggml.tokens" not in meta:
        raise WeightsError(f"{path} holds no tokenizer (tokenizer.ggml.tokens)")
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "gpt-2")
    if kind == "gpt2" and pre in SPLITS:
        tokenizer = _byte_level(meta, pre)
    elif kind == "llama":
        tokenizer = _sentencepiece(meta)
    else:
        known = ", ".join(map(repr, SPLITS))
        raise UnsupportedModelError(
            f"{path}: tokenizer {kind!r} split by {pre!r} is not supported; known: 'llama', and 'gpt2' split by {known}"
        )
    _add_specials(tokenizer, meta)
    _add_start(tokenizer, meta, by_default=kind == "llama" or pre == "llama-bpe")
    return tokenizer


def tokenizer_config_of(meta: Meta) -> dict[str, Any]:
    """The fields of `tokenizer_config.json`."""
    tokens = meta["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta[f"{meta['general.architecture']}.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": bool(meta.get("tokenizer.ggml.add_space_prefix", False)),
    }
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for key, source in names.items():
        if (token_id := meta.get(f"tokenizer.ggml.{source}_token_id")) is not None:
            config[key] = tokens[token_id]
    if (template := meta.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return config


def _byte_level(meta: Meta, pre: str) -> Any:
    vocab = {token: i for i, token in enumerate(meta["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in meta.get("tokenizer.ggml.merges", ())]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = SPLITS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(meta: Meta) -> Any:
    tokens, scores = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.scores"]
    vocab = {token: i for i, token in enumerate(tokens)}
    unknown = tokens[meta.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=_merges(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    before = [normalizers.Prepend(SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    after = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return tokenizer


def _merges(vocab: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a third, the best third first: SentencePiece merges by the result's score."""
    found = [
        (-scores[number], vocab[token[:cut]], vocab[token[cut:]], token[:cut], token[cut:])
        for token, number in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _add_specials(tokenizer: Any, meta: Meta) -> None:
    """Tokens that are found in a text before it is split. All are in the vocabulary, so none gets a new id."""
    special: list[AddedToken] = []
    named: list[AddedToken] = []
    for token, kind in zip(meta["tokenizer.ggml.tokens"], meta.get("tokenizer.ggml.token_type", ())):
        if kind == TokenType.CONTROL:
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == TokenType.USER_DEFINED:
            named.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(named)


def _add_start(tokenizer: Any, meta: Meta, *, by_default: bool) -> None:
    """Texts begin with the start token where the file says so."""
    number = meta.get("tokenizer.ggml.bos_token_id")
    if number is None or not meta.get("tokenizer.ggml.add_bos_token", by_default):
        return
    token = meta["tokenizer.ggml.tokens"][number]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, number)]
    )
