"""The tokens of a backend as ids and as text, also after it was closed.

In: a backend. Out: the ids of a prompt, the bytes of an id, generated ids as pieces of text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ..backend import Backend, Meta
from ..backends.messages import chatml
from ..backends.mock import MockBackend
from ..prompt import Generated, Prompt
from .model import Piece

__all__ = ["Tokens"]


class Tokens:
    """What is known of a backend's tokens.

    Attributes:
        unit: "tokens"; "bytes" where there are none, and prompts are their UTF-8 bytes with roles in ChatML.
        counts: what the backend counts, "tokens" or "bytes".
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._bytes = None if isinstance(backend, MockBackend) else _token_bytes(backend)
        self.unit = "bytes" if self._bytes is None else "tokens"
        self.counts = "bytes" if isinstance(backend, MockBackend) else "tokens"

    def ids(self, prompt: Prompt) -> Sequence[int]:
        """The ids of a prompt; empty where it has none (a conversation that the chat template refuses)."""
        if self._bytes is None:
            return list(_utf8(chatml(prompt)))
        try:
            return self._backend.encode(prompt).token_ids
        except Exception:
            return ()

    def written(self, generated: Generated | None) -> tuple[Sequence[int], int]:
        """The ids that a value adds, and how many at the prompt's end it spells anew."""
        if generated is None:
            return (), 0
        if self._bytes is None:
            return list(_utf8(generated.text)), 0
        return generated.token_ids or (), len(generated.replaced)

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        """What each id spells."""
        if self._bytes is None:
            return [bytes((i,)) for i in ids]
        return [self._bytes(int(i)) for i in ids]

    def text(self, ids: Sequence[int]) -> str:
        """What they spell together."""
        return b"".join(self.bytes_of(ids)).decode("utf-8", "replace")

    def pieces(self, meta: Meta) -> tuple[Piece, ...]:
        """The tokens of a value, with what is known of each."""
        if meta.token_texts is not None:
            texts = list(meta.token_texts)
        elif meta.token_ids and self._bytes is not None:
            texts = _texts(self.bytes_of(meta.token_ids))
        else:
            return ()
        known = (meta.logprobs or ())[: len(texts)]
        logprobs: list[float | None] = [*known, *[None] * (len(texts) - len(known))]
        if "stop" in meta.reencoded and logprobs:
            logprobs[-1] = None  # its token was cut, so the number is of another one
        tops = meta.top_logprobs or ()
        return tuple(
            Piece(text, logprob, self._others(tops[at]) if at < len(tops) else ())
            for at, (text, logprob) in enumerate(zip(texts, logprobs))
        )

    def _others(self, top: dict[int, float]) -> tuple[tuple[str, float], ...]:
        likeliest = sorted(top.items(), key=lambda entry: -entry[1])
        return tuple((self.text((i,)) if isinstance(i, int) else str(i), logprob) for i, logprob in likeliest)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _texts(parts: Sequence[bytes]) -> list[str]:
    """Each part's characters; a character that several make is the last one's."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(part) for part in parts]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts


def _token_bytes(backend: Any) -> Callable[[int], bytes] | None:
    """What an id spells, where the backend says so or shows a tokenizer that decodes."""
    own = getattr(backend, "token_bytes", None)
    if own is not None:
        return lru_cache(1 << 16)(own)
    decode = getattr(getattr(backend, "tokenizer", None), "decode", None)
    if decode is None:
        return None
    return lru_cache(1 << 16)(lambda i: str(decode([i])).encode())
