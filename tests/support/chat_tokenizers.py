"""Small tokenizers made on the spot, in the styles that exist, and chat templates in the shapes that exist."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from radicel.runtime.tokenizer import Tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog says: Hello there!",
    "You are a helpful assistant. The user asks, the assistant answers.\n\nHello\n\nyes no maybe",
    'def f(x):\n    return {"name": "Zoë", "age": 12}\n\n\nprint(f(3))  # 客单价 😀 ñandú',
    "system user assistant tool hi hi hi bye thanks sure okay Paris London Berlin",
]

SPECIALS = [
    "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]",
]  # fmt: skip
UNFLAGGED = ["<think>", "</think>", "<tool_call>"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_SYSTEM = (  # a default system turn, as SmolLM2 and Qwen2.5 have
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}"
    "{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m['content'] %}"
    "{% else %}{% set content = m['content'] %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'"
    " + m['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{% set text = bos_token + text %}{% endif %}"
    "{{ text }}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN3 = (  # thinking leaves the history; a last answer is written anew
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if m['role'] != 'assistant' %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% else %}"
    "{% set content = m['content'] %}{% set thought = '' %}{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last and thought %}"
    "{{ '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{% else %}{{ '<|im_start|>assistant\n' + content }}{% endif %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}{% endif %}"
)
MISTRAL = (  # the system text moves into the last user turn
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = none %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('After the optional system message, roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{% if loop.last and system is not none %}"
    "{{ '[INST] ' + system + '\n\n' + m['content'] + '[/INST]' }}{% else %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
    "{% endif %}{% else %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
REORDER = (  # the newest user text first, and the system text twice
    "{% for m in messages if m['role'] == 'system' %}<|im_start|>system\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% for m in messages | reverse if m['role'] != 'system' %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}{% for m in messages if m['role'] == 'system' %}<|im_start|>system\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PEEKING = (  # looks into the contents, so that marks in them change what it does
    "{% for m in messages %}{% if m['content'].startswith('Hello') %}<|im_start|>{{ m['role'] }} (greets)\n{% else %}"
    "<|im_start|>{{ m['role'] }} ({{ m['content'] | length }})\n{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TEMPLATES = {
    "chatml": CHATML, "chatml_system": CHATML_SYSTEM, "llama2": LLAMA2, "llama3": LLAMA3, "qwen3": QWEN3,
    "mistral": MISTRAL, "gemma": GEMMA, "reorder": REORDER, "peeking": PEEKING,
}  # fmt: skip
NO_SYSTEM = {"gemma"}
STYLES = ("byte_level", "llama_legacy", "llama_first", "unigram")


def make(style: str = "byte_level", template: str | None = CHATML, **options: Any) -> Tokenizer:
    """A tokenizer in one of the `STYLES` with a chat template; `bos=True` puts `<s>` before raw text."""
    return Tokenizer(hf_tokenizer(style, template, **options))


def hf_tokenizer(style: str, template: str | None, *, bos: bool = False, more: Iterable[Any] = ()) -> Any:
    """The transformers tokenizer of `make`; `more` are further added tokens."""
    backend = Backend.from_str(_trained(style))
    backend.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIALS])
    backend.add_tokens([AddedToken(s, normalized=False) for s in UNFLAGGED])
    for token in more:
        backend.add_tokens([token])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    hf.chat_template = template
    return hf


@lru_cache
def _trained(style: str) -> str:
    backend: Backend = {"byte_level": _byte_level, "unigram": _unigram}.get(style, _llama)()
    if style == "llama_first":
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    serialised: str = backend.to_str()
    return serialised


def _byte_level() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return backend


def _llama() -> Backend:
    """BPE with byte fallback, spaces as `▁`, one put before every stretch between special tokens (Llama 2)."""
    learner = Backend(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    learned = learner.get_vocab()
    first = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    names = [*first, *sorted(learned, key=lambda s: learned[s])]
    vocab = {name: i for i, name in enumerate(names)}
    merges = [tuple(m) for m in _merges(learner)]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _merges(backend: Backend) -> list[Any]:
    import json

    merges: list[Any] = json.loads(backend.to_str())["model"]["merges"]
    return merges


def _unigram() -> Backend:
    """Unigram, whose vocabulary itself holds the spellings of special tokens (T5)."""
    learner = Backend(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=180, unk_token="<unk>", show_progress=False))
    scores: dict[str, float] = dict(_unigram_vocab(learner))
    scores = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, **{f"<0x{b:02X}>": -20.0 for b in range(256)}, **scores}
    for char in map(chr, range(0x21, 0x7F)):
        scores.setdefault(char, -12.0)
    backend = Backend(models.Unigram(list(scores.items()), unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return backend


def _unigram_vocab(backend: Backend) -> list[Any]:
    import json

    vocab: list[Any] = json.loads(backend.to_str())["model"]["vocab"]
    return vocab
