"""The bytes that each token id stands for in a running text.

In: the JSON of a `tokenizers.Tokenizer`. Out: bytes per id, and whether its decoder drops a leading space.

Byte-level BPE writes bytes as printable characters (Radford et al. 2019, GPT-2); sentencepiece writes a space as
`▁` and bytes without a piece as `<0xE9>` (Kudo and Richardson 2018). In both, the text of a sequence is the
concatenation of its tokens' bytes, but for a space at the very start that the encoder added and the decoder drops.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import UnsupportedModelError

__all__ = ["TokenBytes"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """Character → byte: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(0x100 + i): b for i, b in enumerate(others)}}


class TokenBytes:
    """Turns the spelling of a token into its bytes, as the tokenizer's decoder would in the middle of a text.

    Attributes:
        drops_first_space: whether the decoder drops one space at the start of a text.

    Raises:
        UnsupportedModelError: a decoder under which a token has no bytes of its own (WordPiece, CTC).
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.drops_first_space = False
        self._byte_level = False
        self._byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        decoder = spec.get("decoder") or {"type": "none"}
        for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
            self._read(step)
        self._alphabet = _byte_level_alphabet() if self._byte_level else {}

    def _read(self, step: dict[str, Any]) -> None:
        kind = step["type"]
        if kind == "ByteLevel":
            self._byte_level = True
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind == "Metaspace":
            self._replacements.append((step["replacement"], " "))
            self.drops_first_space |= step["prepend_scheme"] != "never"
        elif kind == "Replace" and "String" in step["pattern"]:
            self._replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Strip" and step["content"] == " " and not step["stop"]:
            self.drops_first_space |= bool(step["start"])
        elif kind != "Fuse":
            raise UnsupportedModelError(
                f"the tokenizer decodes with {kind!r}: Radicel reads tokenizers whose tokens have bytes of their own "
                "(byte-level BPE, sentencepiece); use a model with such a tokenizer"
            )

    def __call__(self, spelling: str) -> bytes:
        """The bytes of an ordinary token with this spelling in the vocabulary."""
        byte = _BYTE_TOKEN.fullmatch(spelling) if self._byte_fallback else None
        if byte:
            return bytes([int(byte[1], 16)])
        for old, new in self._replacements:
            spelling = spelling.replace(old, new)
        if self._byte_level and all(c in self._alphabet for c in spelling):
            return bytes(self._alphabet[c] for c in spelling)
        return spelling.encode()
