"""The tokenizer of a model: text in, ids out, and back, exactly; and its chat template.

In: a folder or hub id that transformers can read. Out: a `Tokenizer`, the `Codec` of `chat.py`.
Chat templates are rendered by transformers from the tokenizer's own Jinja, never from a table of names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import ChatTemplateError, ModelError, UnsupportedModelError
from .run_encoder import RunEncoder
from .special_tokens import Span, SpecialTokens, is_markup
from .token_bytes import TokenBytes

__all__ = ["Tokenizer", "read_chat_template"]


class Tokenizer:
    """A transformers fast tokenizer, read so that nothing is lost between text, ids and bytes.

    Immutable; usable from many threads.

    Args:
        hf: the transformers tokenizer.

    Attributes:
        hf: the same.
        vocab_size: ids below it may be produced.
        bos_ids: what the tokenizer puts before raw text, often one BOS, often nothing.
        bos_id: the BOS token, whether or not it is put there, else None.
        bos_text: its spelling, else "".

    Raises:
        UnsupportedModelError: a tokenizer without a `tokenizer.json` form, or one whose tokens have no bytes.
    """

    def __init__(self, hf: Any) -> None:
        backend = getattr(hf, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModelError(
                f"{type(hf).__name__} has no tokenizer.json form; convert the model's tokenizer to a fast one "
                "(`AutoTokenizer.from_pretrained(...).save_pretrained(...)` writes tokenizer.json where it can)"
            )
        self.hf = hf
        spec = json.loads(backend.to_str())
        self._added = {t["id"]: t for t in spec["added_tokens"]}
        self._specials = SpecialTokens(spec["added_tokens"])
        self._runs = RunEncoder(spec, self._specials)
        self._to_bytes = TokenBytes(spec)
        self._spellings = _spellings(backend)
        self.vocab_size = len(self._spellings)
        self.bos_ids = _prefix_ids(hf)
        self.bos_id: int | None = hf.bos_token_id
        self.bos_text: str = hf.bos_token or ""

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        chat_template: str | Path | None = None,
        trust_remote_code: bool = False,
    ) -> Tokenizer:
        """Reads the tokenizer of a model.

        Args:
            path: a folder in the Hugging Face layout, or a hub id.
            chat_template: a file with a Jinja template, or the template itself, instead of the tokenizer's own.
            trust_remote_code: whether code that lies beside the model may run.

        Raises:
            ModelError: there is no tokenizer that transformers can read.
            ChatTemplateError: `chat_template` is neither a file nor a Jinja template.
        """
        from transformers import AutoTokenizer

        try:
            hf = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"no readable tokenizer in {str(path)!r} (tokenizer.json is missing?): {error}") from error
        if chat_template is not None:
            hf.chat_template = read_chat_template(chat_template)
        return cls(hf)

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template."""
        return bool(self.hf.chat_template)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False, **kwargs: Any
    ) -> str:
        """What the chat template makes of the messages (none is legal where the template allows it).

        Raises:
            ChatTemplateError: the template refuses these messages, or cannot be rendered.
        """
        try:
            rendered = self.hf.apply_chat_template(
                [list(messages)], tokenize=False, add_generation_prompt=add_generation_prompt, **kwargs
            )
        except Exception as error:
            roles = ", ".join(str(m["role"]) for m in messages) or "none"
            raise ChatTemplateError(f"the chat template refuses this conversation (roles: {roles}): {error}") from error
        return str(rendered[0])

    def special_spellings(self, text: str) -> list[Span]:
        """Where the text spells an added token, special or not (`<think>`)."""
        return self._specials.spellings(text)

    def encode_run(self, text: str, genuine: Sequence[Span] = (), *, at_start: bool = True) -> list[int]:
        """The ids of a run of text; spellings of added tokens mean the tokens in the genuine stretches only."""
        return self._runs.encode(text, genuine, at_start=at_start)

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which nothing means a special token, without BOS."""
        return self.encode_run(text)

    def decode(self, ids: Iterable[int], *, at_start: bool = False, skip_special_tokens: bool = False) -> str:
        """The text of ids: in the middle of a text, or at its start (where sentencepiece drops its own space).

        Ill-formed bytes are U+FFFD, an unfinished character at the end is dropped, as `TextStream` does.
        """
        from .detokenizer import TextStream

        stream = TextStream(self, skip_special_tokens=skip_special_tokens, at_start=at_start)
        for token_id in ids:
            stream.push(token_id)
        stream.finish()
        return stream.text

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a special token, one that texts leave out."""
        return token_id in self._added and bool(self._added[token_id]["special"])

    def is_markup(self, token_id: int) -> bool:
        """Whether the id is an added token that stands for markup, special or not (`<think>`), not for text."""
        added = self._added.get(token_id)
        return added is not None and (bool(added["special"]) or is_markup(added["content"]))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token in a running text; of a special token, its spelling; b"" for an id without a token."""
        return self._bytes[token_id]

    def run_bytes(self, ids: Sequence[int], *, skip_special_tokens: bool) -> bytes:
        """`token_bytes` of several ids, joined; without those of special tokens, if these leave no text."""
        if skip_special_tokens and not self._special.isdisjoint(ids):
            ids = [i for i in ids if i not in self._special]
        return b"".join(map(self._bytes.__getitem__, ids))

    def all_token_bytes(self) -> list[bytes]:
        """`token_bytes` of every id below `vocab_size`."""
        return list(self._bytes)

    @property
    def drops_first_space(self) -> bool:
        """Whether a space that starts a whole text is the tokenizer's own, and no part of the text."""
        return self._to_bytes.drops_first_space

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(filter(self.is_special, self._added))

    @cached_property
    def _bytes(self) -> list[bytes]:
        return [
            b"" if s is None else s.encode() if self.is_special(i) else self._to_bytes(s)
            for i, s in enumerate(self._spellings)
        ]

    def eos_ids(self, generation_config: Mapping[str, Any] | None = None) -> frozenset[int]:
        """The ids that end a text: of the generation config, the tokenizer, and the template's end of turn."""
        configured = (generation_config or {}).get("eos_token_id")
        ids = set(configured) if isinstance(configured, (list, tuple)) else {configured}
        ids |= {self.hf.eos_token_id, self._end_of_turn}
        return frozenset(i for i in ids if i is not None)

    @cached_property
    def _end_of_turn(self) -> int | None:
        """The token that the template puts right after an assistant's text, found by rendering one."""
        if not self.has_template:
            return None
        question, answer = "Which?", "This one."
        try:
            text = self.render([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
        except ChatTemplateError:
            return None
        rest = text.rpartition(answer)[2]
        match = next(iter(self._specials.find(rest, [(0, len(rest))])), None)
        return match.token_id if match is not None and not rest[: match.begin].strip() else None


def read_chat_template(template: str | Path) -> str:
    """The Jinja source from a file, or the string itself where it is a template.

    Raises:
        ChatTemplateError: a string that is no template and names no file.
    """
    if isinstance(template, str) and ("{{" in template or "{%" in template):
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ChatTemplateError(
            f"chat_template={str(template)!r} is neither a readable file nor a Jinja template: {error}"
        ) from error


def _spellings(backend: Any) -> list[str | None]:
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    spellings: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
    for spelling, token_id in vocab.items():
        spellings[token_id] = spelling
    return spellings


def _prefix_ids(hf: Any) -> tuple[int, ...]:
    """The ids that the tokenizer itself puts before a text."""
    probe = "a"
    plain = hf(probe, add_special_tokens=False)["input_ids"]
    whole = hf(probe, add_special_tokens=True)["input_ids"]
    for begin in range(len(whole) - len(plain) + 1):
        if whole[begin : begin + len(plain)] == plain:
            return tuple(whole[:begin])
    return ()
